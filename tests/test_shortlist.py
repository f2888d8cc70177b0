"""Retrieval in two stages, against loops: candidates by vector, ranks by the method's own score."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from indexes import CONDITIONED, TEXTS, photos, saved, tiny_model
from test_score import Dot, Late, duplicated, some

from grainline.data.open_source import open_source
from grainline.errors import UserError
from grainline.evaluation.compare import compare, pooled, with_comparison
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.ranks import chance_recall
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer, candidates, retrieval_ranks, shortlist_ranks
from grainline.evaluation.suite import Settings, load_suite
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite, share_scored
from grainline.model import Model
from grainline.report.case import standing
from grainline.types import Encoded

KINDS = {"maxsim": (), "flair": (), "caft": (CONDITIONED, "composer.heads=2")}
IMAGES = 12


def loop(
    method: Scorer, images: Encoded, texts: Encoded, shortlist: int
) -> list[list[tuple[int, bool, bool]]]:
    """Rank, tie and whether it is listed, of every query of both directions."""
    close = (images.vector.double() @ texts.vector.double().T).float()
    out: list[list[tuple[int, bool, bool]]] = []
    for way in (0, 1):
        asked, others = (images, texts) if way == 0 else (texts, images)
        near = close if way == 0 else close.T
        told = []
        for q in range(len(asked.item)):
            if asked.image[q] < 0:
                continue
            true = [bool(x == asked.image[q]) for x in others.image]
            order = sorted(range(len(true)), key=lambda c: (-float(near[q, c]), true[c], c))
            listed = order[:shortlist]
            score = {}
            for c in listed:
                i, j = (q, c) if way == 0 else (c, q)
                one = method.score(
                    Encoded(*(None if x is None else x[i : i + 1] for x in images)),  # type: ignore[arg-type]
                    Encoded(*(None if x is None else x[j : j + 1] for x in texts)),  # type: ignore[arg-type]
                )
                score[c] = float(one)
            best = max((score[c] for c in listed if true[c]), default=None)
            if best is None:
                told.append((len(true), False, False))
                continue
            wrong = [score[c] for c in listed if not true[c]]
            told.append((1 + sum(x >= best for x in wrong), best in wrong, True))
        out.append(told)
    return out


def found(method: Scorer, images: Encoded, texts: Encoded, shortlist: int, memory: int = 2**28) -> list[Any]:
    both = shortlist_ranks(method, images, texts, shortlist, memory)
    return [
        list(zip(x.ranks.rank.tolist(), x.ranks.tied.tolist(), x.listed.tolist(), strict=True)) for x in both
    ]


@pytest.mark.parametrize("shortlist", [1, 3, 7, 11, 20, 100])
@pytest.mark.parametrize("memory", [3000, 2**28])
def test_ranks_are_those_of_a_loop_with_ties_foils_and_many_captions(shortlist: int, memory: int) -> None:
    images = duplicated(some(11, torch.randperm(11) + 100, length=4))
    owner = torch.cat([images.image, images.image[torch.randint(0, 11, (12,))], torch.tensor([-1, -1])])
    texts = duplicated(some(25, owner[torch.randperm(25)], length=3))
    expected = loop(Late(), images, texts, shortlist)
    assert found(Late(), images, texts, shortlist, memory) == expected
    if shortlist == 7:
        assert {True, False} == {listed for told in expected for _, _, listed in told}
        assert any(tied for told in expected for _, tied, _ in told)


@pytest.mark.parametrize("method", KINDS)
def test_a_shortlist_of_the_whole_gallery_gives_the_full_result(method: str) -> None:
    mine = tiny_model(method, changes=KINDS[method])
    images = mine.encode(images=drawn(IMAGES))
    texts = mine.encode(texts=TEXTS[: 2 * IMAGES])._replace(image=torch.arange(2 * IMAGES) % IMAGES)
    full = retrieval_ranks(mine.method, images, texts)
    whole = shortlist_ranks(mine.method, images, texts, 2 * IMAGES)
    half = shortlist_ranks(mine.method, images, texts, IMAGES)  # whole for texts, half for images
    for ranks, one in zip(full, whole, strict=True):
        assert torch.equal(ranks.rank, one.ranks.rank)
        assert torch.equal(ranks.tied, one.ranks.tied)
        assert one.listed.all()
    assert torch.equal(half.t2i.ranks.rank, full.t2i.rank)
    assert not torch.equal(half.i2t.ranks.rank, full.i2t.rank)
    for size in (4, IMAGES):
        assert found(mine.method, images, texts, size) == loop(mine.method, images, texts, size)


def drawn(number: int) -> list[Any]:
    from PIL import Image

    return [
        Image.fromarray(torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8).numpy()) for _ in range(number)
    ]


def test_every_direction_takes_its_own_candidates() -> None:
    vector = torch.eye(3)
    images, texts = some(3, [0, 1, 2], 3, 1), some(3, [0, 1, 2], 3, 1)
    images = images._replace(vector=vector)
    texts = texts._replace(vector=torch.tensor([[0.8, 0.6, 0.0], [0.9, 0.43, 0.0], [0.0, 0.0, 1.0]]))
    both = shortlist_ranks(Late(), images, texts, 1)
    assert both.i2t.listed.tolist() == [False, False, True]  # nearest text of image 0: 1; of 1: 0; of 2: 2
    assert both.t2i.listed.tolist() == [True, False, True]  # nearest image of text 0: 0; of 1: 0; of 2: 2
    assert both.i2t.ranks.rank.tolist() == [3, 3, 1]
    assert both.t2i.ranks.rank.tolist() == [1, 3, 1]


def test_where_all_vectors_are_equal_no_true_candidate_is_listed() -> None:
    images = some(9, torch.arange(9), length=1)
    images = images._replace(vector=images.vector[:1].expand(9, -1))
    texts = images._replace(tokens=torch.randn(9, 2, 6))
    both = shortlist_ranks(Late(), images, texts, 8)
    assert not both.i2t.listed.any()
    assert both.t2i.ranks.rank.tolist() == [9] * 9
    near = candidates(images, texts, 8)[0]
    assert all(row not in near[row].tolist() for row in range(9))


def test_scores_that_are_no_numbers_are_refused() -> None:
    images, texts = some(5, torch.arange(5), length=1), some(5, torch.arange(5), length=1)
    with pytest.raises(UserError, match="scores are not a number"):
        shortlist_ranks(Late(), images, texts._replace(tokens=texts.tokens * torch.nan), 3)


def test_a_method_of_vectors_is_refused() -> None:
    images, texts = some(2, [0, 1]), some(2, [0, 1])
    with pytest.raises(UserError, match=r"^shortlist is for methods that score pair by pair; this method"):
        shortlist_ranks(Dot(), images, texts, 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images with their texts."""
    folder = photos(tmp_path_factory.mktemp("data") / "photos", IMAGES)
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        path.with_suffix(".txt").write_text(TEXTS[5 * i])
    return folder


