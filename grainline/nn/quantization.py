"""Embeddings in fewer bits, as sentence-transformers stores them.

float32, bfloat16  as they are, or rounded (a tensor: numpy has no bfloat16)
int8, uint8        256 levels between the smallest and the largest value of each dimension
binary, ubinary    one bit for each dimension, its sign; eight of them in an int8 (minus 128) or a uint8
"""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from grainline.errors import UserError

Precision = Literal["float32", "bfloat16", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def quantize(vectors: Tensor, precision: Precision, ranges: Tensor | None = None) -> Tensor:
    """Vectors [N, D] in another precision: [N, D], or [N, D / 8] for one bit a dimension.

    ranges  [2, D] smallest and largest values for int8 and uint8, to compare vectors of several calls; None:
            those of these vectors, which must then be two at least

    Raises UserError for an unknown precision, and for one vector without ranges.

    >>> quantize(torch.tensor([[0.5, -1.0, 2.0, -0.1, 3.0, -1.0, -1.0, 1.0]]), "ubinary")
    tensor([[169]], dtype=torch.uint8)
    """
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}")
    if precision in ("float32", "bfloat16"):
        return vectors.to(getattr(torch, precision))
    if precision in ("binary", "ubinary"):
        bits = np.packbits((vectors > 0).cpu().numpy(), axis=-1)
        signed = bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
        return torch.from_numpy(signed).to(vectors.device)
    if ranges is None:
        if len(vectors) < 2:
            raise UserError(
                f"{precision} takes its range from the vectors themselves, and one has none: encode several,"
                " or give ranges to grainline.nn.quantization.quantize"
            )
        ranges = torch.stack([vectors.amin(0), vectors.amax(0)])
    low, high = ranges.to(vectors)
    step = ((high - low) / 255).clamp(min=torch.finfo(vectors.dtype).tiny)
    level = ((vectors - low) / step).clamp(0, 255)
    return level.to(torch.uint8) if precision == "uint8" else (level - 128).to(torch.int8)
