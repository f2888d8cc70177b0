"""The parts of a page about expressions that speak of one thing in a picture."""

from grainline.evaluate.comprehension import MAPS, shown_map
from grainline.evaluate.examples import Measured
from grainline.evaluate.extremes import best_expressions, worst_expressions
from grainline.evaluate.picked import best_choices, worst_choices
from grainline.viz.page import Section, facts, hint
from grainline.viz.referring import picked, pointed


def covered(on: Measured) -> list[Section]:
    """Heat against masks: the referring suite."""
    order = (
        "By IoU; one expression for each picture. The line runs around what is meant. Heat is orange"
        " where the map is above its mean and blue where it is below; what is above Otsu's threshold of the"
        " map was compared. Pictures are shown as the model sees them here: pressed into a square."
    )
    return [
        Section("Expressions: covered least", hint(order) + pointed(worst_expressions(on), "w")),
        Section("Expressions: covered best", hint(order) + pointed(best_expressions(on), "b")),
    ]


def chosen(on: Measured) -> list[Section]:
    """Maps that choose among boxes: the comprehension suite."""
    name = MAPS[shown_map(on.result.queries)]
    order = (
        f"By the score of the best right box less that of the best wrong one, in the {name}; one expression"
        " for each picture. The frame of black between white is the true box, dashes are around the chosen"
        " one, thin lines around all that were to choose from. Pictures are shown as the model sees them"
        " here: pressed into a square."
    )
    card = facts(on.result.settings["card"], "What was chosen from, and how")
    return [
        Section("Protocol", card),
        Section("Expressions: most wrong", hint(order) + picked(worst_choices(on), "w")),
        Section("Expressions: most right", hint(order) + picked(best_choices(on), "b")),
    ]
