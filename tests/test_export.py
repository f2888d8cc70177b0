"""ONNX graphs of methods and of pretrained encoders: as good as torch in any batch, or not there at all."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import checkpoints
import make
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from runs import call, complaint
from torch import Tensor, nn

from grainline.build import Description, build, write_description
from grainline.config import override, parse
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.tokenizers.tokenizer_files import read_tokenizer
from grainline.errors import UserError
from grainline.export import onnx
from grainline.export.onnx import OUTPUTS, ImageTower, Outputs, Parity, differences, export, session
from grainline.files import write_tensors
from grainline.hub import fingerprint
from grainline.loading import load
from grainline.methods import method_class
from grainline.model import Model
from grainline.nn.runtime import static
from grainline.types import Texts

DOCS = Path(__file__).parent.parent / "docs" / "export.md"
LONG = "A dog runs. The sand is wet. A man waits. He has a bag. It rains."
TEXTS = ["A red circle is above a blue square.", "A dog runs. The sand is wet. It is grey."]
COMPOSER = ("heads=2", "composer.depth=1", "composer.heads=2")
SQUARES = ("image.superpixels.kind=grid", "image.depths=[1,1]", "image.groups=[4]")


def tiny(name: str, *changes: str, values: dict[str, Any] = make.TINY) -> Model:
    """A model of random weights with a tokenizer of its own."""
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(TEXTS * 2, vocab=540)
    config = parse(
        method_class(name).config_class, override(values, [f"text.vocab={tokenizer.vocab}", *changes]), "test"
    )
    description = Description(name, config)
    return Model(description, build(description), tokenizer)


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what stands beside the graphs: none is made, which takes seconds each."""

    def write(*args: Any) -> int:
        args[1].write_bytes(b"graph")
        return 20

    monkeypatch.setattr(onnx, "write_graph", write)
    monkeypatch.setattr(onnx, "session", lambda *_: None)
    monkeypatch.setattr(onnx, "differences", lambda *_: Parity(3e-7, 0.0))


def texts(parts: int, length: int = 24) -> Texts:
    """Five texts of unequal lengths; of several parts, some are equal and some are not there."""
    ids = torch.randint(3, make.VOCAB, (5, parts, length))
    ids[1, 0] = ids[3, -1]
    mask = torch.arange(length) < torch.tensor([3, 24, 9, 24, 2])[:, None, None].clamp(max=length)
    mask = mask.repeat(1, parts, 1)
    mask[2, 1:] = False
    number = torch.arange(5)
    return Texts(ids, mask, number, number, number)


