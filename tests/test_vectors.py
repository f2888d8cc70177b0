"""Vectors of another program, and `grainline.evaluate` as a Python program calls it."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import TEXTS, photo, saved, tiny_model
from PIL import Image
from runs import call, complaint
from safetensors.torch import save_file

import grainline
from grainline.data.open_source import open_data, open_source
from grainline.errors import UserError

Capture = pytest.CaptureFixture[str]
SCENES = "scenes:dev?count=12&size=32"
N = 6
OWNER = [row for row in range(N) for _ in range(2)]
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(N, 8)) * 7
VECTORS = IMAGES, IMAGES[OWNER] + RNG.normal(size=(2 * N, 8)) * 9


def values(result: grainline.Result) -> dict[str, float]:
    return {metric.name: metric.value for metric in result.metrics}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Vectors and pairs as another program writes them, in the working directory."""
    monkeypatch.chdir(tmp_path)
    np.save("image.npy", VECTORS[0])
    np.save("text.npy", VECTORS[1])
    lines = [{"image": f"photos/{row}.png", "text": TEXTS[i]} for i, row in enumerate(OWNER)]
    Path("pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for row in range(N - 1):
        photo(tmp_path / "photos" / f"{row}.png", row)
    return tmp_path


def test_ranks_of_vectors_are_those_of_their_cosines() -> None:
    result = grainline.evaluate(vectors=VECTORS, pairs=OWNER)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in VECTORS)
    own = np.array(OWNER)
    score = a @ b.T
    first = 100 * np.mean(own == score.argmax(0))
    assert 0 < first < 100
    assert result["text to image R@1"].value == pytest.approx(first)
    assert result["image to text R@1"].value == pytest.approx(
        100 * np.mean(own[score.argmax(1)] == np.arange(N))
    )
    assert result["text to image R@1"].chance == pytest.approx(100 / N)
    dot = grainline.evaluate(vectors=VECTORS, pairs=OWNER, similarity="dot")
    assert dot["text to image R@1"].value == pytest.approx(
        100 * np.mean(own == (VECTORS[0] @ VECTORS[1].T).argmax(0))
    )
    assert values(dot) != values(result)
    torches = tuple(torch.tensor(x).requires_grad_() for x in VECTORS)
    assert values(grainline.evaluate(vectors=torches, pairs=OWNER)) == values(result)
    equal = grainline.evaluate(vectors=(np.ones((2, 3)), np.ones((2, 3))), pairs=[0, 1])
    assert (equal["text to image R@1"].value, equal["text to image R@1"].ties) == (0.0, 2)


def test_scores_rank_in_place_of_vectors() -> None:
    scores = VECTORS[0] @ VECTORS[1].T
    dot = grainline.evaluate(vectors=VECTORS, pairs=OWNER, similarity="dot")
    assert values(grainline.evaluate(scores=scores, pairs=OWNER)) == values(dot)
    assert values(grainline.evaluate(vectors=VECTORS, scores=torch.tensor(scores), pairs=OWNER)) == values(
        dot
    )
    with pytest.raises(UserError, match=r"scores are \[12, 6\]; 6 images and 12 texts need \[6, 12\]"):
        grainline.evaluate(vectors=VECTORS, scores=scores.T, pairs=OWNER)
    scores[2, 3] = np.nan
    with pytest.raises(UserError, match="the score of image 2 and text 3 is NaN"):
        grainline.evaluate(scores=scores, pairs=OWNER)


def test_a_text_of_no_image_competes_and_is_no_query(tmp_path: Path) -> None:
    more = np.concatenate([VECTORS[1], IMAGES[:1]])
    page = tmp_path / "x.html"
    result = grainline.evaluate(vectors=(IMAGES, more), pairs=[*OWNER, None], html=page)
    assert result["text to image R@1"].queries == 2 * N
    assert result.queries["folds"][0]["i2t"]["rank"][0] > 1
    assert "Right one at rank" in page.read_text()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"pairs": OWNER[:-1]}, "the pairs has 11 lines for 12 text vectors"),
    ({"pairs": [*OWNER[:-1], N]}, "entry 12: there is no image 6; rows are 0 to 5"),
    ({"pairs": [*OWNER[:-1], [1, 2, 3]]}, "entry 12 is no pair"),
    ({"pairs": [{"image": [0, 1]}] * 12}, "image is a row or a name, one of them"),
    ({"pairs": [10**5000] * 12}, "image is a row or a name, one of them"),
    ({"pairs": ["a"] * 12}, "names 1 image for 6 image vectors"),
    ({"pairs": ["a", *OWNER[1:]]}, "rows and names of images"),
    ({"pairs": [0] * 12}, "5 of them without a text"),
    ({"pairs": None}, "no pairs: give a file with one line a text"),
    ({"vectors": (IMAGES[0], IMAGES)}, r"vectors of images are \[8\]"),
    ({"vectors": (IMAGES, IMAGES[:, :3])}, "have 8 numbers and those of texts 3"),
    ({"vectors": (IMAGES.astype(np.uint8), IMAGES)}, "vectors of images are uint8, as packed bits are"),
    ({"vectors": (IMAGES, IMAGES * np.inf)}, "vector 0 of the texts has numbers that are NaN"),
    ({"vectors": (IMAGES * 0, IMAGES)}, "vector 0 of the images has length 0"),
    ({"vectors": (IMAGES, [["a"]])}, "they must be numbers"),
    ({"vectors": (torch.tensor(IMAGES) > 0, IMAGES)}, "of type torch.bool; they must be numbers"),
    ({"vectors": (torch.tensor(IMAGES) * 1j, IMAGES)}, "; they must be numbers"),
    ({"scores": np.full((3, 4), 1e300)}, "scores reach beyond 3.4e38"),
    ({"vectors": "gone.npy"}, "gone.npy cannot be read: No such file"),
    ({"vectors": "x.txt"}, "is of no known kind"),
    ({"similarity": "cosin"}, "did you mean cosine"),
    ({"suite": "probes"}, "the suite probes needs a model"),
    ({"model": "runs/x"}, "model does not go with vectors"),
    ({"captions": "each"}, "captions does not go with vectors"),
    ({"protocl": "plain"}, "no option 'protocl' .did you mean protocol"),
    ({"batchsize": 3}, "no option 'batchsize' .did you mean batch_size"),
    ({"protocol": "coco-5k"}, "6 images in the pairs; coco-5k needs exactly 5000"),
]


