"""Time and memory of a model while it is measured, and the encodings of images that it has computed already.

Several suites, and several ways to read captions, walk over the same images. A `Meter` times what the method
encodes and remembers the rows of images by their pixels, so that each image is encoded once.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from grainline.evaluation.comparison import Cost
from grainline.evaluation.encode import Encodings, numbered, stack
from grainline.evaluation.score import Scorer, all_scores
from grainline.methods.base import Method
from grainline.system import resident_memory
from grainline.types import Encoded, Images, Texts, each, rows

QUERIES = 5  # that are timed against the gallery
SIDES = "image", "text"


class Meter:
    """Times a method and remembers rows of images: while it is open, `encode_images` and `encode_texts` of
    the method are its own.

    Rows are remembered as `reduce` leaves them, with tokens only where a suite reads these; None: not at all.
    """

    def __init__(self, method: Method, reduce: Callable[[Encoded], Encoded] | None) -> None:
        self.method, self.reduce = method, reduce
        self.device = next(method.parameters()).device
        self.encode: dict[str, Any] = {"image": method.encode_images, "text": method.encode_texts}
        self.memory: dict[bytes, Encoded] = {}
        self.start()

    def __enter__(self) -> "Meter":
        own: Any = self.method
        own.encode_images = self._images
        own.encode_texts = lambda texts: self._timed("text", texts, len(texts.item))
        return self

    def __exit__(self, *_: object) -> None:
        own: Any = self.method
        del own.encode_images, own.encode_texts

    def start(self) -> None:
        """Begin to count anew; what is remembered stays."""
        self.batches: dict[str, list[tuple[int, float]]] = {"image": [], "text": []}  # rows and seconds
        self.peak = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def counts(self, data: Encodings | None = None) -> dict[str, Any]:
        """The rows and seconds since `start`, for `cost_of`. data: a query is scored against its images."""
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else f"cpu, threads: {torch.get_num_threads()}"
        out: dict[str, Any] = {"device": name, "query": None, "gallery": 0}
        for side, batches in self.batches.items():
            timed = batches[1:] or batches  # the first one warms up
            out[side] = [sum(n for n, _ in batches), sum(n for n, _ in timed), sum(s for _, s in timed)]
        if data is not None:
            out |= {"query": query_seconds(self.method, data), "gallery": len(data.images.vector)}
        self._note_memory()
        return out | {"peak": torch.cuda.max_memory_allocated(self.device) if cuda else self.peak}

    def _images(self, images: Images) -> Encoded:
        if self.reduce is None or images.regions is not None or images.features is not None:
            return self._timed("image", images, len(images.image))
        keys = _digests(images)
        new = {key: i for i, key in enumerate(keys) if key not in self.memory}
        if new:
            index = torch.tensor(list(new.values()), device=images.image.device)
            encoded = self._timed("image", rows(images, index), len(new))
            if len(new) == len(keys):
                self._remember(keys, self.reduce(encoded))
                return encoded
            self._remember(list(new), self.reduce(encoded))
        return numbered(stack([self.memory[key] for key in keys]))

    def _remember(self, keys: Sequence[bytes], encoded: Encoded) -> None:
        for i, key in enumerate(keys):  # copies: a view would keep all of its batch
            self.memory[key] = each(Tensor.clone, rows(encoded, slice(i, i + 1)))

    def _timed(self, side: str, batch: Images | Texts, number: int) -> Encoded:
        started = self._clock()
        encoded: Encoded = self.encode[side](batch)
        self.batches[side].append((number, self._clock() - started))
        self._note_memory()
        return encoded

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _note_memory(self) -> None:
        self.peak = max(self.peak, resident_memory())


def _digests(images: Images) -> list[bytes]:
    """Digests of the pixels of each image, and of the description that is read with it."""
    out = []
    for i, pixels in enumerate(images.pixels.cpu()):
        text = None if images.dense is None else images.dense.ids[i][images.dense.mask[i]]
        digest = blake2b(pixels.contiguous().numpy().data, digest_size=16)
        digest.update(repr((pixels.shape, text if text is None else text.tolist())).encode())
        out.append(digest.digest())
    return out


def query_seconds(method: Scorer, data: Encodings) -> float:
    """The median time to score one text against all images that are encoded already."""
    times = []
    for i in range(min(QUERIES, len(data.texts.vector)) + 1):  # the first one warms up
        text, started = rows(data.texts, slice(max(0, i - 1), max(1, i))), time.perf_counter()
        all_scores(method, data.images, text).cpu()
        times.append(time.perf_counter() - started)
    return sorted(times[1:])[(len(times) - 1) // 2]


def cost_of(counts: Sequence[dict[str, Any]]) -> Cost | None:
    """The cost of a model, from the counts of all its results; None without any."""
    if not counts:
        return None
    sums = {side: [sum(x) for x in zip(*(one[side] for one in counts), strict=True)] for side in SIDES}
    images, texts = (1000 * seconds / timed if timed else 0.0 for _, timed, seconds in sums.values())
    largest = max(counts, key=lambda one: one["gallery"])
    query = None if largest["query"] is None else 1000 * largest["query"]
    devices = "; ".join(dict.fromkeys(one["device"] for one in counts))
    peak = max(one["peak"] for one in counts) / 2**20
    return Cost(devices, sums["image"][0], images, sums["text"][0], texts, query, largest["gallery"], peak)
