"""Box proposals of a detector, in the JSON of ReCLIP's release (arXiv 2204.05991).

    {"581857": [[x, y, width, height], ...], "other.jpg": [{"box": [...], "score": 0.9}, ...]}
    [{"image_id": 581857, "box": [x, y, width, height], "score": 0.9}, ...]

A box is left, top, width and height in pixels of the image, under `box` or `bbox`. A list may say
`file_name` instead of `image_id`. Scores are not used.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from grainline.data.formats.plain import load_json
from grainline.data.record import Box
from grainline.errors import UserError

FORM = (
    "{image_id or file_name: [boxes]} or [{image_id or file_name, box or bbox}, ...], a box being [left, top,"
    " width, height] in pixels"
)


class Proposals:
    """The boxes of each image, in the order of the file. Raises UserError for anything else.

    >>> import json, tempfile
    >>> path = Path(tempfile.mkdtemp(), "boxes.json")
    >>> _ = path.write_text(json.dumps([{"image_id": 7, "bbox": [1, 2, 3, 4]}]))
    >>> Proposals(str(path)).of("COCO_train2014_000000000007.jpg")
    ((1.0, 2.0, 4.0, 6.0),)
    """

    def __init__(self, path: str) -> None:
        self.path = path
        data = load_json(path)
        boxes: dict[str, list[Box]] = {}
        for name, value in _rows(data, path):
            boxes.setdefault(name, []).append(_box(value, name, path))
        if not any(boxes.values()):
            raise UserError(f"{path} holds no boxes; expected {FORM}")
        self._boxes = boxes
        self.sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest()

    def of(self, key: str) -> tuple[Box, ...]:
        """The boxes of an image, each once; () where the file does not name it."""
        for name in names(key):
            if name in self._boxes:
                return tuple(dict.fromkeys(self._boxes[name]))
        return ()


def names(key: str) -> Iterator[str]:
    """What a file of proposals may call an image: its key, file name, stem, and the number at the end of it.

    >>> list(names("train2014/COCO_train2014_000000000007.jpg"))[1:]
    ['COCO_train2014_000000000007.jpg', 'COCO_train2014_000000000007', '7']
    """
    path = PurePosixPath(key)
    yield from (key, path.name, path.stem)
    number = re.search(r"\d+$", path.stem)
    if number is not None:
        yield str(int(number[0]))


def _rows(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Name of an image and one of its boxes."""
    if isinstance(data, dict):
        for name, boxes in data.items():
            if not isinstance(boxes, list):
                raise UserError(f"{path}: the boxes of {name} are no list; expected {FORM}")
            yield from ((name, value) for value in boxes)
        return
    if not isinstance(data, list):
        raise UserError(f"{path} holds no boxes; expected {FORM}")
    for i, row in enumerate(data, 1):
        name = _first(row, ("image_id", "file_name")) if isinstance(row, dict) else None
        if name is None:
            raise UserError(f"{path}, row {i}: no image_id and no file_name; expected {FORM}")
        yield str(name), row


def _box(value: Any, name: str, path: str) -> Box:
    given = _first(value, ("box", "bbox")) if isinstance(value, dict) else value
    try:
        left, top, width, height = (float(x) for x in given)
    except (TypeError, ValueError):
        left = top = width = height = math.nan
    if not math.isfinite(left + top + width + height) or width <= 0 or height <= 0:
        raise UserError(f"{path}: a box of {name} is {str(given)[:80]}; expected {FORM}")
    return left, top, left + width, top + height


def _first(row: dict[str, Any], fields: Iterable[str]) -> Any:
    return next((row[name] for name in fields if row.get(name) is not None), None)