@pytest.mark.parametrize(("wrong", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_what_does_not_fit_is_one_line(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        grainline.evaluate(**{"vectors": VECTORS, "pairs": OWNER} | wrong)


def test_names_that_stand_for_rows_are_noted_with_their_order() -> None:
    order = [3, 0, 5, 1, 4, 2]
    vectors = (IMAGES, IMAGES[order])
    by_row = grainline.evaluate(vectors=vectors, pairs=order)
    by_key = grainline.evaluate(vectors=vectors, pairs=[{"image": i, "key": f"{i}.jpg"} for i in order])
    by_name = grainline.evaluate(vectors=vectors, pairs=[f"{i}.jpg" for i in order])
    assert "image to text R@1" in values(by_row)
    assert values(by_row) == values(by_key) != values(by_name)
    assert "in order of first appearance: 3.jpg is row 0, 2.jpg row 5; where" in " ".join(by_name.notes)
    assert not any("appearance" in note for result in (by_row, by_key) for note in result.notes)


def test_every_kind_of_file_gives_the_same(files: Path) -> None:
    arrays = {"image_embeds": VECTORS[0], "text_embeds": VECTORS[1]}
    np.savez("both.npz", **arrays)
    save_file({name: torch.tensor(x) for name, x in arrays.items()}, "both.safetensors")
    expected = values(grainline.evaluate(vectors=VECTORS, pairs=OWNER))
    for vectors in (
        ["image.npy", "text.npy"],
        "both.npz",
        "both.safetensors",
        ["both.npz", "text.npy"],
        arrays,
    ):
        assert values(grainline.evaluate(vectors=vectors, pairs="pairs.jsonl")) == expected
    with pytest.raises(UserError, match=r"image.npy has no array texts or"):
        grainline.evaluate(vectors="image.npy", pairs="pairs.jsonl")
    np.save("object.npy", np.array([{}]))
    for name in ("object.npy", "pairs.npy"):
        Path("pairs.npy").write_bytes(b"no array at all")
        with pytest.raises(UserError, match=r"npy cannot be read: (the magic|.*Python objects)"):
            grainline.evaluate(vectors=[name, "text.npy"], pairs="pairs.jsonl")
    (files / "broken.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"broken.npz cannot be read"):
        grainline.evaluate(vectors="broken.npz", pairs="pairs.jsonl")


def test_the_folder_of_encode_gives_the_numbers_of_the_model(tmp_path: Path) -> None:
    model = saved(tiny_model("clip"), tmp_path / "model")
    assert call("encode", model, SCENES, "--out", tmp_path / "v") == 0
    assert call("evaluate", "--vectors", tmp_path / "v", "--json", tmp_path / "v.json") == 0
    assert call("evaluate", model, "--data", SCENES, "--json", tmp_path / "m.json") == 0
    assert values(grainline.Result.load(tmp_path / "v.json")) == values(
        grainline.Result.load(tmp_path / "m.json")
    )


def commands(title: str) -> list[list[str]]:
    """The commands of a section of docs/evaluation.md."""
    text = (Path(__file__).parents[1] / "docs/evaluation.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, re.S | re.M)
    return [shlex.split(line, comments=True) for line in "".join(blocks).splitlines() if line.strip()]


@pytest.mark.parametrize("text", ["[]", "7", "nonsense", "{}", '{"parts": [{}]}', '{"parts": 7}', "7" * 5000])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(
        UserError, match=r"manifest.json is not as `grainline encode` writes it .*; encode again"
    ):
        grainline.evaluate(vectors=str(tmp_path))


@pytest.mark.parametrize("digits", [401, 5000])
def test_a_header_of_long_numbers_is_one_line(tmp_path: Path, digits: int) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({'7' * digits}, 2), }}\n".encode()
    (tmp_path / "a.npy").write_bytes(
        b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(64)
    )
    np.savez(tmp_path / "b.npz", images=IMAGES)
    data = bytearray((tmp_path / "b.npz").read_bytes())
    data[90] ^= 0xFF
    (tmp_path / "b.npz").write_bytes(data)
    for name in ("a.npy", "b.npz"):
        with pytest.raises(UserError, match=r"cannot be read: "):
            grainline.evaluate(vectors=(str(tmp_path / name), VECTORS[1]), pairs=OWNER)


def test_the_commands_of_the_docs_measure_vectors(files: Path, capsys: Capture) -> None:
    np.save("scores.npy", VECTORS[0] @ VECTORS[1].T)
    listed = commands("Vectors of another program")
    assert len(listed) >= 3
    for command in listed:
        assert command[0] == "grainline"
        assert call(*command[1:]) == 0, command
    assert "text to image R@1" in capsys.readouterr().out
    page = (files / "x.html").read_text()
    assert page.count("data:image/jpeg") > 3
    assert "image photos/5.png" in page, "that file is missing"
    assert TEXTS[0] in page
    assert "no MODEL and no --vectors" in complaint(capsys, "evaluate", "--pairs", "pairs.jsonl")
    assert (
        call(
            "evaluate",
            "--vectors",
            "image.npy",
            "text.npy",
            "--pairs",
            "pairs.jsonl",
            "--compare-to",
            "x.json",
        )
        == 0
    )
    assert "compared to x.json" in " ".join(capsys.readouterr().out.split())


def test_the_python_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tiny_model("clip"), tmp_path / "runs/x")
    for i in range(8):
        photo(tmp_path / "photos" / f"{i}.png", i).with_suffix(".txt").write_text(TEXTS[i])
    shutil.copy("photos/0.png", "a.jpg")
    shutil.copy("photos/1.png", "b.jpg")
    text = (Path(__file__).parents[1] / "docs/evaluation.md").read_text(encoding="utf-8")
    parts = [
        text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for title in ("In Python", "Vectors of another program")
    ]
    blocks = [block for part in parts for block in re.findall(r"^```python\n(.*?)^```", part, re.S | re.M)]
    assert len(blocks) == 2
    names: dict[str, Any] = {"image_vectors": VECTORS[0], "text_vectors": VECTORS[1][::2]}
    for block in blocks:
        exec(block, names)


# A model in a notebook


def test_a_loaded_model_a_source_and_pairs_are_measured(tmp_path: Path) -> None:
    model = tiny_model("clip")
    place = saved(model, tmp_path / "model")
    expected = grainline.evaluate(place, SCENES, batch_size=4, seed=3)
    source = open_source(SCENES, size=model.method.size)
    for other in (source, [SCENES]):
        assert values(grainline.evaluate(model, other, batch_size=4, seed=3)) == values(expected)
    assert expected.settings["seed"] == 3
    assert grainline.evaluate(model, SCENES).settings["weights"] == "in-memory"
    one = photo(tmp_path / "a.png", 1)
    pairs = [(one, "A dog."), (str(one), ["A red dog."]), (Image.new("RGB", (9, 9)), ("Nothing.",))]
    result = grainline.evaluate(model, pairs, captions="each", html=tmp_path / "x.html")
    assert (result.data["images"], result.data["texts"]) == (2, 3)
    assert open_data([("a.png", "x")], images=str(tmp_path))[0].image == one.read_bytes()
    with pytest.raises(UserError, match="goes with the path of a model"):
        grainline.evaluate(model, pairs, scoring="vectors")
    with pytest.raises(UserError, match=r"pair 1 is of type int; a pair is"):
        grainline.evaluate(model, [3])
    with pytest.raises(UserError, match="no data; give"):
        grainline.evaluate(model)
    with pytest.raises(UserError, match="no model; give"):
        grainline.evaluate(data=SCENES)


def test_a_result_prints_as_a_table_and_is_saved_and_compared(tmp_path: Path) -> None:
    result = grainline.evaluate(vectors=VECTORS, pairs=OWNER)
    lines = str(result).splitlines()
    assert lines[0] == "retrieval, protocol plain: 12 captions of 6 images, each ranked, data the pairs"
    assert lines[1].split("  ")[0] == "metric"
    assert len({len(line) for line in lines[1:]}) == 1, "columns are aligned"
    assert len(lines) == len(result.metrics) + 2
    assert repr(result) == str(result)
    html = result._repr_html_()
    assert "text to image R@1" in html
    assert "http" not in html
    assert result.to_dict()["metrics"][0]["name"] == result.metrics[0].name
    assert result[0] == "retrieval"
    path = result.save(tmp_path / "x.json")
    assert grainline.Result.load(path) == result
    other = grainline.evaluate(vectors=VECTORS, pairs=OWNER, similarity="dot")
    differences = other.compare(path)
    assert differences[0].value == other.metrics[0].value - result.metrics[0].value
    assert "difference" in str(differences)
    assert "<table" in differences._repr_html_()
    assert list(grainline.compare(other, result)) == list(differences)
    with pytest.raises(KeyError, match="no metric 'R@1'; there are"):
        result["R@1"]
