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

from grainline.data.captions import sentences
from grainline.data.open_source import open_source
from grainline.data.scenes.source import Scenes
from grainline.evaluation.encode import encode_source
from grainline.evaluation.evaluate_model import write_html
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.suite import Settings, suite_of
from grainline.evaluation.suites.probes import ProbesSuite, probe_scores
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite
from grainline.evaluation.suites.zeroshot import TEMPLATES, ZeroshotSuite, confusions
from grainline.report.case import Case, WholeImage, lead, standing
from grainline.report.charts import DASHES, line_chart
from grainline.report.page import MissingImage
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


def name_of(case: Case) -> str:
    return case.detail.removeprefix("tied with a wrong one, ")


def margin_of(words: str) -> float:
    """The difference that `ahead` has put into words."""
    return 0.0 if words.endswith("tied") else float(words.split()[-1]) * (-1 if "behind" in words else 1)


@pytest.mark.parametrize("method", ["maxsim", "clip"])
def test_examples_are_the_rankings_from_the_best_to_the_worst(method: str, tmp_path: Path) -> None:
    on = measured(captioned(tmp_path, 12), method=method)
    keys, strings, owner = on.data.keys, on.data.strings, on.data.texts.image.tolist()
    score = on.model.method.score(on.data.images, on.data.texts)  # [N, M]
    texts, images = (part.cases for part in suite_of(on.result).cases(on))
    for way, cases, table in (("t2i", texts, score.T), ("i2t", images, score)):
        ranks = [int(case.title.split()[4]) for case in cases]
        known = on.result.queries["folds"][0][way]["rank"]
        assert ranks == sorted(ranks)
        assert (len(cases), ranks[0], ranks[-1]) == (6, min(known), max(known))
        for case in cases:
            name, hits = name_of(case), case.rows[0].panels
            row = strings.index(case.quote) if way == "t2i" else keys.index(name)
            every = table[row].tolist()
            best = sorted(range(len(every)), key=lambda i: -every[i])[:5]
            order = sorted(every, reverse=True)
            assert [hit.below for hit in hits] == [standing(rank, order) for rank in range(1, 6)]
            if way == "t2i":
                assert name == keys[owner[row]]
                assert [hit.alt.split(", ")[0] for hit in hits] == [keys[i] for i in best]
                assert [hit.right for hit in hits] == [i == owner[row] for i in best]
            else:
                assert [hit.words for hit in hits] == [strings[i] for i in best]
                assert [hit.right for hit in hits] == [owner[i] == row for i in best]


def test_the_sentences_of_a_query_stand_over_the_right_image_with_their_scores_and_heat(
    tmp_path: Path,
) -> None:
    on = measured(captioned(tmp_path, 12))
    for example in suite_of(on.result).cases(on, 3)[0].cases:
        look = example.look
        assert look is not None
        assert look.heat is not None
        parts = [one.text for one in sentences(example.quote)]
        assert [one.text for one in look.sentences] == parts
        own = tmp_path / f"{Path(name_of(example)).stem}.png"
        scores = on.model.score([own], parts)[0].tolist()
        assert [one.score for one in look.sentences] == pytest.approx(scores, abs=1e-6)
        every = [one.text for one in look.texts()]
        np.testing.assert_allclose(look.heat, on.model.heat(own, every), atol=1e-6)


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
        signed = [sign * margin for margin in margins]
        assert signed == pytest.approx(sorted(signed), abs=2e-3)
        assert len({one.alt for one in shown}) == len(shown) == 4
        for one, difference in zip(shown, margins, strict=True):
            record = source[data.keys.index(one.alt.removeprefix("image "))]
            texts = [text.replace("<mark>", "").replace("</mark>", "") for _, text in one.texts]
            foils = {(f.true, f.text, f"foil of kind {f.kind}") for f in record.foils}
            assert (*texts, one.detail.split(", ")[0]) in foils
            true, false = model.score([record.image], texts)[0].tolist()
            assert true - false == pytest.approx(difference, abs=6e-4)


