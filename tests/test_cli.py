"""The command line: every bad input is one line and exit code 2; a small journey through all commands."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import indexes
import numpy as np
import pytest
import torch
import typer
import yaml
from PIL import Image
from runs import call, complaint, recipe

import grainline
from grainline.cli.main import app
from grainline.cli.options import QUIET, next_step
from grainline.data.vector_parts import read_vectors
from grainline.recipes import about, is_ablation, names
from grainline.training.recipe import read_recipe
from grainline.training.run import train as train_recipe

MODEL = "model.safetensors"
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    train_recipe(read_recipe(recipe(folder), ["train.max_steps=2"]), folder / "run")
    return folder / "run"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def photo(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def train(folder: Path, *more: object) -> list[object]:
    return ["train", recipe(folder), "--out", folder / "new", *more]


# What cannot be understood


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("train clip/fi", ["clip/finetune"]),
        ("recipes himo/pa", ["himo/paper"]),
        ("suites retr", ["retrieval"]),
        ("evaluate x --suite long", ["long-retrieval"]),
        ("evaluate x --suite retrieval --set pro", ["protocol="]),
        ("train tgt/scenes --set data.wor", ["data.workers="]),
        ("train tgt/scenes --set model.text.gro", ["model.text.groups="]),
    ],
)
def test_the_shell_completes_recipes_suites_and_fields(
    typed: str, offered: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["grainline", *typed.split()]
    monkeypatch.setenv("_GRAINLINE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert call() == 0
    assert capsys.readouterr().out.split() == offered


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'"),
        (["data"], "Missing command"),
        (["train"], "Missing argument 'recipe'"),
        (["train", "clip/scenes", "--out", "x", "--colour", "red"], "No such option: --colour"),
        (["train", "clip/scenes", "more.csv", "--out", "x"], "Data is given by --data more.csv."),
        (["evaluate", "x", "val.csv"], "Data is given by --data val.csv."),
        (
            ["train", "clip/scenes", "--max-steps", "5"],
            "Fields of the recipe go by --set train.max_steps=VALUE.",
        ),
        (["train", "clip/scenes", "--lr", "5"], "by --set train.optimizer.lr=VALUE."),
        (["evaluate", "x", "--protocol", "coco-5k"], "Options of a suite go by --set protocol=VALUE."),
        (["suites", "a", "b"], "Got unexpected extra argument(s) (b). See"),
        (
            ["evaluate", "x", "--batch-size", "many"],
            "Invalid value for '--batch-size': 'many' is not allowed: it must be",
        ),
        (["evaluate", "x", "--batch-size", "0"], "Invalid value for '--batch-size'"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_an_unknown_command_or_option_points_at_the_help(
    arguments: list[str], said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "other")  # as of `python -m other`
    text = complaint(capsys, *arguments)
    assert said in text
    assert "Input should" not in text
    assert re.search(r"\. See grainline[a-z ]* --help\.$", text)


def test_a_push_without_a_model_a_name_or_results_says_so(
    tmp_path: Path, trained: Path, capsys: Capture
) -> None:
    assert "no model at " in complaint(capsys, "push", tmp_path / "gone", "owner/name")
    for name in ("a b", "/tmp/x", "a/b/c"):
        said = complaint(capsys, "push", trained, name)
        assert said.endswith("is no name of the Hugging Face hub; write it as owner/model")
    said = complaint(capsys, "push", trained, "owner/name", "--results", tmp_path / "a.json", "b.json")
    assert f"{tmp_path / 'a.json'} is no result of `grainline evaluate --json`" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "train.stesp=4",
            "unknown field 'train.stesp'; allowed here: max_steps, global_batch_size, optimizer,",
        ),
        ("train.max_steps=soon", "field 'train.max_steps' is 'soon': it must be a valid integer"),
        ("method=clop", "unknown method 'clop' (did you mean clip?); allowed are clip, siglip"),
        ("model.image.name=XXL/14", "allowed are toy, Mi, Ti, S, B, L, a slash and the patch side"),
        ("train.grad_accum=3", "batch 8 is not a multiple of grad_accum 3"),
        ("train.optimizer.rules=[{pattern: nothing}, {pattern: .*}]", "rule 'nothing' matches no parameter"),
        ("data.tokenizer=./no/such", "no tokenizer at ./no/such"),
        ("model.text.vocab=300", "vocab is 300; a trained tokenizer needs"),
        ("train.global_batch_size=64", "train.global_batch_size 64 is more than the 36 images of the data"),
        ("train.validate_every=2", "data.validation and train.validate_every go together"),
        ("data.paths=[]", "no data to train on; give --data PATH..."),
        (
            "train.global_batch_size=1",
            "train.global_batch_size 1 with train.grad_accum 1 leaves a contrastive loss one image",
        ),
        ("data.workers=1000", "data.workers is 1000; with the "),
        ("model.text.context=1e14", "this clip is too large for the memory here: lower its sizes"),
    ],
)
def test_a_wrong_field_or_value_is_named_with_what_is_allowed(
    change: str, said: str, tmp_path: Path, capsys: Capture
) -> None:
    assert said in complaint(capsys, *train(tmp_path, "--set", change))


# Data that is not there, or of no use


def test_a_missing_path_is_named(tmp_path: Path, trained: Path, capsys: Capture) -> None:
    gone = tmp_path / "gone"
    for arguments in (
        train(tmp_path, "--data", gone),
        ["evaluate", trained, "--data", gone],
        ["encode", trained, gone, "--out", tmp_path / "x"],
        ["data", "check", gone],
    ):
        text = complaint(capsys, *arguments)
        assert f"nothing at {gone}" in text
        assert "name a file, a folder or a pattern" in text


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tar"])
def test_an_empty_file_is_an_error(name: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / name).write_bytes(b"")
    assert name in complaint(capsys, *train(tmp_path, "--data", tmp_path / name))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_of_broken_images_is_an_error_that_names_one(
    workers: int, tmp_path: Path, capsys: Capture
) -> None:
    for i in range(8):
        path = tmp_path / "photos" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"not an image")
        path.with_suffix(".txt").write_text("A dog runs over wet sand.")
    change = ("--data", tmp_path / "photos", "--set", f"data.workers={workers}")
    text = complaint(capsys, *train(tmp_path, *change))
    assert "100 samples in a row cannot be used, the first for corrupt image (" in text
    assert "`grainline data check`" in text
    assert len(text) < 600, "no traceback of the process that met it"


def test_too_many_broken_images_are_an_error_that_names_the_first(tmp_path: Path, capsys: Capture) -> None:
    for i in range(16):
        path = photo(tmp_path / "photos" / f"{i:02}.png", i)
        path.with_suffix(".txt").write_text(f"A dog runs over wet sand number {i}.")
        if i % 4 == 0:
            path.write_bytes(path.read_bytes()[:60])
    text = complaint(capsys, *train(tmp_path, "--data", tmp_path / "photos"))
    assert "samples are corrupt, more than data.max_corrupt=0.02 allows" in text
    assert all(f"{i:02}.png" in text for i in (0, 4, 8, 12))
    assert call(*train(tmp_path, "--data", tmp_path / "photos", "--set", "data.max_corrupt=0.6")) == 0
    out = capsys.readouterr().out
    assert "corrupt samples, replaced by others:" in out


def test_checking_data_that_cannot_be_used_ends_with_exit_code_1(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "photos"
    for i in range(4):
        photo(folder / f"{i}.png", i).with_suffix(".txt").write_text(f"A dog runs over wet sand number {i}.")
    assert call("data", "check", folder) == 0
    (folder / "0.png").write_bytes(b"not an image")
    assert call("data", "check", folder) == 1
    assert "corrupt image: 1" in capsys.readouterr().out, "the report is printed all the same"
    assert call("data", "check", folder, "--max-corrupt", "0.25") == 0
    assert call("data", "check", folder, "--max-corrupt", "0.2") == 1
    for i in range(4):
        (folder / f"{i}.png").write_bytes(b"not an image")
    assert call("data", "check", folder, "--max-corrupt", "1") == 1, "nothing is left"


# Models that are not there, or do not fit


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    text = complaint(capsys, "evaluate", tmp_path / "gone", "--data", "scenes:dev?count=4")
    assert (
        f"no model at {tmp_path / 'gone'}, and that is no name of the Hugging Face hub; give the folder"
        in text
    )
    text = complaint(capsys, "evaluate", tmp_path, "--data", "scenes:dev?count=4")
    assert f"{tmp_path} holds no model.json" in text


def test_corrupt_weights_are_an_error_that_says_what_to_do(model: Path, capsys: Capture) -> None:
    path = model / "last" / MODEL
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.unlink()
    path.write_bytes(data)
    text = complaint(capsys, "evaluate", model, "--data", "scenes:dev?count=4")
    assert "is corrupt: model.safetensors does not have the sha256 it was written with" in text
    assert "choose another one" in text
    path.write_bytes(data[:1000])
    assert "1000 bytes instead of" in complaint(capsys, "evaluate", model, "--data", "scenes:dev?count=4")


def described(**changes: object) -> Callable[[Path], object]:
    """Changes fields of model.json; None removes one."""

    def change(model: Path) -> None:
        values = json.loads((model / "model.json").read_text())
        config = {key: x for key, x in (values["config"] | changes).items() if x is not None}
        top = {key: config.pop(key) for key in ("format", "method") if key in config}
        (model / "model.json").write_text(json.dumps(values | {"config": config} | top))

    return change


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(text)


PLAIN = "model.json is no model description, so it is damaged or was changed; put back a copy"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (
        lambda model: [shutil.rmtree(model / name) for name in ("last", "checkpoints")],
        "holds no weights yet",
    ),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer in"),
    "an older format": (described(format=1), "model.json has format 1, this grainline reads format 2: train"),
    "another method": (
        described(method="siglip", max_scale=1000.0, scoring=None),  # the latter is a field of CLIP alone
        "holds a CLIP, not a SigLIP: use the recipe that it was trained with",
    ),
    **{
        f"model.json {text[:9]}": (written("model.json", text), PLAIN)
        for text in ("", "[]", "{}", "[" * 100_000)
    },
    **{
        f"tokenizer.json {text[:9]}": (
            written("tokenizer.json", text),
            "tokenizer.json is damaged; copy it and tokenizer_meta.json again",
        )
        for text in ("", "null", '{"model": []}', "{ half", "[" * 100_000)
    },
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_of_a_model_is_reported_in_plain_words(kind: str, model: Path, capsys: Capture) -> None:
    change, words = DAMAGE[kind]
    change(model)
    assert words in complaint(capsys, "evaluate", model, "--data", "scenes:dev?count=4")


def test_a_bit_of_a_tokenizer_that_changed_is_noticed(model: Path, capsys: Capture) -> None:
    text = (model / "tokenizer.json").read_text()
    content = json.loads(text)
    words = content["model"]["vocab"]
    words["a</w>"], words["b</w>"] = words["b</w>"], words["a</w>"]  # still a tokenizer, of other ids
    (model / "tokenizer.json").write_text(json.dumps(content, indent=2) + "\n")
    said = complaint(capsys, "evaluate", model, "--data", "scenes:dev?count=4")
    assert "damaged" in said
    assert "copy" in said
    meta = json.loads((model / "tokenizer_meta.json").read_text())
    del meta["sha256"]  # as older versions wrote it
    (model / "tokenizer.json").write_text(text)
    (model / "tokenizer_meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    assert call("evaluate", model, "--data", "scenes:dev?count=4") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "taste"], "--suite: unknown suite 'taste'; allowed are retrieval, probes, zeroshot"),
        (["--suite", "retreival"], "unknown suite 'retreival' (did you mean retrieval"),
        (
            ["--captions", "some"],
            "--captions is 'some'; retrieval reads the captions of a record; allowed: auto, whole",
        ),
        (["--set", "protocol=coco-2k"], "field 'protocol' is 'coco-2k': it must be 'plain', 'coco-5k'"),
        (["--seed", "-1"], "--seed"),
        (["--images", "x"], "--images x does not go with"),
        (["--batch-size", "0"], "--batch-size"),
        (["--memory", "0"], "--memory"),
        (["--max-corrupt", "2"], "--max-corrupt"),
        (["--json", "/proc/none/x.json"], "cannot write /proc/none/x.json"),
        (["--json", "/tmp"], "cannot write /tmp: it is a folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_options_of_evaluate_are_one_line(
    arguments: list[str], said: str, trained: Path, capsys: Capture
) -> None:
    assert said in complaint(capsys, "evaluate", trained, "--data", "scenes:dev?count=4", *arguments)


def test_a_model_behind_the_data_comes_first(trained: Path, capsys: Capture) -> None:
    assert "The model comes first. See" in complaint(capsys, "evaluate", "val.csv", trained)


def test_wrong_input_of_encode_is_one_line(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    out = ("--out", tmp_path / "v")
    text = complaint(capsys, "encode", trained, tmp_path / "empty.txt", *out)
    assert "empty.txt holds no text; expected one text a line" in text
    assert "cannot be read" in complaint(capsys, "encode", trained, tmp_path / "none.txt", *out)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "few.txt").write_text("a cat\n")
    text = complaint(capsys, "encode", trained, tmp_path / "few.txt", "--out", tmp_path / "file" / "v")
    assert "choose another --out" in text
    assert call("encode", trained, tmp_path / "few.txt", *out) == 0
    before = (tmp_path / "v" / "manifest.json").read_bytes()
    text = complaint(capsys, "encode", trained, tmp_path / "few.txt", *out, "--half")
    assert "v holds vectors of another job, with half False, and True now; choose another --out" in text
    assert (tmp_path / "v" / "manifest.json").read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    text = complaint(capsys, "encode", trained, tmp_path / "few.txt", "--out", tmp_path / "full")
    assert "full is not an empty folder: it holds mine; choose another --out" in text
    text = complaint(
        capsys, "encode", trained, tmp_path / "few.txt", "--images", "x", "--out", tmp_path / "w"
    )
    assert "--images x does not go with" in text


def test_ctrl_c_ends_with_130_and_a_hint(trained: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grainline.evaluation.evaluate_model.load", stopped)
    assert call("evaluate", trained, "--data", "scenes:dev?count=4") == 130
    assert (
        "interrupted; to go on: grainline train RUN --resume, or the same comparison again"
        in capsys.readouterr().err
    )


def test_a_model_may_be_named_from_inside_its_folder(model: Path, monkeypatch: Patch) -> None:
    expected = grainline.load(model).encode(texts=["a cat"]).vector
    for place in (model, model / "last"):
        monkeypatch.chdir(place)
        assert torch.equal(grainline.load(".").encode(texts=["a cat"]).vector, expected)


def test_a_folder_of_bare_images_gives_their_vectors(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    images = [photo(tmp_path / "photos" / f"{i}.png", i) for i in range(3)]
    capsys.readouterr()
    (tmp_path / "photos" / "3.jpg").write_bytes(b"no image")
    assert call("encode", trained, tmp_path / "photos", "--out", tmp_path / "v", "--batch-size", "2") == 0
    vectors, rows = read_vectors(str(tmp_path / "v"))
    assert list(vectors) == ["images"]
    expected = grainline.load(trained).encode(images=images).vector
    torch.testing.assert_close(torch.from_numpy(vectors["images"]), expected)
    assert [(row["side"], row["key"]) for row in rows] == [("images", f"{i}.png") for i in range(3)]
    (failed,) = (tmp_path / "v" / "parts").glob("*.failed.jsonl")
    assert json.loads(failed.read_text())["cause"] == "corrupt image"
    assert " images/s; 1 samples failed, see parts/*.failed.jsonl" in capsys.readouterr().out
    (tmp_path / "photos" / "1.TXT").write_text("A single text.")  # the others are encoded all the same
    assert call("encode", trained, tmp_path / "photos", "--out", tmp_path / "w") == 0
    vectors, _ = read_vectors(str(tmp_path / "w"))
    assert (len(vectors["images"]), len(vectors["texts"])) == (3, 1)


def test_vectors_of_a_pairwise_method_are_written_with_what_they_are_for(tmp_path: Path) -> None:
    model = indexes.saved(indexes.tiny_model("maxsim"), tmp_path / "model")
    photo(tmp_path / "photos" / "0.png")
    assert call("encode", model, tmp_path / "photos", "--out", tmp_path / "v") == 0
    notes = (tmp_path / "v" / "manifest.json").read_text()
    assert "maxsim scores pairs by their tokens; by these vectors it only finds candidates" in notes


def test_a_model_killed_while_it_replaced_its_weights_loads_the_old_ones(model: Path) -> None:
    expected = grainline.load(model).encode(texts=["a cat"]).vector
    (model / "last").rename(model / ".replaced-last")
    (model / "checkpoints" / ".saving-step-99999999").mkdir()
    (model / "checkpoints" / ".saving-step-99999999" / "model.safetensors").write_bytes(b"half")
    for path in (model, model / "last"):
        assert torch.equal(grainline.load(path).encode(texts=["a cat"]).vector, expected)
    shutil.rmtree(model / ".replaced-last")
    assert torch.equal(grainline.load(model).encode(texts=["a cat"]).vector, expected)


def test_an_out_folder_that_is_taken_or_cannot_be_made_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "thesis.tex").write_text("mine")
    assert "new is not an empty folder; choose another --out" in complaint(capsys, *train(tmp_path))
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        text = complaint(capsys, "train", recipe(tmp_path), "--out", out)
        assert "choose another --out" in text


# The journey


def test_a_small_journey_from_data_to_vectors(tmp_path: Path, capsys: Capture) -> None:
    tars, out, vectors = tmp_path / "tars", tmp_path / "run", tmp_path / "vectors"
    scenes = ["data", "scenes", "--out", tars, "scenes:train?count=24&size=48", "--samples-per-shard", "10"]
    assert call(*scenes) == 0
    assert "written: 3 tars" in capsys.readouterr().out
    assert call("data", "check", tars) == 0
    assert "24" in capsys.readouterr().out
    validation = ["--validation", "scenes:dev?count=4", "scenes:compose?count=4"]
    start = ["train", recipe(tmp_path), "--data", tars, *validation, "--out", out]
    assert call(*start, "--set", "train.max_steps=4", "train.validate_every=2") == 0
    capsys.readouterr()
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "model.json", "tokenizer.json", "tokenizer_meta.json", "log.jsonl", "lock",
        "report.html", "checkpoints", "best", "last",
    }  # fmt: skip
    result = tmp_path / "result.json"
    assert call("evaluate", out / "best", "--data", tars, "--json", result) == 0
    said = capsys.readouterr().out
    assert "text to image R@1" in said
    assert f"written: {result}" in said.replace("\n", "")
    written = json.loads(result.read_text())
    assert written["settings"]["method"] == "clip"
    assert {metric["name"] for metric in written["metrics"]} >= {"image to text R@1", "rSum"}
    assert call("evaluate", out, "--data", "scenes:dev?count=4", "--suite", "probes") == 0

    assert call("encode", out, tars, "--out", vectors) == 0
    saved, rows = read_vectors(str(vectors))
    assert saved["images"].shape == saved["texts"].shape == (24, 32)
    assert [row["row"] for row in rows if row["side"] == "texts"] == list(range(24))

    (tmp_path / "few.txt").write_text("A red circle.\n\nA blue square.\n")
    assert call("encode", out, tmp_path / "few.txt", "--out", tmp_path / "few") == 0
    alone = torch.from_numpy(read_vectors(str(tmp_path / "few"))[0]["texts"])

    model = grainline.load(out)
    texts = ["A red circle.", "A blue square."]
    torch.testing.assert_close(model.encode(texts=texts).vector, alone)
    images = [photo(tmp_path / f"{i}.png", i) for i in range(3)]
    encoded = model.encode(images=[images[0], images[1].read_bytes(), Image.open(images[2])])
    torch.testing.assert_close(model.score(encoded, texts), encoded.vector @ alone.T)
    assert model.heat(images[0], texts).shape == (2, 32, 32)


# Real processes

HEAVY = ("torch", "transformers", "pydantic", "yaml", "numpy", "PIL", "scipy", "rich.progress", "jinja2")


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_mistake_ends_a_real_process_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grainline", "train", "clip/scnes", "--out", str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("grainline: no recipe 'clip/scnes' (did you mean clip/scenes")
    assert not (tmp_path / "x").exists()


def test_importing_and_helping_load_nothing_heavy() -> None:
    loaded = f"print([m for m in {HEAVY} if m in sys.modules])"
    assert python(f"import sys, grainline; {loaded}") == "[]\n"
    ask = "sys.argv = ['grainline', '--help']\ntry: main()\nexcept SystemExit as end: assert end.code == 0"
    said = python(f"import sys\nfrom grainline.cli.main import main\n{ask}\n{loaded}")
    assert said.endswith("[]\n")
    for command in ("train", "evaluate", "encode", "demo", "data"):
        assert command in said


MISTAKES = [
    ("train clip/scnes --out x", "no recipe 'clip/scnes' (did you mean clip/scenes or "),
    ("train clip/scenes --out x --data nothing/", "nothing at nothing/"),
    ("train clip/scenes --out x --set steps", "--set 'steps': write it as name.of.field=value"),
    ("train clip/scenes", "no folder for the run; give --out FOLDER"),
    ("evaluate /no/run --data scenes", "no model at /no/run"),
    ("evaluate . --data scenes --suite retreival", "unknown suite 'retreival' (did you mean retrieval"),
    ("suites retreival", "unknown suite 'retreival' (did you mean retrieval"),
    ("evaluate --data scenes", "no MODEL and no --vectors"),
    ("encode /no/run photos --out x", "no model at /no/run"),
    ("index build nothing --model x --out y", "no folder of images at nothing"),
    ("index build . --model /no/run --out y", "no model at /no/run"),
    ("search /no/index text", "no index at /no/index"),
    ("search /no/index text --queries q.txt", "give one query"),
    ("serve /no/index", "no index at /no/index"),
    ("export /no/run out", "no model at /no/run"),
    ("recipes clip/scnes", "did you mean clip/scenes"),
    ("serch x", "No such command 'serch'"),
]


def test_mistakes_in_options_are_reported_before_torch_is_loaded() -> None:
    code = f"""
