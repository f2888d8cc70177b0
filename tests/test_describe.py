"""`grainline data describe`: by a tiny random LLaVA, by texts that exist, and going on after a kill."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from llavas import tiny_llava
from PIL import Image
from runs import call, complaint

from grainline.data.annotate import ByModel, ByTexts, Describer, make_descriptions, seed_of
from grainline.data.descriptions import Descriptions
from grainline.data.record import Cause, CorruptSample, Record
from grainline.encoders.pretrained.llava import PROMPT, TEMPERATURE, TOP_P, Llava
from grainline.errors import UserError

TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def llava(folder: Path) -> Llava:
    return Llava(str(folder), "cpu")


def image(i: int) -> Image.Image:
    return Image.new("RGB", (20 + 7 * i, 16 + i), (40 * i, 200 - 30 * i, 90))


def test_a_generated_text_depends_on_the_image_and_its_seed_alone(llava: Llava) -> None:
    images, seeds = [image(i) for i in range(4)], [5, 6, 7, 8]
    together = llava.describe(images, seeds, PROMPT, TOKENS)
    alone = [
        llava.describe([one], [seed], PROMPT, TOKENS)[0] for one, seed in zip(images, seeds, strict=True)
    ]
    assert together == alone
    assert llava.describe(images[::-1], seeds[::-1], PROMPT, TOKENS) == together[::-1]
    assert len({one.text for one in llava.describe([images[0]] * 4, seeds, PROMPT, TOKENS)}) > 1
    assert all(one.hit_limit and one.n_tokens == TOKENS for one in together)
    assert "USER" not in " ".join(one.text for one in together)  # the prompt is no part of it
    assert llava.processor.tokenizer.padding_side == "left"


def test_code_that_a_part_of_a_llava_names_is_never_asked_about(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(folder, tmp_path / "llava")
    content = json.loads((place / "config.json").read_text())
    content["text_config"]["auto_map"] = {"AutoModel": "own.Own"}
    (place / "config.json").write_text(json.dumps(content))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    with pytest.raises(UserError, match=r"code of its own \(auto_map\), and code of a model is never run"):
        Llava(str(place), "cpu")


def test_tokens_are_drawn_by_top_p_at_a_temperature(llava: Llava) -> None:
    """Token by token, each from the whole text so far, by the words of Holtzman et al. (1904.09751)."""
    generator = torch.Generator().manual_seed(9)
    content = [{"type": "image"}, {"type": "text", "text": PROMPT}]
    asked = llava.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    assert asked == f"USER: <image>\n{PROMPT} ASSISTANT:"
    given = llava.processor(images=[image(1)], text=[asked], return_tensors="pt")
    ids = given["input_ids"]
    for _ in range(5):
        with torch.no_grad():
            out = llava.model(
                input_ids=ids, pixel_values=given["pixel_values"], attention_mask=torch.ones_like(ids)
            )
        share = torch.softmax(out.logits[0, -1].double() / TEMPERATURE, -1).numpy()
        order = np.argsort(-share)
        number = int((np.cumsum(share[order]) < TOP_P).sum()) + 1  # the fewest that reach it
        kept = np.zeros_like(share)
        kept[order[:number]] = share[order[:number]]
        at = float(torch.rand((), generator=generator, dtype=torch.float64)) * kept.sum()
        ids = torch.cat([ids, torch.tensor([[int((np.cumsum(kept) <= at).sum())]])], dim=1)
    text = llava.processor.tokenizer.decode(ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
    assert llava.describe([image(1)], [9], PROMPT, 5)[0].text == text


def test_a_model_that_cannot_describe_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        Llava(str(bare), "cpu")
    settings = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(settings | {"model_type": "clip"}))
    with pytest.raises(UserError, match="has model_type clip; descriptions are made by llava"):
        Llava(str(bare), "cpu")


class Said(NamedTuple):
    text: str
    n_tokens: int
    hit_limit: bool


class Fake:
    """Says the colour of the middle pixel; dies when it is shown a number of images."""

    name, revision = "fake", "1"

    def __init__(self, dies: int = 10**9) -> None:
        self.shown, self.dies = 0, dies

    def describe(
        self, images: Sequence[Image.Image], seeds: Sequence[int], prompt: str, tokens: int
    ) -> list[Said]:
        self.shown += len(images)
        if self.shown > self.dies:
            raise KeyboardInterrupt
        red = [one.getpixel((0, 0))[0] for one in images]  # type: ignore[index]
        return [
            Said(f"It is {one}. {prompt} by {seed}. And so" if one else "", tokens, one > 40)
            for one, seed in zip(red, seeds, strict=True)
        ]


class Images:
    """Seven records: one damaged, one black."""

    path = "images"

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Record:
        if index == 4:
            raise CorruptSample(Cause.CORRUPT_IMAGE, "4.png")
        captions = (f"zero {index}", "one .", "two")[: 3 if index else 1]
        return Record(
            f"{index}.png", image(index).copy(), captions, long=f"Long {index}." if index > 2 else None
        )

    def fingerprint(self) -> str:
        return "images"


def by_model(model: Fake, seed: int = 3, batch: int = 2) -> ByModel:
    return ByModel(model, "Asked", seed, 20, batch)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_image_has_a_line_with_all_that_it_was_made_with(tmp_path: Path) -> None:
    made = make_descriptions(Images(), by_model(Fake()), tmp_path / "a.jsonl")
    first, *rows = lines(tmp_path / "a.jsonl")
    assert first["source"] == "images"
    assert first["by"] == {"model": "fake", "revision": "1", "prompt": "Asked", "seed": 3, "tokens": 20}
    seed = seed_of(3, "1.png")
    assert rows[1] == {
        "image_id": "1.png",
        "file": "images",
        "text": f"It is 40. Asked by {seed}. And so",
        "model": "fake",
        "revision": "1",
        "prompt": "Asked",
        "seed": seed,
        "n_tokens": 20,
        "hit_limit": False,
    }
    assert rows[2]["text"] == f"It is 80. Asked by {seed_of(3, '2.png')}."  # broken off: no half sentence
    assert rows[2]["hit_limit"] is True
    assert rows[0] == {"record": 0, "skipped": "empty description", "where": "0.png"}
    assert rows[4] == {"record": 4, "skipped": Cause.CORRUPT_IMAGE, "where": "4.png"}
    assert len({row["seed"] for row in rows if "seed" in row}) == 5
    assert made.counts["image"] == 5
    assert made.skipped == {"empty description": 1, Cause.CORRUPT_IMAGE: 1}
    assert "4 truncated descriptions" in str(made)
    assert Descriptions([str(tmp_path / "a.jsonl")]).get("1.png") == rows[1]["text"]


def test_a_run_that_was_killed_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    make_descriptions(Images(), by_model(Fake()), tmp_path / "whole.jsonl")
    out = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        make_descriptions(Images(), by_model(Fake(dies=3)), out)
    assert not out.exists()
    partial = tmp_path / "a.jsonl.partial"
    with partial.open("ab") as file:
        file.write(b'{"image_id": "2.png", "te')  # the power went
    with pytest.raises(UserError, match="was made with model fake"):
        make_descriptions(Images(), by_model(Fake(), seed=4), out)
    model = Fake()
    made = make_descriptions(Images(), by_model(model), out)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert made.resumed == 2
    assert model.shown == 4  # of 7 records 2 were there, and one is damaged
    assert make_descriptions(Images(), by_model(Fake(dies=0)), out).resumed == 7
    with pytest.raises(UserError, match="choose another --out"):
        make_descriptions(Images(), by_model(Fake(), seed=4), out)
    (tmp_path / "b.jsonl").write_text('{"image_id": "a", "text": "A."}\n')
    with pytest.raises(UserError, match="is not of the format 'descriptions 1'"):
        make_descriptions(Images(), by_model(Fake()), tmp_path / "b.jsonl")


def test_a_model_sees_no_caption() -> None:
    record = by_model(Fake()).prepare(Images()[5])
    assert record._replace(image=b"") == Record("5.png", b"", ())


def said(describer: Describer, tmp_path: Path) -> dict[str, str]:
    make_descriptions(Images(), describer, tmp_path / "out.jsonl")
    return {row["image_id"]: row["text"] for row in lines(tmp_path / "out.jsonl") if "image_id" in row}


def test_texts_of_the_records_are_descriptions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    long = said(ByTexts("long"), tmp_path / "a")
    assert long == {f"{i}.png": f"Long {i}." for i in (3, 5, 6)}
    rows = lines(tmp_path / "a" / "out.jsonl")
    assert rows[1] == {"record": 0, "skipped": Cause.MISSING_CAPTION, "where": "0.png"}
    assert rows[4]["model"] is None
    (tmp_path / "b").mkdir()
    two = said(ByTexts("captions:2,0"), tmp_path / "b")
    assert two == {f"{i}.png": f"two. zero {i}." for i in (1, 2, 3, 5, 6)}  # of 0 there is one caption
    (tmp_path / "c").mkdir()
    every = said(ByTexts("captions"), tmp_path / "c")
    assert (every["0.png"], every["1.png"]) == ("zero 0", "zero 1. one. two.")


def test_texts_of_a_file_or_another_source_go_by_keys(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text('Filename,caption\n1.png,"A dog, wet."\n1.png,It runs\n9.png,Nobody\n')
    (tmp_path / "a").mkdir()
    assert said(ByTexts(str(table)), tmp_path / "a") == {"1.png": "A dog, wet. It runs."}
    rows = tmp_path / "texts.jsonl"
    rows.write_text(json.dumps({"image_id": "2.png", "caption": "A.", "description": "A longer one."}) + "\n")
    (tmp_path / "b").mkdir()
    assert said(ByTexts(str(rows)), tmp_path / "b") == {"2.png": "A longer one."}
    photos = tmp_path / "photos"
    photos.mkdir()
    image(1).save(photos / "3.png")
    (photos / "3.txt").write_text("From a folder.")
    (tmp_path / "c").mkdir()
    assert said(ByTexts(str(photos)), tmp_path / "c") == {"3.png": "From a folder."}
    (tmp_path / "bad.csv").write_text("name,words\na,b\n")
    with pytest.raises(UserError, match="has no image column among name, words"):
        ByTexts(str(tmp_path / "bad.csv"))
    before = ByTexts(str(table)).origin
    table.write_text("Filename,caption\n1.png,Another\n")
    assert ByTexts(str(table)).origin != before


def test_the_command_describes_a_folder_of_bare_images(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        image(i).save(photos / f"{i}.png")
    out = tmp_path / "out.jsonl"
    assert (
        call("data", "describe", photos, "--out", out, "--model", folder, "--tokens", 6, "--batch-size", 2)
        == 0
    )
    rows = lines(out)[1:]
    assert [row["image_id"] for row in rows] == ["0.png", "1.png", "2.png"]
    assert all(row["text"] and row["n_tokens"] == 6 and row["prompt"] == PROMPT for row in rows)
    assert rows[0]["revision"].startswith("sha256:")
    say = ("data", "describe", photos, "--out")
    assert "give one" in complaint(capsys, *say, out, "--texts", "long", "--model", folder)
    assert "name in .jsonl" in complaint(capsys, *say, tmp_path / "out.txt", "--texts", "long")
    assert "other data" in complaint(
        capsys, *("data", "describe", "scenes:dev?count=2", "--out"), out, "--texts", "long"
    )
    assert call(*say, tmp_path / "none.jsonl", "--texts", "captions") == 1  # not one has a caption
