"""Single outcomes: items of two pictures and regions, most wrong and most right; noise that changed most and
least; pictures that look most and least alike to their texts; expressions whose heat covers least and most;
pictures in which the empty slot tells own texts and others apart least and best.
"""

import numpy as np
from PIL import Image

from grainline.evaluation.collectors.expressions import HEAT
from grainline.evaluation.collectors.probes import item_scores, margins
from grainline.evaluation.collectors.regions import margins as leads
from grainline.evaluation.collectors.regions import question_scores
from grainline.evaluation.collectors.seen import ALL_TEXTS
from grainline.evaluation.collectors.subtexts import NOISY, PLAIN, SENTENCES, place
from grainline.evaluation.collectors.text_attention import Looked
from grainline.evaluation.pages.examples import SHOWN, Measured, spread
from grainline.evaluation.pages.look import SENTENCES as MOST
from grainline.evaluation.pages.shown import end_of_scale, mapped
from grainline.evaluation.suites.cola import Crossed
from grainline.evaluation.suites.fgovd import Judged
from grainline.evaluation.suites.inactivity import Emptied, within
from grainline.evaluation.suites.referring import Pointed, with_expressions
from grainline.evaluation.suites.similarity import Likened
from grainline.evaluation.suites.stability import Disturbed, changes
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Look, Told
from grainline.report.page import Gone

TEXTS = 5  # of a region, the right one included
OWN, OTHER = "own", "of another picture"


def worst_items(on: Measured, number: int = SHOWN) -> list[Crossed]:
    """The items of which a caption prefers the wrong picture by most, or its own by least."""
    return _items(on, number, 1)


def best_items(on: Measured, number: int = SHOWN) -> list[Crossed]:
    """The items whose captions prefer their own pictures by most."""
    return _items(on, number, -1)


def _items(on: Measured, number: int, sign: int) -> list[Crossed]:
    items, data = on.data.items, on.data
    assert items is not None, "the cola suite was run"
    score = item_scores(on.model.method, data.images, data.texts, items).cpu()
    out = []
    for i in (sign * margins(score)).argsort(stable=True)[:number].tolist():
        pictures, texts = items.pictures[i].tolist(), items.texts[i].tolist()
        out.append(
            Crossed(
                items.number[i] + 1,
                [on.picture(row) for row in pictures],
                [data.keys[row] for row in pictures],
                [data.strings[row] for row in texts],
                score[i].tolist(),
            )
        )
    return out


def worst_regions(on: Measured, number: int = SHOWN) -> list[Judged]:
    """The regions whose right text loses by most, or wins by least; each of another picture."""
    return _regions(on, number, 1)


def best_regions(on: Measured, number: int = SHOWN) -> list[Judged]:
    """The regions whose right text wins by most; each of another picture."""
    return _regions(on, number, -1)


def _regions(on: Measured, number: int, sign: int) -> list[Judged]:
    regions, told = on.data.regions, on.result.queries
    assert regions is not None, "the fg-ovd suite was run"
    scores = question_scores(regions)
    lead = leads(scores)
    order = np.argsort(sign * lead, kind="stable")
    _, first = np.unique(np.array(told["picture"])[order], return_index=True)  # one of each picture
    strings = regions.told.strings
    null = [strings[j] for j in spread(np.arange(len(strings)), NULL_TEXTS)]
    on = on._replace(model=on.model.pressed()) if regions.squash else on
    out = []
    for i in order[np.sort(first)[:number]].tolist():
        question = regions.questions[i]
        texts = [regions.told.strings[place] for place in question.texts]
        row = int(regions.picture[question.region])
        left, top, right, bottom = regions.box[question.region].tolist()
        shown = _texts(texts, scores[i].tolist())
        out.append(
            Judged(
                _look(on, row, shown, (left, top, right, bottom), null),
                on.data.keys[row], question.kind, float(lead[i]), told["rank"][i], len(texts),
            )
        )  # fmt: skip
    return out


def _texts(texts: list[str], scores: list[float]) -> list[Told]:
    """The right text, which stands first, and the best of its foils, from the highest score to the lowest."""
    foils = [
        Told(text, score, role="foil", other=texts[0]) for text, score in zip(texts, scores, strict=True)
    ]
    foils = sorted(foils[1:], key=lambda told: -told.score)[: TEXTS - 1]
    right = Told(texts[0], scores[0], role="right text", other=foils[0].text)
    place = sum(told.score >= right.score for told in foils)
    return [*foils[:place], right, *foils[place:]]


def _look(
    on: Measured, row: int, told: list[Told], box: tuple[float, float, float, float], null: list[str]
) -> Look:
    """The image with a frame around a region, and the heat of its texts against those of other regions."""
    picture = on.picture(row)
    alt = f"a region of {on.data.keys[row]}"
    if isinstance(picture, Gone):
        return Look(picture, alt, told)
    said = [one.text for one in told]
    others = [text for text in dict.fromkeys(null) if text not in said]
    contrast = len(others) >= FEWEST
    heat = on.model.heat(on.given(row, picture), said, others if contrast else None).cpu().numpy()
    return Look(picture, alt, told, heat, box, contrast=contrast)


def most_changed(on: Measured, number: int = SHOWN) -> list[Disturbed]:
    """The subtexts whose score noise changes most, each of another picture."""
    return _disturbed(on, number, -1)


def least_changed(on: Measured, number: int = SHOWN) -> list[Disturbed]:
    """The subtexts whose score noise changes least, each of another picture."""
    return _disturbed(on, number, 1)


