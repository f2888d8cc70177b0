"""Answers in the terminal, as a JSON file, and as pictures with heat laid over them."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from grainline import __version__
from grainline.errors import UserError, plain
from grainline.files import WRITE_ERRORS, reason, write_text
from grainline.index.answer import Answer, as_json, judged
from grainline.index.search import Index
from grainline.viz.heat import FLOOR, FULL
from grainline.viz.overlay import overlay
from grainline.viz.page import short

FORMAT = 2


def table(answer: Answer) -> Table:
    """The hits of one query: how many of its sentences an image shows, and which it does not show."""
    sure = "" if answer.sure else " - no sure match"
    out = Table(
        title=escape(plain(short(answer.query, 90)) + sure),
        caption=escape("\n".join(answer.notes)) or None,
        caption_justify="left",
    )
    for column in ("picture", "score", "p", "sure"):
        out.add_column(column, overflow="fold")
    for column in ("shows", "cannot tell", "does not"):
        out.add_column(column, overflow="fold")
    for hit in answer.hits:
        open_, missing = len(judged(hit, "cannot tell")), judged(hit, "does not")
        lacks = f"{len(missing)}: {short('; '.join(missing), 60)}" if missing else ""
        shows = f"{len(judged(hit, 'shows'))} of {len(hit.sentences)}" if hit.sentences else ""
        out.add_row(
            escape(plain(hit.path)),
            f"{hit.score:.3f}",
            f"{hit.p:.3f}",
            "yes" if hit.sure else "no",
            shows,
            str(open_ or ""),
            escape(plain(lacks)),
        )
    return out


def write_json(path: Path, answers: Sequence[Answer], index: Index) -> None:
    """Write answers with what they were given by. UserError if the disk refuses."""
    manifest = index.opened.manifest
    body = {
        "format": FORMAT,
        "grainline": __version__,
        "index": str(index.opened.folder),
        "images": manifest.root,
        "pictures": len(index),
        "model": manifest.model._asdict(),
        "validated": index.validated,
        "null": index.opened.null.source,
        "answers": [as_json(answer) for answer in answers],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(body, indent=1, ensure_ascii=False) + "\n")
    except WRITE_ERRORS as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose another --json") from None


def write_heat(folder: Path, answers: Sequence[Answer], index: Index) -> int:
    """Write QUERY-HIT-SENTENCE.png for all answers, numbered from 1; how many there are."""
    number = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, answer in enumerate(answers, 1):
            for j, hit in enumerate(answer.hits, 1):
                seen = index.model.seen(index.root / hit.path)
                for s, sentence in enumerate(hit.sentences, 1):
                    assert sentence.heat is not None
                    drawn = overlay(seen, sentence.heat.numpy(), FULL, FLOOR)
                    drawn.save(folder / f"{i}-{j}-{s}.png")
                    number += 1
    except WRITE_ERRORS as error:
        raise UserError(f"cannot write into {folder}: {reason(error)}; choose another --heat") from None
    return number
