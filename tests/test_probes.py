"""Probes against loops in float64: the files of four benchmarks, what is missing, the metric, the command."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from readers import Reader
from runs import call, recipe
from test_cola import painted
from test_intervals import interval
from torch import Tensor

from grainline.data.benchmarks.contests import Contest, FoilCoco, Foiled, SugarCrepe, SvoProbes, Valse
from grainline.data.decode import decode
from grainline.data.formats.joined import remarks
from grainline.data.open_source import open_source, open_sources
from grainline.data.record import Foil, Source
from grainline.errors import UserError
from grainline.evaluation.result import Result, read
from grainline.evaluation.statistics import replicates, wilson
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.probes import ALL, CARDS, NOUNS, ProbesOptions, ProbesSuite
from grainline.loading import load
from grainline.training.recipe import read_recipe
from grainline.training.run import train

KINDS = ("subj_neg", "verb_neg", "obj_neg")

# sentence, right image, wrong image, true flags: as svo_probes.csv has them
SVO = [
    ("a girl sits on the floor", "101", "102", "verb_neg"),
    ("a girl sits on the floor", "101", "103", "obj_neg"),
    ("a man rides a horse", "104", "105", "subj_neg"),
    ("a man rides a horse", "104", "106", "verb_neg"),
    ("a dog catches a ball", "103", "101", "subj_neg"),
    ("a dog catches a ball", "103", "104", "subj_neg verb_neg"),
    ("a dog catches a ball", "103", "107", "verb_neg"),
    ("a cat sleeps", "107", "108", "verb_neg"),
    ("a cat sleeps", "107", "102", ""),
    ("a cat drinks milk", "108", "101", "obj_neg"),
]


def svo_rows(rows: Sequence[tuple[str, str, str, str]] = SVO) -> list[dict[str, str]]:
    """Rows with all columns of the published file."""
    return [
        {
            "sentence": text, "pos_triplet": "girl,sit,floor", "neg_triplet": "girl,stand,floor",
            "pos_url": f"http://a.example/{right}.jpg", "neg_url": f"http://a.example/{wrong}.jpg",
            "pos_image_id": right, "neg_image_id": wrong,
            **{flag: str(flag in flags.split()) for flag in KINDS},
        }
        for text, right, wrong, flags in rows
    ]  # fmt: skip


def svo(folder: Path, rows: Sequence[Mapping[str, str]] | None = None, left_out: Sequence[str] = ()) -> Path:
    """The file with an image for each id, `left_out` ones but for these."""
    got = svo_rows() if rows is None else rows
    with (folder / "svo_probes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(got[0]))
        writer.writeheader()
        writer.writerows(got)
    ids = {row[name] for row in got for name in ("pos_image_id", "neg_image_id") if name in row}
    painted(folder / "svo", [f"{name}.png" for name in sorted(ids - set(left_out))])
    return folder / "svo_probes.csv"


def foil_coco(folder: Path, content: Any = None) -> Path:
    """Five captions of three images, and six foils, one of which has no caption."""
    listed = [(1, 11, "dog"), (2, 11, "man"), (3, 12, "cup"), (4, 13, "bus"), (5, 13, "tree")]
    notes: list[dict[str, Any]] = [
        {"id": i, "image_id": p, "caption": f"a {word} in image {p}", "foil": False,
         "target_word": "ORIG", "foil_word": "ORIG"}
        for i, p, word in listed
    ]  # fmt: skip
    words = [(1, 11, "cat"), (2, 11, "boy"), (3, 12, "bowl"), (4, 13, "car"), (4, 13, "van"), (9, 12, "cow")]
    notes += [
        {"id": i, "image_id": p, "caption": f"a {word} in image {p}", "foil": True,
         "target_word": dict((n, w) for n, _, w in listed).get(i, "x"), "foil_word": word}
        for i, p, word in words
    ]  # fmt: skip
    names = [f"COCO_val2014_{p:012}.jpg" for p in (11, 12, 13)]
    images = [{"id": p, "file_name": name} for p, name in zip((11, 12, 13), names, strict=True)]
    file = folder / "foilv1.0_test_2017.json"
    file.write_text(json.dumps({"annotations": notes, "images": images} if content is None else content))
    (folder / "coco").mkdir(exist_ok=True)
    painted(folder / "coco" / "val2014", names)
    return file


def valse(folder: Path, votes: Sequence[Any] = (3, 2, 1, 3, 2, 3, 0, 2, 3, 3)) -> Path:
    """Ten items of five images."""
    items = {
        f"actions_test_{i}": {
            "dataset": "SWiG", "linguistic_phenomena": "actions", "image_file": f"act_{i // 2}.jpg",
            "caption": f"A man {i} lifts a dog.", "foil": f"A dog lifts a man {i}.",
            "mturk": {"foil": 0, "caption": vote, "other": 0},
        }
        for i, vote in enumerate(votes)
    }  # fmt: skip
    (folder / "actant-swap.json").write_text(json.dumps(items))
    painted(folder / "swig", [f"act_{i}.jpg" for i in range(5)])
    return folder / "actant-swap.json"


def sugarcrepe(folder: Path) -> Path:
    """Ten items of five images; the foil of the last one is its caption."""
    items = {
        str(i): {
            "filename": f"{i % 5:012}.jpg",
            "caption": f"A red cup {i}. ",
            "negative_caption": f"A blue cup {i}." if i < 9 else "A red cup 9.",
        }
        for i in range(10)
    }
    (folder / "replace_att.json").write_text(json.dumps(items))
    painted(folder / "val", [f"{i:012}.jpg" for i in range(5)])
    return folder / "replace_att.json"


class Whole(Reader):
    """Every text has tokens of its own, whatever its words."""

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        own = self.random(text, 3)
        return F.normalize(own.mean(0), dim=0), own


def measured(source: Source, model: Reader | None = None, damage: float = 0.0, **options: Any) -> Result:
    model = model or Reader()
    data = ProbesSuite().encode(model, source, Settings(max_corrupt=damage))  # type: ignore[arg-type]
    return ProbesSuite().measure(model.method, data, Settings(**options))


# The files


def test_svo_probes_takes_rows_with_one_flag_and_both_images(tmp_path: Path) -> None:
    file = svo(tmp_path, left_out=["106"])
    source = open_source(str(file), images=str(tmp_path / "svo"))
    assert isinstance(source, SvoProbes)
    assert list(source.keys()) == ["101", "102", "103", "104", "105", "107", "108"]
    assert source.contests == (
        Contest(SVO[0][0], 0, 1, "verb"), Contest(SVO[0][0], 0, 2, "object"),
        Contest(SVO[2][0], 3, 4, "subject"), Contest(SVO[4][0], 2, 0, "subject"),
        Contest(SVO[4][0], 2, 5, "verb"), Contest(SVO[7][0], 5, 6, "verb"),
        Contest(SVO[9][0], 6, 0, "object"),
    )  # fmt: skip
    assert [source[i].captions for i in range(3)] == [(SVO[0][0],), (), (SVO[4][0],)]
    assert remarks(source) == (
        "2 of 10 rows are left out: they do not have exactly one true flag",
        f"1 of 10 rows are left out: they lack an image (1 of 8 are not under {tmp_path / 'svo'})",
    )
    same = open_source(f"svo-probes:{file}?images={tmp_path / 'svo'}")
    assert same.fingerprint() == source.fingerprint()
    Image.new("RGB", (4, 4)).save(tmp_path / "svo" / "106.JPG", "jpeg")
    whole = open_source(f"{file}?images={tmp_path / 'svo'}")
    assert len(whole) == 8
    assert whole.fingerprint() != source.fingerprint(), "other rows are other data"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verb_neg": "maybe"}, r"^row 1 of .*: verb_neg is .maybe.: it must be a valid boolean"),
        ({"sentence": " "}, r"^row 1 of .*: sentence is . .: it must be a valid string"),
        ({"pos_image_id": "../x"}, r"^row 1 of .*: pos_image_id is .\.\./x.: not the id of an image"),
        ({"neg_image_id": ""}, r"^row 1 of .*: neg_image_id is ..: not the id of an image"),
    ],
)
def test_rows_of_svo_probes_that_are_wrong_are_one_line(
    change: dict[str, str], said: str, tmp_path: Path
) -> None:
    rows = svo_rows()
    file = svo(tmp_path, rows)
    rows[0] |= change
    with (tmp_path / "svo_probes.csv").open("w", newline="") as target:
        writer = csv.DictWriter(target, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(UserError, match=said):
        open_source(f"{file}?images={tmp_path / 'svo'}")


def test_foil_coco_pairs_each_foil_with_the_caption_of_its_id(tmp_path: Path) -> None:
    file = foil_coco(tmp_path)
    source = open_source(f"{file}?images={tmp_path / 'coco'}")
    assert isinstance(source, FoilCoco)
    assert list(source.keys()) == [f"COCO_val2014_{p:012}.jpg" for p in (11, 12, 13)]
    assert source[0].captions == ("a dog in image 11", "a man in image 11")
    assert source[2].foils == (
        Foil("a car in image 13", "a bus in image 13", "noun"),
        Foil("a van in image 13", "a bus in image 13", "noun"),
    )
    assert remarks(source) == ("1 foils without a caption of their id are left out",)
    content = json.loads(file.read_text())
    del content["images"]
    foil_coco(tmp_path, content)
    named = open_source(f"foil-coco:{file}?images={tmp_path / 'coco' / 'val2014'}")
    assert named.fingerprint() == source.fingerprint(), "the name of an image of COCO follows from its number"


def test_files_of_foil_coco_that_are_wrong_are_one_line(tmp_path: Path) -> None:
    content = json.loads(foil_coco(tmp_path).read_text())
    path = f"foil-coco:{tmp_path / 'foilv1.0_test_2017.json'}?images={tmp_path / 'coco'}"
    for change, said in (
        ({"image_id": 12}, r"^annotation 1 of .*: its foil is of image 12, the caption of 11"),
        ({"caption": ""}, r'^annotations\[5\] of .*: caption is ""'),
        ({"foil": "yes"}, r'^annotations\[5\] of .*: foil is "yes": it must be a valid boolean'),
        ({"id": [1]}, r"annotations\[5\] of .*: id is \[1\]: an id is a number or a text"),
    ):
        notes = [dict(note) for note in content["annotations"]]
        notes[5] |= change
        foil_coco(tmp_path, {**content, "annotations": notes})
        with pytest.raises(UserError, match=said):
            open_source(path)
    foil_coco(tmp_path, {"annotations": [n for n in content["annotations"] if n["foil"]]})
    with pytest.raises(UserError, match=r"none of 6 foils has the id of a true caption"):
        open_source(path)
    loose = [{**note, "image_id": "x"} for note in content["annotations"]]
    foil_coco(tmp_path, {"annotations": loose, "images": [{"id": [1], "file_name": "COCO_a_b.jpg"}]})
    with pytest.raises(UserError, match=r'image_id is "x", not the number of an image of COCO'):
        open_source(path)


def test_valse_keeps_items_that_two_of_three_people_took_for_right(tmp_path: Path) -> None:
    file = valse(tmp_path)
    source = open_source(str(file), images=str(tmp_path / "swig"))
    assert isinstance(source, Valse)
    assert [len(source[i].foils) for i in range(5)] == [2, 1, 2, 1, 2]
    assert source[1].foils == (Foil("A dog lifts a man 3.", "A man 3 lifts a dog.", "actant-swap"),)
    assert remarks(source) == ("2 of 10 items are left out: fewer than 2 people chose their caption",)
    with pytest.raises(UserError, match=r"^none of the 5 images of .*actant-swap\.json is under"):
        open_source(str(file))
    valse(tmp_path, [0] * 10)
    with pytest.raises(UserError, match=r"no item of 10 has 2 votes for its caption"):
        open_source(str(file), images=str(tmp_path / "swig"))
    valse(tmp_path, [None] * 10)
    with pytest.raises(UserError, match=r"^item actions_test_0 of .*: mturk\.caption is null"):
        open_source(str(file), images=str(tmp_path / "swig"))
    with pytest.raises(
        UserError, match=r"is not a piece of VALSE: items with image_file, caption, foil, mturk"
    ):
        open_source(f"valse:{sugarcrepe(tmp_path)}")


def test_sugarcrepe_reads_its_kind_from_the_name_of_the_file(tmp_path: Path) -> None:
    file = sugarcrepe(tmp_path)
    source = open_source(str(file), images=str(tmp_path / "val"))
    assert isinstance(source, SugarCrepe)
    assert len(source) == 5
    assert source[0].captions == ("A red cup 0.", "A red cup 5.")
    assert source[0].foils[0] == Foil("A blue cup 0.", "A red cup 0.", "replace_att")
    assert open_source(f"sugarcrepe:{file}?images={tmp_path / 'val'}").fingerprint() == source.fingerprint()
    (tmp_path / "moved").mkdir()
    (tmp_path / "val").rename(tmp_path / "moved" / "val2017")
    assert open_source(str(file), images=str(tmp_path / "moved"))[0].key == "000000000000.jpg"
    with pytest.raises(
        UserError, match=r"is not a file of SugarCrepe: items with filename, caption, negative_"
    ):
        open_source(f"sugarcrepe:{valse(tmp_path)}")
    file.write_text(json.dumps({"0": {"filename": "a.jpg", "caption": ["A."], "negative_caption": "B."}}))
    with pytest.raises(UserError, match=r"^item 0 of .*: caption is .*: it must be a valid string"):
        open_source(str(file))


@pytest.mark.parametrize(
    ("name", "kind", "images", "pairs"),
    [
        ("valse/actant-swap", Valse, 949, 949), ("valse/action-replacement", Valse, 648, 648),
        ("valse/foil-it", Valse, 936, 943), ("sugarcrepe/add_att", SugarCrepe, 497, 692),
        ("sugarcrepe/add_obj", SugarCrepe, 908, 2062), ("sugarcrepe/replace_att", SugarCrepe, 524, 788),
        ("sugarcrepe/replace_obj", SugarCrepe, 823, 1652), ("sugarcrepe/replace_rel", SugarCrepe, 777, 1406),
        ("sugarcrepe/swap_att", SugarCrepe, 593, 666), ("sugarcrepe/swap_obj", SugarCrepe, 224, 245),
    ],
)  # fmt: skip
def test_the_real_files_hold_what_their_authors_count(
    name: str, kind: type[Foiled], images: int, pairs: int, shared_data: Path, tmp_path: Path
) -> None:
    file = shared_data / "benchmarks" / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"no {file}; docs/data.md says where it comes from")
    said = rf"^none of the {images} images of {file} is under .*: say where they lie with --images DIR; see"
    with pytest.raises(UserError, match=said):
        open_source(str(file))
    first = next(iter(json.loads(file.read_text()).values()))
    key = first["image_file" if kind is Valse else "filename"]
    painted(tmp_path, [key])
    source = open_source(str(file), images=str(tmp_path))
    assert isinstance(source, kind)
    assert (len(source), sum(len(entry.record.foils) for entry in source.entries)) == (images, pairs)
    record = source[list(source.keys()).index(key)]
    foil = first["foil" if kind is Valse else "negative_caption"].strip()
    assert record.foils[0] == Foil(foil, first["caption"].strip(), file.stem)


# The metric


def everything(folder: Path, **svo_options: Any) -> Source:
    """All four benchmarks as one source."""
    paths = ((svo(folder, **svo_options), "svo"), (foil_coco(folder), "coco"), (valse(folder), "swig"),
             (sugarcrepe(folder), "val"))  # fmt: skip
    return open_sources([f"{path}?images={folder / images}" for path, images in paths])


@pytest.mark.parametrize("pairwise", [False, True])
def test_outcomes_are_those_of_a_loop_in_float64(pairwise: bool, tmp_path: Path) -> None:
    source, model = everything(tmp_path), Whole(pairwise)
    result = measured(source, model)

    def score(index: int, text: str) -> float:
        return model.score(decode(source[index]), text)

    svo_part = open_source(f"{tmp_path / 'svo_probes.csv'}?images={tmp_path / 'svo'}")
    assert isinstance(svo_part, SvoProbes)
    wanted = []
    for i in range(len(source)):
        for foil in source[i].foils:
            wanted.append((score(i, foil.true), score(i, foil.text), foil.kind, i, i))
    for text, right, wrong, kind in svo_part.contests:
        wanted.append((score(right, text), score(wrong, text), kind, right, wrong))
    queries = result.queries
    assert queries["kind"] == [kind for _, _, kind, _, _ in wanted]
    assert list(zip(queries["image"], queries["other"], strict=True)) == [row[3:] for row in wanted]
    assert queries["right"] == [int(a > b) for a, b, *_ in wanted]
    assert queries["tied"] == [int(a == b) for a, b, *_ in wanted]
    assert sum(queries["tied"]) == 1, "a foil that is the caption"
    assert model.images == len(source), "each image is encoded once"
    assert len(model.texts) == len(set(model.texts)) == result.data["texts"] == 2 * 8 + 4 + 5 + 19 + 5
    for name in ("svo-probes", "foil-coco", "valse", "sugarcrepe"):
        ours = [row for row, of in zip(wanted, queries["benchmark"], strict=True) if of == name]
        metric = result.metric(f"{ALL}, {name}")
        assert metric.value == pytest.approx(100 * np.mean([a > b for a, b, *_ in ours]))
        assert (metric.queries, metric.chance) == (len(ours), 50)
        ends = wilson(sum(a > b for a, b, *_ in ours), len(ours))[1:]
        assert metric.wilson == tuple(100 * end for end in ends)
        assert result.settings["card"][name] == CARDS[name]
    assert result.metric("replace_att, sugarcrepe").ties == 1
    assert any("intervals draw the images that texts are true of" in note for note in result.notes)


def outcomes(seed: int, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Random outcomes of SVO-Probes and FOIL-COCO, a few for each image."""
    g = np.random.default_rng(seed)
    kind = [kind for kind, number in numbers.items() for _ in range(number)]
    image = [int(g.integers(1000, 1020) if k == "noun" else g.integers(0, 15)) for k in kind]
    right = g.integers(0, 2, len(kind)).tolist()
    return {
        "kind": kind, "benchmark": ["foil-coco" if k == "noun" else "svo-probes" for k in kind],
        "image": np.random.default_rng(1).permutation(image[: -numbers["noun"]]).tolist()
        + sorted(image[-numbers["noun"] :]),
        "right": right, "tied": [0] * len(kind),
    }  # fmt: skip


