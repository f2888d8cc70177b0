"""What a `Selector` keeps of pictures for texts, and what words find there, as it is scored: for figures.

Every token that is compared is a mean of patches, or the class token. So the same steps, with a unit vector
in the place of each of these, say how much of each is in a token.
"""

import torch

from grainline.methods.patch_selection.selector import Selector
from grainline.methods.patch_selection.types import CLASS, PATCH, REST, SLOT, Kept, beside
from grainline.types import Encoded


@torch.no_grad()
def keeps(selector: Selector, images: Encoded, texts: Encoded) -> Kept:
    """Picture i with text i. images: as `encode_images` of a method leaves them

    for each pair:
        token[m] = the real token p with the greatest cosine[p, m]; found[m] = that cosine
        made_of[p] = shares of patches in token p: of a slot the mean of the weights that each branch gives it
    """
    told = beside(texts)
    seen = selector.seen(images, selector.top)
    score, kept = selector.decided(seen, told, selector.top)
    parts = selector.compared(seen, score, kept)
    cosine, weight = (x[:, 0] for x in selector.met(parts, told, len(seen.image)))
    real = weight > 0
    masked = cosine.masked_fill(~real[..., None], -torch.inf)
    token = masked.argmax(1)
    units = torch.eye(selector.number + 1, dtype=seen.patches.dtype, device=seen.patches.device)
    alike = selector.seen(images, selector.top, units.expand(len(seen.image), -1, -1))
    made_of = torch.cat([x.expand(len(real), 1, -1, -1) for x, _ in selector.compared(alike, score, kept)], 2)
    total = made_of.sum(-1, keepdim=True)
    kinds = [SLOT if selector.slots else PATCH, *([REST] if selector.choice.rest else []), CLASS]
    return Kept(
        None if kept is None else kept[:, 0] > 0,
        seen.kept > 0 if selector.dense else None,
        selector.relevance(cosine, weight, told.mask[:, 0]),
        [kind for kind, (x, _) in zip(kinds, parts, strict=True) for _ in range(x.shape[2])],
        (made_of / total.clamp(min=torch.finfo(total.dtype).tiny))[:, 0],
        real,
        told.mask[:, 0],
        token,
        masked.gather(1, token[:, None])[:, 0],
    )
