"""From a source to a result: encoding, protocols, suites, pooling and the JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from readers import Colours, Cosine, InMemory
from test_intervals import interval
from torch import Tensor

from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample, Foil, Record
from grainline.errors import UserError
from grainline.evaluation.compare import compare, pooled
from grainline.evaluation.encode import Encodings, encode_source
from grainline.evaluation.evaluate_model import metrics_html
from grainline.evaluation.result import from_json, read, to_json, write
from grainline.evaluation.statistics import ranks
from grainline.evaluation.suite import MetricSamples, Settings, metrics_of
from grainline.evaluation.suites.probes import ProbesSuite
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite, folds
from grainline.types import Encoded, same_image

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (250, 250, 10), (250, 10, 250), (60, 120, 240)]


def words(colour: tuple[int, ...]) -> str:
    return " ".join(str(c) for c in colour)


def painted(i: int, captions: Sequence[str] | None = None, foils: Sequence[Foil] = ()) -> Record:
    colour = COLOURS[i]
    image = Image.new("RGB", (6, 5), colour)
    return Record(f"p{i}", image, tuple(captions or [words(colour)]), foils=tuple(foils))


def plain(n: int = 6, **settings: Any) -> Encodings:
    return encode_source(Colours(), InMemory([painted(i) for i in range(n)]), **settings)


def made(n: int, captions: int, seed: int = 0, noise: float = 1.0, keys: Sequence[str] = ()) -> Encodings:
    """Random vectors in which every text lies near its image."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(n, 8, generator=generator)
    text = image.repeat_interleave(captions, 0) + noise * torch.randn(n * captions, 8, generator=generator)

    def rows_of(vector: Tensor, owner: Tensor) -> Encoded:
        empty = torch.zeros(len(vector), 0)
        tokens = torch.zeros(len(vector), 0, 8)
        return Encoded(F.normalize(vector, dim=1), tokens, empty.bool(), torch.arange(len(vector)), owner)

    names = tuple(keys or (f"{i}" for i in range(n)))
    texts = rows_of(text, torch.arange(n).repeat_interleave(captions))
    strings = ("",) * (n * captions)
    images = rows_of(image, torch.arange(n))
    return Encodings(
        images, texts, names, strings, "made", "f" + str(n), "each", n, {}, (), 0, 0, tuple(range(n))
    )


def test_an_interval_of_width_zero_is_explained() -> None:
    assert any("width zero" in note for note in RetrievalSuite().measure(Cosine(), plain()).notes)
    assert not any("width zero" in note for note in RetrievalSuite().measure(Cosine(), made(40, 3)).notes)


def test_metrics_are_those_of_the_dense_matrix() -> None:
    data = made(40, 3)
    score = (data.images.vector.double() @ data.texts.vector.double().T).float()
    positive = same_image(data.images, data.texts)
    a, b = ranks(score, positive).rank, ranks(score.T, positive.T).rank
    result = RetrievalSuite().measure(Cosine(), data, Settings(memory=5000, resamples=200))
    shares = [(rank <= k).float().mean().item() for rank in (a, b) for k in (1, 5, 10)]
    assert result.metric("rSum").value == pytest.approx(100 * sum(shares))
    assert result.metric("image to text R@5").value == pytest.approx(100 * (a <= 5).float().mean().item())
    assert result.metric("text to image median rank").value == np.median(b.numpy())
    assert result.metric("text to image R@1").queries == 120
    assert result.metric("image to text R@1").queries == 40
    by_image = interval((b <= 1).numpy(), data.texts.image.numpy(), resamples=200, seed=(0, 0))  # type: ignore[arg-type]
    got = result.metric("text to image R@1")
    assert (got.low, got.high) == pytest.approx((100 * by_image.low, 100 * by_image.high))