def test_noun_understanding_is_the_mean_of_three_kinds_whose_images_are_drawn_together() -> None:
    numbers = {"subject": 12, "verb": 30, "object": 20, "noun": 40}
    run_ = outcomes(0, numbers)
    options = Settings(resamples=200, seed=5)
    cell = ProbesSuite().metrics([run_], options)[NOUNS]
    right, kind = np.array(run_["right"], float), np.array(run_["kind"])
    three = ("subject", "object", "noun")
    assert cell.value == pytest.approx(np.mean([right[kind == k].mean() for k in three]))
    assert cell.queries == 72

    def slow(rows: np.ndarray) -> float:
        return float(np.mean([rows[rows[:, 1] == i, 0].mean() for i in range(3)]))

    code = np.array([three.index(k) if k in three else 9 for k in kind])
    drawn = replicates(
        np.stack([right, code], 1), np.array(run_["image"]), slow, resamples=200, seed=5
    )  # one resample after the other
    np.testing.assert_allclose(cell.samples, drawn)
    lacking = {name: run_[name][:-40] for name in run_}
    assert NOUNS not in ProbesSuite().metrics([lacking], options)


def test_intervals_draw_the_images_that_texts_are_true_of(tmp_path: Path) -> None:
    rows = [(f"text {p} {i}", f"{p}", f"{100 + 3 * p + i}", "verb_neg") for p in range(12) for i in range(3)]
    file = svo(tmp_path, svo_rows(rows))
    result = measured(open_source(f"{file}?images={tmp_path / 'svo'}"), resamples=300, seed=4)
    right = np.array(result.queries["right"])
    metric = result.metric(ALL)
    wanted = interval(right, np.repeat(np.arange(12), 3), resamples=300, seed=4)
    assert (metric.value, metric.low, metric.high) == pytest.approx([100 * x for x in wanted])
    assert (metric.low, metric.high) != tuple(interval(100 * right, resamples=300, seed=4))[1:]


