"""Runs that begin with a checkpoint: trained, stopped, resumed, loaded, measured and converted without it."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import OpenAI, save_state, tokenizer, whole
from runs import call, complaint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grainline.encoders.pretrained import load_pretrained
from grainline.evaluation.training_overlap import training_of
from grainline.loading import load

SMALL = (
    "train.max_steps=4",
    "train.global_batch_size=6",
    "train.grad_cache_chunk=null",
    "train.save_every=2",
    "train.log_every=1",
    "train.precision=fp32",
    "train.optimizer.lr=1e-3",
    "data.workers=0",
    'data.paths=["scenes:train?count=18"]',
)
FROZEN = "clip/finetune frozen"  # with positions that never learn
HIMO = "himo/finetune"
RECIPES = ("clip/finetune", FROZEN, "clip/debias", "clip/locked", "clip/lora", "siglip/finetune", HIMO)
Capture = pytest.CaptureFixture[str]


def arguments(recipe: str, folder: Path, out: Path) -> list[str]:
    name, _, frozen = recipe.partition(" ")
    context = [] if recipe.startswith("siglip") else ["model.text.context=48"]
    context += ["model.text.frozen_positions=20"] if frozen else []
    return [
        "train",
        name,
        "--out",
        str(out),
        "--set",
        *SMALL,
        f"model.pretrained={folder}",
        "model.image.size=32",
        *context,
    ]


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "last" / "model.safetensors")


@pytest.fixture(scope="module", params=RECIPES)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path, Any]:
    """A recipe, its run, where the checkpoint lay that it began with, and the library's model of that."""
    home = tmp_path_factory.mktemp("run")
    family = "siglip" if request.param.startswith("siglip") else "clip"
    model = whole(family, home / "checkpoint")
    assert call(*arguments(request.param, home / "checkpoint", home / "run")) == 0
    (home / "checkpoint").rename(home / "moved")
    return request.param, home / "run", home / "checkpoint", model


Run = tuple[str, Path, Path, Any]


def test_a_run_goes_on_bit_for_bit_without_the_checkpoint_it_began_with(run: Run, tmp_path: Path) -> None:
    recipe, out, gone, _ = run
    assert not gone.exists()
    shutil.copytree(out, tmp_path / "run")
    for later in ("last", "checkpoints/step-00000004"):
        shutil.rmtree(tmp_path / "run" / later)
    assert call(*arguments(recipe, gone, tmp_path / "run"), "--resume") == 0
    again, before = weights(tmp_path / "run"), weights(out)
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], x) for name, x in before.items())


def test_a_run_that_stopped_before_its_first_checkpoint_reads_the_one_it_begins_with(
    tmp_path: Path, capsys: Capture
) -> None:
    whole("clip", tmp_path / "in")
    start = arguments(FROZEN, tmp_path / "in", tmp_path / "run")
    assert call(*start) == 0
    before = weights(tmp_path / "run")
    for later in ("last", "checkpoints"):
        shutil.rmtree(tmp_path / "run" / later)
    (tmp_path / "in").rename(tmp_path / "moved")
    assert f"no file or folder {tmp_path / 'in'}" in complaint(capsys, *start, "--resume")
    (tmp_path / "moved").rename(tmp_path / "in")
    assert call(*start, "--resume") == 0
    again = weights(tmp_path / "run")
    assert all(torch.equal(again[name], x) for name, x in before.items())


def test_the_recipe_in_the_run_is_the_users_and_the_description_is_whole(run: Run) -> None:
    _, out, gone, _ = run
    text = (out / "recipe.yaml").read_text()
    assert f"pretrained: {gone}" in text
    assert "architecture: null" in text
    config = json.loads((out / "model.json").read_text())["config"]
    assert config["image"]["architecture"]["kind"] == config["text"]["architecture"]["kind"]
    assert (config["image"]["size"], config["width"]) in ((32, 24), (32, 64))
    assert load(out).tokenizer.to_json() == tokenizer().to_json()


