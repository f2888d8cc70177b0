"""Pictures whose patches are chosen by the text they are compared with: what `seps` and `laps` share.

Of a pair there is no vector, so scores are computed pair by pair; many of them in `scoring.py`. All that a
picture says by itself is computed once: what each patch gives to each slot, how much it matters whatever the
text, and in SEPS all of the branch of the description. `Seen` holds it; `held` lays it out as tokens, which
is what an index keeps.
"""

import torch
from torch import Tensor, nn

from grainline.methods.patch_selection.fast_cosines import Turned
from grainline.methods.patch_selection.types import BEHIND, Choice, Decide, Seen, Told
from grainline.nn.pooling import unit
from grainline.nn.selection import (
    Predictor,
    Relevance,
    Slots,
    aggregated,
    hard_topk,
    kept_number,
    rated,
    rest,
    slot_number,
    stretched,
)
from grainline.types import Encoded, full


class Selector(nn.Module):
    """Scores of pairs, and all parameters that they have beside the encoders'."""

    def __init__(self, choice: Choice, width: int, patches: int) -> None:
        """patches  how many a picture has"""
        super().__init__()
        self.choice, self.width, self.number = choice, width, patches
        self.staying = kept_number(patches, choice.keep)
        slots = None if choice.aggregate is None else slot_number(patches, choice.keep, choice.aggregate)
        self.slots = None if slots is None else Slots(width, slots)
        self.slot_number = slots or 0
        self.predictor = Predictor(width) if choice.beta < 0.5 else None
        self.relevance = Relevance(choice.best, choice.matching, choice.leaky)

    @property
    def sparse(self) -> bool:
        """Whether a text chooses patches."""
        return self.choice.branches != "dense"

    @property
    def dense(self) -> bool:
        """Whether the description chooses patches in a branch of its own."""
        return self.choice.branches in ("both", "dense")

    def top(self, score: Tensor, image: Tensor, item: Tensor) -> Tensor:  # noqa: ARG002
        """The decisions of evaluation: the best patches, always as many."""
        return hard_topk(score, self.staying)

    # What a picture says by itself

    def seen(self, images: Encoded, decide: Decide, values: Tensor | None = None) -> Seen:
        """Pictures as `encode_images` of a method leaves them, with their patches and BEHIND more tokens.

        values  [n, L + 1, W] what tokens are made of in the place of patches and class token, which still
                decide; None: they themselves
        """
        patches = images.tokens[:, :-BEHIND]
        cls, told = images.tokens[:, -2], images.tokens[:, -1]
        made_of, cls = (patches, cls) if values is None else (values[:, :-1], values[:, -1])
        logits = (
            patches.new_zeros(len(patches), 0, self.number) if self.slots is None else self.slots(patches)
        )
        base, by_description = self._bases(patches, images.vector, told)
        nothing = made_of[:, :0]
        kept, merged, spare = torch.zeros_like(base), nothing, torch.zeros_like(cls)
        spared = images.mask.new_zeros(len(patches))
        if self.dense:
            alone = torch.full_like(images.image, -1)[:, None]
            kept = decide(by_description[:, None], images.image, alone)[:, 0]
            spare, spared = rest(by_description, made_of, kept)
            if self.slots is not None:
                merged = aggregated(logits, made_of, kept)
        return Seen(
            made_of,
            _lengths(made_of),
            logits,
            base,
            kept,
            merged,
            spare,
            spared,
            cls,
            images.mask[:, -2],
            images.image,
        )

    def _bases(self, patches: Tensor, image: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of patches by all but a text, [n, L], and with the description in its place."""
        beta = self.choice.beta
        with torch.no_grad():
            directions = unit(patches)
            by_image, by_told = (
                self._attention((directions @ x[..., None])[..., 0]) for x in (full(image), full(told))
            )
        own = None if self.predictor is None else self.predictor(patches)
        if self.choice.branches == "joint":
            return rated(own, by_told + 2 * by_image, beta) / (1 + 2 * beta), by_told
        return rated(own, by_image, beta), rated(own, by_image + by_told, beta)

    def _attention(self, cosine: Tensor) -> Tensor:
        """How much each patch matters by its cosine with a text, or with the image: [..., L]"""
        return stretched(cosine) if self.choice.stretch else full(cosine)

    @torch.no_grad()
    def held(self, images: Encoded) -> Encoded:
        """The same pictures with all that `Seen` knows as tokens: [N, L + 2, wider], in the same rows

        In the row of a patch: the patch, what it gives to each slot, its score, the decision by the
        description, and in the first C rows what that makes of the patches. Behind them the class token, and
        the rest.
        """
        if images.tokens.shape[-1] != self.width:
            return images
        x = self.seen(images, self.top)
        merged = nn.functional.pad(x.merged, (0, 0, 0, self.number - x.merged.shape[1]))
        columns = [x.patches, x.logits.mT, x.base[..., None], x.kept[..., None]]
        patches = torch.cat(columns + ([merged] if self._wide else []), -1)
        behind = torch.stack([x.cls, x.spare], 1)
        behind = nn.functional.pad(behind, (0, patches.shape[-1] - self.width))
        return images._replace(tokens=torch.cat([patches, behind.to(patches.dtype)], 1))

    @property
    def _wide(self) -> bool:
        return self.dense and self.slots is not None

    def unpacked(self, images: Encoded) -> Seen:
        """What `held` laid out, or would."""
        tokens = full(images.tokens)
        if tokens.shape[-1] == self.width:
            return self.seen(images._replace(tokens=tokens), self.top)
        patches, cls, spare = tokens[:, :-BEHIND], tokens[:, -2], tokens[:, -1]
        sizes = [self.width, self.slot_number, 1, 1, self.width if self._wide else 0]
        values, logits, base, kept, merged = patches.split(sizes, -1)
        spared = images.mask[:, -1] & (self.dense and self.staying < self.number)
        return Seen(
            values,
            _lengths(values),
            logits.mT,
            base[..., 0],
            kept[..., 0],
            merged[:, : self.slot_number if self._wide else 0],
            spare[:, : self.width],
            spared,
            cls[:, : self.width],
            images.mask[:, -2],
            images.image,
        )

    # What pairs are

    def choose(self, seen: Seen, query: Tensor, item: Tensor, decide: Decide) -> tuple[Tensor, Tensor]:
        """Scores of patches and decisions of each pair: [n, t, L] both"""
        share = self.choice.beta / (1 + 2 * self.choice.beta if self.choice.branches == "joint" else 1)
        with torch.no_grad():
            near = query @ seen.patches.mT / seen.length[:, None]  # [n, t, L]
            by_text = share * self._attention(near)
        score = seen.base[:, None] + by_text
        return score, decide(score, seen.image, item)

    def tile(self, seen: Seen, told: Told, decide: Decide, turned: Turned | None = None) -> Tensor:
        """Scores of n pictures with t texts each: [n, t]

        turned  the same pictures, where many texts are scored without gradients: the same in less time
        """
        score, kept = self.decided(seen, told, decide)
        if turned is None or kept is None:
            cosines, weights = self.met(self.compared(seen, score, kept), told, len(seen.image))
        else:
            met = self.met(self._others(seen, score, kept), told, len(seen.image))
            cosine = turned.cosines(told.words[0], kept)
            both = zip((cosine, cosine.new_ones(cosine.shape[:3])), met, strict=True)
            cosines, weights = (torch.cat(x, 2) for x in both)
        return self.relevance(cosines, weights, told.mask)

    def decided(self, seen: Seen, told: Told, decide: Decide) -> tuple[Tensor | None, Tensor | None]:
        """What `choose` says, or None and None where texts choose nothing."""
        return self.choose(seen, told.query, told.item, decide) if self.sparse else (None, None)

    def compared(self, seen: Seen, score: Tensor | None, kept: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """The tokens of each pair with their weights: of the patches that stay, of the rest, the class token

        [n, t or 1, P, W] and [n, t or 1, P] each
        """
        return [self._tokens(seen, kept), *self._others(seen, score, kept)]

    def met(self, parts: list[tuple[Tensor, Tensor]], told: Told, number: int) -> tuple[Tensor, Tensor]:
        """Cosines of tokens with words, [n, t, P, M], and the weights of the tokens, [n, t, P]."""
        shape = number, told.query.shape[1]
        cosines = [_cosines(x, told.words).expand(*shape, -1, -1) for x, _ in parts]
        return torch.cat(cosines, 2), torch.cat([weight.expand(*shape, -1) for _, weight in parts], 2)

    def _others(self, seen: Seen, score: Tensor | None, kept: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """The token of the rest, where there shall be one, and the class token."""
        rest_of = [self._rest(seen, score, kept)] if self.choice.rest else []
        return [*rest_of, (seen.cls[:, None, None], seen.classed[:, None, None].to(seen.cls.dtype))]

    def _tokens(self, seen: Seen, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """The patches that stay, or what they become, with weights: [n, t or 1, P, D] and [n, t or 1, P]"""
        patches = seen.patches[:, None]
        if self.slots is None:
            of = seen.kept[:, None]
            both = of if kept is None else 1 - (1 - of) * (1 - kept)
            return patches, both
        merged = seen.merged[:, None] if self.dense else 0.0
        if kept is not None:
            merged = merged + aggregated(seen.logits[:, None], patches, kept)
        assert isinstance(merged, Tensor)
        return merged, merged.new_ones(merged.shape[:3])

    def _rest(self, seen: Seen, score: Tensor | None, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """One token of what does not stay; of two branches the mean of theirs. [n, t or 1, 1, D], weight"""
        spare, spared = seen.spare[:, None], seen.spared[:, None].to(seen.spare.dtype)
        total, number = spare * spared[..., None], spared
        if score is not None and kept is not None:
            left, is_left = rest(score, seen.patches[:, None], kept)
            share = is_left.to(left.dtype)
            total, number = total + left * share[..., None], number + share
        token = total / number.clamp(min=1)[..., None]
        return token[:, :, None], (number > 0).to(token.dtype)[..., None]


def _cosines(tokens: Tensor, words: Tensor) -> Tensor:
    """Of tokens [n, t or 1, P, D] with unit words [n or 1, t, M, D]: [n, t or 1, P, M]"""
    length = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp(min=1e-12)
    if words.shape[0] == 1 and tokens.shape[1] > 1 and tokens.shape[2] == 1:  # no copies of words
        return torch.einsum("ntd,tmd->ntm", tokens[:, :, 0], words[0])[:, :, None] / length
    if words.shape[0] > 1 or tokens.shape[1] > 1:
        return (tokens @ words.mT) / length
    found = tokens[:, 0] @ words[0].flatten(0, 1).mT  # [n, P, t M]
    return found.unflatten(-1, words.shape[1:3]).transpose(1, 2) / length


def _lengths(patches: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.linalg.vector_norm(full(patches), dim=-1).clamp(min=1e-12)