def test_comparisons_with_a_broken_image_are_counted_and_the_others_stay(tmp_path: Path) -> None:
    whole = measured(everything(tmp_path))
    (tmp_path / "svo" / "103.png").write_bytes(b"gone")
    result = measured(open_sources([f"{tmp_path / 'svo_probes.csv'}?images={tmp_path / 'svo'}"]), damage=0.2)
    keys = result.queries["keys"]
    rows = [
        (keys[a], keys[b], kind)
        for a, b, kind in zip(
            result.queries["image"], result.queries["other"], result.queries["kind"], strict=True
        )
    ]
    assert rows == [
        ("101", "102", "verb"), ("104", "105", "subject"), ("104", "106", "verb"),
        ("107", "108", "verb"), ("108", "101", "object"),
    ]  # fmt: skip
    assert (result.data["probes"], result.data["probes_left_out"]) == (5, 3)
    assert any("3 of 8 comparisons were skipped" in note for note in result.notes)
    listed = whole.queries
    names = [
        (listed["keys"][a], listed["keys"][b]) for a, b in zip(listed["image"], listed["other"], strict=True)
    ]
    before = dict(zip(names, listed["right"], strict=True))
    assert result.queries["right"] == [before[a, b] for a, b, _ in rows]


# The command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("probes")
    train(read_recipe(recipe(folder, "maxsim"), ["train.max_steps=1"]), folder / "run")
    return folder / "run"


