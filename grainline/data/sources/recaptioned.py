"""Recaptioned data: pictures with short and long captions by three models beside the raw one (DreamLIP).

    raw_caption, shortIB_captions, longIB_captions, shortSV_captions, longSV_captions, shortLLA_captions,
    longLLA_captions

by InstructBLIP, ShareGPT4V and LLaVA, of CC3M, CC12M and YFCC15M. The fields stand in CSV or parquet files
beside an "Image Path", which is a URL, or in the JSON of WebDataset tars; as strings, or as lists of
sentences as FLAIR prepares them. Wherever descriptions are read, a look at their fields finds them. The raw
caption and the short ones are the captions of a record, the long ones its long descriptions.
"""

from collections.abc import Mapping
from typing import Any

from grainline.data.record import as_sentences

MODELS = ("IB", "SV", "LLA")
RAW = "raw_caption"
SHORT = tuple(f"short{model}_captions" for model in MODELS)
LONG = tuple(f"long{model}_captions" for model in MODELS)
FIELDS = (RAW, *SHORT, *LONG)


def is_recaptioned(fields: Mapping[str, Any]) -> bool:
    """Whether a description has captions by one of the models."""
    return any(fields.get(name) for name in (*SHORT, *LONG))


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The description in the names of `common`.

    >>> renamed({"raw_caption": "dog", "shortSV_captions": ["A dog", "It runs"], "longIB_captions": "A dog."})
    {'captions': ['dog', 'A dog. It runs.'], 'longs': ['A dog.']}
    """
    texts = {name: _whole(fields.get(name)) for name in FIELDS}
    kept = {name: value for name, value in fields.items() if name not in FIELDS}
    return {
        **kept,
        "captions": [texts[n] for n in (RAW, *SHORT) if texts[n]],
        "longs": [texts[n] for n in LONG if texts[n]],
    }


def _whole(value: Any) -> str:
    """A text, or sentences as one; anything else counts as no text."""
    if isinstance(value, list | tuple):
        value = as_sentences([piece.strip() for piece in value if isinstance(piece, str) and piece.strip()])
    return value.strip() if isinstance(value, str) else ""