def test_what_is_frozen_stays_and_what_is_not_moves(run: Run) -> None:
    recipe, out, gone, _ = run
    before: Any = load_pretrained(
        gone.with_name("moved"), size=32, context=None if recipe.startswith("siglip") else 48
    )
    loaded = load(out, device="cpu").method
    towers: Any = loaded.get_submodule("towers")
    after = {f"towers.text.model.{name}": x for name, x in towers.text.library_state().items()}
    after = loaded.state_dict() | after
    for side in ("image", "text"):
        old = before._asdict()[side].state_dict()
        moved = [not torch.equal(after[f"towers.{side}.{name}"], x) for name, x in old.items()]
        if recipe in (FROZEN, HIMO) and side == "text":
            table = "model.embeddings.position_embedding.weight"
            fixed = (after[f"towers.text.{table}"] == old[table]).all(1)
            assert fixed.tolist() == [i < 20 for i in range(48)]
        if recipe == "clip/lora":
            adapted = [name.endswith("_proj.weight") for name in old]
            assert moved == adapted
            assert any(adapted)
        elif recipe == "clip/locked" and side == "image":
            assert not any(moved)
            assert torch.equal(after["towers.to_image.weight"], before.image_projection)
        else:
            assert sum(moved) > len(moved) / 2


@torch.no_grad()
def test_a_converted_run_has_the_same_cosines_in_the_library(
    run: Run, tmp_path: Path, capsys: Capture
) -> None:
    from transformers import AutoModel, AutoTokenizer

    _, out, _, _ = run
    assert call("convert", out, tmp_path / "theirs") == 0
    moved = re.search(r"vectors of images moved by (\S+), of texts by (\S+)\)", capsys.readouterr().out)
    assert moved is not None
    assert max(map(float, moved.groups())) < 1e-6
    model, ours = AutoModel.from_pretrained(tmp_path / "theirs").eval(), load(out)
    texts = ["a red dog", "the old green tree and then a house"]
    if (
        out.parent and ours.description.method != "siglip"
    ):  # AutoTokenizer knows no CLIP-shaped one of a SigLIP
        read = AutoTokenizer.from_pretrained(tmp_path / "theirs")
        assert read(texts)["input_ids"] == ours.tokenizer.encode(texts, 48).ids
    ids = ours.tokenizer.encode(texts, 48).ids
    pad, context = model.config.text_config.pad_token_id, ours.method.context
    padded = torch.tensor([row + [pad] * (context - len(row)) for row in ids])
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    encoder: Any = ours.method.get_submodule("towers.image")
    normal = (pixels / 255 - encoder.mean) / encoder.spread
    images = model.get_image_features(pixel_values=normal).pooler_output
    read_texts = model.get_text_features(input_ids=padded).pooler_output
    theirs = nn.functional.normalize(images, dim=-1) @ nn.functional.normalize(read_texts, dim=-1).T
    from PIL import Image

    shown = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in pixels]
    torch.testing.assert_close(ours.score(shown, texts), theirs, rtol=0, atol=1e-5)
    again: Any = load(tmp_path / "theirs")
    torch.testing.assert_close(again.score(shown, texts), ours.score(shown, texts), rtol=0, atol=1e-6)
    assert again.tokenizer.to_json() == ours.tokenizer.to_json()


# Convert


@pytest.fixture(scope="module")
def openai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenAI's form with the quick GELU, its tokenizer beside it."""
    home = tmp_path_factory.mktemp("openai")
    torch.manual_seed(0)
    save_state(OpenAI(vocab=tokenizer().vocab), home / "tiny-quickgelu.safetensors")
    tokenizer().save(home)
    return home / "tiny-quickgelu.safetensors"


def test_a_state_dict_goes_to_a_folder_and_back(openai: Path, tmp_path: Path, capsys: Capture) -> None:
    assert call("convert", openai, tmp_path / "folder") == 0
    assert call("convert", tmp_path / "folder", tmp_path / "again-quickgelu.safetensors") == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    before, after = load_file(openai), load_file(tmp_path / "again-quickgelu.safetensors")
    assert before.keys() == after.keys()
    for name, x in before.items():
        torch.testing.assert_close(after[name], x, rtol=0, atol=1e-6)
    names = ("tokenizer.json", "tokenizer_meta.json")
    assert all((tmp_path / name).read_bytes() == openai.with_name(name).read_bytes() for name in names)