def asked(model: Model, data: Path, shortlist: int | None, exact: bool = False) -> Evaluation:
    suite, source = RetrievalSuite(RetrievalOptions(shortlist=shortlist, exact=exact)), open_source(str(data))
    encodings = suite.encode(model, source, Settings(batch_size=5, max_corrupt=0.0))
    return Evaluation(
        model, source, encodings, suite.measure(model.method, encodings, Settings(resamples=20))
    )


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model("caft", changes=KINDS["caft"])


def values(result: Result) -> dict[str, float]:
    return {metric.name: metric.value for metric in result.metrics}


def test_the_share_of_queries_whose_answer_is_in_the_shortlist_stands_beside_the_ranks(
    model: Model, data: Path
) -> None:
    on = asked(model, data, 4)
    both = shortlist_ranks(model.method, on.data.images, on.data.texts, 4)
    told = {metric.name: metric for metric in on.result.metrics}
    for way, one in (("image to text", both.i2t), ("text to image", both.t2i)):
        metric = told[f"{way} in shortlist"]
        assert metric.value == pytest.approx(100 * float(one.listed.float().mean()))
        assert metric.chance == pytest.approx(400 / IMAGES) == 100 * chance_recall([1], IMAGES, 4)
        assert told[f"{way} R@5"].value == metric.value
        assert told[f"{way} R@5"].chance == metric.chance  # whoever is listed stands among the first four
        assert told[f"{way} R@1"].chance == pytest.approx(100 / IMAGES)
        assert told[f"{way} median rank"].chance == IMAGES  # a lot is not found more often than not
        assert told[f"{way} median rank"].value == one.ranks.rank.double().quantile(0.5)
    assert 0 < both.t2i.listed.float().mean() < 1
    assert on.result.settings["options"]["shortlist"] == 4
    assert (
        json.loads(json.dumps(on.result.queries))["folds"][0]["t2i"]["listed"]
        == both.t2i.listed.int().tolist()
    )