def test_whole_images_are_pressed_into_the_square_where_the_option_says_so(
    model: Path, tmp_path: Path
) -> None:
    """The paper of the Text Group Transformer resizes images so, for GroupViT too."""
    data = f"{foil_coco(tmp_path)}?images={tmp_path / 'coco'}"
    noise = np.random.default_rng(0).integers(0, 256, (3, 12, 40, 3), np.uint8)
    for path, pixels in zip(sorted((tmp_path / "coco").rglob("*.jpg")), noise, strict=True):
        Image.fromarray(pixels).save(path, "png")
    ask, page = ["evaluate", model, "--suite", "probes", "--data", data], tmp_path / "r.html"
    assert call(*ask, "--set", "resize=squash", "--json", tmp_path / "r.json", "--html", page) == 0
    assert read(tmp_path / "r.json").settings["options"] == {"resize": "squash"}
    assert "pressed into a square" in page.read_text()
    loaded, source = load(str(model)), open_source(data)
    images = [decode(record) for record in source]
    for how, reader in (("model", loaded), ("squash", loaded.pressed())):
        got = ProbesSuite(ProbesOptions(resize=how)).encode(loaded, source).images.vector
        torch.testing.assert_close(got, reader.encode(images=images).vector)
    assert not torch.allclose(got, loaded.encode(images=images).vector)