import sys
from grainline.cli.main import main
for line, _ in {MISTAKES!r}:
    sys.argv = ["grainline", *line.split()]
    try: main()
    except SystemExit as end: assert end.code == 2, line
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * len(MISTAKES)
    for said, (line, expected) in zip(done.stderr.splitlines(), MISTAKES, strict=True):
        assert expected in said, line


def test_recipes_are_listed_without_ablations_and_printed_whole(capsys: Capture) -> None:
    assert call("recipes") == 0
    listed = capsys.readouterr().out
    assert "clip/finetune" in listed
    assert "keep_010" not in listed
    assert f"and {sum(map(is_ablation, names()))} ablations and controls" in listed
    assert call("recipes", "seps") == 0
    of_seps = capsys.readouterr().out
    assert "seps/ablations/keep_010" in of_seps
    assert "clip/finetune" not in of_seps
    assert call("recipes", "clip/finetune") == 0
    assert yaml.safe_load(capsys.readouterr().out)["method"] == "clip"


@pytest.mark.parametrize("name", names())
def test_every_recipe_says_what_it_is_for(name: str) -> None:
    assert 10 < len(about(name)) < 200


COMMANDS = "demo", "recipes", "train", "evaluate", "suites", "encode", "show", "search", "serve", "export"


def test_h_is_help_and_every_command_has_an_example(capsys: Capture) -> None:
    assert call("-h") == 0
    text = capsys.readouterr().out
    for group in ("First steps", "Train and measure", "Search", "Data and other programs"):
        assert group in text
    for command in COMMANDS:
        assert call(command, "-h") == 0
        assert f"Example: grainline {command}" in " ".join(capsys.readouterr().out.split())


def test_every_option_has_a_help_and_the_default_of_the_function() -> None:
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for option in command.params:
            assert len(option.help) > 6, (command.name, option.name)
    (evaluation,) = (command for command in commands if command.name == "evaluate")
    options = {option.name: option for option in evaluation.params}
    python = inspect.signature(grainline.evaluate).parameters
    for name in ("captions", "scoring", "patches", "context", "similarity"):
        assert options[name].default == python[name].default
    assert "FG-CLIP" in options["context"].help


def test_the_version_is_printed(capsys: Capture) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"grainline {grainline.__version__}\n"


def test_the_next_command_is_named_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    next_step("grainline", "serve", "my photos.index")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    next_step("grainline", "serve", "my photos.index")
    assert capsys.readouterr().err == "next: grainline serve 'my photos.index'\n"
    assert call("recipes", "--quiet") == 0
    next_step("grainline", "serve", "x")
    assert capsys.readouterr().err == ""
    QUIET.set(False)
