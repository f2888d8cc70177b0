"""The pages that training, evaluation and search leave: what stands on them, and what may be missing."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import TEXTS, photo, photos, saved, texts, tiny_model
from PIL import Image
from runs import call, complaint, recipe
from test_viz import Page

import grainline.index.output
from grainline.data.captions import sentences
from grainline.data.open_source import open_source
from grainline.data.scenes.source import Scenes
from grainline.evaluation import ranks as protocols
from grainline.evaluation.encode import encode_source
from grainline.evaluation.evaluate_model import write_html
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import validation_summary
from grainline.evaluation.suite import Settings, suite_of
from grainline.evaluation.suites.probes import ProbesSuite, probe_scores
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite
from grainline.evaluation.suites.zeroshot import ZeroshotSuite, confusions
from grainline.report.case import Case, WholeImage, lead, standing
from grainline.report.charts import DASHES, line_chart
from grainline.report.page import MissingImage
from grainline.training.log import read_log
from grainline.training.recipe import read_recipe
from grainline.training.report import curves

Capture = pytest.CaptureFixture[str]
BROKEN = ("03", "07")


def captioned(folder: Path, number: int) -> Path:
    """Images with captions, two of which cannot be read."""
    for i in range(number):
        path = photo(folder / f"{i:02}.png", i)
        path.with_suffix(".json").write_text(json.dumps({"captions": [TEXTS[i], TEXTS[-1 - i]]}))
    for name in BROKEN:
        (folder / f"{name}.png").write_bytes(b"no image")
    return folder


def measured(
    folder: Path, captions: Any = "each", protocol: str = "plain", method: str = "maxsim"
) -> Evaluation:
    model, source = tiny_model(method), open_source(str(folder))
    data = encode_source(model, source, captions=captions, max_corrupt=0.5)
    result = RetrievalSuite(RetrievalOptions(protocol=protocol)).measure(
        model.method, data, Settings(resamples=10)
    )
    return Evaluation(model, source, data, result._replace(settings=result.settings | {"model": "tiny"}))


# Evaluation


def test_images_are_those_of_their_rows_where_samples_were_skipped(tmp_path: Path) -> None:
    on = measured(captioned(tmp_path, 12))
    assert len(on.data.keys) == 10
    for row, key in enumerate(on.data.keys):
        assert not any(name in key for name in BROKEN)
        own = on.model.cropped(tmp_path / f"{Path(key).stem}.png")
        found = on.image(row)
        assert isinstance(found, Image.Image)
        assert np.array_equal(np.asarray(found), np.asarray(own))


def rank_of(case: Case) -> int:
    return int(case.title.split()[4])


def name_of(case: Case) -> str:
    return case.detail.removeprefix("tied with a wrong one, ")


def margin_of(words: str) -> float:
    """The difference that `ahead` has put into words."""
    return 0.0 if words.endswith("tied") else float(words.split()[-1]) * (-1 if "behind" in words else 1)


def slow_order(score: torch.Tensor) -> list[int]:
    return sorted(range(len(score)), key=lambda i: -float(score[i]))


@pytest.mark.parametrize("method", ["maxsim", "clip"])
def test_examples_are_the_rankings_from_the_best_to_the_worst(method: str, tmp_path: Path) -> None:
    on = measured(captioned(tmp_path, 12), method=method)
    score = on.model.method.score(on.data.images, on.data.texts)  # [N, M]
    told = on.result.queries["folds"][0]
    texts, images = (part.cases for part in suite_of(on.result).cases(on))
    for way, found, table in (("t2i", texts, score.T), ("i2t", images, score)):
        ranks = [rank_of(case) for case in found]
        assert ranks == sorted(ranks)
        assert (ranks[0], ranks[-1]) == (min(told[way]["rank"]), max(told[way]["rank"]))
        assert len(found) == 6
        for case in found:
            name, hits = name_of(case), case.rows[0].panels
            row = on.data.strings.index(case.quote) if way == "t2i" else on.data.keys.index(name)
            expected = slow_order(table[row])[:5]
            every = table[row].sort(descending=True).values.tolist()
            assert [hit.below for hit in hits] == [standing(rank, every) for rank in range(1, 6)]
            if way == "t2i":
                own = on.data.keys[int(on.data.texts.image[row])]
                names = [hit.alt.split(", ")[0] for hit in hits]
                assert names == [on.data.keys[i] for i in expected]
                assert [hit.right for hit in hits] == [one == own for one in names]
                assert name == own
            else:
                assert [hit.words for hit in hits] == [on.data.strings[i] for i in expected]
                mine = (on.data.texts.image == row).tolist()
                assert [hit.right for hit in hits] == [mine[i] for i in expected]


def test_the_sentences_of_a_query_stand_over_the_right_image_with_their_scores_and_heat(
    tmp_path: Path,
) -> None:
    on = measured(captioned(tmp_path, 12))
    for example in suite_of(on.result).cases(on, 3)[0].cases:
        seen = example.look
        assert seen is not None
        assert seen.heat is not None
        said = [one.text for one in sentences(example.quote)]
        assert [told.text for told in seen.sentences] == said
        own = tmp_path / f"{Path(name_of(example)).stem}.png"
        scores = on.model.score([own], said)[0].tolist()
        assert [told.score for told in seen.sentences] == pytest.approx(scores, abs=1e-6)
        every = [one.text for one in seen.texts()]
        np.testing.assert_allclose(seen.heat, on.model.heat(own, every), atol=1e-6)


def test_without_a_grid_there_is_no_heat(tmp_path: Path) -> None:
    on = measured(captioned(tmp_path / "in", 12))
    on.model.method.towers.image.grid = None
    write_html(tmp_path / "page.html", suite_of(on.result), on)
    page = Page((tmp_path / "page.html").read_text())
    assert not [a for _, a in page.tags if a.get("class") == "over"]
    assert not [tag for tag, _ in page.tags if tag == "input"]
    assert not [a for _, a in page.tags if a.get("class") == "phrases"]
    assert "Heat is orange" not in page.words


def test_candidates_of_an_example_are_those_of_its_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("IMAGES", 10), ("CAPTIONS", 2), ("FOLD", 5)):
        monkeypatch.setattr(protocols, name, value)
    on = measured(captioned(tmp_path, 12), protocol="coco-1k")
    halves = [set(on.data.keys[:5]), set(on.data.keys[5:])]
    texts, images = (part.cases for part in suite_of(on.result).cases(on, 8))
    for case in texts:
        hits = case.rows[0].panels
        assert {hit.alt.split(", ")[0] for hit in hits} == halves[name_of(case) not in halves[0]]
        assert case.title.endswith(" of 5")
        assert [hit.right for hit in hits].index(True) + 1 == rank_of(case)
    assert all(case.title.endswith(" of 10") for case in images)


def test_a_image_that_vanished_or_changed_is_named_in_its_place(tmp_path: Path) -> None:
    on = measured(captioned(tmp_path / "in", 12))
    os.remove(tmp_path / "in" / "00.png")
    gone = on.image(0)
    assert isinstance(gone, MissingImage)
    assert "00" in gone.why
    assert "missing image" in gone.why
    moved = on._replace(data=on.data._replace(positions=tuple(reversed(on.data.positions))))
    assert "is not where it was" in getattr(moved.image(1), "why", "")
    write_html(tmp_path / "page.html", suite_of(on.result), on)
    assert "missing image" in (tmp_path / "page.html").read_text()


def test_foils_are_shown_from_the_most_wrong_and_the_most_right() -> None:
    model, source = tiny_model(), Scenes("scenes:dev?count=9&size=32")
    data = ProbesSuite().encode(model, source)
    on = Evaluation(model, source, data, ProbesSuite().measure(model.method, data, Settings(resamples=10)))
    probes = data.collected["probes"]
    true, false = probe_scores(model.method, data.images, probes).tolist()
    margin = [a - b for a, b in zip(true, false, strict=True)]
    worst, best = (part.cases for part in ProbesSuite().cases(on, 4))
    assert (worst[0].title, best[0].title) == (lead(min(margin)), lead(max(margin)))
    for shown, sign in ((worst, 1), (best, -1)):
        margins = [margin_of(one.texts[0][0]) for one in shown]
        assert margins == [-margin_of(one.texts[1][0]) for one in shown]
        found = [sign * by for by in margins]
        assert found == pytest.approx(sorted(found), abs=2e-3)
        assert len({one.alt for one in shown}) == len(shown) == 4
        for one, by in zip(shown, margins, strict=True):
            record = source[data.keys.index(one.alt.removeprefix("image "))]
            texts = [text.replace("<mark>", "").replace("</mark>", "") for _, text in one.texts]
            assert (*texts, one.detail.split(", ")[0]) in {
                (f.true, f.text, f"foil of kind {f.kind}") for f in record.foils
            }
            true, false = model.score([record.image], texts)[0].tolist()
            assert true - false == pytest.approx(by, abs=6e-4)


def sorted_by_class(method: str, folder: Path) -> Evaluation:
    """Nine images of three classes, one of which is broken."""
    for i in range(9):
        photo(folder / f"{'abc'[i % 3]} thing" / f"{i:02}.png", i)
    (folder / "a thing" / "03.png").write_bytes(b"no image")
    model, source = tiny_model(method), open_source(f"classes:{folder}")
    data = ZeroshotSuite().encode(model, source, Settings(max_corrupt=0.5))
    result = ZeroshotSuite().measure(model.method, data, Settings(resamples=10))
    return Evaluation(model, source, data, result._replace(settings=result.settings | {"model": "tiny"}))


def test_the_page_of_a_classification_names_both_classes_and_the_confusions(
    tmp_path: Path, capsys: Capture
) -> None:
    on = sorted_by_class("clip", tmp_path / "in")
    model, page = saved(on.model, tmp_path / "model"), tmp_path / "page.html"
    arguments = ["evaluate", model, "--data", f"classes:{tmp_path / 'in'}", "--suite", "zeroshot"]
    assert call(*arguments, "--max-corrupt", "0.5", "--html", page) == 0
    assert f"written: {page}" in capsys.readouterr().out
    found = Page(page.read_text())
    for part in (
        "Classes: most wrong",
        "Classes: most right",
        "Classes: confusions",
        "Top-1 accuracy",
        "Prompts",
    ):
        assert part in found.words
    for one in ZeroshotSuite().cases(on)[0].cases:
        assert one.detail in found.words
        assert "".join(one.texts[1]) in found.words
    of = {"a thing": 2, "b thing": 3, "c thing": 3}
    for true, other, images in confusions(on.result.queries):
        assert f"{true}{other}{images} of {of[true]}" in found.words
    assert "a square from their middle" in found.words
    assert "Text to image" not in found.words


def test_a_page_says_how_the_model_sees_images(tmp_path: Path) -> None:
    on = sorted_by_class("clip", tmp_path)
    on.model.transform.resize = "squash"
    assert on.crop_sentence() == "Images are shown as the model sees them: pressed into a square."


def test_evaluate_writes_a_page_and_refuses_a_folder_before_it_measures(
    tmp_path: Path, capsys: Capture
) -> None:
    model = saved(tiny_model(), tmp_path / "model")
    arguments = ["evaluate", model, "--data", captioned(tmp_path / "in", 12), "--captions", "each"]
    page = tmp_path / "new" / "page.html"
    assert call(*arguments, "--max-corrupt", "0.5", "--html", page) == 0
    assert f"written: {page}" in capsys.readouterr().out
    words = Page(page.read_text()).words
    for part in (
        "Text to image, best to worst",
        "Image to text, best to worst",
        "2 skipped",
        "Right one at rank",
    ):
        assert part in words
    assert "cannot write" in complaint(capsys, *arguments, "--html", tmp_path / "in")
    assert (tmp_path / "in" / "00.png").exists()
    assert (
        call("evaluate", model, "--data", "scenes:dev?count=4&size=32", "--suite", "probes", "--html", page)
        == 0
    )
    assert "Probes: most wrong" in Page(page.read_text()).words


# Training


def lines(*, terms: int = 2) -> list[dict[str, Any]]:
    named = {"loss": 1.0} | {f"term {i}": None for i in range(terms - 1)}
    return [
        {
            "kind": "train",
            "step": step,
            "epoch": 0.5,
            "terms": named,
            "norm": None,
            "lr": {".*": 0.1},
            "images_per_s": 8.0,
        }
        for step in (1, 2, 3)
    ] + [
        {
            "kind": "validation",
            "step": 2,
            "metrics": {"rSum": 9.0, "text to image R@10": 50.0, "text to image R@5": 25.0},
            "chance": {"rSum": 12.0, "text to image R@10": 10.0},
        }
    ]


def test_curves_show_all_that_the_log_holds() -> None:
    drawn = {chart.title: chart for chart in curves(lines(terms=8))}
    assert set(drawn) == {
        "Loss, part 1", "Loss, part 2", "Validation: rSum", "Validation: recall", "Gradient norm",
        "Learning rate", "Speed",
    }  # fmt: skip
    assert [len(drawn[f"Loss, part {i}"].series) for i in (1, 2)] == [6, 2]
    recall = drawn["Validation: recall"].series
    assert [one.name for one in recall] == ["text to image R@5", "text to image R@10"]
    assert [list(one.y) for one in recall] == [[25.0], [50.0]]
    assert list(drawn["Loss, part 1"].series[0].x) == [1, 2, 3]
    assert all(np.isnan(drawn["Gradient norm"].series[0].y))
    assert [one.chance for one in recall] == [None, 10.0], "the axis holds chance too"
    assert "chance 12 (dotted)" in line_chart(drawn["Validation: rSum"])
    assert not [dash for dash in DASHES if dash.startswith("1 ")], "dots are chance alone"
    assert curves([]) == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with validation."""
    folder = tmp_path_factory.mktemp("run")
    changes = ["train.max_steps=4", "train.validate_every=2", "data.validation=['scenes:dev?count=6']"]
    assert call("train", recipe(folder), "--out", folder / "run", "--set", *changes) == 0
    return folder


