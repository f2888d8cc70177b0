"""Vectors of another program, measured as those of a model are: arrays or files, and pairs of their rows.

A file of pairs has one line of JSON for each row of the texts, in their order:

    {"image": 0, "text": "A dog runs."}                          the row of the image, from 0
    {"image": 0, "text": "A dog runs.", "key": "photos/a.jpg"}   the same, with a name for the image
    {"image": "photos/a.jpg", "text": "A dog runs."}             names: rows in order of first appearance

An image may have several texts, a text has one image. `"image": null` is a text of no image: it competes, and
is no query. Names that are files, seen from the folder of the pairs, are shown on the page.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from os.path import exists, isfile, join
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from grainline.data.decode import decode
from grainline.data.formats.common import digest
from grainline.data.formats.parsed import parse_json, read_text
from grainline.data.pairs import ImageTextPairs
from grainline.data.record import CorruptSample
from grainline.data.vector_parts import MANIFEST, read_vectors
from grainline.errors import UserError, amount, some, suggestion
from grainline.evaluation.encode import Collector, Encodings, Sample
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.score import Cosine
from grainline.report.case import CaseImage
from grainline.report.page import MissingImage
from grainline.system import regular
from grainline.types import Encoded, rows

SIMILARITIES = "cosine", "dot"
NAMES = {  # of arrays in a file: those of grainline, transformers and open_clip
    "images": ("images", "image", "image_embeds", "image_features"),
    "texts": ("texts", "text", "text_embeds", "text_features"),
}
KINDS = ".npy, .npz, .safetensors, or the folder of `grainline encode`"
BLOCK = 4096  # rows that are converted at a time
FORM = '{"image": ROW or NAME, "text": "..."}'


class Dot(Cosine):
    """Products of the vectors, which are cosines where these have unit length."""

    has_layout = False


class ScoreMatrix(Dot):
    """Scores of all pairs that somebody else computed: [N, M]"""

    pairwise = blockwise = True

    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        rows, columns = images.item.numpy(), texts.item.numpy()
        return torch.from_numpy(np.array(self.scores[rows[:, None], columns], dtype=np.float32))


class Embeddings(NamedTuple):
    """Vectors or scores with their pairs, in place of a model and its encodings."""

    method: Any  # a `Scorer`
    data: Encodings
    source: ImageTextPairs  # the images behind the rows, as far as pairs name files
    about: dict[str, Any]  # for `Result.settings`, as `result.origin` has it of a model


class VectorEvaluation(Evaluation):
    """A result of `Embeddings` in place of a model: images are shown whole, and nothing looks into them."""

    def image(self, row: int) -> Image.Image | MissingImage:
        try:
            return decode(self.source[row])
        except CorruptSample:
            return MissingImage(f"image {self.data.keys[row]}")

    displayed = image

    def look(self, row: int, text: str) -> CaseImage | None:
        return None

    def crop_sentence(self) -> str:
        return "Images are shown where the pairs name files."

    whole_sentence = crop_sentence


def open_vectors(  # long by its docstring, and by the fields of `Encodings`
    vectors: Any, pairs: Any = None, scores: Any = None, similarity: str = "cosine", images: str | None = None
) -> Embeddings:
    """Vectors with their pairs, ready for `Suite.measure`.

    vectors     (images [N, D], texts [M, D]): numpy, torch, or files (.npy, .npz, .safetensors); or one
                file, or the folder of `grainline encode`, with both; None: `scores` alone
    pairs       a file as above; or for each text the row of its image, (row, text), or the fields of such a
                line; None: those of a folder of `grainline encode`
    scores      [N, M], an array or a .npy file: they rank, in place of products of the vectors
    similarity  "cosine": of vectors of any length; "dot": products of the vectors as they are
    images      folder of the images that pairs name; None: that of the file of pairs

    Raises UserError for sizes that do not fit, numbers that are NaN or infinite, and pairs of unknown rows.
    """
    if similarity not in SIMILARITIES:
        near = suggestion(similarity, SIMILARITIES)
        raise UserError(f"similarity is {similarity!r}{near}; allowed: {', '.join(SIMILARITIES)}")
    if vectors is None and scores is None:
        raise UserError("no vectors and no scores; give the vectors of images and of texts")
    name, known, own_pairs = "scores", None, None
    if vectors is not None:
        (a, b), name, known, own_pairs = _both_sides(vectors)
        image, text = _vectors(a, "image", similarity), _vectors(b, "text", similarity)
        a, b = image.shape[1], text.shape[1]
        if a != b:
            raise UserError(f"vectors of images have {a} numbers and those of texts {b}; both need as many")
    method: Any = Dot()
    if scores is not None:
        matrix = _matrix(scores)
        method = ScoreMatrix(matrix)
        if vectors is None:
            image, text = (torch.zeros(number, 1) for number in matrix.shape)
        if matrix.shape != (len(image), len(text)):
            sizes = f"{amount(len(image), 'image')} and {amount(len(text), 'text')}"
            wanted = f"[{len(image)}, {len(text)}], images in the rows"
            raise UserError(f"scores are {list(matrix.shape)}; {sizes} need {wanted}")
    where = str(pairs) if isinstance(pairs, str | Path) else "the pairs"
    if pairs is None:
        if own_pairs is None:
            raise UserError(f"no pairs: give a file with one line a text, {FORM}, or the row of each image")
        pairs, where = own_pairs, "rows.jsonl"
    lines = _lines(pairs, where)
    owner, strings, keys = _matched(lines, where, len(image), len(text), known)
    order = (
        f"names of images stand for rows of the vectors in order of first appearance: {keys[0]} is row 0, "
        f"{keys[-1]} row {len(keys) - 1}; where the vectors are in another order, give rows in place of names"
    )
    named = known is None and any(isinstance(line["image"], str) for line in lines)
    data = Encodings(
        images=_encoded(image, torch.arange(len(image))),
        texts=_encoded(text, torch.tensor(owner)),
        keys=tuple(keys),
        strings=tuple(strings),
        path=where,
        fingerprint=digest([*keys, *map(str, owner), *strings]),
        captions="each",
        several=sum(number > 1 for row, number in Counter(owner).items() if row >= 0),
        samples=len(image),
        damaged={},
        damaged_first=(),
        blank=0,
        cut=0,
        positions=tuple(range(len(image))),
        remarks=(order,) * named,
    )
    kind = ("vectors", similarity) if scores is None else ("scores", "scores")
    about = {"model": name, "method": kind[0], "similarity": kind[1]}
    folder = images or (str(Path(where).parent) if Path(where).suffix else ".")
    return Embeddings(method, data, ImageTextPairs(zip(keys, [()] * len(keys), strict=True), folder), about)


class Lookup(Collector):
    """Vectors of another program in place of a model, for a walk over a set: those of an image are found by
    its name, those of a text by its words. Raises UserError for one without a vector.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self.method, data = embeddings.method, embeddings.data
        self.side = {"image": data.images, "text": data.texts}
        self.row = {
            "image": {key: row for row, key in enumerate(data.keys)},
            "text": {text: row for row, text in enumerate(data.strings)},
        }
        self.keys: list[str] = []  # of the images that wait

    def add(self, sample: Sample) -> None:
        self.keys.append(sample.record.key)

    def result(self, data: Encodings) -> None:
        return None

    def encode(self, images: Sequence[Any] = (), texts: Sequence[str] = ()) -> Encoded:
        """The vectors of the next images, or of texts."""
        some, self.keys = self.keys[: len(images)], self.keys[len(images) :]
        names, side = (some, "image") if some else (texts, "text")
        missing = [name for name in names if name not in self.row[side]]
        if missing:
            raise UserError(f"no vector of the {side} {missing[0]!r}; pairs name it as the set does")
        return rows(self.side[side], torch.tensor([self.row[side][name] for name in names]))