def test_recalls_and_medians_of_ranks_that_are_known_by_heart() -> None:
    def way(rank: list[int], image: list[int]) -> dict[str, list[int]]:
        return {"rank": rank, "tied": [0] * len(rank), "image": image}

    fold = {
        "images": 20,
        "texts": 40,
        "i2t": way([1, 5, 6], [0, 1, 2]),
        "t2i": way([1, 11, 3, 10], [0, 0, 1, 2]),
    }
    cells = RetrievalSuite().metrics([{"keys": [], "folds": [fold]}], Settings(resamples=5))
    assert [cells[f"image to text R@{k}"].value for k in (1, 5, 10)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert [cells[f"text to image R@{k}"].value for k in (1, 5, 10)] == pytest.approx([1 / 4, 2 / 4, 3 / 4])
    assert cells["image to text median rank"].value == 5.0
    assert cells["text to image median rank"].value == 6.5
    assert cells["rSum"].value == pytest.approx(100 * (1 / 3 + 2 / 3 + 1 + 1 / 4 + 2 / 4 + 3 / 4))


def test_a_suite_may_have_a_unit_of_its_own() -> None:
    """A mean reciprocal rank is no per cent."""
    (metric,) = metrics_of({"MRR": MetricSamples(0.2716, np.full(9, 0.2716), 9, None, 0, "MRR")}, Settings())
    assert (metric.value, metric.text(metric.value), metric.label) == (0.2716, "0.272", "MRR")


def test_ties_are_wrong_and_counted() -> None:
    same = InMemory([painted(0), painted(0)._replace(key="q"), painted(1)])
    result = RetrievalSuite().measure(Cosine(), encode_source(Colours(), same))
    assert result.metric("text to image R@1").value == pytest.approx(100 / 3)
    assert result.metric("text to image R@1").ties == 2
    assert result.metric("rSum").ties == 4


FIVE = [painted(i, [f"{i} {k} 9" for k in range(5)]) for i in range(2)]
LONG = painted(2, ["1 2 3", "4 5 6"])._replace(long="7 8 9 10")


@pytest.mark.parametrize(
    ("records", "given", "texts", "mode", "counts"),
    [
        (FIVE, "auto", 10, "each", "10 captions of 2 images, each ranked"),
        (FIVE, "each", 10, "each", "10 captions of 2 images, each ranked"),
        (
            FIVE,
            "whole",
            2,
            "whole",
            "2 images, 2 texts: the captions of 2 images are joined to one text an image",
        ),
        (FIVE, "first", 2, "first", "2 images, 2 texts: the first caption of 2 images"),
        ([LONG], "auto", 1, "whole", "1 image, 1 text"),
        ([painted(0)], "auto", 1, "whole", "1 image, 1 text"),
        (
            [*FIVE, LONG],
            "auto",
            11,
            "auto",
            "each caption of 2 images is ranked, and the long text of all others",
        ),
    ],
)
def test_several_captions_are_each_a_text_and_the_result_says_so(
    records: list[Record], given: Any, texts: int, mode: str, counts: str
) -> None:
    data = encode_source(Colours(), InMemory(records), captions=given)
    assert (len(data.strings), data.captions, data.several) == (texts, mode, 2 * (FIVE[0] in records))
    result = RetrievalSuite().measure(Cosine(), data)
    assert result.settings["captions"] == mode
    assert result.size.endswith(counts)
    assert to_json(result).count(result.size) == (data.several > 0)
    for shown in (str(result).splitlines()[0], metrics_html(result)):
        assert result.size in shown


def test_batches_are_full_and_change_nothing() -> None:
    model = Colours()
    data = encode_source(model, InMemory([painted(i) for i in range(6)]), batch=4)
    assert sorted(model.batches) == [2, 2, 4, 4]
    torch.testing.assert_close(data.images.vector, plain().images.vector)
    assert data.images.image.tolist() == data.texts.image.tolist() == list(range(6))
    assert data.texts.item.tolist() == list(range(6))


def test_tokens_are_stored_only_for_methods_that_compare_them_and_padded_across_batches() -> None:
    records = [painted(0, ["1 2 3 4 5 6"]), painted(1, ["1 2 3"])]
    assert encode_source(Colours(), InMemory(records)).texts.tokens.shape == (2, 0, 3)
    kept = encode_source(Colours(pairwise=True), InMemory(records), batch=1).texts
    assert kept.tokens.shape == (2, 6, 3)
    assert kept.mask.sum(1).tolist() == [6, 3]


def test_cut_texts_are_those_of_this_run() -> None:
    data = encode_source(Colours(), InMemory([painted(0, ["1 2 3 4 5 6"]), painted(1)]))
    assert data.cut == 1
    assert "1 text longer than the model reads and cut" in RetrievalSuite().measure(Cosine(), data).notes


def test_damaged_samples_are_skipped_counted_and_reported() -> None:
    broken = painted(2)._replace(image=b"no image", key="bad.jpg")
    source = InMemory([painted(0), broken, painted(1), painted(3, ["  "]), painted(4, ["", "1 2 3"])])
    data = encode_source(Colours(), source, captions="each", max_corrupt=0.5)
    assert data.damaged == {"corrupt image": 1, "missing caption": 1}
    assert data.keys == ("p0", "p1", "p4")
    assert (data.samples, data.blank) == (5, 1)
    result = RetrievalSuite().measure(Cosine(), data)
    assert "2 of 5 samples were skipped: 1 corrupt image, 1 missing caption" in result.notes[0]
    assert "bad.jpg" in result.notes[0]
    assert result.data["damaged"] == {"corrupt image": 1, "missing caption": 1}


def test_too_much_damage_names_the_first_files() -> None:
    source = InMemory(
        [CorruptSample("corrupt image", f"x/{i}.jpg") for i in range(4)] + [painted(i) for i in range(6)]
    )
    with pytest.raises(
        UserError, match=r"2 of 10 samples in memory:test are corrupt; allowed are 10%"
    ) as error:
        encode_source(Colours(), source, max_corrupt=0.1)
    assert "x/0.jpg" in str(error.value)
    assert "x/1.jpg" in str(error.value)


def test_progress_is_reported_sample_by_sample_damaged_ones_included() -> None:
    named: list[tuple[int, int]] = []
    source = InMemory([painted(0), CorruptSample("corrupt image", "x")])
    encode_source(
        Colours(), source, max_corrupt=0.5, progress=lambda done, total: named.append((done, total))
    )
    assert named == [(1, 2), (2, 2)]


def test_mistakes_end_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^captions is 'all'; allowed: auto, whole, each, first$"):
        encode_source(Colours(), InMemory([painted(0)]), captions="all")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^no samples in memory:test; evaluation needs at least one$"):
        encode_source(Colours(), InMemory([]))
    with pytest.raises(UserError, match=r"^no probes in memory:test; this suite needs samples with foils"):
        ProbesSuite().encode(Colours(), InMemory([painted(0)]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^6 images in memory:test; coco-1k needs exactly 5000$"):
        RetrievalSuite(RetrievalOptions(protocol="coco-1k")).measure(Cosine(), plain(), Settings())


# COCO


def test_coco_1k_is_five_separate_galleries_and_their_mean() -> None:
    data = made(5000, 5, noise=1.5, keys=[f"COCO_val2014_{i:012}" for i in range(5000)])
    result = RetrievalSuite(RetrievalOptions(protocol="coco-1k")).measure(
        Cosine(), data, Settings(resamples=50)
    )
    expected = []
    for f in range(5):
        score = (data.images.vector[1000 * f : 1000 * f + 1000].double()
                 @ data.texts.vector[5000 * f : 5000 * f + 5000].double().T).float()  # fmt: skip
        positive = torch.eye(1000).bool().repeat_interleave(5, 1)
        expected.append((ranks(score.T, positive.T).rank <= 5).float().mean().item())
    got = result.metric("text to image R@5")
    assert got.value == pytest.approx(100 * np.mean(expected))
    assert got.low < got.value < got.high
    assert got.chance == pytest.approx(0.5)
    assert got.queries == 25000
    assert result.settings["split"] == "coco-karpathy"


def test_coco_5k_takes_the_first_five_captions_of_each_image() -> None:
    data = made(5000, 5)
    texts = data.texts._replace(image=torch.cat([data.texts.image[:5], data.texts.image[:24995]]))
    with pytest.raises(UserError, match=r"^1 images in made have fewer than 5 captions; coco-5k needs 5"):
        folds("coco-5k", data.images, texts, "made")
    more = Encoded(*(torch.cat([x, x[:7]]) for x in data.texts[:5]), None)
    (fold,) = folds("coco-5k", data.images, more)
    assert fold.texts.tolist() == list(range(25000))
    assert [len(f.images) for f in folds("coco-1k", data.images, more)] == [1000] * 5


def test_flickr30k_is_a_thousand_images_out_of_karpathys_file(tmp_path: Path) -> None:
    images = [
        {
            "filename": f"{i}.jpg",
            "split": "test" if i % 2 else "train",
            "sentences": [{"raw": f"Text {k} of {i}."} for k in range(6)],
        }
        for i in range(2000)
    ]
    file = tmp_path / "dataset_flickr30k.json"
    file.write_text(json.dumps({"dataset": "flickr30k", "images": images}))
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "images" / "1.jpg")
    source = open_source(f"coco-karpathy:{file}?split=test", images=str(tmp_path / "images"))
    assert (len(source), source[0].key, len(source[0].captions)) == (1000, "1.jpg", 5)
    data = made(1000, 5, noise=1.5)
    (fold,) = folds("flickr30k-1k", data.images, data.texts)
    assert fold.texts.tolist() == list(range(5000))
    result = RetrievalSuite(RetrievalOptions(protocol="flickr30k-1k")).measure(
        Cosine(), data, Settings(resamples=20)
    )
    assert result.metric("image to text R@1").queries == 1000
    assert result.metric("text to image R@1").queries == 5000
    with pytest.raises(UserError, match=r"^5000 images in made; flickr30k-1k needs exactly 1000$"):
        folds("flickr30k-1k", made(5000, 1).images, data.texts, "made")
    with pytest.raises(
        UserError, match=r"^1000 images in made have fewer than 5 captions; flickr30k-1k needs"
    ):
        folds("flickr30k-1k", data.images, made(1000, 4).texts, "made")


# foils


def with_foils(pairwise: bool = False) -> Encodings:
    foils = [
        [
            Foil(words(COLOURS[1]), words(COLOURS[0]), "colour"),
            Foil("250 10 10 9", words(COLOURS[0]), "size"),
        ],
        [Foil(words(COLOURS[1]), words(COLOURS[3]), "colour")],
        [Foil(words(COLOURS[0]), words(COLOURS[2]), "noun")],
    ]
    records = [painted(i, None, foils[i]) for i in range(3)]
    return ProbesSuite().encode(Colours(pairwise), InMemory(records))  # type: ignore[arg-type]


@pytest.mark.parametrize("pairwise", [False, True])
def test_foils_are_judged_by_kind_and_ties_are_wrong(pairwise: bool) -> None:
    result = ProbesSuite().measure(Cosine(pairwise), with_foils(pairwise))
    assert [m.name for m in result.metrics] == ["all kinds", "colour", "noun", "size"]
    assert [m.value for m in result.metrics] == [50, 50, 100, 0]
    assert [m.ties for m in result.metrics] == [1, 0, 0, 1], (
        "the model reads three words: the size is cut off"
    )
    assert [m.chance for m in result.metrics] == [50] * 4
    noun = result.metric("noun").wilson
    assert noun is not None
    assert noun[0] < 30
    assert noun[1] == 100


# results


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a result of `grainline evaluate`"):
        from_json('{"suite": 3}')
    old = to_json(RetrievalSuite().measure(Cosine(), plain())).replace('"unit": "%"', '"unit": "share"')
    with pytest.raises(UserError, match="an older one, in shares of 1"):
        from_json(old)
    with pytest.raises(UserError, match=r"^cannot read .*none\.json"):
        read(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write "):
        write(RetrievalSuite().measure(Cosine(), plain()), tmp_path / "file" / "r.json")


def test_pooled_runs_are_means_with_intervals_over_images() -> None:
    runs = [RetrievalSuite().measure(Cosine(), made(50, 2, seed=0, noise=noise)) for noise in (0.5, 1.0, 2.0)]
    together = pooled(runs)
    name = "text to image R@1"
    values = [run.metric(name).value for run in runs]
    assert together.metric(name).value == pytest.approx(np.mean(values))
    assert together.settings["runs"][name] == values
    assert together.metric(name).queries == 300
    assert together.metric(name).chance == runs[0].metric(name).chance
    alone = pooled(runs[:1])
    assert alone.metrics == runs[0].metrics
    three_times = pooled([runs[0]] * 3)
    assert three_times.metric(name).low == pytest.approx(runs[0].metric(name).low), "copies are no evidence"
    foils = ProbesSuite().measure(Cosine(), with_foils())
    assert [m.value for m in pooled([foils, foils]).metrics] == [m.value for m in foils.metrics]


def test_results_of_other_data_are_not_pooled() -> None:
    a, b = RetrievalSuite().measure(Cosine(), made(5, 1)), RetrievalSuite().measure(Cosine(), made(6, 1))
    changed = b._replace(data=b.data | {"images": 5})
    with pytest.raises(
        UserError, match="; it has changed since: they cannot be compared; measure both on the"
    ):
        compare(a, changed)
    with pytest.raises(
        UserError,
        match=r"^another result was measured on .* \(6 images\), this result on .* \(5 images\): they cannot",
    ):
        pooled([a, b])
