"""Pictures as queries, with their descriptions where the model reads them."""

from collections.abc import Sequence

from grainline.data.descriptions import Described, Descriptions, require_fit
from grainline.errors import UserError
from grainline.index.pictures import relative
from grainline.index.search import Index
from grainline.model import ImageLike


def queries(index: Index, images: Sequence[str], names: Sequence[str]) -> list[ImageLike]:
    """Picture files as the model of an index is given them.

    names  files of descriptions, by the path of a picture as it is given or by its name; a picture of the
           index has its description there

    Raises UserError for a picture without a description, and for files that the model does not read.
    """
    model = index.model
    if not model.method.describes:
        require_fit(model.description.method, False, Descriptions(names) if names else None, "--descriptions")
        return list(images)
    told = Descriptions(names) if names else None
    return [Described(image, _description(index, image, told)) for image in images]


def _description(index: Index, image: str, told: Descriptions | None) -> str:
    text = None if told is None else told.of_file(image)
    if text is not None:
        return text
    try:
        place = index.opened.numbers.get(relative(index.root, image))
    except UserError:  # it lies elsewhere
        place = None
    text = None if place is None else index.opened.rows[place].description
    if text is None:
        name = index.model.description.method
        raise UserError(
            f"{name} reads a description beside each picture, and {image} has none in the index: name a file "
            "of `grainline data describe` with --descriptions"
        )
    return text
