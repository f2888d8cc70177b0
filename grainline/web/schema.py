"""Requests and responses of the JSON interface."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from grainline.index.search import Match, QueryHits, Verdict, as_json
from grainline.index.store import Row
from grainline.nn.upsample import FLOOR, FULL
from grainline.report.heatmap import limit_of

CHARACTERS = 20_000  # of a text: some 200 sentences
HITS = 100  # images in an answer
DIGITS = 24  # hexadecimal digits of an image's name
LEVELS = 127  # of heat, each way


QueryText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=CHARACTERS)]
Number = Annotated[int, Field(ge=1, le=HITS, description="How many images.")]
Name = Annotated[
    str,
    BeforeValidator(lambda x: x.removeprefix("/api/image/") if isinstance(x, str) else x),
    Field(pattern=f"^[0-9a-f]{{{DIGITS}}}$", description="`name` or `image` of a hit."),
]


class TextQuery(BaseModel, extra="forbid"):
    """A description, in one or many sentences."""

    text: QueryText
    k: Number = 12


class HeatQuery(BaseModel, extra="forbid"):
    """An image of an answer, and the text that found it."""

    image: Name
    text: QueryText


class SentenceOut(BaseModel):
    """A sentence of the query and its score in an image."""

    text: str
    score: float
    p: float = Field(description="Share of sentences about other images that do as well in best hits.")
    verdict: Verdict = Field(description="Whether the image shows it.")


class SampleOut(BaseModel):
    """An image of the index."""

    name: str
    path: str = Field(description="File name below the folder of images, to be read, not to be followed.")
    image: str = Field(description="Where to get it; ?side= says how large.")


class HitOut(SampleOut):
    """An image that matches the query."""

    score: float
    p: float = Field(description="Share of queries without a match whose best score is as high.")
    match: Match = Field(description="sure, in part (it does not show some sentence), or none.")
    sentences: list[SentenceOut]


class SearchOut(BaseModel):
    """The hits of a query, best first."""

    match: Match = Field(description="That of the best hit.")
    hits: list[HitOut]
    notes: list[str] = Field(description="Limits of the hits, in words.")


class HeatMap(BaseModel):
    """Heat of one sentence: above 0 where it matches more than other texts; row by row from the top left."""

    text: str
    limit: float = Field(description="The largest size of a value; 1 is what few other texts reach.")
    values: list[int] = Field(description="-127 to 127, in units of limit / 127.")


class HeatOut(BaseModel):
    """Heat of all sentences of a text, over a grid on the input crop of the model."""

    rows: int
    columns: int
    part: Literal["middle", "whole"] = Field(description="The middle square of the image, or all of it.")
    floor: float = Field(FLOOR, description="Values below it show nothing, and are not drawn.")
    full: float = Field(FULL, description="Values from here on have the full colour.")
    maps: list[HeatMap]


class IndexOut(BaseModel):
    """The index that is searched."""

    name: str
    images: int
    method: str
    model: str
    heat: bool = Field(description="Whether the model can show where sentences lie.")
    calibrated_texts: bool = Field(description="Whether `p` rests on texts given when it was built.")
    calibrated_images: bool = Field(description="Whether there are images enough for `p` to mean much.")
    validated: str = Field(description="That the model's run is near chance in its validation, or empty.")
    notes: list[str]
    samples: list[SampleOut] = Field(description="Some of its images, evenly spread.")
    examples: list[str] = Field(description="Texts to try, which have matches in it.")
    limits: dict[str, int] = Field(description="Of a text and an answer, and bytes and pixels of an image.")


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok", "stale"] = Field(description="stale: the index on disk cannot be opened, or used.")
    waiting: int
    problem: str


class Error(BaseModel):
    """The reason of an error, in one line."""

    error: str


def sample_out(row: Row) -> SampleOut:
    """An image of the index, by the start of its sha256."""
    name = row.sha256[:DIGITS]
    return SampleOut(name=name, path=row.path.encode("utf-8", "replace").decode(), image=f"/api/image/{name}")


def search_out(result: QueryHits, rows: Sequence[Row]) -> SearchOut:
    """The response to a search. rows: of the hits"""
    values = as_json(result)
    hits = [hit | sample_out(row).model_dump() for hit, row in zip(values["hits"], rows, strict=True)]
    return SearchOut.model_validate(values | {"hits": hits})


def heat_out(texts: Sequence[str], heat: np.ndarray, squashed: bool) -> HeatOut:
    """Heat of some texts [S, rows, columns] as small numbers: 14 x 14 of them are 600 bytes for a text."""
    maps = []
    for text, values in zip(texts, heat, strict=True):
        limit = limit_of(values)
        steps = (values.ravel() * (LEVELS / limit)).round().astype(int).tolist()
        maps.append(HeatMap(text=text, limit=limit, values=steps))
    part: Literal["middle", "whole"] = "whole" if squashed else "middle"
    return HeatOut(rows=heat.shape[1], columns=heat.shape[2], part=part, maps=maps)