def _disturbed(on: Measured, number: int, sign: int) -> list[Disturbed]:
    noise, told = on.data.noise, on.result.queries
    assert noise is not None, "the stability suite was run"
    scores = list(zip(*(told["scores"][name] for name in (PLAIN, NOISY)), strict=True))  # of each picture
    change = [sign * changes(*both) for both in scores]
    order = np.argsort([one.min() for one in change], kind="stable")[:number].tolist()
    out = []
    for i in order:
        j, drawn = int(change[i].argmin()), noise.drawn[i]
        before, after = (scores[i][k][j] for k in range(2))
        out.append(
            Disturbed(
                on.picture(i), on.data.keys[i], drawn.texts[j], SENTENCES[drawn.sentence],
                place(drawn.at[j], drawn.of[j]), (before, after), abs(float(change[i][j])),
            )
        )  # fmt: skip
    return out


def most_alike(on: Measured, number: int = SHOWN) -> list[Likened]:
    """The pictures that look most alike to their texts."""
    return _likened(on, number, -1)


def least_alike(on: Measured, number: int = SHOWN) -> list[Likened]:
    """The pictures that look least alike to their texts."""
    return _likened(on, number, 1)


def _likened(on: Measured, number: int, sign: int) -> list[Likened]:
    found = on.data.likeness
    assert found is not None, "the similarity suite was run"
    mine = [i for i, one in enumerate(found) if ALL_TEXTS in one.alike]
    out = []
    for i in sorted(mine, key=lambda i: sign * found[i].alike[ALL_TEXTS].features)[:number]:
        told = [Told(text, score) for text, score in zip(found[i].texts, found[i].each, strict=True)]
        shown = Look(on.picture(i), f"picture {on.data.keys[i]}", told[:MOST])
        out.append(Likened(shown, on.data.keys[i], *found[i].alike[ALL_TEXTS], len(told)))
    return out


def worst_expressions(on: Measured, number: int = SHOWN) -> list[Pointed]:
    """The expressions whose heat covers what they speak of least; each of another picture."""
    return _expressions(on, number, 1)


def best_expressions(on: Measured, number: int = SHOWN) -> list[Pointed]:
    """The expressions whose heat covers what they speak of best; each of another picture."""
    return _expressions(on, number, -1)


def _expressions(on: Measured, number: int, sign: int) -> list[Pointed]:
    told, queries = on.data.expressions, on.result.queries
    assert told is not None, "the referring suite was run"
    iou = np.array([one.overlap[HEAT].intersection / one.overlap[HEAT].union for one in told.found])
    order = np.argsort(sign * iou, kind="stable")
    _, first = np.unique(np.array(queries["picture"])[order], return_index=True)  # one of each picture
    whole = on._replace(model=on.model.pressed(), source=with_expressions(on.source))
    out = []
    for i in order[np.sort(first)[:number]].tolist():
        one, key = told.found[i], on.data.keys[told.found[i].picture]
        look = _covered(whole, one.picture, one.region, one.text)
        out.append(Pointed(look, key, float(iou[i])))
    return out


def _covered(on: Measured, row: int, region: int, text: str) -> Look:
    """The picture pressed into the square, with the outline of a region and the heat of its text."""
    picture = on.picture(row)
    alt = f"{on.data.keys[row]}, with an outline around what is meant"
    if isinstance(picture, Gone):
        return Look(picture, alt, [Told(text, 0.0)])
    given = on.given(row, picture)
    mask = on.source[on.data.positions[row]].regions[region].mask
    assert mask is not None, "expressions have masks"
    outline = np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST))
    told = [Told(text, float(on.model.score([given], [text])))]
    heat = on.model.heat(given, [text]).cpu().numpy()
    # What is measured is a threshold of the map, whatever its level; minus its mean it shows just that.
    return Look(picture, alt, told, heat - heat.mean(), None, outline)


def least_apart(on: Measured, number: int = SHOWN) -> list[Emptied]:
    """The pictures in which own parts and those of another text are told apart least by the empty slot."""
    return _emptied(on, number, 1)


def most_apart(on: Measured, number: int = SHOWN) -> list[Emptied]:
    """The pictures in which they are told apart best."""
    return _emptied(on, number, -1)


def _emptied(on: Measured, number: int, sign: int) -> list[Emptied]:
    """By AUROC within the picture; of equals by the difference of the mean weights."""
    found = on.data.looked
    assert found is not None, "the inactivity suite was run"
    judged = []
    for i, one in enumerate(found):
        if one is not None:
            own, other = ([weight for _, weight in side] for side in (one.own, one.other))
            judged.append((within(own, other), float(np.mean(other) - np.mean(own)), i, one))
    judged.sort(key=lambda told: (sign * told[0], sign * told[1], told[2]))
    return [Emptied(_sides(on, i, one), on.data.keys[i], share) for share, _, i, one in judged[:number]]


def _sides(on: Measured, row: int, one: Looked) -> Look:
    """A picture with the parts of both texts, each with the weight of its empty slot and where it looks."""
    picture, alt = on.picture(row), f"picture {on.data.keys[row]}"
    sides = ((OWN, one.own), (OTHER, one.other))
    told = [Told(words, weight, role=role) for role, side in sides for words, weight in side]
    if isinstance(picture, Gone):
        return Look(picture, alt, told)
    given = on.given(row, picture)
    heat = [
        {part.words: heat for part, heat in found}
        for found in mapped(on.model, given, [on.data.strings[row], one.foreign])
    ]
    maps = [of[words] for of, (_, side) in zip(heat, sides, strict=True) for words, _ in side]
    return Look(picture, alt, told, np.stack(maps), limit=end_of_scale(on.model, given))
