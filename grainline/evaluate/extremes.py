"""Single items of two pictures, most wrong and most right."""

from grainline.evaluate.examples import SHOWN, Measured
from grainline.evaluate.items import item_scores, margins
from grainline.viz.items import Crossed


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
