"""An index of images: what is encoded, what a search finds, how sure it is, and what it refuses."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from indexes import CONDITIONED, TEXTS, content, copied, photo, photos, texts, tiny_model, tree
from PIL import Image

from grainline.data.formats.common import read_image
from grainline.data.record import Cause, CorruptSample
from grainline.errors import UserError
from grainline.files import Corrupt, one_writer
from grainline.index import writer
from grainline.index.calibration import best_hits, described_images, gather_texts, p_value
from grainline.index.image_files import CHANGED, OUTSIDE, expand_paths, read_indexed, relative
from grainline.index.reader import IndexReader
from grainline.index.search import Index, Options, check, open_index
from grainline.index.store import (
    NULL_TEXTS,
    PRECOMPUTED,
    TOKENS,
    VECTORS,
    read_manifest,
    require_inside,
    write_manifest,
)
from grainline.index.sync import add, build, refresh, remove
from grainline.model import Model
from grainline.system import MAX_BYTES
from grainline.types import to_dtype

QUERY = "A red dog runs. The sand is green. A blue cat sleeps."
PLAIN = Options(sentences=False)


KINDS = {"maxsim": (), "clip": (), "flair": (), "caft": (CONDITIONED, "composer.heads=2")}
"""Methods with tokens, without, and with keys and values in their place; texts of CAFT have an extra."""


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model()


@pytest.fixture(scope="module")
def made(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, twenty images and a broken one, and `index`."""
    folder = tmp_path_factory.mktemp("made")
    root = photos(folder / "photos", 20)
    (root / "broken.png").write_bytes(b"no image")
    build(root, folder / "index", model=model, calibration_texts=texts(folder), chunk=8)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return copied(made, tmp_path / "copy")


# What a search finds


@pytest.mark.parametrize("method", KINDS)
def test_a_full_shortlist_is_an_exact_search(method: str, tmp_path: Path) -> None:
    model = tiny_model(method, changes=KINDS[method])
    root = photos(tmp_path / "photos", 12)
    build(root, tmp_path / "index", model=model, calibration_texts=texts(tmp_path), chunk=5)
    index = open_index(tmp_path / "index", model)
    images, queries = (
        model.encode(images=[root / row.path for row in index.reader.rows]),
        model.encode(texts=[QUERY, TEXTS[0]]),
    )
    if model.method.pairwise:  # as the index stores them
        images = model.method.precompute(images)
        stored = to_dtype(to_dtype(images.precomputed, torch.half), torch.float32)
        images = images._replace(tokens=images.tokens.half().float(), precomputed=stored)
    exact = model.method.score(images, queries).double()
    for column, answer in enumerate(index.search([QUERY, TEXTS[0]], 12, PLAIN._replace(shortlist=None))):
        order = exact[:, column].argsort(descending=True).tolist()
        assert [hit.path for hit in answer.hits] == [index.reader.rows[i].path for i in order]
        assert [hit.score for hit in answer.hits] == pytest.approx(exact[order, column].tolist(), abs=1e-6)


def test_a_shortlist_is_scored_by_the_method_and_only_the_shortlist(made: Path, model: Model) -> None:
    index = open_index(made / "index", model)
    whole = index.search([QUERY], 20, PLAIN._replace(shortlist=None))[0]
    scores = {hit.path: hit.score for hit in whole.hits}
    short = index.search([QUERY], 3, PLAIN._replace(shortlist=6))[0]
    vectors = np.concatenate(index.reader.vectors)[:, :] @ model.encode(texts=[QUERY]).vector[0].numpy()
    near = {index.reader.rows[i].path for i in np.argsort(-vectors)[:6]}
    best = sorted(near, key=lambda path: -scores[path])[:3]
    assert [hit.path for hit in short.hits] == best
    assert [hit.score for hit in short.hits] == pytest.approx([scores[path] for path in best], abs=1e-6)


