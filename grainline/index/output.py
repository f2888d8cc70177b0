"""Results of a search as table, JSON, heat maps and a self-contained page.

Answers in the terminal, as a JSON file, and as pictures with heat laid over them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from rich.markup import escape
from rich.table import Table

from grainline import __version__
from grainline.data.record import Damaged
from grainline.errors import UserError, plain
from grainline.files import WRITE_ERRORS, reason, write_text
from grainline.index.results import Answer, Hit, Options, as_json, judged
from grainline.index.search import Index
from grainline.nn.upsample import FLOOR, FULL
from grainline.report.case import Answered, Found, Look, Told, answered
from grainline.report.heatmap import overlay
from grainline.report.page import Gone, hint, render_page, short, summary, write_page

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


# Answers as one self-contained page: pictures, how sure, and where each sentence of a query shows.


MOST = 20  # queries on a page: with ten hits of five sentences each they are some 20 MB


def write_html(
    path: Path, answers: Sequence[Answer], index: Index, options: Options, *, pictures: bool = False
) -> int:
    """Write a page about the first MOST answers; how many it shows.

    pictures  the queries are paths of pictures, not texts

    Pictures that are gone, or are others than those indexed, are named and not shown. Raises UserError if the
    page cannot be written.
    """
    shown = answers[:MOST]
    sections = [
        answered(
            Answered(
                answer.query,
                _query(index, answer.query) if pictures else None,
                answer.sure,
                answer.notes,
                [_found(index, hit) for hit in answer.hits],
            ),
            number,
        )
        for number, answer in enumerate(shown, 1)
    ]
    manifest = index.opened.manifest
    foot = [f"Index: {index.opened.folder}", f"Pictures: {manifest.root}", f"Model: {manifest.model.path}"]
    said = [index.validated] if index.validated else []
    lead = summary(_headline(answers, index))
    for line in [*said, *_reading(options, pictures)]:
        lead += hint(line)
    if len(shown) < len(answers):
        lead += hint(f"The first {len(shown)} of {len(answers)} queries; all are in the file of --json.")
    title = f"Search in {Path(manifest.root).name}"
    write_page(path, render_page(title, lead, sections, foot))
    return len(shown)


def _headline(answers: Sequence[Answer], index: Index) -> dict[str, str]:
    sure = sum(answer.sure for answer in answers)
    out = {"Pictures searched": f"{len(index):,}"}
    if len(answers) == 1:
        return {"Match": "sure" if sure else "no sure match", **out}
    return {"Queries": f"{len(answers):,}", "With a sure match": f"{sure:,}", **out}


def _reading(options: Options, pictures: bool) -> list[str]:
    share = "queries without a match whose best picture scores as high"
    if pictures:
        share = "pictures of the index that have another one as near"
    out = [
        f"Score: higher is closer. p: the share of {share}; a hit is sure at {options.level:g} or "
        "below. Pictures are shown as the model sees them: a square from their middle."
    ]
    if not pictures:
        out.append(
            f"An image shows a sentence where its p is {options.support:g} or below: so few sentences that "
            "speak of other images do as well in the best hits of their texts. It does not where at most "
            f"{100 * options.lack:g} % of true sentences score as low. Otherwise the model cannot tell."
        )
        out.append(
            "Heat is orange where the image shows more of the sentence than of the null sentences of the"
            " index, blue where less; 1 is what one of five of these reaches, and less has no colour."
        )
    return out


def _found(index: Index, hit: Hit) -> Found:
    told = [Told(one.text, one.score, one.p, one.verdict) for one in hit.sentences]
    try:
        data = index.read(hit.path)
    except Damaged as error:
        why = f"{error}; it is not shown, and `grainline index refresh` brings the index up to date"
        return Found(hit.path, hit.score, hit.p, hit.sure, Look(Gone(why), "", told))
    heat = None
    if told and index.model.method.placed:
        row = index.opened.numbers[hit.path]
        heat = index.heat([(row, [one.text for one in told])])[0].numpy()
    seen = Look(index.model.seen(data), hit.path, told, heat, contrast=True)
    return Found(hit.path, hit.score, hit.p, hit.sure, seen)


def _query(index: Index, path: str) -> Image.Image | Gone:
    try:
        return index.model.seen(path)
    except UserError as error:
        return Gone(str(error))
