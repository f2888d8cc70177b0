"""What the JSON interface takes and gives, images included."""

import io
from typing import Annotated, Literal

from PIL import Image
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from grainline.data.decode import FORMATS, decode
from grainline.data.record import Damaged, Record
from grainline.errors import UserError
from grainline.index.results import Verdict
from grainline.model import Model
from grainline.nn.upsample import FLOOR, FULL
from grainline.report.heatmap import limit_of
from grainline.web.engine import Found, Heat
from grainline.web.limits import CHARACTERS, HITS

LEVELS = 127  # of heat, each way


def _told(text: str) -> str:
    if not text.strip():
        raise ValueError("a search needs a text; this one is empty")
    return text


Told = Annotated[str, Field(max_length=CHARACTERS), AfterValidator(_told)]
Number = Annotated[int, Field(ge=1, le=HITS, description="How many pictures.")]
Name = Annotated[str, Field(pattern="^[0-9a-f]{24}$", description="Name of a picture, from an answer.")]


class Asked(BaseModel):
    """Requests name their fields exactly."""

    model_config = ConfigDict(extra="forbid")


class TextQuery(Asked):
    """A description, in one or many sentences."""

    text: Told
    k: Number = 12


class HeatQuery(Asked):
    """A picture of an answer, and the text that found it."""

    picture: Name
    text: Told


class TextOnly(Asked):
    """A text, whole or not yet."""

    text: Annotated[str, Field(max_length=CHARACTERS)]


class Sentences(BaseModel):
    """A text, cut into sentences."""

    sentences: list[str]


class SentenceOut(BaseModel):
    """One sentence of the query, judged in a picture."""

    text: str
    score: float
    p: float = Field(
        description="Share of sentences about other images that do as well in the best hits of their texts."
    )
    verdict: Verdict = Field(description="Whether the image shows it.")


class HitOut(BaseModel):
    """A picture that was found."""

    name: str
    path: str = Field(description="File name below the folder of pictures, to be read, not to be followed.")
    picture: str = Field(description="Where to get it; ?side= says how large.")
    score: float
    p: float = Field(description="Share of queries without a match whose best score is as high.")
    sure: bool
    sentences: list[SentenceOut]


class AnswerOut(BaseModel):
    """What was found, best first."""

    sure: bool = Field(description="Whether anything matches at all.")
    hits: list[HitOut]
    notes: list[str] = Field(description="What weakens the answer.")


class HeatMap(BaseModel):
    """Where one sentence shows more (above 0) or less than other texts, row by row from the top left."""

    text: str
    limit: float = Field(
        description="The largest size of any value, in units in which 1 is what few other texts reach."
    )
    values: list[int] = Field(description="-127 to 127, in units of limit / 127.")


class HeatOut(BaseModel):
    """Heat of all sentences of a text, over a grid on the part of the picture that the model sees."""

    rows: int
    columns: int
    part: Literal["middle", "whole"] = Field(description="The middle square of the picture, or all of it.")
    floor: float = Field(FLOOR, description="Values below it show nothing, and are not drawn.")
    full: float = Field(FULL, description="Values from here on have the full colour.")
    maps: list[HeatMap]


class LimitsOut(BaseModel):
    """What the server accepts at most."""

    characters: int
    hits: int
    bytes: int
    pixels: int


class IndexOut(BaseModel):
    """What is searched."""

    name: str
    pictures: int
    method: str
    model: str
    heat: bool = Field(description="Whether the model can show where sentences lie.")
    calibrated_texts: bool = Field(description="Whether `sure` rests on texts given when it was built.")
    calibrated_pictures: bool = Field(
        description="Whether there are pictures enough for `sure` to mean much."
    )
    validated: str = Field(description="At which rank the model finds right images, from its run; or empty.")
    notes: list[str]
    limits: LimitsOut


class Health(BaseModel):
    """How the server is."""

    status: Literal["ok", "stale"] = Field(
        description="stale: the index on disk cannot be opened, or is damaged."
    )
    waiting: int
    problem: str


class Error(BaseModel):
    """Why there is no answer, in one line."""

    error: str


def answer_out(found: Found) -> AnswerOut:
    """An answer, with names in place of files."""
    hits = []
    for hit, name in zip(found.answer.hits, found.names, strict=True):
        values = hit._asdict() | {
            "name": name,
            "path": hit.path.encode("utf-8", "replace").decode(),
            "picture": f"/api/picture/{name}",
            "sentences": [SentenceOut.model_validate(sentence._asdict()) for sentence in hit.sentences],
        }
        hits.append(HitOut.model_validate(values))
    return AnswerOut(sure=found.answer.sure, hits=hits, notes=list(found.answer.notes))


def heat_out(heat: Heat, squashed: bool) -> HeatOut:
    """Heat as small numbers: 14 x 14 of them are 600 bytes for a sentence."""
    maps = []
    for text, values in zip(heat.sentences, heat.values.double().numpy(), strict=True):
        limit = limit_of(values)
        steps = (values * (LEVELS / limit)).round().astype(int).tolist()
        maps.append(HeatMap(text=text, limit=limit, values=steps))
    part: Literal["middle", "whole"] = "whole" if squashed else "middle"
    return HeatOut(rows=heat.grid[0], columns=heat.grid[1], part=part, maps=maps)


# Pictures that come in, checked before they are decoded, and pictures that go out, made small and plain.


QUALITY = 88


class Refused(Exception):
    """A picture that is not taken; `status` is that of HTTP."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def taken(data: bytes, model: Model, pixels: int) -> Image.Image:
    """The square that a model sees of a picture that was sent. Raises Refused.

    pixels  the most that the picture may have: known from its header, before anything is decoded
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = pixels  # Pillow will not say how large it is
    except Exception:
        raise Refused(415, f"this is no picture; allowed are {', '.join(FORMATS)}") from None
    if width * height > pixels:
        raise Refused(413, f"the picture is too large; at most {pixels:,} pixels are allowed")
    try:
        return model.seen(data)
    except UserError as error:
        raise Refused(415, str(error)) from None


def shown(data: bytes, side: int) -> bytes:
    """A picture as a JPEG whose longer side has at most `side` pixels, upright, without its metadata.

    Raises Damaged.
    """
    picture = decode(Record("picture", data, ()), draft=side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    try:
        picture.save(out, "JPEG", quality=QUALITY)
    except OSError as error:
        raise Damaged("damaged image", str(error)) from error
    return out.getvalue()