Pairs = list[dict[str, Any]] | None


def open_named(files: str) -> Embeddings | None:
    """The vectors in files joined by +, or in a folder of `grainline encode`; None for anything else.

    IMAGES.npy+TEXTS.npy+PAIRS.jsonl    BOTH.npz+PAIRS.jsonl    FOLDER
    """
    parts = files.split("+")
    if not isfile(join(files, MANIFEST)) and (len(parts) == 1 or exists(files)):
        return None
    parts = [files] if exists(files) else parts
    pairs = parts.pop() if Path(parts[-1]).suffix == ".jsonl" else None
    return open_vectors(parts, pairs)


def _both_sides(vectors: Any) -> tuple[tuple[Any, Any], str, list[str] | None, Pairs]:
    """The arrays of images and of texts, their name, and the keys and pairs of a folder."""
    if isinstance(vectors, str | Path | Mapping):
        vectors = [vectors]
    if not isinstance(vectors, Sequence) or len(vectors) not in (1, 2):
        raise UserError("vectors are two arrays or files, of images and of texts, or one file with both")
    names = [str(one) if isinstance(one, str | Path) else "arrays in memory" for one in vectors]
    folders = [read_vectors(str(one)) if _is_folder(one) else (_arrays(one), []) for one in vectors]
    (first, keyed), (last, paired) = folders[0], folders[-1]
    sides = _array(first, "images", names[0]), _array(last, "texts", names[-1], len(vectors) == 1)
    keys = [str(row["key"]) for row in keyed if row["side"] == "images"]
    texts = (row for row in paired if row["side"] == "texts" and row.get("key") is not None)
    pairs = [{"image": row["key"], "text": row["text"]} for row in texts]
    return sides, " and ".join(dict.fromkeys(names)), keys or None, pairs or None