def test_a_copy_of_any_image_of_the_index_is_the_surest_match_there_is(copy: Path, model: Model) -> None:
    root, index = copy / "photos", copy / "index"
    for i in range(6):  # more than the neighbours that are looked at first
        shutil.copy(root / "07.png", root / f"again {i}.png")
    Image.open(root / "08.png").save(root / "other bytes.bmp")
    refresh(index, model=model)
    opened = open_index(index, model)
    answers = opened.search_images([root / row.path for row in opened.reader.rows], 2)
    assert {(answer.hits[0].p, answer.match) for answer in answers} == {(1 / (1 + len(opened)), "sure")}
    assert np.isfinite(opened.reader.null_image_scores).all()


def test_the_null_of_images_is_what_they_score_with_their_nearest_neighbours(made: Path) -> None:
    opened = IndexReader(made / "index")
    vectors = opened.take(VECTORS, np.arange(len(opened))).astype(np.float64)
    among = vectors @ vectors.T - 9 * np.eye(len(opened))
    assert opened.null_image_scores == pytest.approx(np.sort(among.max(1)), abs=1e-6)


def test_every_sentence_of_the_query_is_scored_in_every_hit(made: Path, model: Model) -> None:
    index = open_index(made / "index", model)
    hit = index.search([QUERY], 2, Options(heat=True))[0].hits[0]
    others = index.reader.calibration_texts
    null = others.sentences if len(others.sentences) >= 16 else others.texts
    null = [null[int(i)] for i in np.linspace(0, len(null) - 1, min(64, len(null)))]
    assert [s.text for s in hit.sentences] == ["A red dog runs.", "The sand is green.", "A blue cat sleeps."]
    image, parts = made / "photos" / hit.path, [s.text for s in hit.sentences]
    alone = model.score([image], parts)[0]
    assert [s.score for s in hit.sentences] == pytest.approx(alone.tolist(), abs=2e-3)
    heat = torch.stack([s.heat for s in hit.sentences if s.heat is not None])
    torch.testing.assert_close(heat, model.heat(image, parts, null=null), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shortlist", [None, 6])
def test_queries_of_one_batch_are_answered_as_if_each_were_alone(
    shortlist: int | None, made: Path, model: Model
) -> None:
    index = open_index(made / "index", model)
    queries = [QUERY, "A cat.", "The horse waits near a fence.", " ".join([QUERY] * 12), "..."]
    together = index.search(queries, 4, Options(shortlist))
    for text, both in zip(queries, together, strict=True):
        alone = index.search([text], 4, Options(shortlist))[0]
        assert (both.query, both.notes) == (text, alone.notes)
        for a, b in zip(both.hits, alone.hits, strict=True):
            assert (a.path, [s.text for s in a.sentences]) == (b.path, [s.text for s in b.sentences])
            numbers = [[hit.score, hit.p, *(s.score for s in hit.sentences)] for hit in (a, b)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
    cut = [any("longer than the model reads" in note for note in answer.notes) for answer in together]
    assert cut == [False, False, False, True, False]


def test_what_is_no_longer_as_it_was_indexed_is_never_read(copy: Path, tmp_path: Path, model: Model) -> None:
    opened = IndexReader(copy / "index")
    root = copy / "photos"
    rows = [opened.rows[opened.numbers[name]] for name in ("01.png", "02.png", "04.png", "05.png", "07.png")]
    assert read_indexed(root, rows[0]) == (root / "01.png").read_bytes()
    for row in rows:
        (tmp_path / row.path).write_bytes((root / row.path).read_bytes())
        (root / row.path).unlink()
    (root / "01.png").symlink_to(tmp_path / "01.png")  # the same bytes, but outside
    os.mkfifo(root / "02.png")
    with (root / "04.png").open("wb") as endless:
        endless.truncate(2**40)
    (root / "05.png").write_bytes((tmp_path / "05.png").read_bytes()[::-1])
    for row, cause in zip(rows, (OUTSIDE, CHANGED, CHANGED, CHANGED, Cause.MISSING_IMAGE), strict=True):
        with pytest.raises(CorruptSample, match=cause):
            read_indexed(root, row)
    with pytest.raises(UserError, match=r"changed since it was indexed: 05\.png; refresh the index"):
        open_index(copy / "index", model).heat([(opened.numbers["05.png"], ["A dog."])])


# How sure it is


def test_chances_are_shares_of_null_texts_counted_by_hand() -> None:
    score = np.array([[0.1, 0.9], [0.5, 0.2], [0.3, 0.4]])
    own = described_images(["a", "b", "c"], ["", "a"])
    assert own.tolist() == [[False, True], [False, False], [False, False]]
    best, _ = best_hits([(score[:2], own[:2]), (score[2:], own[2:])])
    assert best.tolist() == [0.5, 0.4]
    assert p_value(np.sort(best), np.array([0.4, 0.45, 0.6])).tolist() == [1.0, 2 / 3, 1 / 3]


def test_the_null_is_what_the_null_texts_really_score(made: Path, model: Model) -> None:
    opened = IndexReader(made / "index")
    images = model.encode(images=[made / "photos" / row.path for row in opened.rows])
    null = opened.calibration_texts
    score, single = (
        model.method.score(images, model.encode(texts=list(some))).double().numpy()
        for some in (null.texts, null.sentences)
    )
    best, alone = (np.sort((x.max(0) - x.mean(0)) / x.std(0)) for x in (score, single))
    assert np.sort(opened._standard_best(NULL_TEXTS)) == pytest.approx(best, abs=0.02)
    assert opened.null_sentence_scores == pytest.approx(alone, abs=0.02)
    relative = single - np.sort(single, axis=0)[-4:].mean(0)
    assert opened.calibration.pool == pytest.approx(np.sort(relative.ravel()), abs=1e-3)


@pytest.mark.parametrize("method", ["flair", "caft"])
def test_keys_and_values_are_stored_and_images_are_never_projected_by_a_search(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(method, changes=KINDS[method])
    root = photos(tmp_path / "photos", 6)
    build(root, tmp_path / "index", model=model, calibration_texts=texts(tmp_path))
    index = open_index(tmp_path / "index", model)
    images = model.encode(images=[root / row.path for row in index.reader.rows])
    keys = model.method.pool.keys(images.tokens, images.mask)  # type: ignore[union-attr, operator]
    stored = [torch.from_numpy(index.reader.take(f"{PRECOMPUTED}{x}", np.arange(6))) for x in keys._fields]
    assert [x.dtype for x in stored] == [torch.float16, torch.float16, torch.bool]
    assert TOKENS not in index.reader.segments[0].arrays
    for x, expected in zip(stored, keys, strict=True):
        torch.testing.assert_close(x.float(), expected.float(), atol=2e-3, rtol=2e-3)
    monkeypatch.setattr(model.method.pool, "keys", lambda *_: pytest.fail("images were projected again"))
    assert len(index.search([QUERY], 3, Options(shortlist=4))[0].hits) == 3
    assert index.search_images([root / "04.png"], 1)[0].hits[0].path == "04.png"


def test_a_null_text_does_not_see_its_own_image(tmp_path: Path, model: Model) -> None:
    root = photos(tmp_path / "photos", 20)
    for i, path in enumerate(sorted(root.rglob("*.png"))):
        path.with_suffix(".txt").write_text(TEXTS[i])
    null = gather_texts(str(root))
    build(root, tmp_path / "index", model=model, calibration_texts=str(root))
    opened = IndexReader(tmp_path / "index")
    assert described_images(opened.hashes, null.image_hashes).sum() == 20
    index = Index(opened, model)
    best = []
    for answer, owner in zip(index.search(null.texts, 20, PLAIN), null.image_hashes, strict=True):
        own = opened.rows[opened.hashes.index(owner)].path
        others = np.array([hit.score for hit in answer.hits if hit.path != own])
        best.append((others.max() - others.mean()) / others.std())
    assert np.sort(opened._standard_best(NULL_TEXTS)) == pytest.approx(np.sort(best), abs=0.02)


# What is encoded


def test_only_what_changed_is_encoded(copy: Path, model: Model) -> None:
    root, index = copy / "photos", copy / "index"
    assert refresh(index, model=model)[:5] == (0, 0, 20, 0, 0)
    os.utime(root / "01.png")  # touched, not changed
    (root / "02.png").rename(root / "moved.png")
    photo(root / "04.png", 50)
    photo(root / "new.png", 51)
    shutil.copyfile(root / "new.png", root / "twin.png")
    (root / "05.png").unlink()
    report = refresh(index, model=model)
    assert report._asdict() | {"corrupt_first": ()} == {
        "added": 3, "changed": 1, "unchanged": 17, "removed": 2, "encoded": 2,
        "corrupt": {"corrupt image": 1}, "corrupt_first": (), "images": 21, "remarks": (),
    }  # fmt: skip


def test_a_refreshed_index_holds_what_a_new_one_would(copy: Path, model: Model, tmp_path: Path) -> None:
    root, index = copy / "photos", copy / "index"
    (root / "02.png").rename(root / "moved.png")
    photo(root / "04.png", 50)
    photo(root / "new.png", 51)
    (root / "broken.png").unlink()
    refresh(index, model=model)
    build(root, tmp_path / "anew", model=model, calibration_texts=str(copy / "null.txt"))
    refreshed, anew = IndexReader(index, thorough=True), IndexReader(tmp_path / "anew")
    assert dict(zip(refreshed.numbers, refreshed.hashes, strict=True)) == dict(
        zip(anew.numbers, anew.hashes, strict=True)
    )
    order = np.array([anew.numbers[path] for path in refreshed.numbers])
    for name in refreshed.segments[0].arrays:
        both = refreshed.take(name, np.arange(len(refreshed))), anew.take(name, order)
        assert np.allclose(*both, atol=2e-3), name


def test_a_change_that_keeps_size_and_time_is_detected_by_a_full_refresh(copy: Path, model: Model) -> None:
    path = copy / "photos" / "04.png"
    state = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the checksum of the last, empty chunk
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert refresh(copy / "index", model=model).unchanged == 20
    full = refresh(copy / "index", model=model, full=True)
    assert full.unchanged == 19
    assert full.changed + full.corrupt["corrupt image"] == 2


def test_damaged_images_are_counted_named_and_tried_again_when_they_change(copy: Path, model: Model) -> None:
    root, index = copy / "photos", copy / "index"
    report = refresh(index, model=model)
    assert report.corrupt == {"corrupt image": 1}
    assert report.corrupt_first == ("corrupt image: broken.png",)
    photo(root / "broken.png", 60)
    (root / "07.png").write_bytes(b"broken now")
    report = refresh(index, model=model)
    assert report.corrupt_first == ("corrupt image: 07.png",)
    assert (report.added, report.images) == (1, 20)
    assert "07.png" not in content(index)
    assert "broken.png" in content(index)


def test_what_was_removed_stays_away_until_it_is_added(copy: Path, model: Model) -> None:
    root, index = copy / "photos", copy / "index"
    report = remove(index, ["below", root / "01.png"])
    assert (report.removed, report.images) == (8, 12)
    assert (root / "01.png").exists()
    assert refresh(index, model=model).images == 12
    again = remove(index, ["below", "01.png", "02.png"])
    assert (again.removed, again.images) == (1, 11)
    add(index, ["02.png"], model=model)
    assert "01.png" not in content(index)
    report = add(index, [root / "01.png", root / "below"], model=model)
    assert report.added == 8
    assert refresh(index, model=model).images == 20
    with pytest.raises(UserError, match=r"gone\.png is not in index"):
        remove(index, ["gone.png"])


def test_thumbnails_and_excluded_images_stay_away_from_every_refresh(model: Model, tmp_path: Path) -> None:
    root, index = photos(tmp_path / "photos", 3), tmp_path / "index"
    for number, name in enumerate(("@eaDir/00.png", "private/a.png", "private/b.png", "x-copy.png")):
        photo(root / name, 20 + number)
    settings = {"model": model, "calibration_texts": texts(tmp_path)}
    first = build(root, index, exclude=["private"], **settings)
    assert (first.images, first.encoded) == (4, 4)
    assert first.remarks[0].startswith(
        "3 files left out, of thumbnails or by exclude: @eaDir/00.png, private/a"
    )
    assert refresh(index, model=model).images == 4
    second = build(root, index, exclude=["private", "*-copy.*"], **settings)
    assert (second.images, second.removed) == (3, 1)
    assert refresh(index, model=model).images == 3
    third = add(index, [root / "private", min(root.glob("[0-9]*.png"))], model=model)
    assert (third.images, third.remarks[0][:16]) == (3, "2 files left out")


def test_many_removed_rows_are_compacted_away(copy: Path) -> None:
    index = copy / "index"
    before = content(index)
    remove(index, ["01.png"])
    assert [len(part.dead) for part in read_manifest(index).segments] != [0, 0, 0]
    remove(index, [f"{i:02}.png" for i in (2, 4, 5, 7, 8, 10, 11, 13)])
    manifest = read_manifest(index)
    assert all(len(part.dead) <= 0.25 * part.rows for part in manifest.segments)
    named = {part.name for part in manifest.segments}
    assert {path.name for path in (index / "segments").iterdir()} == named
    after = content(index)
    assert len(after) == 11
    assert after.items() <= before.items()


def test_many_small_segments_become_one(copy: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    index = copy / "index"
    before = content(index)
    monkeypatch.setattr(writer, "MAX_SMALL", 5)
    for i in range(3):
        photo(copy / "photos" / f"more{i:02}.png", 100 + i)
        add(index, [f"more{i:02}.png"], model=model)
    assert [part.rows for part in read_manifest(index).segments] == [23]
    after = content(index)
    assert len(after) == 23
    assert before.items() <= after.items(), "every row keeps what was stored for it"


# What is refused


def test_a_model_of_other_weights_is_refused(made: Path) -> None:
    for other in (tiny_model(seed=1), tiny_model("clip")):
        with pytest.raises(UserError, match="was made with other weights than this model has now"):
            open_index(made / "index", other)


def test_a_segment_in_the_place_of_another_is_detected(copy: Path) -> None:
    first, second, _ = sorted((copy / "index" / "segments").iterdir())
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(UserError, match="is not the one that was written"):
        check(copy / "index")


def test_a_check_reads_every_file(copy: Path) -> None:
    assert check(copy / "index") == 20
    for name in ("segments/00000001/tokens.npy", "calibration/00000000/texts.json", "manifest.json"):
        path = copy / "index" / name
        data = path.read_bytes()
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        with pytest.raises(UserError, match=f"is corrupt: {name} "):
            check(copy / "index")
        path.write_bytes(data)


def test_a_layout_of_another_version_is_not_guessed_at(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(copy / "index")
    with monkeypatch.context() as patch:
        patch.setattr("grainline.index.store.VERSION", 5)
        write_manifest(copy / "index", manifest)
    with pytest.raises(UserError, match=r"has layout 5, this .* reads 6; build it anew"):
        read_manifest(copy / "index")


def test_two_writers_at_once_are_one_line(copy: Path, model: Model) -> None:
    index = copy / "index"
    with (
        one_writer(index, "index"),
        pytest.raises(UserError, match=f"being written by process {os.getpid()} on "),
    ):
        refresh(index, model=model)
    (index / "lock").write_text("99999")  # of a process that died
    assert refresh(index, model=model).unchanged == 20


def test_paths_and_links_never_leave_the_folder_of_images(copy: Path, model: Model, tmp_path: Path) -> None:
    root, index = copy / "photos", copy / "index"
    photo(tmp_path / "outside.png", 70)
    photo(tmp_path / "elsewhere" / "x.png", 71)
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "inner.png").symlink_to(root / "01.png")
    report = refresh(index, model=model)
    assert report.corrupt == {"corrupt image": 1, "link out of the folder": 2}
    assert (report.added, report.encoded) == (1, 0)
    for path in (tmp_path / "outside.png", "../outside.png", "/etc/passwd"):
        with pytest.raises(UserError, match="lies outside"):
            add(index, [path], model=model)


def test_pipes_giants_and_links_in_a_circle_are_damage(copy: Path, model: Model) -> None:
    root, index = copy / "photos", copy / "index"
    os.mkfifo(root / "pipe.png")  # whoever reads it waits for ever
    (root / "circle.png").symlink_to("circle.png")
    with (root / "giant.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    report = refresh(index, model=model)
    assert report.corrupt == {"corrupt image": 1, "unreadable file": 3}
    assert report.images == 20
    with pytest.raises(UserError, match=r"no image at|levels of symbolic links"):
        add(index, [root / "circle.png"], model=model)
    with pytest.raises(CorruptSample, match="not a regular file"):
        read_image([str(root / "pipe.png")], "")


@pytest.mark.parametrize("path", ["../x.png", "/x.png", "a/../../x.png", ""])
def test_a_row_whose_path_leaves_the_folder_is_corrupt(path: str) -> None:
    with pytest.raises(Corrupt, match="leaves the folder"):
        require_inside(path)


def test_paths_may_be_given_from_here_or_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = photos(tmp_path / "photos", 2).resolve()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").symlink_to(root)
    for path in ("photos/01.png", "01.png", root / "01.png", "other/01.png"):
        assert relative(root, path) == "01.png"
    assert relative(root, "photos") == "."
    photo(tmp_path / "val" / "x.png", 1)
    with pytest.raises(UserError, match=f"lies outside {root}, the folder"):
        expand_paths(root, ["val/x.png"])
    with pytest.raises(UserError, match="no image at val/y"):
        expand_paths(root, ["val/y.png"])


def test_an_index_is_not_built_over_something_else(made: Path, model: Model, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match=r"is not an empty folder \(it holds mine.txt\)"):
        build(made / "photos", tmp_path, model=model, calibration_texts=str(made / "null.txt"))
    other = photos(tmp_path / "others", 1)
    with pytest.raises(UserError, match="is an index of"):
        build(other, made / "index", model=model)


def test_a_search_without_texts_or_images_is_an_error(made: Path, model: Model) -> None:
    index = open_index(made / "index", model)
    for wrong in ([], [""], ["  "]):
        with pytest.raises(UserError, match="a search needs texts"):
            index.search(wrong)
    with pytest.raises(UserError, match="k is 0"):
        index.search([QUERY], 0)


def test_building_again_goes_on_and_changes_nothing(copy: Path, model: Model) -> None:
    before = tree(copy / "index")
    assert build(copy / "photos", copy / "index", model=model).encoded == 0
    assert tree(copy / "index") == before
    assert VECTORS in IndexReader(copy / "index").segments[0].arrays


def test_an_index_keeps_its_calibration_texts(made: Path, tmp_path: Path, model: Model) -> None:
    out, own = tmp_path / "index", str(made / "null.txt")
    build(made / "photos", out, model=model, calibration_texts=own)
    for same in (own, None):
        assert not build(made / "photos", out, model=model, calibration_texts=same).added
    with pytest.raises(UserError, match=r"keeps its texts of .*null\.txt; for .* choose another --out"):
        build(made / "photos", out, model=model, calibration_texts=texts(tmp_path, 30))
    with pytest.raises(UserError, match=r"gone\.txt"):
        build(made / "photos", out, model=model, calibration_texts=str(tmp_path / "gone.txt"))
    with pytest.raises(UserError, match="holds 5 texts; how sure a search is needs 20"):
        build(made / "photos", tmp_path / "new", model=model, calibration_texts=texts(tmp_path, 5))


def test_numbers_that_overflow_in_half_precision_are_not_indexed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = model.method.score
    monkeypatch.setattr(model.method, "score", lambda a, b: 1e9 * real(a, b))
    with pytest.raises(UserError, match="null_texts of an image overflow in half precision"):
        writer.encode(model, [Image.new("RGB", (40, 40))], {"null_texts": model.encode(texts=["a"])})
