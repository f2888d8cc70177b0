"""`grainline show`: where texts show in images, over the whole images.

Methods have a map of contrast for each sentence and phrase of a text; those with segments, attention or a
choice of patches have figures of their own. A map that is stretched to its own range hides that a text looks
at nothing, so all maps are on one scale, and the weight of the empty slot stands below each.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from grainline.data.descriptions import Descriptions
from grainline.data.other_texts import OtherTexts, other_texts
from grainline.errors import UserError
from grainline.evaluation.result import writable
from grainline.evaluation.show_panels import (
    Photo,
    contrast_bar,
    end_of_scale,
    heat_rows,
    photo_of,
    segment_panels,
    selection_panels,
)
from grainline.loading import load
from grainline.methods.base import HasAttention, Method
from grainline.model import Model
from grainline.nn.patch_selection.selector import SelectsPatches
from grainline.report.case import Case, cases_html
from grainline.report.page import Section, hint, render_page, write_page
from grainline.report.png import require_matplotlib, write_panels
from grainline.types import Encoded

SCALE = (
    "No colour is no weight, full orange {limit:.3g} or more of the weight of a text, in all maps."
    " The weights of all segments or patches and of the empty slot sum to 1."
)
SELECTION_SCALE = (
    "Dark: patches that are dropped. Below them stands each token that words find, with the shares of patches"
    " that it is made of. No colour: no share, full orange: {limit:.3g} or more of the token, in all maps"
    " alike; a frame is around the largest."
)
CONTRAST = (
    "Heat is orange where the image shows more of a text than of other texts and blue where less. 1 is the"
    " heat that one in five other texts reach; less has no colour. The others: {number} {source}."
)
SHARES = (
    "The score of {name} compares whole images. Heat is what each patch adds to it where the vector of the"
    " image is the mean of its patches, else the cosine of each patch with the text."
)
UNREAD = "What is dark outside the line is not read by the model."
LINES = "Lines are heavier, the more stages keep them."


def show(  # long by its docstring, which is the help of the command
    model: str | Path,
    images: Sequence[str],
    texts: Sequence[str] = (),
    *,
    out: Sequence[Path] = (),
    scale: float | None = None,
    others: str | None = None,
    descriptions: Callable[[Model], Descriptions | None] = lambda model: None,  # noqa: ARG005
) -> None:
    """Write figures and pages that show images as a model reads them, for some texts.

    out           files to write: .png for a figure, .html for a page; both may be given
    scale         weight of a token that has the full colour (default: 8 times an even share)
    others        other texts that heat is measured against: a .txt file with a text a line, or a data source
                  with captions (default: built-in sentences of photographs or of drawn scenes)
    descriptions  of the images, for a method that reads them

    Raises UserError where the method has nothing to show, or an image has no description.
    """
    check_options(out, texts, scale, others)
    if any(file.suffix == ".png" for file in out):
        require_matplotlib()
    for file in out:
        writable(file)
    loaded = load(model)
    check_texts(loaded, texts)
    null = None
    if texts and not isinstance(loaded.method, HasAttention):
        null = other_texts(others, loaded.run, texts)
    elif others is not None:
        raise UserError("--others is for maps of contrast, and this method has maps of weights; leave it out")
    weighs = isinstance(loaded.method, HasAttention | SelectsPatches)
    if scale is not None and not weighs:
        raise UserError("--scale is for maps of weights, and this method has maps of contrast; leave it out")
    known, photos = descriptions(loaded), list[Photo]()
    for image in images:
        description = None if known is None else known.of_file(image)
        if known is not None and description is None:
            what = f"the method reads a description of each image, and {image} has none in {known}"
            raise UserError(f"{what}: name a file of `grainline data describe` with --descriptions")
        photos.append(photo_of(loaded, image, description))
    limit = scale or (end_of_scale(loaded, photos[0].input) if weighs else 1.0)
    encoded = loaded.encode(texts=null.sentences) if null else None
    panels = [panels_of(loaded, photo, texts, limit, encoded) for photo in photos]
    title = f"{loaded.description.method}, {model}"
    rule = how_to_read(loaded, photos, texts, limit, null)
    for file in out:
        if file.suffix == ".png":
            write_panels(file, panels, title, rule)
        else:
            lines = LINES if loaded.method.segmented else ""
            body = hint(lines) * bool(lines) + cases_html(panels, "image") + hint(rule)
            write_page(file, render_page(title, "", [Section("Images", body)]))


def check_options(out: Sequence[Path], texts: Sequence[str], scale: float | None, others: str | None) -> None:
    """Raise UserError for options of `show` that do not go together."""
    if not out:
        raise UserError("nothing to write; give --out FILE.png, --out FILE.html or both")
    for file in out:
        if file.suffix not in (".png", ".html"):
            raise UserError(f"--out {file} must end in .png, for a figure, or in .html, for a page")
    if scale is not None and not (texts and 0 < scale <= 1):
        raise UserError(f"--scale is {scale:g}; it is a weight above 0 and at most 1, and goes with --text")
    if others is not None and not texts:
        raise UserError(f"--others {others} has texts to compare those of --text with; give --text")


def panels_of(model: Model, photo: Photo, texts: Sequence[str], limit: float, null: Encoded | None) -> Case:
    """All that is shown of an image: what the method has of its own, and contrast with other texts (null)."""
    if isinstance(model.method, SelectsPatches):
        case = selection_panels(model, photo, texts, limit)
    else:
        attends = isinstance(model.method, HasAttention)
        case = segment_panels(model, photo, texts if attends else (), limit)
    if null is None:
        return case
    more, (first, *rest) = heat_rows(model, photo, texts, null), case.rows
    image = first.panels[0]
    image = image._replace(legend=[*image.legend, contrast_bar()])
    if not rest and len(first.panels) == 1:  # the image alone, beside the first sentence
        first, *more = more
        return case._replace(rows=[first._replace(panels=[image, *first.panels]), *more])
    return case._replace(rows=[first._replace(panels=[image, *first.panels[1:]]), *rest, *more])


def how_to_read(
    model: Model, photos: Sequence[Photo], texts: Sequence[str], limit: float, null: OtherTexts | None
) -> str:
    """The caption of a figure: its scales, what is not read of images, and how many texts are cut."""
    method, parts = model.method, [model.weakness] if texts and model.weakness else []
    if isinstance(method, SelectsPatches):
        parts.append(SELECTION_SCALE.format(limit=limit))
    elif texts and isinstance(method, HasAttention):
        parts.append(SCALE.format(limit=limit))
    if null is not None:
        parts.append(CONTRAST.format(number=len(null.sentences), source=null.source))
        if type(method).heat is Method.heat and not method.pairwise:
            parts.append(SHARES.format(name=model.description.method))
    if any(photo.area != (0, 0, *photo.image.size) for photo in photos):
        parts.append(UNREAD)
    cut = sum(model.read(texts).truncated) if texts else 0
    if cut:
        parts.append(f"{cut} of {len(texts)} texts are longer than the model reads, and were cut.")
    return " ".join(parts)


def check_texts(model: Model, texts: Sequence[str]) -> None:
    """Raise UserError where nothing can be shown of a method, or of a text."""
    method, name = model.method, model.description.method
    blank = [i for i, text in enumerate(texts, 1) if not text.strip()]
    if blank:
        raise UserError(f"--text number {blank[0]} has no words; give words to look for")
    if isinstance(method, SelectsPatches):
        if not texts:
            raise UserError(f"{name} keeps patches for a text; give --text, to show which ones")
        return
    model.require_layout()
    if not texts and (not method.segmented or model.transform.square.patches):
        raise UserError(f"this {name} sees patches, not segments; give --text, to show where it looks")
