"""`grainline index` and `grainline search`."""

import json
import os
from pathlib import Path

import pytest
from indexes import TEXTS, photo, photos, saved, texts, tiny_model
from PIL import Image
from runs import call, complaint

from grainline.encoders.pretrained.hub import public_checkpoint
from grainline.errors import UserError
from grainline.index.reader import IndexReader

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, `photos` and `index`, made by the command line."""
    folder = tmp_path_factory.mktemp("made")
    saved(tiny_model(), folder / "model")
    photos(folder / "photos", 18)
    arguments = ["--model", folder / "model", "--out", folder / "index", "--calibration-texts", texts(folder)]
    assert call("index", "build", folder / "photos", *arguments) == 0
    return folder


def test_a_text_an_image_or_a_file_of_queries_is_searched(made: Path, tmp_path: Path) -> None:
    out, page, heat = tmp_path / "answers.json", tmp_path / "page.html", tmp_path / "heat"
    assert call("search", made / "index", TEXTS[0], "-k", 2, "--json", out, "--heat", heat) == 0
    body = json.loads(out.read_text())
    assert (body["image_count"], body["format"]) == (18, 4)
    hit = body["results"][0]["hits"][0]
    assert set(hit) == {"path", "score", "p", "match", "sentences"}
    assert [sentence["text"] for sentence in hit["sentences"]] == ["A red dog runs.", "The sand is red."]
    assert len(list(heat.iterdir())) == 4
    image = "--image", made / "photos" / "04.png"
    assert call("search", made / "index", *image, "--json", out, "--html", page) == 0
    assert json.loads(out.read_text())["results"][0]["hits"][0]["path"] == "04.png"
    assert "have another one as near" in page.read_text(encoding="utf-8")
    (tmp_path / "queries.txt").write_text(f"{TEXTS[1]}\n\n{TEXTS[2]}\n")
    assert call("search", made / "index", "--queries", tmp_path / "queries.txt", "--json", out) == 0
    assert [answer["query"] for answer in json.loads(out.read_text())["results"]] == TEXTS[1:3]


def test_the_other_commands_say_what_they_did(made: Path, capsys: Capture) -> None:
    index = made / "index"
    photo(made / "photos" / "later.png", 40)
    for arguments, line in (
        (("add", index, made / "photos" / "later.png"), "19 images (1 added, 1 encoded)"),
        (("remove", index, "later.png"), "18 images (1 removed)"),
        (("refresh", index), "18 images (nothing changed)"),
        (("check", index), "is whole: 18 images"),
    ):
        assert call("index", *arguments) == 0
        assert line in capsys.readouterr().out.replace("\n", "")


def test_mistakes_are_one_line(made: Path, tmp_path: Path, capsys: Capture) -> None:
    index = made / "index"
    build = "index", "build", tmp_path / "x", "--model", made / "model", "--out", tmp_path
    for arguments, line in (
        (("search", tmp_path, "a dog"), "no index at"),
        (("search", "a dog", tmp_path), f'the index comes first: grainline search {tmp_path} "a dog"'),
        (("search", index), "give one query"),
        (("search", index, "a dog", "--image", "x.png"), "give one query"),
        (("search", index, "--image", tmp_path / "x.png"), "cannot be read"),
        (("search", index, "--image", "x.png", "--heat", tmp_path), "--heat shows sentences"),
        (("search", index, "a dog", "--model", tmp_path), "holds no model.json"),
        (("index", "add", index, tmp_path / "x.png"), "lies outside"),
        (("index", "refresh", tmp_path), "no index at"),
        (build, "no folder of images"),
    ):
        assert line in complaint(capsys, *arguments)


def test_names_that_no_terminal_should_obey_are_shown_as_escapes(
    made: Path, tmp_path: Path, capsys: Capture
) -> None:
    root = photos(tmp_path / "photos", 3)
    odd = os.fsdecode(b"\x1b[31m\xff\n.png")
    photo(root / odd, 9)
    (root / "bad\x1b.png").write_bytes(b"no image")
    out = tmp_path / "answers.json"
    index = ["--model", made / "model", "--out", tmp_path / "index", "--calibration-texts", texts(tmp_path)]
    assert call("index", "build", root, *index) == 0
    page = tmp_path / "page.html"
    assert call("search", tmp_path / "index", TEXTS[0], "--json", out, "--html", page) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "corrupt image: bad\\x1b.png" in printed
    hits = json.loads(out.read_text(encoding="utf-8"))["results"][0]["hits"]
    assert odd in [hit["path"] for hit in hits]
    assert call("search", tmp_path / "\x1b", "A dog.") == 2
    assert "\x1b" not in capsys.readouterr().err


def test_in_a_pipe_a_hit_is_a_line_with_a_path_that_can_be_opened(
    made: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (made, made.parent, made / "index"):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        assert call("search", made / "index", TEXTS[0], "-k", 3) == 0
        out, err = capsys.readouterr()
        lines = [line.split("\t") for line in out.splitlines()]
        assert len(lines) == 3
        for path, score, p, match, shown, query in lines:
            assert Path(path).is_file()
            assert Path(path).is_absolute() == (folder == made / "index")
            assert -10 < float(score) < 10
            assert 0 <= float(p) <= 1
            assert match in ("sure", "in part", "none")
            assert shown.endswith("/2")
            assert query == TEXTS[0]
        assert "calibration texts" in err, "notes are no hits"


def test_photos_indexes_beside_the_folder_and_refreshes(
    made: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        "grainline.web.server.serve", lambda folder, *_, browser: served.append((folder, browser))
    )
    root = photos(tmp_path / "mine", 5)
    before = sorted(root.rglob("*"))
    assert call("photos", root, "--model", made / "model") == 0
    assert "5 images (5 added, 5 encoded)" in capsys.readouterr().out
    photo(root / "later.png", 40)
    assert call("photos", root, "--no-browser") == 0, "the index knows its model"
    assert "6 images (1 added, 1 encoded)" in capsys.readouterr().out
    assert served == [(tmp_path / "mine.index", True), (tmp_path / "mine.index", False)]
    assert sorted(root.rglob("*")) == sorted([*before, root / "later.png"]), "nothing is written into it"
    other = photos(tmp_path / "other", 3)
    assert "choose another --index" in complaint(capsys, "photos", other, "--index", tmp_path / "mine.index")
    own = "--calibration-texts", tmp_path / "texts.txt"
    assert "has its calibration texts from when it was built" in complaint(capsys, "photos", root, *own)
    (tmp_path / "texts.txt").write_text("\n".join(f"A dog on hill {i}." for i in range(30)))
    assert call("photos", other, "--model", made / "model", *own) == 0
    assert IndexReader(tmp_path / "other.index").calibration_texts.source == str(tmp_path / "texts.txt")
    assert "no folder" in complaint(capsys, "photos", tmp_path / "none")


def test_photos_without_any_model_says_how_to_bring_one(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(name: str) -> None:
        raise UserError(f"no {name}")

    hub = "grainline.encoders.pretrained.hub"
    monkeypatch.setattr(f"{hub}.cached", lambda _: None)
    monkeypatch.setattr(f"{hub}.download", unreachable)
    line = complaint(capsys, "photos", photos(tmp_path / "own", 2))
    for part in ("--model FOLDER", "HF_HOME", "train photos/starter (extra `starter`)"):
        assert part in line
    monkeypatch.setattr(f"{hub}.cached", lambda name: Path() if "openai" in name else None)
    assert public_checkpoint() == "openai/clip-vit-base-patch16", "what the cache holds costs no download"
    monkeypatch.setattr(f"{hub}.cached", lambda _: Path())
    assert public_checkpoint() == "google/siglip2-base-patch16-224", "a third party's comes last"
    monkeypatch.setattr(f"{hub}.cached", lambda _: None)
    monkeypatch.setattr(f"{hub}.download", lambda _: Path())
    assert public_checkpoint() == "google/siglip2-base-patch16-224"


def test_phone_images_are_counted_by_name_and_indexed_once_there_is_a_decoder(
    made: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = photos(tmp_path / "mine", 3)
    Image.new("RGB", (16, 12), "red").save(root / "phone.avif")
    with monkeypatch.context() as patch:
        patch.setattr("grainline.data.decode.features.check", lambda _: False)
        assert call("index", "build", root, "--model", made / "model", "--out", tmp_path / "index") == 0
        out = capsys.readouterr().out
        assert "1 AVIF image without its decoder (pip install 'grainline[heic]'); the first: " in out
    assert call("index", "refresh", tmp_path / "index") == 0
    assert "4 images (1 added, 1 encoded)" in capsys.readouterr().out
