"""How good and how fast are the phrases of a provider?

  - real: 100 sentences of OpenStax and IIW-400 labelled by hand (tests/phrases_real.jsonl), tune half and
    held-out half apart; precision, recall and F1 of exact spans and of phrases with the same head;
  - own: the 30 sentences of tests/phrases_own.py, which the rules were tuned on;
  - scenes: the noun phrases that scenes:test knows to be there. Other noun phrases of those captions speak of
    the background and are not labelled, so there is a recall only. A phrase with its pattern behind the noun
    ("a red star with white stripes") is longer than a noun chunk: by span it counts as missed.

Intervals: the middle 95 % over 2,000 draws of whole sentences (captions, for scenes).

    python -m benchmarks.bench_phrases [--provider rules] [--data FOLDER] [--scenes 500]
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from grainline.data.captions import sentences
from grainline.data.phrases.patterns import Phrase, Provider, select
from grainline.data.phrases.providers import open_provider
from grainline.data.scenes import words
from grainline.data.scenes.source import Scenes
from tests.phrases_own import OWN
from tests.phrases_truth import Labelled, agreement, labelled

KINDS = ("noun", "action", "relation")


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality and speed of a provider of phrases.")
    parser.add_argument("--provider", default="rules")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GRAINLINE_DATA", "../shared/data")))
    parser.add_argument("--scenes", type=int, default=500, help="captions of scenes:test")
    args = parser.parse_args()
    provider = open_provider(args.provider)
    table = Table(
        "sentences", "phrases", "true", "precision", "recall", "F1", "F1 of heads", title=provider.name
    )
    rows = [("own", own())]
    if args.data.exists():
        real = labelled(args.data)
        rows += [(f"real, {name}", [one for one in real if one.half == half]) for half, name in HALVES]
    for name, chosen in rows:
        for kinds in (KINDS, *((kind,) for kind in KINDS)):
            exact, heads = (counts(provider, chosen, kinds, exact=exact) for exact in (True, False))
            told = [interval(exact, part) for part in (precision, recall, f1)] + [interval(heads, f1)]
            table.add_row(name, " ".join(kinds), str(exact[:, 2].sum()), *told)
    exact, heads = in_scenes(provider, args.scenes)
    table.add_row("scenes", "noun", str(exact[:, 2].sum()), "", interval(exact, recall), "", "")
    table.add_row("scenes, heads", "noun", str(heads[:, 2].sum()), "", interval(heads, recall), "", "")
    Console(width=130).print(table)
    print(speed(provider, args.scenes))


HALVES = (("tune", "tuned on"), ("held", "held out"))


def own() -> list[Labelled]:
    """Our own sentences with the spans of their phrases: each where it stands after the one before."""
    found = []
    for text, by_kind in OWN.items():
        phrases = []
        for kind, said in zip(KINDS, by_kind, strict=True):
            place = 0
            for words_ in filter(None, said.split("|")):
                start = text.index(words_, place)
                phrases.append(Phrase(kind, start, start + len(words_)))
                place = start + (len(words_) if kind == "noun" else 1)
        found.append(Labelled("own", text, phrases))
    return found


def counts(
    provider: Provider, chosen: Sequence[Labelled], kinds: Sequence[str], *, exact: bool
) -> np.ndarray:
    """[sentences, 3] found and true, found, true; both sides filtered alike."""
    rows = []
    for _, text, phrases in chosen:
        both = (select(text, found) for found in (provider.phrases(text), phrases))
        found, true = ([phrase for phrase in some if phrase.kind in kinds] for some in both)
        rows.append(agreement(text, found, true, exact))
    return np.array(rows)


def in_scenes(provider: Provider, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of long captions of scenes, against their true noun phrases: by span, and by head."""
    source = Scenes(f"scenes:test?count={number}", 32)
    exact, heads = [], []
    for i in range(number):
        told, things = source.description(i), source.scene(i).things
        found = [phrase for phrase in provider.phrases(told.long) if phrase.kind == "noun"]
        spans = {(phrase.start, phrase.end) for phrase in found}
        true = {(mention.start, mention.end) for mention in told.mentions}
        ends = [
            noun_end(told.long, mention.start, mention.end, things[mention.thing].shape)
            for mention in told.mentions
        ]
        exact.append((len(spans & true), len(true), len(true)))
        heads.append((len(set(ends) & {end for _, end in spans}), len(set(ends)), len(set(ends))))
    return np.array(exact), np.array(heads)


def noun_end(text: str, start: int, end: int, shape: str) -> int:
    """Where the noun of a true phrase ends: the first of its names, the longer one where two begin there."""
    said = text[start:end]
    places = [(said.find(name), -len(name)) for name in words.NOUNS[shape] if name in said]
    place, length = min(places)
    return start + place - length


def precision(sums: np.ndarray) -> np.ndarray:
    """Of [..., 3] sums; 1 where nothing was found."""
    return np.where(sums[..., 1] > 0, sums[..., 0] / np.maximum(sums[..., 1], 1), 1.0)


def recall(sums: np.ndarray) -> np.ndarray:
    """Of [..., 3] sums; 1 where nothing is true."""
    return np.where(sums[..., 2] > 0, sums[..., 0] / np.maximum(sums[..., 2], 1), 1.0)


def f1(sums: np.ndarray) -> np.ndarray:
    """Twice what is found and true over all that is found or true."""
    both = sums[..., 1] + sums[..., 2]
    return np.where(both > 0, 2 * sums[..., 0] / np.maximum(both, 1), 1.0)


def interval(rows: np.ndarray, measure: Callable[[np.ndarray], np.ndarray]) -> str:
    """A measure with its interval, in percent."""
    draws = np.random.default_rng(0).integers(len(rows), size=(2000, len(rows)))
    low, high = np.quantile(measure(rows[draws].sum(1)), (0.025, 0.975))
    return f"{measure(rows.sum(0)):.1%} ({low:.1%} to {high:.1%})"


def speed(provider: Provider, number: int) -> str:
    """Sentences a second on one core."""
    source = Scenes(f"scenes:test?count={number}", 32)
    texts = [source.description(i).long for i in range(number)]
    total = sum(len(sentences(text)) for text in texts)
    started = time.process_time()
    for text in texts:
        provider.phrases(text)
    return f"{total / (time.process_time() - started):,.0f} sentences of scenes a second of one core"


if __name__ == "__main__":
    main()