@pytest.mark.parametrize("case", make.CASES)
def test_a_static_graph_gives_what_grouped_texts_give(case: str) -> None:
    method = make.build(case)
    inputs = texts(3 if method.parts > 1 else 1)
    with torch.no_grad():
        wanted = method.encode_texts(inputs)
        with static():
            result = method.encode_texts(inputs)
    torch.testing.assert_close(result.vector, wanted.vector, rtol=0, atol=1e-5)
    torch.testing.assert_close(result.tokens[result.mask], wanted.tokens[wanted.mask], rtol=0, atol=1e-5)
    assert torch.equal(result.mask, wanted.mask)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("clip", ("scoring=sentences", "image.pool=attention", "text.causal=false", "text.pool=mean")),
        ("maxsim", ("sentences=4", "image.stem=conv")),
        ("beta_clip", ("image.patches=values",)),  # its texts have no tokens
        ("caft", (*COMPOSER, *SQUARES)),
        ("flair", ("heads=2", "scoring=vectors", "chunks=3", "scale=9")),
    ],
)
def test_an_exported_method_is_the_method(name: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    model = tiny(name, *changes, values=make.SEGMENTS if name == "caft" else make.TINY)
    done = export(model, tmp_path / "out")
    assert max(parity.worst for parity in done.parity.values()) < 2e-6
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert about["format"] == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "export.json", "image.onnx", "text.onnx", "tokenizer.json", "tokenizer_meta.json",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert read_tokenizer(tmp_path / "out").to_json() == model.tokenizer.to_json()
    assert about["fingerprint"] == fingerprint(model)
    assert (about["method"], about["size"], about["context"]) == (name, 8, 24)
    assert about["parts"] == model.method.parts
    chunked = {"splitter": "period_space"} if name in ("caft", "flair") else None
    assert about["chunking"] == chunked
    assert (about["resize"], about["filter"], about["margin"]) == ("crop", "bicubic", 1.0)
    assert about["bias"] == (-10.0 if name in ("siglip", "caft", "flair") else None)
    assert about["scale"] == pytest.approx({"siglip": 10.0, "flair": 9.0}.get(name, 1 / 0.07))
    assert about["parity"]["image"]["vector"] == done.parity["image"].vector
    shape = ["texts", "parts", "tokens"] if about["parts"] > 1 else ["texts", "tokens"]
    assert about["inputs"]["text"]["ids"] == {"type": "int64", "shape": shape}
    run = session(tmp_path / "out" / "text.onnx")
    assert [(x.name, x.shape) for x in run.get_inputs()] == [("ids", shape), ("mask", shape)]
    images = session(tmp_path / "out" / "image.onnx")
    assert [(x.name, x.shape) for x in images.get_inputs()] == [("pixels", ["images", 3, 8, 8])]
    _run_the_documented_example(model, tmp_path)
    if name == "caft":  # segments made of squares, of any number of images
        assert about["grid"] is None
        some = [(torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8),) for n in (1, 3)]
        assert differences(images, ImageTower(model.method), some).worst < 2e-6


def test_graphs_take_any_number_of_rows(tmp_path: Path) -> None:
    done = export(tiny("tgt", "text.groups=3"), tmp_path / "out")
    assert max(parity.worst for parity in done.parity.values()) < 2e-6