def test_training_leaves_a_page_about_loss_validation_data_and_settings(run: Path) -> None:
    page = Page((run / "run" / "report.html").read_text())
    for part in (
        "Ended", "well", "4 of 4", "Best rSum", "Validation: recall", "Learning rate", "Last validation",
        "text to image R@10", "Text to image, best to worst", "samples drawn", "train.optimizer.lr",
    ):  # fmt: skip
        assert part in page.words, part
    assert [a for _, a in page.tags if a.get("class") == "over"]
    assert sum(tag == "figure" for tag, _ in page.tags) == 7


def test_pages_say_at_which_rank_the_model_of_a_run_finds_right_images(run: Path, tmp_path: Path) -> None:
    last = [line for line in read_log(run / "run") if line["kind"] == "validation"][-1]
    assert last["images"] == 6
    said = f"at rank {last['metrics']['text to image median rank']:g} of 6 (median)."
    assert said in validation_summary(str(run / "run"))
    page = tmp_path / "page.html"
    data = ("--data", "scenes:dev?count=8")
    assert call("evaluate", run / "run", *data, "--html", page) == 0
    assert f"{said} That says nothing about other data." in Page(page.read_text()).words
    validation = read_recipe(str(run / "run" / "recipe.yaml"), []).data.validation
    assert call("evaluate", run / "run", "--data", *validation, "--html", page) == 0
    assert said in Page(page.read_text()).words
    assert "nothing about other data" not in Page(page.read_text()).words
    assert "the run was validated on these data, by which it" in Page(page.read_text()).words