def test_classified_images_are_shown_from_the_most_wrong_and_the_most_right(tmp_path: Path) -> None:
    for i in range(9):
        photo(tmp_path / f"{'abc'[i % 3]} thing" / f"{i:02}.png", i)
    (tmp_path / "a thing" / "03.png").write_bytes(b"no image")
    model, source = tiny_model("clip"), open_source(f"classes:{tmp_path}")
    data = ZeroshotSuite().encode(model, source, Settings(max_corrupt=0.5))
    result = ZeroshotSuite().measure(model.method, data, Settings(resamples=10))
    on = Evaluation(model, source, data, result._replace(settings=result.settings | {"model": "tiny"}))
    worst, best = (part.cases for part in ZeroshotSuite().cases(on, 9))
    assert [one.alt for one in best] == [one.alt for one in worst[::-1]]
    margin = [margin_of(one.texts[0][0]) for one in worst]
    assert margin == pytest.approx(sorted(margin), abs=2e-3)
    assert len({one.alt for one in worst}) == len(worst) == 8, "the broken one is not there"
    names = result.queries["classes"]
    for one, difference in zip(worst, margin, strict=True):
        name = one.alt.removeprefix("image ")
        prompts = [template.replace("{}", name) for name in names for template in TEMPLATES]
        mean = model.encode(texts=prompts).vector.view(3, len(TEMPLATES), -1).mean(1)
        vector = model.encode(images=[tmp_path / name]).vector[0]
        score = dict(zip(names, (torch.nn.functional.normalize(mean, dim=-1) @ vector).tolist(), strict=True))
        true = name.split("/")[0]
        other = max(names, key=lambda one: -9 if one == true else score[one])
        assert [text for _, text in one.texts] == [true, other]
        assert difference == pytest.approx(score[true] - score[other], abs=6e-4)
        rank = result.queries["rank"][data.keys.index(name)]
        assert (one.detail, one.right) == (f"true class at rank {rank} of 3, {name}", rank == 1)
    mistakes = confusions(result.queries)
    assert sum(images for _, _, images in mistakes) == sum(not one.right for one in worst) > 0


def test_evaluate_writes_a_page_and_refuses_a_folder_before_it_measures(
    tmp_path: Path, capsys: Capture
) -> None:
    model = saved(tiny_model(), tmp_path / "model")
    arguments = ["evaluate", model, "--data", captioned(tmp_path / "in", 12), "--captions", "each"]
    page = tmp_path / "new" / "page.html"
    assert call(*arguments, "--max-corrupt", "0.5", "--html", page) == 0
    assert f"written: {page}" in capsys.readouterr().out
    words = Page(page.read_text()).words
    for part in ("Text to image, best to worst", "Image to text, best to worst", "2 skipped", "Right one at"):
        assert part in words
    assert "cannot write" in complaint(capsys, *arguments, "--html", tmp_path / "in")
    assert (tmp_path / "in" / "00.png").exists()


# Training


def lines(*, terms: int = 2) -> list[dict[str, Any]]:
    named = {"loss": 1.0} | {f"term {i}": None for i in range(terms - 1)}
    train = {
        "kind": "train",
        "epoch": 0.5,
        "terms": named,
        "norm": None,
        "lr": {".*": 0.1},
        "images_per_s": 8.0,
    }
    metrics = {"rSum": 9.0, "text to image R@10": 50.0, "text to image R@5": 25.0}
    chance = {"rSum": 12.0, "text to image R@10": 10.0}
    validation = {"kind": "validation", "step": 2, "metrics": metrics, "chance": chance}
    return [train | {"step": step} for step in (1, 2, 3)] + [validation]


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