def test_exact_ranks_stand_beside_those_of_the_shortlist(model: Model, data: Path) -> None:
    both, short = asked(model, data, 4, exact=True).result, asked(model, data, 4).result
    full = asked(model, data, None).result
    told = {metric.name: metric for metric in both.metrics}
    assert [metric for name, metric in told.items() if not name.endswith(", exact")] == list(short.metrics)
    assert [told[f"{metric.name}, exact"] for metric in full.metrics] == [
        metric._replace(name=f"{metric.name}, exact") for metric in full.metrics
    ]
    assert values(both)["rSum, exact"] != values(both)["rSum"]
    said = f"4 candidates closest by vector, {400 / IMAGES:.3g} % image to text and {400 / IMAGES:.3g} %"
    assert any(said in note and "metrics named exact" in note for note in both.notes)
    assert any(said in note and "exact" not in note for note in short.notes)
    assert share_scored(both.queries["folds"], 4) == (4 / IMAGES, 4 / IMAGES)
    assert share_scored(both.queries["folds"], 99) == (1, 1)
    assert {d.name for d in compare(both, short)} == set(values(short))
    assert not any("exact" in name for name in values(pooled([both, short])))
    assert "rSum, exact" in values(pooled([both, both]))


def test_a_page_shows_candidates_of_the_shortlist_alone(model: Model, data: Path) -> None:
    on = asked(model, data, 3)
    suite = RetrievalSuite(RetrievalOptions(shortlist=3))
    texts_of, images_of = candidates(on.data.images, on.data.texts, 3)
    texts, images = (part.cases for part in suite.cases(on, IMAGES))
    for example in texts:
        row, hits = on.data.strings.index(example.quote), example.rows[0].panels
        names = [hit.alt.split(", ")[0] for hit in hits]
        assert sorted(names) == sorted(on.data.keys[i] for i in images_of[row].tolist())
        scores = model.score(on.data.images, [example.quote])[images_of[row], 0].sort(descending=True).values
        assert [hit.below for hit in hits] == [standing(rank, scores.tolist()) for rank in (1, 2, 3)]
    for example in images:
        row = on.data.keys.index(example.alt.removeprefix("query image "))
        words = [hit.words for hit in example.rows[0].panels]
        assert sorted(words) == sorted(on.data.strings[i] for i in texts_of[row].tolist())


def test_a_full_result_can_be_compared_and_not_be_pooled_with_one_in_two_stages(
    model: Model, data: Path
) -> None:
    full = asked(model, data, None).result
    short = with_comparison(asked(model, data, 4).result, full, "full.json")
    names = [one["name"] for one in short.settings["compared_to"]["differences"]]
    assert names == [metric.name for metric in full.metrics]
    assert any(note.endswith("was made with other shortlist: none") for note in short.notes)
    with pytest.raises(UserError, match="has shortlist 4, this result None: they cannot be pooled"):
        pooled([full, short])
    assert (
        values(pooled([short, short]))["image to text in shortlist"]
        == values(short)["image to text in shortlist"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["shortlist=0"], "field 'shortlist' is 0: it must be greater than or equal to 1"),
        (["exact=true"], "exact ranks by all scores next to a shortlist; set shortlist with it"),
    ],
)
def test_options_that_do_not_go_together(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_suite("retrieval", changes)


def test_the_command_ranks_in_two_stages_and_refuses_vectors_before_it_encodes(
    model: Model,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import sys

    from grainline.cli.main import main

    run, out = saved(model, tmp_path / "run"), tmp_path / "x.json"
    base = ["grainline", "evaluate", str(run), "--data", str(data), "--set", "shortlist=4"]
    for more, code in ((["--json", str(out)], 0), (["--scoring", "vectors"], 2)):
        monkeypatch.setattr(sys, "argv", [*base, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
    assert json.loads(out.read_text())["settings"]["options"]["shortlist"] == 4
    assert (
        "shortlist is for methods that score pair by pair; caft compares vectors" in capsys.readouterr().err
    )
