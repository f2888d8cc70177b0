"""Models without weights for tests of suites, which read words and colours, and a source of given records."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from grainline.data.record import CorruptSample, Record
from grainline.data.texts import TokenizedParts
from grainline.types import Encoded

D = 6


class Cosine:
    """Dot product, or pair by pair: the best of the real tokens of a text; notes how many it scored."""

    blockwise = False

    def __init__(self, pairwise: bool = False) -> None:
        self.pairwise = pairwise
        self.scored: list[tuple[int, int]] = []

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        assert self.pairwise, "vectors are compared without the method"
        self.scored.append((len(images.vector), len(texts.vector)))
        cosine = torch.einsum("nd,mld->nml", images.vector, texts.tokens)
        return cosine.masked_fill(~texts.mask, -torch.inf).amax(-1)


class Reader:
    """A text is the mean of random vectors of its first words, an image a random vector of its colour."""

    lean = 0.5  # how much all words look one way, which keeps scores away from 0

    def __init__(self, pairwise: bool = False, context: int = 1000, seed: int = 0) -> None:
        self.method, self.context, self.seed = Cosine(pairwise), context, seed
        self.texts = list[str]()  # that were encoded
        self.images = 0

    def random(self, what: object, number: int = 1) -> Tensor:
        """The same unit vectors [number, D] each time."""
        g = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {what}".encode()))
        return F.normalize(torch.randn(number, D, generator=g) + self.lean, dim=1)

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        """The vector [D] and the tokens [L, D] of a text."""
        tokens = torch.cat([self.random(word) for word in text.split()[: self.context]])
        return F.normalize(tokens.mean(0), dim=0), tokens

    def patches(self, image: Image.Image) -> Tensor:
        """The tokens of an image, [P, D], whose mean is its vector."""
        return self.random(image.getpixel((0, 0)))

    def read(self, texts: Sequence[str]) -> TokenizedParts:
        words = [text.split() for text in texts]
        ids = [[[zlib.crc32(word.encode()) for word in one[: self.context]]] for one in words]
        return TokenizedParts(ids, [max(0, len(one) - self.context) for one in words])

    def encode(
        self, *, images: Sequence[Image.Image] | None = None, texts: Sequence[str] | None = None
    ) -> Encoded:
        if images is not None:
            self.images += len(images)
            tokens = [self.patches(image) for image in images]
            return encoded(torch.stack([F.normalize(x.mean(0), dim=0) for x in tokens]), tokens)
        self.texts += texts or []
        vectors, tokens = zip(*map(self.of, texts or []), strict=True)
        cut = torch.tensor(self.read(texts or []).truncated)
        return encoded(torch.stack(vectors), tokens)._replace(truncated=cut)

    def score(self, image: Image.Image, text: str) -> float:
        """The same in float64, of one image and one text."""
        v, tokens = F.normalize(self.patches(image).double().mean(0), dim=0), self.of(text)[1].double()
        if self.method.pairwise:
            return max(float(v @ token) for token in tokens)
        mean = sum(tokens, torch.zeros(D).double()) / len(tokens)
        return float(v @ mean) / float(mean.norm())


class Colours(Reader):
    """Knows the mean colour of an image, and reads texts of the form "250 10 10 ..."."""

    def __init__(self, pairwise: bool = False) -> None:
        super().__init__(pairwise, context=4)
        self.batches: list[int] = []

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        words = text.split()
        vector = F.normalize(torch.tensor([float(word) for word in words[:3]]), dim=0)
        return vector, vector.expand(len(words), -1)

    def patches(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(image)).float().mean((0, 1))[None]

    def encode(self, **sides: Any) -> Encoded:
        out = super().encode(**sides)
        self.batches.append(len(out.vector))
        return out


def encoded(vector: Tensor, tokens: Sequence[Tensor] = ()) -> Encoded:
    """Rows with these vectors, and tokens padded with nines; of no image."""
    n, length = len(vector), max(map(len, tokens), default=0)
    mask = torch.tensor([[i < len(x) for i in range(length)] for x in tokens]).view(n, length).bool()
    padded = [F.pad(x, (0, 0, 0, length - len(x)), value=9.0) for x in tokens]
    tokens_ = torch.stack(padded) if padded else torch.zeros(n, 0, vector.shape[1])
    return Encoded(vector, tokens_, mask, torch.arange(n), torch.arange(n))


class InMemory:
    """A source of given records; an exception in their place is raised."""

    path = "memory:test"

    def __init__(self, records: Sequence[Record | CorruptSample]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        record = self.records[index]
        if isinstance(record, CorruptSample):
            raise record
        return record

    def fingerprint(self) -> str:
        return "f00"


def coloured(texts: Sequence[str]) -> list[Record]:
    """A record for each text, with an image of a colour of its own."""
    return [
        Record(f"p{i}", Image.new("RGB", (2, 2), (i % 256, i // 256, 0)), (text,))
        for i, text in enumerate(texts)
    ]
