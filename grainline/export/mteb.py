"""A model as an encoder of the library mteb, for its image-text tasks: retrieval, zero-shot classification.

    import mteb
    from grainline.export.mteb import Encoder

    mteb.evaluate(Encoder("runs/x"), mteb.get_tasks(["Flickr30kT2IRetrieval"]))

mteb compares one vector for each image and text, so a method that scores pairs is measured by its vectors.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grainline.errors import UserError
from grainline.hub import fingerprint
from grainline.loading import load
from grainline.model import Model
from grainline.nn.pooling import unit


class Encoder:
    """An encoder in the sense of mteb 2 (`EncoderProtocol`)."""

    def __init__(self, model: Model | str | Path, revision: str | None = None, **options: Any) -> None:
        """model: a model, or what `grainline.load` takes, with `revision` and further options"""
        try:
            from mteb.models.model_meta import ModelMeta, ScoringFunction
        except ImportError as error:
            raise UserError(f"mteb is not installed ({error}): pip install 'grainline[mteb]'") from None
        name = "model" if isinstance(model, Model) else Path(model).name
        self.model = model if isinstance(model, Model) else load(model, revision=revision, **options)
        method = self.model.method
        if method.pairwise:
            print("mteb measures by vectors, not by the score of this method", file=sys.stderr)
        facts = {
            "name": f"grainline/{name}",
            "revision": fingerprint(self.model)[:16],
            "n_parameters": sum(x.numel() for x in method.parameters()),
            "embed_dim": method.cfg.width,
            "max_tokens": method.context * method.parts,
            "similarity_fn_name": ScoringFunction.COSINE,
            "modalities": ["image", "text"],
            "framework": ["PyTorch"],
        }
        self.mteb_model_meta = ModelMeta.create_empty(facts)

    def encode(self, inputs: Iterable[Mapping[str, Any]], batch_size: int = 64, **_: Any) -> np.ndarray:
        """One vector for each row of a loader of mteb: [N, D]; of an image with a text, the sum of both."""
        vectors, options = [], {"batch_size": batch_size, "convert_to_numpy": True}
        for batch in inputs:
            sides = {"texts": batch.get("text"), "images": batch.get("image")}
            read: list[dict[str, Any]] = [{k: list(x), **options} for k, x in sides.items() if x is not None]
            encoded = [self.model.encode(**one) for one in read]
            if not encoded:
                raise UserError(f"mteb asks for {', '.join(batch)}; a grainline model reads text and image")
            vectors.append(sum(encoded))
        return np.concatenate(vectors)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosines of two sets of vectors: [N, M]"""
        return _units(embeddings1) @ _units(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosines of vectors row by row: [N]"""
        return (_units(embeddings1) * _units(embeddings2)).sum(-1)


def _units(vectors: Any) -> Any:
    return unit(torch.atleast_2d(torch.as_tensor(vectors, dtype=torch.float32)))