def test_a_resumed_run_writes_its_page_again_with_its_validation(run: Path) -> None:
    page = run / "run" / "report.html"
    before = Page(page.read_text())
    page.write_text("old")
    changes = ["train.max_steps=4", "train.validate_every=2", "data.validation=['scenes:dev?count=6']"]
    assert call("train", recipe(run), "--out", run / "run", "--resume", "--set", *changes) == 0
    after = Page(page.read_text())
    assert [tag for tag, _ in after.tags] == [tag for tag, _ in before.tags]


def test_a_run_that_stopped_says_why_on_its_page(tmp_path: Path, capsys: Capture) -> None:
    changes = [
        "train.optimizer.lr=1e9",
        "train.optimizer.schedule=null",
        "train.grad_clip=null",
        "train.log_every=1",
    ]
    changes[1] = "train.optimizer.schedule={kind: constant, warmup: 0}"
    said = complaint(capsys, "train", recipe(tmp_path), "--out", tmp_path / "run", "--set", *changes)
    words = Page((tmp_path / "run" / "report.html").read_text()).words
    assert said.removeprefix("grainline: ") in words
    assert "Endedearly" in words
    assert "the loss is not finite" in words


def test_a_page_that_cannot_be_written_does_not_fail_the_run(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_text

    def full(path: Path, *more: Any, **named: Any) -> int:
        if path.name.endswith("report.html"):
            raise OSError(28, "No space left on device")
        return real(path, *more, **named)

    monkeypatch.setattr(Path, "write_text", full)
    assert call("train", recipe(tmp_path), "--out", tmp_path / "run", "--set", "train.max_steps=1") == 0
    output = capsys.readouterr()
    said = [line for line in output.err.splitlines() if "report.html" in line]
    assert len(said) == 1
    assert said[0].startswith("no report.html: cannot write ")
    assert "no space left on device" in said[0]
    assert f"trained: {tmp_path / 'run' / 'last'}" in output.out


def test_a_mistake_before_the_first_step_leaves_no_page(tmp_path: Path, capsys: Capture) -> None:
    complaint(
        capsys, "train", recipe(tmp_path), "--out", tmp_path / "run", "--set", "train.global_batch_size=64"
    )
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_resume_that_does_nothing_leaves_the_page_as_it_was(run: Path, capsys: Capture) -> None:
    before = (run / "run" / "report.html").read_bytes()
    changes = ["train.max_steps=4", "train.validate_every=2", "data.validation=['scenes:dev?count=6']"]
    arguments = ["train", recipe(run), "--out", run / "run", "--resume", "--set", *changes]
    assert "step-9" in complaint(capsys, *arguments, "--checkpoint", "step-9")
    assert (run / "run" / "report.html").read_bytes() == before


def test_ctrl_c_is_reported_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grainline.training.checkpoint.save", stop)
    assert call("train", recipe(tmp_path), "--out", tmp_path / "run") == 130
    words = Page((tmp_path / "run" / "report.html").read_text()).words
    assert "Stopped: interrupted" in words
    assert "2 of 6" in words


# Search


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with `model`, `photos` and `index`; one image has a name that is HTML."""
    saved(tiny_model(), tmp_path / "model")
    photo(photos(tmp_path / "photos", 18) / "<b>&.png", 99)
    arguments = [
        "--model",
        tmp_path / "model",
        "--out",
        tmp_path / "index",
        "--calibration-texts",
        texts(tmp_path),
    ]
    assert call("index", "build", tmp_path / "photos", *arguments) == 0
    return tmp_path


def test_search_writes_every_hit_with_every_sentence_and_its_heat(made: Path) -> None:
    page, answers = made / "page.html", made / "answers.json"
    query = "A red <i>dog</i> runs. The sand is 'red'. The sea is \"grey\"."
    assert call("search", made / "index", query, "-k", 19, "--html", page, "--json", answers) == 0
    found = Page(page.read_text())
    answer = json.loads(answers.read_text())["results"][0]
    assert query in found.words
    assert "<b>&.png" in found.words
    maps = [a["alt"] or "" for _, a in found.tags if a.get("class") == "over"]
    assert len(maps) == 19 * 3
    places = [part for hit in answer["hits"] for part in hit["sentences"]]
    for alt, sentence in zip(maps, places, strict=True):
        assert f"'{sentence['text']}'" in alt
        said = {"shows": "shows it", "cannot tell": "cannot tell", "does not": "does not"}
        assert alt.endswith(f", {said[sentence['verdict']]}")
        assert f"score {sentence['score']:.3f}, p {sentence['p']:.3f}" in found.words
    for hit in answer["hits"]:
        number = sum(part["verdict"] == "shows" for part in hit["sentences"])
        assert f"sentences shown: {number} of 3" in found.words
    words = {"sure": "sure match", "in part": "match in part", "none": "no sure match"}
    assert words[answer["match"]] in found.words
    usual = f"A query that matches nothing scores this high {100 * answer['hits'][0]['p']:.1f} % of the time"
    assert f"{usual} (a match: below 5 %)." in found.words
    assert all(note in found.words for note in answer["notes"])
    assert "file:" not in page.read_text()


def test_an_image_that_is_gone_or_changed_since_is_reported_and_not_shown(made: Path) -> None:
    os.remove(made / "photos" / "01.png")
    photo(made / "photos" / "02.png", 1234)
    page = made / "page.html"
    assert call("search", made / "index", TEXTS[0], "-k", 19, "--html", page) == 0
    found = Page(page.read_text())
    assert "missing image: 01.png" in found.words
    assert "changed since it was indexed: 02.png" in found.words
    alone = [a["alt"] for tag, a in found.tags if tag == "img" and a["class"] == ""]
    assert len(alone) == 17
    assert not {"01.png", "02.png"} & set(alone)
    assert found.words.count("The sand is red.") >= 19, "what was scored is told all the same"


def test_a_image_as_the_query_is_shown(made: Path) -> None:
    page, query = made / "page.html", made / "photos" / "04.png"
    assert call("search", made / "index", "--image", query, "-k", 3, "--html", page) == 0
    found = Page(page.read_text())
    assert [a["alt"] for tag, a in found.tags if a.get("class") == "query"] == [f"the query, {query}"]
    assert sum(tag == "article" for tag, _ in found.tags) == 3
    assert not [tag for tag, _ in found.tags if tag == "input"]


def test_many_queries_are_listed_and_the_rest_is_counted(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(grainline.index.output, "MAX_QUERIES", 2)
    (made / "queries.txt").write_text("\n".join(TEXTS[:3]) + "\n")
    page = made / "page.html"
    assert call("search", made / "index", "--queries", made / "queries.txt", "-k", 2, "--html", page) == 0
    found = Page(page.read_text())
    assert sum(tag == "a" for tag, _ in found.tags) == 2
    assert "The first 2 of 3 queries" in found.words
    assert f"written: {page}, the first 2 of 3 queries" in capsys.readouterr().err


def test_search_refuses_a_folder_for_its_page(made: Path, capsys: Capture) -> None:
    assert "cannot write" in complaint(capsys, "search", made / "index", TEXTS[0], "--html", made / "photos")
    assert (made / "photos" / "01.png").exists()


def test_a_page_shows_whole_images_and_dims_what_the_model_does_not_read(tmp_path: Path) -> None:
    on = measured(captioned(tmp_path, 12))
    Image.new("RGB", (800, 400), "red").save(tmp_path / f"{Path(on.data.keys[0]).stem}.png")
    whole = on.whole(0)
    assert isinstance(whole, WholeImage)
    assert whole.image.size == (640, 320)
    assert whole.square == pytest.approx((160, 0, 480, 320), abs=1)
    marked, layer = whole.marked(), whole.layer(np.ones((8, 8)), 1.0, 0.0)
    assert marked.getpixel((320, 160)) == (255, 0, 0)
    assert marked.getpixel((50, 160)) != (255, 0, 0)
    assert [layer.getpixel((layer.width * x // 8, 20))[3] > 0 for x in (1, 4, 7)] == [False, True, False]