def _is_folder(vectors: Any) -> bool:
    """Whether this is the path of a complete folder of `grainline encode`."""
    return isinstance(vectors, str | Path) and isfile(join(vectors, MANIFEST))


def _arrays(path: Any) -> Mapping[str, Any]:
    """The arrays of a file by their names; a large .npy is not read before its rows are used."""
    if not isinstance(path, str | Path):
        return path if isinstance(path, Mapping) else {"": path}
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{file} holds no {MANIFEST}, so it is no complete folder of `grainline encode`")
    if file.suffix not in (".npy", ".npz", ".safetensors"):
        raise UserError(f"{file} is of no known kind; vectors are {KINDS}")
    try:
        regular(file)
        if file.suffix == ".npy":
            return {"": np.lib.format.open_memmap(file, mode="r")}
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        return load_file(file)
    except OSError as error:
        raise UserError(f"vectors {file} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # damage makes numpy raise nearly everything
        why = str(error).removesuffix(" when allow_pickle=False")  # which nobody should change
        raise UserError(f"vectors {file} cannot be read: {why}") from None


def _array(arrays: Mapping[str, Any], side: str, where: str, both: bool = False) -> Any:
    """The array of a side; the only one of a file that has one side."""
    name = next((name for name in NAMES[side] if name in arrays), None)
    if name is None and len(arrays) == 1 and not both:
        return next(iter(arrays.values()))
    if name is None:
        others = some(list(filter(None, arrays))) or "one array without a name"
        raise UserError(f"{where} has no array {' or '.join(NAMES[side])}; there is {others}")
    return arrays[name]


def _vectors(array: Any, side: str, similarity: str) -> Tensor:
    """Vectors [N, D] in float32, of unit length for cosines."""
    shape = list(array.shape) if hasattr(array, "shape") else list(np.shape(array))
    if len(shape) != 2 or 0 in shape:
        raise UserError(f"vectors of {side}s are {shape}; they must be [rows, numbers]")
    if "uint8" in str(getattr(array, "dtype", "")):
        raise UserError(f"vectors of {side}s are uint8, as packed bits are; give floats, or --scores")
    out = torch.empty(shape, dtype=torch.float32)
    for start, block in _blocks(array, f"vectors of {side}s"):
        bad, why = ~block.isfinite().all(1), "has numbers that are NaN or infinite"
        if similarity == "cosine" and not bool(bad.any()):
            bad, why = (block == 0).all(1), "has length 0, so no cosine; leave it out, or take dot"
        if bool(bad.any()):
            raise UserError(f"vector {start + int(bad.nonzero()[0, 0])} of the {side}s {why}")
        if similarity == "cosine":
            block = F.normalize(block / block.abs().amax(1, keepdim=True), dim=1)
        out[start : start + len(block)] = block
    return out


def _blocks(array: Any, what: str) -> Iterator[tuple[int, Tensor]]:
    """Rows of numpy or torch in float64, some at a time."""
    array = array if isinstance(array, Tensor | np.ndarray) else np.asarray(array)
    if array.dtype in (torch.bool, torch.complex64, torch.complex128) or (
        isinstance(array, np.ndarray) and array.dtype.kind not in "fiu"
    ):
        raise UserError(f"{what} are of type {array.dtype}; they must be numbers")
    for start in range(0, len(array), BLOCK):
        rows = array[start : start + BLOCK]
        rows = rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows, dtype=np.float64))
        yield start, rows.detach().cpu().double()


