"""A bag of words: a fixed vocabulary of tokens, and how often each word is seen in an image or a text.

The visual words of Sivic & Zisserman (ICCV 2003), with soft assignments (van Gemert et al., TPAMI 2010), over
the tokens of a pretrained encoder, of texts as well. The vocabulary is a spherical k-means of tokens of
some training samples (`fit`). It does not learn with the model, but what an encoder gives for it may.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from grainline.errors import UserError
from grainline.files import writing
from grainline.nn.pooling import mean_pool, unit
from grainline.nn.runtime import is_static
from grainline.types import full

DIGEST = 8  # numbers that are as long as a digest
LIMIT = 2**16  # histograms in memory: 256 MiB for 1,024 words
ROUNDS = 3  # of k-means; after two, more change little


class BagOfWords(nn.Module):
    """Soft assignments of tokens to the words of a vocabulary."""

    centre: Tensor
    words: Tensor

    def __init__(self, number: int, width: int, temperature: float) -> None:
        """number of words, width of tokens, temperature of the softmax over cosines"""
        super().__init__()
        self.temperature = temperature
        self.register_buffer("centre", torch.zeros(width))  # the mean token
        self.register_buffer("words", torch.zeros(number, width))  # of unit length; 0 before `fit`
        self.histograms: dict[bytes, Tensor] = {}  # by the digest of tokens
        self.file: Path | None = None  # where they are kept
        self.version = -1  # of the words that they are of

    def forward(self, tokens: Tensor) -> Tensor:
        """The share of each word in each token: [..., W] -> [..., K], rows sum to 1

        softmax over k of cos(token - centre, words[k]) / temperature
        """
        return (full(unit(tokens - self.centre) @ self.words.T) / self.temperature).softmax(-1)

    def histogram(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The mean share of each word among the real tokens: [N, L, W], [N, L] -> [N, K], 0 without one"""
        if is_static():
            return mean_pool(self(tokens), mask).vector
        lengths = mask.sum(1)
        # Most of long and short texts together is padding. Not index_add: on a GPU each run has other bits.
        sums = torch.segment_reduce(self(tokens[mask]), "sum", lengths=lengths, initial=0)
        return sums / lengths[:, None].clamp(min=1)

    @torch.no_grad()
    def cached_histogram(
        self, rows: Iterable[Tensor], folder: Path | None, prepare: Callable[[Tensor], Tensor] = full
    ) -> Tensor:
        """The mean share of each word, counted once for equal tokens, on a CPU: N rows [L, W] -> [N, K]

        folder   where histograms are kept for the next runs, with a file for each vocabulary
        prepare  makes tokens of a row: alone, so a resumed run has equal bits
        """
        if self.version != self.words._version:  # other words were found, or loaded
            self.version = self.words._version
            self.histograms, self.file = self._read(folder)
        out, more = [], b""
        for row in rows:
            key = sha256(row.contiguous().view(torch.uint8).numpy().data).digest()
            if (histogram := self.histograms.get(key)) is None:
                histogram = self(prepare(row)).sum(0) / max(1, len(row))
                if len(self.histograms) < LIMIT:
                    self.histograms[key] = histogram
                    more += key + histogram.numpy().tobytes()
            out.append(histogram)
        if self.file is not None and more:
            with (
                writing(self.file, "set GRAINLINE_CACHE to another folder"),
                open(self.file, "ab", 0) as target,
            ):
                target.write(more)
        return torch.stack(out)

    def _read(self, folder: Path | None) -> tuple[dict[bytes, Tensor], Path | None]:
        """Histograms of earlier runs with these words, and their file. UserError where it is damaged."""
        if folder is None:
            return {}, None
        content = [*(x.numpy().tobytes() for x in (self.centre, self.words)), str(self.temperature).encode()]
        file = folder / f"{sha256(b''.join(content)).hexdigest()[:16]}.words"
        table = np.fromfile(file, np.float32) if file.is_file() else np.zeros(0, np.float32)
        size = DIGEST + len(self.words)
        table = table[: len(table) // size * size].reshape(-1, size)
        shares = torch.from_numpy(table[:, DIGEST:])
        if not bool(((shares >= 0) & (shares <= 1)).all()):
            raise UserError(f"{file} was changed or cut: delete it, and training makes it again")
        return {row[:DIGEST].tobytes(): share for row, share in zip(table, shares, strict=True)}, file

    @torch.no_grad()
    def fit(self, tokens: Tensor) -> None:
        """Find the words among at least as many tokens [R, W]; the same tokens give the same words."""
        self.centre.copy_(tokens.mean(0))
        x = unit(tokens - self.centre)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(self.words)]
        words = x[order.to(x.device)]
        for _ in range(ROUNDS):
            nearest = torch.cat([(part @ words.T).argmax(1) for part in x.split(4096)])
            sums = torch.zeros_like(words).index_add_(0, nearest, x)
            words = torch.where(sums.any(1, keepdim=True), unit(sums), words)  # a word without tokens stays
        self.words.copy_(words)