def _run_the_documented_example(model: Model, place: Path) -> None:
    """The code of the page, word for word but for its two paths, against the model itself."""
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (20, 31, 3), np.uint8)
    Image.fromarray(pixels).save(place / "a.png", exif=turned)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 3
    kinds = {0: True, 1: model.method.pairwise, 2: model.method.chunking is not None}
    code = "\n".join(block for i, block in enumerate(blocks) if kinds[i])
    assert code.count('"out/onnx"') == code.count('"photo.png"') == 1
    code = code.replace('"out/onnx"', repr(str(place / "out"))).replace(
        '"photo.png"', repr(str(place / "a.png"))
    )
    space: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), space)
    encoded = model.encode(images=[place / "a.png"])
    np.testing.assert_allclose(space["image"][0], encoded.vector.numpy(), atol=1e-5)
    if model.method.chunking is not None:
        wanted = model.score(encoded, [LONG, "A red circle."])
        result = space["image"][0] @ space["two"][0].T
    elif model.method.pairwise:
        wanted = model.score(encoded, ["A dog runs. The sand is wet.", "A red circle."])
        result = space["maxsim"](space["image"], space["two"], space["about"]["config"]["sharpness"])
    else:
        wanted = model.score(encoded, ["A dog runs over wet sand.", "A red circle."])
        result = space["image"][0] @ space["texts"][0].T
    np.testing.assert_allclose(result, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_checkpoint_of_others_is_exported_with_its_own_preprocessing(kind: str, tmp_path: Path) -> None:
    checkpoints.whole(kind, tmp_path / "in", num_hidden_layers=1)
    if kind == "clip":
        processor = {"size": {"shortest_edge": 20}, "crop_size": 16, "resample": 2}
        (tmp_path / "in" / "preprocessor_config.json").write_text(json.dumps(processor))
    model = load(tmp_path / "in")
    done = export(model, tmp_path / "out")
    assert max(parity.worst for parity in done.parity.values()) < 2e-5
    if kind == "clip":
        about = json.loads((tmp_path / "out" / "export.json").read_text())
        assert (about["resize"], about["filter"], about["margin"]) == ("crop", "bilinear", 1.25)
        _run_the_documented_example(model, tmp_path)


# What is measured, and what fails


class Run(NamedTuple):
    """A session that returns what it is told."""

    outputs: Outputs

    def get_inputs(self) -> list[Any]:
        return [type("Entry", (), {"name": "x"})]

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert names == list(OUTPUTS)
        assert set(feed) == {"x"}
        return [x.numpy() for x in self.outputs]


class Given(nn.Module):
    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Outputs:  # noqa: ARG002
        return self.outputs


def test_differences_are_largest_over_what_is_real() -> None:
    mask = torch.tensor([[True, False]])
    one = Outputs(torch.tensor([[0.5, 0.25]]), torch.tensor([[[2.0, 4.0], [7.0, 7.0]]]), mask)
    other = Outputs(torch.tensor([[0.5, 0.5]]), torch.tensor([[[2.0, 3.0], [0.0, 0.0]]]), mask)
    inputs = [(torch.zeros(1),)]
    assert differences(Run(one), Given(one), inputs) == Parity(0.0, 0.0)
    assert differences(Run(other), Given(one), inputs) == Parity(0.25, 0.25), "tokens: 1 of 4"
    assert not differences(Run(one._replace(token_mask=~mask)), Given(one), inputs).worst <= 1
    broken = one._replace(vector=torch.full((1, 2), torch.nan))
    assert not differences(Run(broken), Given(one), inputs).worst <= 1


@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize(("name", "changes"), [("flair", ("heads=2",)), ("caft", COMPOSER)])
def test_images_that_texts_pool_are_refused_and_vectors_of_the_same_weights_are_not(
    name: str, changes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny(name, "scoring=conditioned", *changes)
    home = tmp_path / "model"
    home.mkdir()
    write_description(home, model.description)
    model.tokenizer.save(home)
    write_tensors(home / "model.safetensors", model.method.state_dict(), {"method": name})
    said = complaint(capsys, "export", home, tmp_path / "out")
    assert f"{name} with conditioned scores pools each image by each text" in said
    assert "--scoring vectors exports the same weights" in said
    assert not (tmp_path / "out").exists()
    assert "scoring" in complaint(capsys, "export", home, tmp_path / "out", "--scoring", "x")
    assert call("export", home, tmp_path / "out", "--scoring", "vectors") == 0
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert about["config"]["scoring"] == "vectors"
    assert not about["pairwise"]


def test_superpixels_that_another_runtime_would_cut_otherwise_are_refused(tmp_path: Path) -> None:
    model = tiny("flair", "scoring=vectors", "heads=2", values=make.SEGMENTS)
    with pytest.raises(UserError, match=r"^superpixels by kmeans are not the same .*kind=grid$"):
        export(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("parity", [Parity(2e-4, 0.0), Parity(0.0, 2e-4), Parity(float("nan"), 0.0)])
def test_a_graph_that_is_not_the_model_is_not_written(
    parity: Parity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "differences", lambda *_: parity)
    with pytest.raises(UserError, match=r"^the image graph differs from the model by .* allowed is 1e-04"):
        export(tiny("clip"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_graphs")
def test_the_command_writes_a_new_folder_only_and_says_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("clip")
    home = tmp_path / "model"
    home.mkdir()
    write_description(home, model.description)
    model.tokenizer.save(home)
    write_tensors(home / "model.safetensors", model.method.state_dict(), {"method": "CLIP"})
    assert fingerprint(load(home)) == fingerprint(model)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert f"{out} is there already; give a new folder" in complaint(capsys, "export", home, out)
    (out / "mine.txt").unlink()
    left = tmp_path / ".saving-out"  # of an export that was killed
    left.mkdir()
    (left / "half.onnx").write_text("half")
    assert call("export", home, out) == 0
    said = capsys.readouterr().out
    assert "image.onnx: 5 bytes, opset 20, largest difference to torch 3.0e-07" in said
    assert f"written: {out}" in said
    assert len(list(out.iterdir())) == 5
    assert not left.exists()
    result = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxscript" else result(name)
    )
    text = complaint(capsys, "export", home, tmp_path / "new")
    assert text == "grainline: export needs onnxscript: pip install 'grainline[onnx]'"


@pytest.mark.filterwarnings("ignore:Precision is ill-defined")
def test_scores_of_mteb_are_those_of_a_loop() -> None:
    """On a local task of retrieval and one of classes, made here."""
    mteb = pytest.importorskip("mteb", reason="mteb is not installed: pip install 'grainline[mteb]'")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.abstasks.zeroshot_classification import AbsTaskZeroShotClassification
    from mteb.models import EncoderProtocol

    from grainline.export.mteb import Encoder

    model, noise = tiny("clip"), np.random.default_rng(0)
    pixels = [noise.integers(0, 256, (9 + i, 12, 3), dtype=np.uint8) for i in range(8)]
    images, texts = ([Image.fromarray(one) for one in pixels], [f"{w} stands." for w in "abcdefgh"])

    def about(name: str, kind: str) -> Any:
        return TaskMetadata(
            name=name, type=kind, description="A local task.", dataset={"path": "none", "revision": "1"},
            reference=None, category="t2i", eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="accuracy", date=None, dialect=[], domains=[], task_subtypes=[], license=None,
            annotations_creators=None, modalities=["image", "text"], sample_creation=None, bibtex_citation="",
        )  # fmt: skip

    class Find(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = about("LocalRetrieval", "Any2AnyRetrieval").model_copy(update={"main_score": "ndcg_at_10"})

        def load_data(self, **_: Any) -> None:
            keys = [str(i) for i in range(8)]
            queries = Dataset.from_dict({"id": keys, "text": texts})
            corpus = Dataset.from_dict({"id": keys, "image": images})
            split = RetrievalSplitData(
                queries=queries, corpus=corpus, relevant_docs={key: {key: 1} for key in keys}, top_ranked=None
            )
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    class Classes(AbsTaskZeroShotClassification):  # type: ignore[misc]
        metadata = about("LocalClasses", "ZeroShotClassification")

        def load_data(self, **_: Any) -> None:
            split = Dataset.from_dict({"image": images, "label": [i % 3 for i in range(8)]})
            self.dataset, self.data_loaded = {"test": split}, True

        def get_candidate_labels(self) -> list[str]:
            return texts[:3]

    encoder = Encoder(model)
    assert isinstance(encoder, EncoderProtocol)
    results = mteb.evaluate(
        encoder, [Find(), Classes()], cache=None, encode_kwargs={"batch_size": 3}
    ).task_results
    retrieval, classes = (result.scores["test"][0] for result in results)
    cosines = model.similarity(model.encode(images=images), model.encode(texts=texts))  # [8, 8]
    for k in (1, 3, 5):
        best = cosines.T.topk(k).indices.tolist()
        assert retrieval[f"recall_at_{k}"] == pytest.approx(
            np.mean([i in row for i, row in enumerate(best)]), abs=1e-4
        )
    right = [int(row.argmax()) == i % 3 for i, row in enumerate(cosines[:, :3])]
    assert classes["accuracy"] == pytest.approx(np.mean(right), abs=1e-4)
    assert 0 < retrieval["recall_at_3"] < 1
    assert 0 < classes["accuracy"] < 1
    both = encoder.encode([{"text": texts[:2], "image": images[:2]}])
    alone = (
        model.encode(texts=texts[:2], convert_to_numpy=True),
        model.encode(images=images[:2], convert_to_numpy=True),
    )
    np.testing.assert_allclose(both, alone[0] + alone[1], atol=1e-6)
    with pytest.raises(UserError, match="mteb asks for audio; a grainline model reads text and image"):
        encoder.encode([{"audio": [1]}])