def _matrix(scores: Any) -> np.ndarray:
    """Scores [N, M], from a file or an array, none of them NaN."""
    array = _array(_arrays(scores), "images", str(scores)) if isinstance(scores, str | Path) else scores
    try:
        matrix = array.detach().cpu().float().numpy() if isinstance(array, Tensor) else np.asanyarray(array)
    except ValueError:
        raise UserError("scores have rows of different lengths; they must be [images, texts]") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UserError(f"scores are {list(matrix.shape)}; they must be [images, texts]")
    for start, block in _blocks(matrix, "scores"):
        if bool(block.isnan().any()):
            row, column = block.isnan().nonzero()[0].tolist()
            raise UserError(f"the score of image {start + row} and text {column} is NaN")
        if bool((block.float().isinf() & block.isfinite()).any()):
            raise UserError("scores reach beyond 3.4e38, the range of 32 bits; divide them by their largest")
    return matrix


def _lines(pairs: Any, where: str) -> list[Mapping[str, Any]]:
    """The fields of each text, in the order of the texts."""
    if isinstance(pairs, str | Path):
        text = read_text(str(pairs))
        try:
            pairs = [parse_json(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise UserError(f"{where} is no file of JSON lines, each {FORM}: {error}") from None
    if isinstance(pairs, Tensor | np.ndarray):
        pairs = pairs.tolist()
    if not isinstance(pairs, Sequence):
        raise UserError(f"{where} are of type {type(pairs).__name__}; give a file, or a list of one a text")
    return [_line(one, i, where) for i, one in enumerate(pairs)]


def _line(one: Any, number: int, where: str) -> Mapping[str, Any]:
    if isinstance(one, tuple | list) and len(one) == 2:
        one = {"image": one[0], "text": one[1]}
    elif one is None or isinstance(one, int | str | np.integer):
        one = {"image": one}
    if not isinstance(one, Mapping) or "image" not in one or not isinstance(one.get("text", ""), str):
        raise UserError(f"{where}: entry {number + 1} is no pair; write {FORM}")
    image = one["image"]
    # A number that no row has may have too many digits to be printed.
    if isinstance(image, bool | list | dict | float) or (isinstance(image, int) and abs(image) >= 2**63):
        raise UserError(f"{where}: entry {number + 1}: image is a row or a name, one of them, or null")
    return one


def _matched(
    lines: list[Mapping[str, Any]], where: str, images: int, texts: int, keys: list[str] | None
) -> tuple[list[int], list[str], list[str]]:
    """The row of the image of each text (-1 for none), the texts, and the names of the images."""
    if len(lines) != texts:
        sizes = f"{amount(len(lines), 'line')} for {amount(texts, 'text vector')}"
        raise UserError(f"{where} has {sizes}; one a text is needed")
    if keys is not None and len(set(keys)) < images:
        raise UserError(f"rows.jsonl names {len(set(keys))} images for {amount(images, 'image vector')}")
    values = [line["image"] for line in lines]
    named = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    if named and any(isinstance(value, int | np.integer) for value in values):
        raise UserError(f"{where} has rows and names of images; use one of them throughout")
    if named and keys is None and len(named) != images:
        sizes = f"{amount(len(named), 'image')} for {amount(images, 'image vector')}"
        raise UserError(f"{where} names {sizes}; each image needs a text that names it, or give rows")
    rows = {key: i for i, key in enumerate(named if keys is None else keys)}
    names = dict(enumerate(rows)) if rows and (named or keys) else {}
    owner = []
    for i, (line, value) in enumerate(zip(lines, values, strict=True), 1):
        row = -1 if value is None else rows.get(value, -1) if isinstance(value, str) else int(value)
        if value is not None and not 0 <= row < images:
            near = suggestion(value, rows) if isinstance(value, str) else f"; rows are 0 to {images - 1}"
            raise UserError(f"{where}: entry {i}: there is no image {value!r}{near}")
        if "key" in line and names.setdefault(row, str(line["key"])) != str(line["key"]):
            raise UserError(f"{where}: entry {i}: image {row} has another key before, {names[row]}")
        owner.append(row)
    strings = [line.get("text", f"text {i}") for i, line in enumerate(lines)]
    return owner, strings, [names.get(row, str(row)) for row in range(images)]


def _encoded(vector: Tensor, image: Tensor) -> Encoded:
    number = len(vector)
    tokens, mask = vector.new_zeros(number, 0, vector.shape[1]), torch.zeros(number, 0).bool()
    return Encoded(vector, tokens, mask, torch.arange(number), image)
