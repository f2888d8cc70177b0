"""The procedural world: what is drawn, what is said, what is wrong in foils, how it is opened and written."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grainline.data.decode import decode
from grainline.data.formats.tars import Tars
from grainline.data.record import Source
from grainline.data.scenes import words, world
from grainline.data.scenes.draw import COLOUR, label_map, render
from grainline.data.scenes.source import Scenes, export
from grainline.data.scenes.speech import KINDS, tell
from grainline.data.scenes.world import (
    COLOURS,
    COMPOSE_PAIRS,
    PATTERNS,
    SHAPES,
    SIZES,
    SPLITS,
    Scene,
    Thing,
    is_compose_pair,
    sample,
)
from grainline.errors import UserError

SCENES = {split: [sample(0, split, i) for i in range(300)] for split in SPLITS}
DEV = SCENES["dev"]
TOLD = [tell(scene) for scene in DEV]
VALUES = {  # every word for a value, the longest first, so that "top left corner" is found before "top"
    "colour": words.ADJECTIVES["colour"],
    "size": words.ADJECTIVES["size"],
    "pattern": {name: words.ADJECTIVES["pattern"][name] + words.PATTERN_AFTER[name] for name in PATTERNS},
    "shape": words.NOUNS,
    "position": {name: words.PLACES[name] + words.AREAS[name] for name in words.PLACES},
}


def read(text: str) -> dict[str, str]:
    """What a sentence about one object states, found by looking for every known word."""
    results = {}
    for name, values in VALUES.items():
        spoken = [(word, value) for value, names in values.items() for word in names]
        for word, value in sorted(spoken, key=lambda pair: -len(pair[0])):
            if re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE):
                results[name] = value
                break
    return results


def fits(thing: Thing, stated: dict[str, str]) -> bool:
    return all(getattr(thing, name) == value for name, value in stated.items())


def difference(a: str, b: str) -> tuple[list[str], list[str]]:
    """The words between the longest common beginning and the longest common end."""
    x, y = a.split(), b.split()
    while x and y and x[0] == y[0]:
        x, y = x[1:], y[1:]
    while x and y and x[-1] == y[-1]:
        x, y = x[:-1], y[:-1]
    return x, y


# The world


def test_a_scene_depends_on_seed_split_and_index_alone() -> None:
    assert sample(3, "dev", 5) == sample(3, "dev", 5)
    different = {sample(3, "dev", 5), sample(4, "dev", 5), sample(3, "test", 5), sample(3, "dev", 6)}
    assert len(different) == 4


def test_the_first_scene_stays_what_it_was() -> None:
    """When this fails on purpose, world.VERSION goes up."""
    first = sample(0, "train", 0)
    assert world.VERSION == 1
    assert first.things[0][:4] == ("drop", "pink", "large", "outlined")
    assert round(first.things[0].x, 6) == 0.462459
    assert tell(first).long == (
        "The image shows eight things in front of a blurred backdrop that melts from powder-blue into lilac. "
        "A large pink hollow raindrop is placed in the very middle. "
        "One item is a medium-sized dotted orange pointer. "
        "A little spotted lemon moon decorates the upper left corner. "
        "Halfway down the left side one finds a huge checked black hourglass. "
        "Besides, we find a small spotted violet heart shape. "
        "It rests below the arrow. "
        "In the lower left corner one finds a pink circle. "
        "Look in the lower right corner for a middling scarlet cross. "
        "At the right edge rests a medium-sized green five-pointed star covered in white checks."
    )


@pytest.mark.parametrize("scenes", SCENES.values(), ids=SCENES)
def test_three_to_eight_different_objects_keep_apart_inside_the_image(scenes: list[Scene]) -> None:
    for scene in scenes:
        things = scene.things
        assert 3 <= len(things) <= 8
        assert len({thing[:4] for thing in things}) == len(things)
        assert len({thing.position for thing in things}) == len(things)
        for t in things:
            assert t.radius <= min(t.x, t.y, 1 - t.x, 1 - t.y)
        for a, b in combinations(things, 2):
            assert np.hypot(a.x - b.x, a.y - b.y) >= a.radius + b.radius
    assert {len(scene.things) for scene in scenes} == set(range(3, 9))


def test_every_value_occurs_and_none_is_rare() -> None:
    things = [thing for scene in SCENES["train"] for thing in scene.things]
    for name, values in (("shape", SHAPES), ("colour", COLOURS), ("size", SIZES), ("pattern", PATTERNS)):
        shares = [sum(getattr(thing, name) == value for thing in things) / len(things) for value in values]
        assert min(shares) > 0.5 / len(values), name
    assert {scene.background.kind for scene in DEV} == set(world.BACKGROUNDS)
    assert len(SHAPES) >= 10
    assert len(COLOURS) >= 8


def test_held_out_pairs_occur_in_compose_and_nowhere_else() -> None:
    assert 0.12 < len(COMPOSE_PAIRS) / len(SHAPES) / len(COLOURS) < 0.18
    assert {shape for shape, _ in COMPOSE_PAIRS} == set(SHAPES)
    assert {colour for _, colour in COMPOSE_PAIRS} == set(COLOURS)
    for name, scenes in SCENES.items():
        numbers = [sum(is_compose_pair(t.shape, t.colour) for t in scene.things) for scene in scenes]
        assert min(numbers) >= 2 if name == "compose" else max(numbers) == 0, name


# Images


@pytest.mark.parametrize("size", [64, 224])
def test_an_object_looks_as_it_should_at_every_resolution(size: int) -> None:
    for scene in DEV[:60]:
        pixels, labels = np.asarray(render(scene, size)).astype(int), label_map(scene, size)
        assert pixels.shape == (size, size, 3)
        assert labels.shape == (size, size)
        for k, thing in enumerate(scene.things):
            mask = labels == k + 1
            down, across = np.nonzero(mask)
            for at, centre in ((across, thing.x), (down, thing.y)):
                assert abs((at.min() + at.max() + 1) / 2 / size - centre) < 0.3 * thing.radius + 1.5 / size
                assert at.max() + 1 - at.min() <= 2 * thing.radius * size + 2
            if size < 224 and thing.pattern != "solid":
                continue  # fine patterns are mostly edge; the test of patterns below covers them
            alike = {c: np.abs(pixels[mask] - np.array(COLOUR[c])).max(1) < 30 for c in COLOURS}
            assert alike.pop(thing.colour).mean() > 0.15, thing
            assert max(other.mean() for other in alike.values()) < 0.05, thing
            white = (pixels[mask] > 235).all(1).mean()
            assert white == 0 if thing.pattern == "solid" else white > 0.04, thing


# Captions


def test_sentence_k_speaks_of_object_k_and_states_only_what_is_true() -> None:
    for scene, report in zip(DEV, TOLD, strict=True):
        about = [sentence for sentence in report.sentences if sentence.kind == "object"]
        assert [sentence.things for sentence in about] == [(k,) for k in range(len(scene.things))]
        for k, sentence in enumerate(about):
            stated = read(report.long[sentence.start : sentence.end])
            assert {"shape", "colour"} <= stated.keys()
            assert fits(scene.things[k], stated), report.long[sentence.start : sentence.end]


def test_relations_are_true_and_their_objects_named_without_doubt() -> None:
    observed_value = set()
    for scene, report in zip(DEV, TOLD, strict=True):
        for sentence in (s for s in report.sentences if s.kind == "relation"):
            a, b = (scene.things[k] for k in sentence.things)
            across, down = a.x - b.x, a.y - b.y
            gap = np.hypot(across, down) - a.radius - b.radius
            assert {
                "left": across < -0.2,
                "right": across > 0.2,
                "above": down < -0.2,
                "below": down > 0.2,
                "near": gap < 0.1,
                "far": gap > 0.3,
            }[sentence.relation]
            text = report.long[sentence.start : sentence.end]
            assert any(phrase in text.lower() for phrase in words.RELATIONS[sentence.relation])
            observed_value.add(sentence.relation)
            inside = [m for m in report.mentions if sentence.start <= m.start < sentence.end]
            assert {m.thing for m in inside} <= set(sentence.things)
            for m in inside:
                assert [fits(t, read(report.long[m.start : m.end])) for t in scene.things].count(True) == 1
            if len(inside) == 1:  # the other one is "it": the object of the sentence before
                before = report.sentences[report.sentences.index(sentence) - 1]
                assert before.things == (sentence.things[0],)
                assert before.kind == "object"
    assert observed_value == set(world.OPPOSITE)


def test_the_short_caption_names_the_two_largest_objects_and_the_number() -> None:
    for scene, report in zip(DEV, TOLD, strict=True):
        text = report.short.lower()
        largest = sorted(scene.things, key=lambda thing: -thing.radius)[:2]
        for thing in largest:
            assert any(word in text for word in words.NOUNS[thing.shape])
            assert any(word in text for word in words.ADJECTIVES["colour"][thing.colour])
        number = len(scene.things)
        assert words.NUMBERS[number] in text or f"{words.NUMBERS[number - 2]} other shape" in text


# Foils


@pytest.mark.parametrize("kind", KINDS)
def test_a_foil_differs_in_one_short_run_of_words_of_its_kind(kind: str) -> None:
    for report in TOLD:
        (foil,) = (f for f in report.foils if f.kind == kind)
        true, false = (" ".join(part).rstrip(".") for part in difference(report.long, foil.text))
        assert true != false
        if kind == "relation":
            assert max(len(true.split()), len(false.split())) <= 3, (true, false)
        elif kind != "position" and not (kind == "pattern" and len(true.split()) > 2):
            limit = 4 if kind == "pattern" else 3
            assert max(len(true.split()), len(false.split())) <= limit, (true, false)


def check_foils_of_attributes(scene: Scene) -> None:
    report = tell(scene)
    about = [s for s in report.sentences if s.kind != "relation"]
    names = {
        "colour": "colour",
        "size": "size",
        "pattern": "pattern",
        "position": "position",
        "noun": "shape",
    }
    for foil in (f for f in report.foils if f.kind != "relation"):
        at = next(i for i, (x, y) in enumerate(zip(report.long, foil.text, strict=False)) if x != y)
        (sentence,) = (s for s in about if s.start <= at < s.end)
        (k,) = sentence.things
        assert all(k not in s.things for s in report.sentences if s.kind == "relation"), "stated twice"
        end = sentence.end + len(foil.text) - len(report.long)
        was, now = read(report.long[sentence.start : sentence.end]), read(foil.text[sentence.start : end])
        assert was.keys() == now.keys()
        assert {key for key in was if was[key] != now[key]} == {names[foil.kind]}, (was, now)
        assert not any(fits(thing, now) for thing in scene.things), (foil, now)
        if scene.split != "compose":
            assert not is_compose_pair(now["shape"], now["colour"])


@pytest.mark.parametrize("split", ["dev", "compose"])
def test_foils_are_false_of_the_image_and_true_but_for_one_attribute(split: str) -> None:
    for scene in SCENES[split]:
        check_foils_of_attributes(scene)


def test_relation_foils_turn_a_true_relation_into_a_false_one() -> None:
    for scene, report in zip(DEV, TOLD, strict=True):
        (foil,) = (f for f in report.foils if f.kind == "relation")
        at = next(i for i, (x, y) in enumerate(zip(report.long, foil.text, strict=False)) if x != y)
        (sentence,) = (s for s in report.sentences if s.start <= at < s.end)
        a, b = (scene.things[k] for k in sentence.things)
        opposite = world.OPPOSITE[sentence.relation]
        end = sentence.end + len(foil.text) - len(report.long)
        assert any(phrase in foil.text[sentence.start : end].lower() for phrase in words.RELATIONS[opposite])
        assert world.holds(sentence.relation, a, b)
        assert not world.holds(opposite, a, b)


def test_true_and_altered_values_are_equally_likely_either_way_round() -> None:
    """Otherwise the text alone would tell the foil: "small for large" as often as "large for small"."""
    swaps: dict[tuple[str, str], int] = {}
    for i in range(1500):
        report = tell(sample(1, "train", i))
        for foil in report.foils:
            if foil.kind in ("size", "pattern"):
                true, false = (" ".join(part).rstrip(".") for part in difference(report.long, foil.text))
                a, b = (read(text).get(foil.kind, "") for text in (true, false))
                if a and b:
                    swaps[a, b] = swaps.get((a, b), 0) + 1
    for (a, b), number in swaps.items():
        other = swaps.get((b, a), 0)
        assert abs(number - other) < 4.5 * (number + other) ** 0.5, (a, b, number, other)
    assert swaps["small", "large"] > swaps["small", "medium"]


# The source


def test_the_source_fulfils_the_protocol_and_repeats_itself() -> None:
    source, again = Scenes("scenes:dev?count=5", size=48), Scenes("scenes:dev?count=5", size=48)
    assert isinstance(source, Source)
    assert len(source) == 5
    for i in (3, 0):
        a, b = source[i], again[i]
        assert isinstance(a.image, Image.Image)
        assert isinstance(b.image, Image.Image)
        assert a.image.tobytes() == b.image.tobytes()
        assert a._replace(image=b"") == b._replace(image=b"")
        assert a.whole == source.description(i).long
        assert a.regions == ()
    assert len({record.key for record in source}) == 5
    with pytest.raises(IndexError):
        source[5]
    with pytest.raises(IndexError):
        source[-1]


def test_regions_are_the_words_and_the_pixels_of_their_objects() -> None:
    source = Scenes("scenes:dev?count=40&size=64&regions=1")
    for i in range(40):
        record, labels, report = source[i], source.labels(i), source.description(i)
        assert record.long == report.long
        assert len(record.regions) == len(report.mentions)
        assert {mention.thing for mention in report.mentions} == set(range(len(source.scene(i).things)))
        for region, mention in zip(record.regions, report.mentions, strict=True):
            assert region.span is not None
            field, start, end = region.span
            assert field == "long"
            assert report.long[start:end] == region.phrase
            assert re.match(r"(an?|one|the) .*\w$", region.phrase, re.IGNORECASE)
            assert fits(source.scene(i).things[mention.thing], read(region.phrase))
            assert region.mask is not None
            assert np.array_equal(region.mask, labels == mention.thing + 1)
            assert region.box is not None
            left, top, right, bottom = map(int, region.box)
            assert region.mask[top:bottom, left:right].sum() == region.mask.sum()
            for border in (
                region.mask[top, :],
                region.mask[bottom - 1, :],
                region.mask[:, left],
                region.mask[:, right - 1],
            ):
                assert border.any()


def test_the_fingerprint_changes_with_every_parameter() -> None:
    paths = ["scenes", "scenes:dev", "scenes?count=9", "scenes?seed=1", "scenes?size=64"]
    paths += ["scenes?regions=1", "scenes?regions=2"]
    assert len({Scenes(path).fingerprint() for path in paths}) == len(paths)
    assert Scenes("scenes?size=64").fingerprint() == Scenes("scenes:train", size=64).fingerprint()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("scenes:val", "no split 'val'; scenes have train, dev, test, compose"),
        ("scenes:", "no split ''"),
        ("scenes:dev?colour=3", "is no option: allowed are count, size, seed, regions"),
        ("scenes:dev?", "no split 'dev?'"),
        ("scenes?count=many", "count is 'many'; it must be a whole number"),
        ("scenes?count=-1", "count is '-1'; it must be a whole number"),
        ("scenes?count=0", "count is 0; it must be from 1 to 1000000000"),
        ("scenes?size=8", "size is 8; it must be from 32 to 2048"),
        ("scenes?regions=3", "regions is 3; it must be from 0 to 2"),
        ("scenes?seed=1&seed=2", "is no option: allowed are count, size, seed, regions, each once"),
    ],
)
def test_a_path_that_is_not_understood_is_a_user_error(path: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        Scenes(path)
    assert "\n" not in str(error.value)
    assert path in str(error.value)


# Export


@pytest.mark.parametrize("query", ["&regions=1", ""])
def test_exported_tars_read_back_as_the_same_records(query: str, tmp_path: Path) -> None:
    source, full = (Scenes(f"scenes:compose?count=5&size=48{regions}") for regions in (query, "&regions=1"))
    files = export(source, tmp_path / "out", 2)
    assert len(files) == 3
    assert [f.read_bytes() for f in export(source, tmp_path / "again", 2)] == [f.read_bytes() for f in files]
    tars = Tars([str(file) for file in files])
    assert len(tars) == 5
    for i in range(5):
        a, b = full[i], tars[i]
        assert (a.key, a.captions, a.long, a.foils) == (b.key, b.captions, b.long, b.foils)
        assert np.array_equal(np.asarray(a.image), np.asarray(decode(b)))
        for x, y in zip(a.regions, b.regions, strict=True):
            assert (x.phrase, x.box, x.span) == (y.phrase, y.box, y.span)
            assert np.array_equal(x.mask, y.mask)  # type: ignore[arg-type]
