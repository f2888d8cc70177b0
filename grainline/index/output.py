"""Writes the results of a search: a table in the terminal, JSON, heat maps, a self-contained page."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from PIL import Image
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from grainline import __version__
from grainline.data.image_inputs import original
from grainline.data.record import CorruptSample
from grainline.errors import UserError, escape_controls
from grainline.evaluation.examples import whole_image
from grainline.files import WRITE_ERRORS, reason
from grainline.index.search import Hit, Index, Options, QueryHits, as_json
from grainline.nn.upsample import FLOOR, FULL
from grainline.report.case import Case, CaseImage, SentenceScore, cases_html
from grainline.report.heatmap import overlay
from grainline.report.page import (
    MissingImage,
    Section,
    hint,
    macro,
    render,
    render_page,
    short,
    summary,
    write_page,
)

FORMAT = 4


def openable(root: Path, path: str) -> str:
    """A path below the root as it can be opened: relative to here where possible, else absolute."""
    whole, folder = root / path, Path.cwd()
    return str(whole.relative_to(folder) if whole.is_relative_to(folder) else whole)


def plain_lines(result: QueryHits, root: Path) -> list[str]:
    """The hits of one query for other programs, a line each: path, score, p, match, shown, query, by tabs."""
    out = []
    for hit in result.hits:
        count = sum(one.verdict == "shows" for one in hit.sentences)
        facts = f"{hit.score:.6f}", f"{hit.p:.4f}", hit.match
        fields = openable(root, hit.path), *facts, f"{count}/{len(hit.sentences)}", result.query
        out.append("\t".join(map(escape_controls, fields)))
    return out


def table(result: QueryHits, root: Path) -> Table:
    """The hits of one query, with the numbers of its sentences by verdict; `does not` has their texts too."""
    out = Table(
        title=escape(f"{escape_controls(short(result.query, TITLE))} - {MATCHES[result.match]}"),
        caption=escape("\n".join(result.notes)) or None,
        caption_justify="left",
    )
    for column in ("image", "score", "p", "match", "shows sentence", "cannot tell", "does not"):
        out.add_column(column, overflow="fold")
    for hit in result.hits:
        numbers = {
            verdict: ", ".join(str(i) for i, one in enumerate(hit.sentences, 1) if one.verdict == verdict)
            for verdict in ("shows", "cannot tell", "does not")
        }
        missing = "; ".join(one.text for one in hit.sentences if one.verdict == "does not")
        name = escape_controls(openable(root, hit.path))
        out.add_row(
            Text(name, Style(link=(root / hit.path).as_uri())),
            f"{hit.score:.3f}",
            f"{hit.p:.3f}",
            hit.match,
            f"{numbers['shows'] or 'none'} of {len(hit.sentences)}" if hit.sentences else "",
            numbers["cannot tell"],
            escape(escape_controls(f"{numbers['does not']}: {short(missing, 60)}" if missing else "")),
        )
    return out


def write_json(path: Path, results: Sequence[QueryHits], index: Index) -> None:
    """Write results with the index and model they come from. UserError if the file cannot be written."""
    manifest = index.reader.manifest
    body = {
        "format": FORMAT,
        "grainline": __version__,
        "index": str(index.reader.folder),
        "images": manifest.root,
        "image_count": len(index),
        "model_id": manifest.model_id._asdict(),
        "validated": index.model.weakness,
        "calibration_texts": index.reader.calibration_texts.source,
        "results": [as_json(result) for result in results],
    }
    write_page(path, json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def write_heat(folder: Path, results: Sequence[QueryHits], index: Index) -> int:
    """Write QUERY-HIT-SENTENCE.png, numbered from 1, for all results. Returns the number of files."""
    number = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, result in enumerate(results, 1):
            for j, hit in enumerate(result.hits, 1):
                cropped = index.model.cropped(index.root / hit.path)
                for s, sentence in enumerate(hit.sentences, 1):
                    assert sentence.heat is not None
                    image = overlay(cropped, sentence.heat.numpy(), FULL, FLOOR)
                    image.save(folder / f"{i}-{j}-{s}.png")
                    number += 1
    except WRITE_ERRORS as error:
        raise UserError(f"cannot write into {folder}: {reason(error)}; choose another --heat") from None
    return number


TITLE = 90  # characters of a query in its heading; a longer one stands below it as well
MATCHES = {"sure": "sure match", "in part": "match in part", "none": "no sure match"}
MAX_QUERIES = 20  # queries on a page: with ten hits of five sentences each they are some 20 MB


def write_html(
    path: Path, results: Sequence[QueryHits], index: Index, options: Options, *, images: bool = False
) -> int:
    """Write a page about the first MAX_QUERIES queries. Returns how many it shows.

    images  the queries are paths of images, not texts

    Images that are gone or have changed are named and not shown. UserError if the page cannot be written.
    """
    first = results[:MAX_QUERIES]
    sections = []
    for number, result in enumerate(first, 1):
        image = _query(index, result.query) if images else None
        sections.append(_section(number, result, image, index, options.level))
    manifest = index.reader.manifest
    foot = [f"Index: {index.reader.folder}", f"Images: {manifest.root}", f"Model: {manifest.model_id.path}"]
    lines = [*([index.model.weakness] if index.model.weakness else []), *_reading(options, images)]
    if len(first) < len(results):
        lines.append(f"The first {len(first)} of {len(results)} queries; all are in the file of --json.")
    reading = macro("parts.html", "folded", "How to read this page", Markup().join(map(hint, lines)))
    lead = summary(_headline(results, index)) + reading
    write_page(path, render_page(f"Search in {Path(manifest.root).name}", lead, sections, foot))
    return len(first)


def _headline(results: Sequence[QueryHits], index: Index) -> dict[str, str]:
    if len(results) == 1:
        return {"Best hit": MATCHES[results[0].match], "Images searched": f"{len(index):,}"}
    number = Counter(result.match for result in results)
    names = {"Sure matches": number["sure"], "Matches in part": number["in part"]}
    values = {"Queries": len(results)} | names | {"Images searched": len(index)}
    return {name: f"{value:,}" for name, value in values.items()}


def _reading(options: Options, images: bool) -> list[str]:
    share = "queries without a match whose best image scores as high"
    if images:
        share = "images of the index that have another one as near"
    scores = (
        f"Score: higher is closer. p: the share of {share}; a hit matches at {options.level:g} or "
        "below: surely, or in part where it does not show some sentence. What the model cannot tell counts "
        "neither way. What it does not read of an image is dim."
    )
    verdicts = (
        f"An image shows a sentence where its p is {options.support:g} or below: so few sentences that "
        "describe other images do as well in the best hits of their texts. It does not where at most "
        f"{100 * options.absent:g} % of true sentences score as low. Otherwise the model cannot tell."
    )
    heat = (
        "Heat is orange where the image shows more of the sentence than of the calibration sentences of "
        "the index, blue where less. 1 is the heat that one in five of these reach; less has no colour."
    )
    return [scores] if images else [scores, verdicts, heat]


def _section(
    number: int, result: QueryHits, image: Image.Image | MissingImage | None, index: Index, level: float
) -> Section:
    """A query, how sure its answer is, and its hits. number: of the query, from 1; level: as in `Options`"""
    why = "Nothing was found."
    if result.hits:
        share = f"{100 * result.hits[0].p:.1f} %"
        usual = f"a match: below {100 * level:g} %"
        why = f"A query that matches nothing scores this high {share} of the time ({usual})."
        if image is not None:
            why = f"Of the images of the index, {share} have another one as near."
        why += " None of the images below is a sure match." if result.match == "none" else ""
        why += " The first image does not show every sentence." if result.match == "in part" else ""
    title = short(result.query, TITLE)
    cases = [_hit_case(index, place, hit) for place, hit in enumerate(result.hits, 1)]
    body = render(
        "query.html",
        query=result.query,
        title=title,
        image=image,
        match=result.match,
        words=MATCHES[result.match],
        why=why,
        lines=result.notes,
        tiles=not any(hit.sentences for hit in result.hits),
        cases=cases_html(cases, f"q{number}h"),
    )
    return Section(f"{number}. {title}", body, MATCHES[result.match])


def _hit_case(index: Index, place: int, hit: Hit) -> Case:
    sentences = [SentenceScore(one.text, one.score, one.p, one.verdict) for one in hit.sentences]
    try:
        data = index.read(hit.path)
    except CorruptSample as error:
        why = f"{error}; it is not shown, and `grainline index refresh` brings the index up to date"
        look = CaseImage(MissingImage(why), "", sentences)
    else:
        heat = None
        if sentences and index.model.method.has_layout:
            row = index.reader.numbers[hit.path]
            heat = index.heat([(row, [one.text for one in sentences])])[0].numpy()
        whole = whole_image(index.model, original(data))
        look = CaseImage(index.model.cropped(data), hit.path, sentences, heat, contrast=True, whole=whole)
    match = macro("parts.html", "match_of", hit.match, MATCHES[hit.match])
    note = Markup(f"score {hit.score:.3f}, p {hit.p:.3f}, ") + match
    if sentences:
        note += f", sentences shown: {sum(s.verdict == 'shows' for s in sentences)} of {len(sentences)}"
    return Case(f"{place}. {hit.path}", note=note, look=look)


def _query(index: Index, path: str) -> Image.Image | MissingImage:
    try:
        return index.model.cropped(path)
    except UserError as error:
        return MissingImage(str(error))