def test_the_name_of_a_state_dict_tells_its_activation(openai: Path, tmp_path: Path, capsys: Capture) -> None:
    said = complaint(capsys, "convert", openai, tmp_path / "x.safetensors")
    assert "has the quick GELU" in said
    assert "name it x-quickgelu.safetensors" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("x.pt", "would be pickled; name a .safetensors file, or a folder"),
        ("taken", "is there already; give a new name"),
        ("taken/file.safetensors", "is there already; give a new name"),
        ("taken/x-quickgelu.safetensors", "tokenizer.json is there already; give a new folder"),
    ],
)
def test_what_is_in_the_way_is_left_alone(
    out: str, said: str, openai: Path, tmp_path: Path, capsys: Capture
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file.safetensors").write_text("mine")
    (taken / "tokenizer.json").write_text("mine")
    assert said in complaint(capsys, "convert", openai, tmp_path / out)
    assert {path.name: path.read_text() for path in taken.iterdir()} == {
        "file.safetensors": "mine",
        "tokenizer.json": "mine",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_what_no_other_program_has_is_refused_with_the_reason(tmp_path: Path, capsys: Capture) -> None:
    from indexes import saved, tiny_model
    from test_start import SCRATCH

    from grainline.build import Description, start
    from grainline.config import parse
    from grainline.methods import method_class

    for family in ("clip", "siglip", "vit", "bert"):
        whole(family, tmp_path / family)
    model = tiny_model("clip")

    def refused(method: str, **values: Any) -> str:
        begun = start(Description(method, parse(method_class(method).config_class, values, "test")))
        model.description, model.method = begun.description, begun.method()
        place = saved(model, tmp_path / f"run{len(list(tmp_path.iterdir()))}")
        text = complaint(capsys, "convert", place, tmp_path / "out")
        assert f"{place} cannot be written for other programs: " in text
        assert not (tmp_path / "out").exists()
        return text

    clip, siglip = str(tmp_path / "clip"), str(tmp_path / "siglip")
    assert "its image and text sides were trained from scratch" in refused("clip", **SCRATCH)
    mixed = {"image": {"pretrained": clip}, "text": SCRATCH["text"]}
    assert "its text side was trained from scratch" in refused("clip", **mixed)
    assert "maxsim scores pairs by their tokens" in refused("maxsim", pretrained=clip)
    scratch = refused("beta_clip", **SCRATCH, scoring="conditioned")
    assert "scores pairs by their tokens, which no CLIP or SigLIP does; its image and text sides" in scratch
    assert "--scoring" not in scratch, "it would not be enough"
    assert "flair makes a text of 2 chunks" in refused("flair", pretrained=clip, heads=2, chunks=2)
    assert "caft makes a text of 4 chunks" in refused("caft", pretrained=clip, heads=2, composer={"heads": 2})
    pooled = refused("flair", pretrained=clip, heads=2)
    assert "flair scores pairs by their tokens" in pooled
    assert "--scoring vectors leaves that out" in pooled
    by_sentence = refused("clip", pretrained=clip, scoring="sentences")
    assert "clip reads sentences one by one" in by_sentence
    assert "--scoring whole leaves that out" in by_sentence
    two = {"image": {"pretrained": str(tmp_path / "vit")}, "text": {"pretrained": str(tmp_path / "bert")}}
    assert "it is clip on the image side of vit and the text side of bert" in refused("clip", **two)
    assert "it is siglip on the image side of clip" in refused("siglip", pretrained=clip)
    assert "width 20 come out of projections" in refused("siglip", pretrained=siglip, width=20)


def test_the_summaries_of_a_flair_on_a_clip_are_written_as_one(tmp_path: Path, capsys: Capture) -> None:
    from indexes import saved, tiny_model

    from grainline.build import Description, start
    from grainline.config import parse
    from grainline.methods import method_class

    whole("clip", tmp_path / "clip")
    values = {"pretrained": str(tmp_path / "clip"), "heads": 2}
    begun = start(Description("flair", parse(method_class("flair").config_class, values, "test")))
    model = tiny_model("clip")
    model.description, model.method, model.tokenizer = begun.description, begun.method(), begun.tokenizer()
    torch.nn.init.normal_(model.method.towers.to_text.weight)
    run, out = saved(model, tmp_path / "run"), tmp_path / "out"
    assert call("convert", run, out, "--scoring", "vectors") == 0
    words = ["a red circle", "a blue square above it"]
    wanted = load(run, device="cpu", scoring="vectors").encode(texts=words).vector
    torch.testing.assert_close(load(out, device="cpu").encode(texts=words).vector, wanted, rtol=0, atol=1e-5)
    said = complaint(capsys, "convert", out, tmp_path / "again", "--scoring", "vectors")
    assert f"{out} is no run and has one way to score" in said


def test_weights_of_a_hugging_face_folder_alone_are_sent_to_their_folder(
    tmp_path: Path, capsys: Capture
) -> None:
    whole("clip", tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    said = complaint(capsys, "convert", file, tmp_path / "out")
    assert said == f"grainline: {file} has the names of a Hugging Face model, whose config.json is needed too"


def test_vectors_that_moved_are_an_error_and_nothing_is_left(
    openai: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grainline.export import huggingface as module

    right = module.to_hugging_face

    def wrong(towers: Any, place: Path, also: Any) -> None:
        right(towers, place, also)
        state = load_file(place / "model.safetensors")
        state["text_projection.weight"] *= torch.linspace(1, 1.1, 24)[:, None]
        save_file(state, place / "model.safetensors", {"format": "pt"})

    monkeypatch.setattr(module, "to_hugging_face", wrong)
    said = complaint(capsys, "convert", openai, tmp_path / "out")
    assert "gave other vectors" in said
    assert "allowed is 1e-04) and was removed" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["clip", "himo"])  # which differ in training alone
def test_a_finetuned_width_of_its_own_is_a_clip_of_that_width(method: str, tmp_path: Path) -> None:
    from grainline.build import Description, method_config, start
    from grainline.encoders.pretrained.convert import to_hugging_face
    from grainline.export.huggingface import parity, towers_of
    from grainline.model import Model

    whole("clip", tmp_path / "clip")
    values = {"pretrained": str(tmp_path / "clip"), "width": 20}
    begun = start(Description(method, method_config(method, values, "test")))
    towers = towers_of(Model(begun.description, begun.method(), tokenizer()), "test")
    to_hugging_face(towers, tmp_path / "out")
    assert max(parity(towers, tmp_path / "out")) < 1e-6
    assert load_pretrained(tmp_path / "out").architecture["config"]["projection_dim"] == 20


def test_adapters_in_a_librarys_towers_train_go_on_load_and_convert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rates that fall with depth and layers computed again; what reads the run needs no peft."""
    whole("clip", tmp_path / "checkpoint")
    tuned = (
        "train.lora={rank: 2, dropout: 0.2}",
        "train.optimizer.layer_decay=0.5",
        "train.activation_checkpointing=true",
        "train.keep_checkpoints=9",
    )
    start = arguments("clip/finetune", tmp_path / "checkpoint", tmp_path / "run")
    assert call(*start, *tuned) == 0
    shutil.rmtree(tmp_path / "checkpoint")
    first = weights(tmp_path / "run")
    assert call(*start, *tuned, "--resume", "--checkpoint", "step-00000002") == 0
    again = weights(tmp_path / "run")
    assert all(torch.equal(again[name], x) for name, x in first.items())
    name = "towers.image.model.encoder.layers.1.self_attn.q_proj"
    assert first[f"{name}.lora_B.weight"].any()
    monkeypatch.setitem(sys.modules, "peft", None)
    model = load(tmp_path / "run")
    merged = first[f"{name}.weight"] + 8.0 * first[f"{name}.lora_B.weight"] @ first[f"{name}.lora_A.weight"]
    torch.testing.assert_close(model.method.state_dict()[f"{name}.weight"], merged)
    assert call("convert", tmp_path / "run", tmp_path / "hf") == 0
    own = load_file(tmp_path / "hf" / "model.safetensors")
    torch.testing.assert_close(own["vision_model.encoder.layers.1.self_attn.q_proj.weight"], merged)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and its runs `tuned` and `start`, of which the second learns nothing."""
    home = tmp_path_factory.mktemp("average")
    whole("clip", home / "checkpoint")
    two = "train.max_steps=2", "train.save_every=1"
    for name, lr in (("tuned", "1e-3"), ("start", "1e-30")):
        setting = f"train.optimizer.lr={lr}"
        assert call(*arguments(HIMO, home / "checkpoint", home / name), setting, *two) == 0
    return home


def test_an_average_with_the_start_is_a_slow_loop_and_its_ends_are_the_two_models(
    tuned: Path, tmp_path: Path
) -> None:
    run, ends = tuned / "tuned", [weights(tuned / "start"), weights(tuned / "tuned")]
    assert any(not torch.equal(x, ends[1][name]) for name, x in ends[0].items())
    again = tmp_path / "again"
    rest = (f"init_from={tuned / 'start'}", "train.max_steps=1")
    assert call(*arguments(HIMO, tuned / "checkpoint", again), *rest) == 0
    for one, own in ((run, ends[1]), (again, weights(again))):
        for weight in (0.0, 0.5, 1.0):
            out = tmp_path / f"{one.name} {weight}"
            assert call("average", one, "--weight", weight, "--out", out) == 0
            mixed = load_file(out / "model.safetensors")
            assert mixed.keys() == own.keys()
            for name, x in mixed.items():
                pairs = zip(ends[0][name].flatten().tolist(), own[name].flatten().tolist(), strict=True)
                expected = [(1 - weight) * a + weight * b for a, b in pairs]
                assert torch.equal(x.flatten(), torch.tensor(expected, dtype=x.dtype)), name


def test_a_soup_has_equal_shares_and_says_everywhere_what_it_is_of(
    tuned: Path, tmp_path: Path, capsys: Capture
) -> None:
    parts = [tuned / "tuned" / "checkpoints" / f"step-0000000{step}" for step in (1, 2)] + [tuned / "start"]
    assert call("average", parts[0], "--with", *parts[1:], "--out", tmp_path / "soup") == 0
    states = [load(part).method.state_dict() for part in parts]
    for name, x in load(tmp_path / "soup").method.state_dict().items():
        expected = sum(state[name].double() for state in states) / 3
        torch.testing.assert_close(x, expected.to(x.dtype), rtol=1e-6, atol=1e-9)
    named = "the average of step-00000001 (0.3333), step-00000002 (0.3333) and start (0.3333)"
    assert f"| weights | {named} |" in (tmp_path / "soup" / "README.md").read_text()
    result = tmp_path / "result.json"
    assert call("evaluate", tmp_path / "soup", "--data", "scenes:dev?count=6", "--json", result) == 0
    assert f"the weights are {named}" in json.loads(result.read_text())["notes"]
    assert training_of(str(tmp_path / "soup")).data == (("scenes:train?count=18", None),)
    capsys.readouterr()


def test_only_weights_of_one_architecture_are_averaged(tuned: Path, tmp_path: Path, capsys: Capture) -> None:
    longer, random, out = tuned / "tuned", tmp_path / "random", tmp_path / "out"
    assert call("train", "clip/patches", "--out", random, "--set", *SMALL, "train.max_steps=1") == 0
    for words, message in (
        (
            (longer, "--with", tuned / "checkpoint"),
            r"position_embedding.weight is \[65, 64\] in .*, stretched for other texts",
        ),
        (
            (longer, "--with", random),
            r"towers\..* is .* in .*tuned and absent in .*random: only weights of one",
        ),
        ((random,), "started from random weights; name what to average with: --with OTHER_RUN"),
        ((tuned / "checkpoint",), "has no recipe.yaml that names its start"),
        ((longer, "--weight", "1.5"), "weight is 1.5; give the share of"),
        ((longer, "--with", longer), "comes twice"),
    ):
        assert re.search(message, complaint(capsys, "average", *words, "--out", out)), message
        assert not out.exists()
    weights = random / "last"  # of the run itself
    assert "holds no model" in complaint(capsys, "average", longer, "--with", random, "--out", weights)
