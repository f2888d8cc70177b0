"""Which benchmark a file is of, by a look inside: parsed JSON, or the rows of a table."""

from collections.abc import Callable, Sequence
from typing import Any

from grainline.data.record import Source
from grainline.data.sources.coco import CocoKarpathy, CocoVal2017, is_karpathy, is_official
from grainline.data.sources.cola import Cola, is_cola
from grainline.data.sources.fgovd import FgOvd, FgOvdLines, is_fgovd, is_fgovd_lines
from grainline.data.sources.foilcoco import FoilCoco, is_foil_coco
from grainline.data.sources.hexagons import Hexagons, is_hexagons
from grainline.data.sources.himo import HimoDocci, is_himo
from grainline.data.sources.longsets import DOCCI, IIW, Urban1k, is_docci, is_iiw, is_urban
from grainline.data.sources.refcoco import RefCoco, is_refs
from grainline.data.sources.sugarcrepe import SugarCrepe, is_sugarcrepe
from grainline.data.sources.svo import SvoProbes, is_svo
from grainline.data.sources.table import Row
from grainline.data.sources.valse import Valse, is_valse

Kind = Callable[[str, str | None, Any], Source]
"""From the path, the folder of pictures, and what the file holds."""

_JSON: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (is_foil_coco, FoilCoco),  # before COCO's own form, which it has too
    (is_official, CocoVal2017),
    (is_karpathy, CocoKarpathy),
    (is_cola, Cola),
    (is_fgovd, FgOvd),
    (is_refs, RefCoco),
    (is_urban, Urban1k),
    (is_valse, Valse),
    (is_sugarcrepe, SugarCrepe),
)
_ROWS: tuple[tuple[Callable[[Sequence[Row]], bool], Kind], ...] = (
    (is_himo, HimoDocci),
    (is_docci, DOCCI),
    (is_iiw, IIW),
    (is_hexagons, Hexagons),
    (is_svo, SvoProbes),
    (is_fgovd_lines, FgOvdLines),
)


def kind_of_json(data: Any) -> Kind | None:
    """The kind of annotations, None for what may be rows."""
    return next((kind for fits, kind in _JSON if fits(data)), None)


def kind_of_rows(rows: Sequence[Row]) -> Kind | None:
    """The kind of rows, None for those of a plain table."""
    return next((kind for fits, kind in _ROWS if fits(rows)), None)
