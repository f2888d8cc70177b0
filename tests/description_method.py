"""A method that reads descriptions, for tests of all that brings them to it, and a tiny recipe for it."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import both_ways
from grainline.methods.base import Method, dot
from grainline.nn.hashing import some_rows
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts

NAME = "reader"
RECIPE = """
method: reader
model:
  image: {name: toy/8, size: 32}
  text: {name: toy, vocab: 600, context: 16}
  width: 32
data:
  paths: ["scenes:train?count=16"]
  texts: {captions: first}
  workers: 0
train: {max_steps: 4, global_batch_size: 8, precision: fp32, log_every: 1, save_every: 2}
"""


class ReaderConfig(TowersConfig):
    """Encoders."""


class Reader(Method):
    """An image's vector is that of its pixels plus the mean of those of its description's windows.

    `pairwise`, so that an index keeps tokens.
    """

    config_class = ReaderConfig
    reads_descriptions = True

    def __init__(self, cfg: ReaderConfig) -> None:
        super().__init__(cfg)
        self.pairwise = True
        self.scale = nn.Parameter(torch.tensor(10.0))

    def encode_images(self, images: Images) -> Encoded:
        record = self.towers.encode_images(images)
        assert images.dense is not None, "no description"
        assert len(images.dense.ids) == len(images.image)
        assert torch.equal(images.dense.image, images.image)
        return record._replace(vector=F.normalize(record.vector + self.said(images.dense), dim=-1))

    def said(self, dense: Texts) -> Tensor:
        """The mean over the windows of each description: [N, D]"""
        there = dense.mask.any(-1)  # [N, S]
        number = there.nonzero()[:, 0]
        flat = Texts(dense.ids[there][:, None], dense.mask[there][:, None], number, number, number * 0)
        with some_rows(number):
            vectors = self.towers.encode_texts(flat).vector
        total = vectors.new_zeros(len(dense.ids), vectors.shape[1]).index_add(0, number, vectors)
        return total / there.sum(1, keepdim=True)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        return both_ways(lambda images, texts: self.scale * dot(images, texts), local, gathered)


def recipe(folder: Path) -> Path:
    """The tiny recipe as a file in a folder."""
    path = folder / "reader.yaml"
    path.write_text(RECIPE)
    return path


def file(path: Path, texts: dict[str, str]) -> Path:
    """A file of descriptions without a first line, as a user may write it."""
    path.write_text("".join(json.dumps({"image_id": k, "text": text}) + "\n" for k, text in texts.items()))
    return path