def test_a_page_says_that_the_run_was_validated_on_these_data(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    validation = read_recipe(str(run / "run" / "recipe.yaml"), []).data.validation
    assert call("evaluate", run / "run", "--data", *validation, "--html", page) == 0
    assert "the run was validated on these data, by which it" in Page(page.read_text()).words


def test_a_run_that_stopped_says_why_on_its_page(tmp_path: Path, capsys: Capture) -> None:
    schedule = "train.optimizer.schedule={kind: constant, warmup: 0}"
    changes = ["train.optimizer.lr=1e9", schedule, "train.grad_clip=null", "train.log_every=1"]
    line = complaint(capsys, "train", recipe(tmp_path), "--out", tmp_path / "run", "--set", *changes)
    words = Page((tmp_path / "run" / "report.html").read_text()).words
    assert line.removeprefix("grainline: ") in words
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
    (line,) = [line for line in output.err.splitlines() if "report.html" in line]
    assert line.startswith("no report.html: cannot write ")
    assert "no space left on device" in line
    assert f"trained: {tmp_path / 'run' / 'last'}" in output.out


# Search


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with `model`, `photos` and `index`; one image has a name that is HTML."""
    saved(tiny_model(), tmp_path / "model")
    photo(photos(tmp_path / "photos", 18) / "<b>&.png", 99)
    arguments = ["--model", tmp_path / "model", "--out", tmp_path / "index"]
    arguments += ["--calibration-texts", texts(tmp_path)]
    assert call("index", "build", tmp_path / "photos", *arguments) == 0
    return tmp_path


def test_search_writes_every_hit_with_every_sentence_and_its_heat(made: Path) -> None:
    page, answers = made / "page.html", made / "answers.json"
    query = "A red <i>dog</i> runs. The sand is 'red'. The sea is \"grey\"."
    assert call("search", made / "index", query, "-k", 19, "--html", page, "--json", answers) == 0
    drawn = Page(page.read_text())
    answer = json.loads(answers.read_text())["results"][0]
    assert query in drawn.words
    assert "<b>&.png" in drawn.words
    maps = [a["alt"] or "" for _, a in drawn.tags if a.get("class") == "over"]
    assert len(maps) == 19 * 3
    places = [part for hit in answer["hits"] for part in hit["sentences"]]
    for alt, sentence in zip(maps, places, strict=True):
        assert f"'{sentence['text']}'" in alt
        said = {"shows": "shows it", "cannot tell": "cannot tell", "does not": "does not"}
        assert alt.endswith(f", {said[sentence['verdict']]}")
        assert f"score {sentence['score']:.3f}, p {sentence['p']:.3f}" in drawn.words
    for hit in answer["hits"]:
        number = sum(part["verdict"] == "shows" for part in hit["sentences"])
        assert f"sentences shown: {number} of 3" in drawn.words
    words = {"sure": "sure match", "in part": "match in part", "none": "no sure match"}
    assert words[answer["match"]] in drawn.words
    usual = f"A query that matches nothing scores this high {100 * answer['hits'][0]['p']:.1f} % of the time"
    assert f"{usual} (a match: below 5 %)." in drawn.words
    assert all(note in drawn.words for note in answer["notes"])
    assert "file:" not in page.read_text()


def test_an_image_that_is_gone_or_changed_since_is_reported_and_not_shown(made: Path) -> None:
    os.remove(made / "photos" / "01.png")
    photo(made / "photos" / "02.png", 1234)
    page = made / "page.html"
    assert call("search", made / "index", TEXTS[0], "-k", 19, "--html", page) == 0
    drawn = Page(page.read_text())
    assert "missing image: 01.png" in drawn.words
    assert "changed since it was indexed: 02.png" in drawn.words
    alone = [a["alt"] for tag, a in drawn.tags if tag == "img" and a["class"] == ""]
    assert len(alone) == 17
    assert not {"01.png", "02.png"} & set(alone)
    assert drawn.words.count("The sand is red.") >= 19, "the scores stand there all the same"


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
