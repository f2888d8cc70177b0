"""Samples, batches and the account of what went wrong: the same on any number of processes."""

import io
import os
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

from grainline.data.batches import MAX_FILES, Batch, CorruptStats, collate, load_batches
from grainline.data.captions import sentences
from grainline.data.dataset import TRIES, Batches, Draw, Sample, Text, TrainSet, permutation
from grainline.data.record import Cause, CorruptSample, Foil, Record
from grainline.data.texts import TextsConfig, choose_text, foil_pairs
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import CropConfig, TrainTransform
from grainline.errors import UserError
from grainline.types import CAPTION, FOIL

LONG = "A red circle stands left. A blue square lies below it. Two stars shine. The ground is grey."
TRUE = Foil("A green circle stands left. " + LONG.partition(". ")[2], LONG, "colour")


def random_image(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


class Shelf:
    """A source of a few records in memory, some of them damaged."""

    path = "shelf"

    def __init__(
        self, count: int, broken: Sequence[int] = (), silent: Sequence[int] = (), foils: Sequence[int] = ()
    ) -> None:
        self.count, self.broken, self.silent, self.foils = count, broken, silent, foils

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        if index in self.silent:
            raise CorruptSample(Cause.MISSING_CAPTION, f"p{index}")
        image = b"broken" if index in self.broken else random_image(index)
        foils = (TRUE, TRUE._replace(text=LONG.replace("square", "heart"))) if index in self.foils else ()
        return Record(f"p{index}", image, (f"Image {index}.", f"Number {index}."), LONG, foils=foils)

    def fingerprint(self) -> str:
        return "shelf"


TOKENIZER = Tokenizer.train([LONG, "A green heart. Image number 0 1 2 3 4 5 6 7 8 9."] * 3, vocab=600)
CROP = TrainTransform(16, CropConfig(scale=(0.3, 1.0), jitter=0.2))


def shelf(source: Shelf, context: int = 99, seed: int = 0, parts: int = 1, **cfg: object) -> TrainSet:
    return TrainSet(source, TOKENIZER, CROP, TextsConfig(**cfg), context=context, seed=seed, parts=parts)


def loaded(data: TrainSet, plan: Batches, workers: int = 0) -> list[Batch]:
    return list(load_batches(data, plan, workers))


def assert_same(a: object, b: object) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def assert_same_batches(a: Sequence[Batch], b: Sequence[Batch]) -> None:
    assert [x[2:] for x in a] == [x[2:] for x in b]  # texts cut and damage
    assert_same([x[:2] for x in a], [x[:2] for x in b])


def spoken(data: TrainSet, ids: list[int]) -> str:
    return data.tokenizer.decode(ids)


# The plan


def test_an_epoch_is_a_permutation_and_every_epoch_its_own() -> None:
    plan = Batches(10, 5, 3, range(6))
    draws = [draw for batch in plan for draw in batch]
    assert [draw.position for draw in draws] == list(range(30))
    epochs = [[draw.image for draw in draws if draw.epoch == epoch] for epoch in range(3)]
    assert all(sorted(images) == list(range(10)) for images in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] == permutation(10, 3, 0).tolist() != permutation(10, 4, 0).tolist()


def test_a_batch_across_two_epochs_leaves_no_image_out() -> None:
    batches = list(Batches(7, 4, 0, range(7)))  # 28 places are four epochs
    assert [len(batch) for batch in batches] == [4] * 7
    assert [draw.epoch for draw in batches[1]] == [0, 0, 0, 1]
    for epoch in range(4):
        assert sorted(d.image for batch in batches for d in batch if d.epoch == epoch) == list(range(7))


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_the_shares_of_all_ranks_are_the_batch_of_one_process(ranks: int) -> None:
    whole = list(Batches(10, 6, 1, range(5)))
    shares = [list(Batches(10, 6, 1, range(5), rank=rank, world_size=ranks)) for rank in range(ranks)]
    for step, batch in enumerate(whole):
        assert [draw for share in shares for draw in share[step]] == batch


def test_a_resumed_plan_goes_on_with_the_batches_that_were_to_come() -> None:
    assert list(Batches(10, 4, 1, range(3, 9))) == list(Batches(10, 4, 1, range(9)))[3:]


# Samples


def test_a_sample_is_a_function_of_seed_epoch_and_image() -> None:
    source = Shelf(6, foils=range(6))
    data, again = (shelf(source, subset=0.7, captions="random", per_image=2, foils=1) for _ in range(2))
    draws = [Draw(i, 0, i) for i in range(6)]
    first = [data[draw] for draw in draws]
    assert_same([s.pixels for s in first], [again[draw].pixels for draw in reversed(draws)][::-1])
    assert [s.texts for s in first] == [again[draw].texts for draw in draws]
    assert_same(data[Draw(9, 0, 2)].pixels, first[2].pixels)  # the position in the run does not matter
    for other in (data[Draw(2, 1, 2)], shelf(source, seed=1, subset=0.7)[Draw(2, 0, 2)]):
        assert not torch.equal(other.pixels, first[2].pixels)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_make_the_batches_that_one_process_makes(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with one core too, without torch's warning, which would be an error here."""
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    data = shelf(Shelf(9, broken=[4], foils=range(9)), subset=0.5, foils=2)
    plan = Batches(9, 4, 5, range(5))
    alone = loaded(data, plan)
    assert_same_batches(loaded(data, plan, workers), alone)
    assert any(batch.corrupt for batch in alone)


def test_two_ranks_load_the_halves_of_the_batch_and_a_resumed_run_its_rest() -> None:
    data = shelf(Shelf(9, broken=[4], foils=range(9)), subset=0.5, foils=1)
    whole = loaded(data, Batches(9, 4, 5, range(4)))
    halves = [loaded(data, Batches(9, 4, 5, range(4), rank=rank, world_size=2)) for rank in range(2)]
    for batch, a, b in zip(whole, *halves, strict=True):
        assert_same(torch.cat([a.images.pixels, b.images.pixels]), batch.images.pixels)
        for field in ("item", "image", "level"):
            assert_same(torch.cat([getattr(x.texts, field) for x in (a, b)]), getattr(batch.texts, field))
        assert (a.truncated + b.truncated, a.corrupt + b.corrupt) == (batch.truncated, batch.corrupt)
    assert_same_batches(loaded(data, Batches(9, 4, 5, range(2, 4))), whole[2:])


@pytest.mark.parametrize("kind", ["broken", "silent"])
def test_a_damaged_record_is_replaced_and_its_damage_reported(kind: str) -> None:
    source = Shelf(8, **{kind: [3]})
    data = shelf(source)
    sample = data[Draw(11, 0, 3)]
    cause = Cause.CORRUPT_IMAGE if kind == "broken" else Cause.MISSING_CAPTION
    assert [got for got, _ in sample.corrupt] == [cause] * len(sample.corrupt)
    assert len(sample.corrupt) >= 1
    where = "p3 (none of JPEG, PNG, WEBP, GIF, BMP, TIFF)" if kind == "broken" else "p3"
    assert {parts for _, parts in sample.corrupt} == {where}, "no address that differs between equal runs"
    assert sample.draw.position == 11
    assert sample.draw.image != 3
    assert_same(sample.draw, data[Draw(11, 0, 3)].draw)
    batch = collate([sample])
    assert batch.images.image.tolist() == batch.texts.image.tolist() == [sample.draw.image]
    assert batch.corrupt == sample.corrupt


def test_a_source_of_which_nothing_can_be_used_is_an_error_not_an_endless_search() -> None:
    data = shelf(Shelf(4, broken=range(4)))
    said = f"shelf: {TRIES} samples in a row cannot be used, the first for corrupt image .p2"
    with pytest.raises(UserError, match=said):
        data[Draw(0, 0, 2)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_users_error_comes_out_of_a_worker_as_it_went_in(workers: int) -> None:
    with pytest.raises(UserError) as caught:
        loaded(shelf(Shelf(4, silent=range(4))), Batches(4, 2, 0, range(1)), workers)
    assert str(caught.value).startswith("shelf: 100 samples")
    assert "Traceback" not in str(caught.value)


# Texts


def test_captions_are_chosen_as_the_config_says() -> None:
    record, rng = Shelf(1)[0], Random(0)
    assert choose_text(record, TextsConfig(), rng) == LONG
    assert choose_text(record, TextsConfig(captions="first"), rng) == "Image 0."
    random = {choose_text(record, TextsConfig(captions="random"), rng) for _ in range(30)}
    assert random == {"Image 0.", "Number 0."}


def test_a_subset_keeps_sentences_in_order_and_every_number_of_them() -> None:
    parts = [sentence.text for sentence in sentences(LONG)]
    rng, counts = Random(0), set()
    for _ in range(200):
        text = choose_text(Shelf(1)[0], TextsConfig(subset=1.0), rng)
        kept = [sentence.text for sentence in sentences(text)]
        places = [parts.index(sentence) for sentence in kept]
        assert places == sorted(set(places))
        counts.add(len(kept))
    assert counts == {1, 2, 3, 4}


def test_a_subset_has_no_more_sentences_than_requested() -> None:
    rng = Random(0)
    few = TextsConfig(subset=1.0, subset_max_sentences=2)
    assert {len(sentences(choose_text(Shelf(1)[0], few, rng))) for _ in range(200)} == {1, 2}
    record, cfg = Shelf(1, foils=[0])[0], TextsConfig(subset=1.0, foils=2, subset_max_sentences=3)
    lengths = {len(sentences(foil_pairs(record, cfg, rng)[0].true)) for _ in range(200)}
    assert lengths == {2, 3}, "two sentences are spoilt, and both stay"


def test_a_foil_and_its_caption_are_cut_to_the_same_sentences_with_the_changed_one() -> None:
    record, rng, counts = Shelf(1, foils=[0])[0], Random(0), set()
    cfg = TextsConfig(subset=1.0, foils=2)
    for _ in range(200):
        pairs = foil_pairs(record, cfg, rng)
        assert len({pair.true for pair in pairs}) == 1
        true = [s.text for s in sentences(pairs[0].true)]
        spoilt = [[s.text for s in sentences(pair.text)] for pair in pairs]
        changes = [[a != b for a, b in zip(true, foil, strict=True)] for foil in spoilt]
        assert [sum(change) for change in changes] == [1, 1]
        assert "A red circle stands left." in true
        assert "A blue square lies below it." in true
        counts.add(len(true))
    assert counts == {2, 3, 4}
    assert foil_pairs(record, TextsConfig(foils=1), rng)[0].true == LONG
    assert foil_pairs(record, TextsConfig(), rng) == []


def test_a_foil_stands_beside_the_caption_that_it_spoils() -> None:
    data = shelf(Shelf(3, foils=[1]), foils=2, per_image=2, captions="first")
    sample = data[Draw(0, 0, 1)]
    assert [text.level for text in sample.texts] == [CAPTION, CAPTION, FOIL, FOIL]
    described = [spoken(data, text.parts[0]) for text in sample.texts]
    assert described[0] == spoken(data, TOKENIZER.encode([LONG], 99).ids[0])
    assert described[1].startswith("image 1")
    assert "green circle" in described[2] + described[3]
    assert "heart" in described[2] + described[3]


def test_no_two_texts_of_a_run_share_an_id() -> None:
    data = shelf(Shelf(5, foils=range(5)), foils=2, per_image=2)
    items = [x for b in loaded(data, Batches(5, 3, 0, range(6))) for x in b.texts.item.tolist() if x >= 0]
    assert len(items) == len(set(items)) == 6 * 3 * 4


def test_truncated_texts_are_counted() -> None:
    data = shelf(Shelf(3), context=12, per_image=2)
    sample = data[Draw(0, 0, 0)]
    assert [len(text.parts[0]) for text in sample.texts] == [12, 12]
    assert sample.truncated == 2
    assert shelf(Shelf(3), context=12, captions="first")[Draw(0, 0, 0)].truncated == 0
    assert collate([sample, sample]).truncated == 4


def test_a_foil_whose_difference_is_cut_off_is_no_negative_of_its_own_caption() -> None:
    heart = TRUE._replace(text=LONG.replace("grey", "green"))  # differs in the last sentence only
    record = Record("a", random_image(0), ("A.",), LONG, foils=(heart, TRUE))

    class One(Shelf):
        def __getitem__(self, index: int) -> Record:
            return record

    data = shelf(One(1), context=12, foils=2)
    sample = data[Draw(0, 0, 0)]
    assert [text.level for text in sample.texts] == [CAPTION, FOIL]
    assert "green circle" in spoken(data, sample.texts[1].parts[0])
    assert sample.truncated == 2
    assert collate([sample]).texts.item.tolist() == [0, 1, -1]


def test_a_method_that_reads_sentences_apart_gets_one_part_for_each() -> None:
    data = shelf(Shelf(2, foils=[0]), foils=1, parts=3)
    texts = collate([data[Draw(0, 0, 0)], data[Draw(1, 0, 1)]]).texts
    assert texts.ids.shape[:2] == (4, 3)
    wording = [[spoken(data, ids[mask].tolist()) for ids, mask in zip(*row, strict=True) if mask.any()]
            for row in zip(texts.ids, texts.mask, strict=True)]  # fmt: skip
    assert wording[0] == [s.text.lower().replace(".", " .") for s in sentences(LONG)[:3]]
    assert [a != b for a, b in zip(wording[0], wording[1], strict=True)].count(True) == 1
    assert wording[3] == []
    assert data[Draw(0, 0, 0)].truncated == 2  # the fourth sentence, of the caption and of its foil


# The account


def drawn(data: TrainSet, steps: int, batch: int = 4) -> list[Batch]:
    return loaded(data, Batches(len(data), batch, 0, range(steps)))


def test_damage_is_counted_by_cause_and_the_first_files_are_named() -> None:
    data = shelf(Shelf(12, broken=[1, 2, 3, 4], silent=[5, 6]), context=12)
    account = CorruptStats(12, max_corrupt=1.0)
    batches = drawn(data, 3)
    for batch in batches:
        account.add(batch)
    account.settle()
    causes = [cause for batch in batches for cause, _ in batch.corrupt]
    report = account.report()
    both = Cause.CORRUPT_IMAGE, Cause.MISSING_CAPTION
    assert report["corrupt"] == {cause: causes.count(cause) for cause in both}
    assert report["corrupt"][Cause.CORRUPT_IMAGE] >= 4
    assert len(set(report["files"])) == len(report["files"]) == MAX_FILES
    assert (report["samples"], report["texts"], report["truncated"]) == (12, 12, 12)
    said = account.sentence()
    assert f"{causes.count(Cause.CORRUPT_IMAGE)} corrupt image" in said
    assert "12 of 12 texts were truncated" in said
    assert all(file in said for file in report["files"])


def test_more_damage_than_allowed_stops_with_the_first_files_named() -> None:
    data = shelf(Shelf(8, silent=[0, 1]))
    account = CorruptStats(8, max_corrupt=0.125)  # one of eight
    for number, batch in enumerate(drawn(data, 2), start=1):
        account.add(batch)
        damaged = sum(len(b.corrupt) for b in drawn(data, number))
        if damaged <= 1:
            account.settle()
    assert damaged >= 2
    with pytest.raises(UserError) as error:
        account.settle()
    text = str(error.value)
    assert text.startswith(f"{damaged} of {8 + damaged} samples are corrupt, more than data.max_corrupt=0")
    assert "p0 (missing caption)" in text
    assert "p1 (missing caption)" in text


def test_an_account_goes_on_from_its_state() -> None:
    data = shelf(Shelf(12, broken=[1, 2, 3], silent=[5]), context=12)
    whole, first, second = (CorruptStats(12, max_corrupt=1.0) for _ in range(3))
    for number, batch in enumerate(drawn(data, 6)):
        whole.add(batch)
        (first if number < 3 else second).add(batch)
        if number == 2:
            first.settle()
            second.restore(first.report())
    whole.settle()
    second.settle()
    assert second.report() == whole.report()


# Batches


def row(position: int, *texts: Text) -> Sample:
    draw = Draw(position, 0, image=7 - position)
    return Sample(torch.full((3, 2, 2), position, dtype=torch.uint8), draw, list(texts), 2, 0, ())


def test_every_text_is_masked_behind_its_own_end_and_stands_in_its_own_row() -> None:
    first = row(4, Text([[1, 8, 2]], CAPTION), Text([[1, 9, 9, 9, 2]], FOIL))
    second = row(5, Text([[1, 2]], CAPTION))
    texts = collate([first, second]).texts
    assert texts.mask[:, 0].int().tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1, 1, 0, 0, 0], [0] * 5]
    assert texts.ids[:, 0].tolist() == [[1, 8, 2, 0, 0], [1, 9, 9, 9, 2], [1, 2, 0, 0, 0], [0] * 5]
    assert texts.item.tolist() == [8, 9, 10, -1]
    assert texts.image.tolist() == [3, -1, 2, -1]
    assert texts.level.tolist()[:3] == [CAPTION, FOIL, CAPTION]


def test_every_part_is_masked_behind_its_own_end() -> None:
    two, one = Text([[1, 2], [1, 8, 2]], CAPTION), Text([[1, 2]], CAPTION)
    texts = collate([row(4, two), row(5, one)]).texts
    assert texts.ids.tolist()[0] == [[1, 2, 0], [1, 8, 2]]
    assert texts.ids.tolist()[2] == [[1, 2, 0], [0, 0, 0]]
    assert texts.mask.sum(-1).tolist() == [[2, 3], [0, 0], [2, 0], [0, 0]]
    assert texts.mask[0, 0].tolist() == [True, True, False]


def test_images_keep_their_order_and_their_ids() -> None:
    images = collate([row(2, Text([[1, 2]], CAPTION)), row(3, Text([[1, 2]], CAPTION))]).images
    assert images.image.tolist() == [5, 4]
    assert images.pixels[:, 0, 0, 0].tolist() == [2, 3]
