"""Losses for one's own training loop: functions of tensors and ids that return a scalar with a gradient.

    from grainline.losses import info_nce

    loss = info_nce(image_vectors, text_vectors, log_scale.exp())

In all of them:
    image [N, D], text [M, D]  vectors of any length; they are brought to unit length here
    logit_scale, logit_bias    of one element: the scale itself, not its logarithm
    image_ids [N], text_ids [M] int64 tensors or lists: texts with the id of an image describe it; -1 = a text
               of no image, a negative of all. Only text_ids: they are rows of `image`. Neither: text i
               describes image i
    tokens [N, L, D]           of images; token_mask [N, L] bool, True = real; None: all are
    step, seed                 of random choices: sampled negatives, decisions of a selector
    gather     with several processes, compare with the rows of all of them: the mean of the gradients over
               processes, as DistributedDataParallel takes it, is that of one process with the whole batch.
               Processes may have different numbers of rows. False: each process for itself
Computed at least in float32, whatever autocast says; under autocast on a GPU, operands of large products are
bfloat16 and their sums float32 (`losses/tiled/scores.py`). UserError for a wrong shape, type or id.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from grainline.distributed import ddp_mean, largest, local_rows, rank, world_size
from grainline.distributed import gather as all_rows
from grainline.errors import UserError
from grainline.losses import calibrated
from grainline.losses.contrastive import TripletSchedule, both_triplets, both_ways, owner_of, sigmoid_loss
from grainline.losses.hide import MoLo, molo
from grainline.losses.text_conditioned import Negatives, flair_means, part_loss, part_pairs
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds, row_ids
from grainline.losses.tiled.scores import exact
from grainline.nn.patch_selection.scoring import graded
from grainline.nn.patch_selection.selector import SelectionExtra, Selector, gumbel_decisions
from grainline.nn.pooling import ConditionedPool, CrossPool, mean_pool, unit
from grainline.types import Clock, Encoded, Pair, Term, full

Scale = Tensor | float
Ids = Tensor | Sequence[int] | None


def info_nce(
    image: Tensor,
    text: Tensor,
    logit_scale: Scale,
    *,
    image_ids: Ids = None,
    text_ids: Ids = None,
    smoothing: float = 0.0,
    gather: bool = True,
) -> Tensor:
    """InfoNCE both ways, half each (CLIP, arXiv 2103.00020, figure 3): []

    Texts of one image are positives of equal weight. smoothing: of labels

    >>> image, text = torch.eye(2), torch.eye(2, requires_grad=True)
    >>> loss = info_nce(image, text, logit_scale=2.0)
    >>> loss.backward()
    >>> round(loss.item(), 4), text.grad.shape
    (0.1269, torch.Size([2, 2]))
    >>> round(info_nce(image[:1], text, 2.0, text_ids=torch.tensor([0, 0])).item(), 4)
    0.5635
    """
    local, every = _batch(image, text, image_ids, text_ids, gather)
    scale = _number("logit_scale", logit_scale, image)
    with exact(image):
        terms = both_ways(lambda a, b: scale * (a.vector @ b.vector.T), local, every, 1.0, smoothing)
        return _total(terms.values(), gather)


def sigmoid(
    image: Tensor,
    text: Tensor,
    logit_scale: Scale,
    logit_bias: Scale,
    *,
    image_ids: Ids = None,
    text_ids: Ids = None,
    gather: bool = True,
) -> Tensor:
    """Binary cross-entropy of all pairs, divided by the images (SigLIP, arXiv 2303.15343, equation 1): []

    >>> image, text = torch.eye(2), torch.eye(2, requires_grad=True)
    >>> loss = sigmoid(image, text, logit_scale=10.0, logit_bias=-10.0)
    >>> loss.backward()
    >>> round(loss.item(), 4), text.grad.shape
    (0.6932, torch.Size([2, 2]))
    """
    local, every = _batch(image, text, image_ids, text_ids, gather)
    scale, bias = _number("logit_scale", logit_scale, image), _number("logit_bias", logit_bias, image)
    with exact(image):
        return _total([Term(1.0, sigmoid_loss(local, every, scale, bias))], gather)


def himo_loss(
    image: Tensor,
    text: Tensor,
    logit_scale: Scale,
    *,
    image_ids: Ids = None,
    text_ids: Ids = None,
    settings: MoLo | None = None,
    gather: bool = True,
) -> Tensor:
    """MoLo of HiMo-CLIP (arXiv 2511.06653, equations 1 to 4): []

    InfoNCE with captions and with their principal parts in the batch. settings: threshold of the variance,
    weights and more, see `losses/hide.py`; a threshold outside (0, 1] is a UserError.

    >>> from grainline.losses import MoLo
    >>> image, text = torch.eye(4), torch.eye(4, requires_grad=True)
    >>> loss = himo_loss(image, text, logit_scale=2.0, settings=MoLo(threshold=0.8))
    >>> loss.backward()
    >>> loss.shape, text.grad.shape
    (torch.Size([]), torch.Size([4, 4]))
    """
    settings = settings or MoLo()
    if not isinstance(settings, MoLo):
        raise UserError(f"settings is a {type(settings).__name__}; it must be a grainline.losses.MoLo")
    if not 0 < settings.threshold <= 1:
        raise UserError(f"threshold is {settings.threshold:g}; it must be above 0 and at most 1")
    local, every = _batch(image, text, image_ids, text_ids, gather)
    scale = _number("logit_scale", logit_scale, image)
    with exact(image):
        return _total(molo(local, every, (scale, scale), settings).values(), gather)


def beta_cal(  # noqa: PLR0913, all but tensors by name; two thirds are signature and docstring
    tokens: Tensor,
    text: Tensor,
    pool: CrossPool | Callable[[Tensor, Tensor], Tensor],
    logit_scale: Scale,
    *,
    image_ids: Ids = None,
    text_ids: Ids = None,
    beta: float = 0.5,
    form: Literal["ce", "bce"] = "ce",
    divisor: Literal["rows", "pairs"] = "pairs",
    group: int | None = None,
    gather: bool = True,
) -> Tensor:
    """beta-CAL (beta-CLIP, arXiv 2512.12678, equations 1 to 5): [] Each text pools its own image.

    pool     `CrossPool`, or any module: texts [N, K, D], tokens [N, L, D] of unit length to [N, K, D]
    beta     weight of texts of one image for each other, from 0 to 1
    form     "ce": cross-entropy (equations 2, 3); "bce": binary (4, 5), divided by `divisor`
    group    images that are compared; None: all. The paper adds `info_nce` of images and captions

    >>> pool, tokens = CrossPool(8, heads=2), torch.randn(2, 5, 8)
    >>> text = torch.randn(4, 8, requires_grad=True)
    >>> loss = beta_cal(tokens, text, pool, 14.0, text_ids=torch.tensor([0, 0, 1, 1]))
    >>> loss.backward()
    >>> loss.shape, text.grad.shape
    (torch.Size([]), torch.Size([4, 8]))
    """
    if not 0 <= beta <= 1:
        raise UserError(f"beta is {beta:g}; it must be from 0 to 1")
    if form not in ("ce", "bce"):
        raise UserError(f"form is {form!r}; it must be ce or bce")
    _shape("tokens", tokens, (None, None, None))
    _pool(pool, tokens.shape[2])
    local = _local(tokens[:, :1].sum(1), text, image_ids, text_ids, gather)
    scale = _number("logit_scale", logit_scale, tokens)
    with exact(tokens):
        place = owner_of(local.texts.image, local.images.image)
        padding = len(local.images.item) - len(tokens)
        patches = torch.cat([full(tokens), full(tokens).new_zeros(padding, *tokens.shape[1:])])
        pooled = calibrated.pooled_by_own(pool, local.texts.vector, place, patches)
        texts = local.texts._replace(tokens=pooled[:, None], mask=place[:, None] >= 0)
        local, every = _gathered(Pair(local.images, texts), gather, ("vector", "tokens", "mask"))
        ids = calibrated.text_ids(every, group)
        alone = every.texts is local.texts
        pairs = PairMatrix(ids if alone else local_rows(ids, len(place)), ids, sibling=beta)
        if form == "bce":
            mean = calibrated.beta_bce(scale * pooled, every.texts.vector, pairs, divisor)
            return _total([Term(1.0, mean)], gather)
        scaled = scale * pooled, scale * local.texts.vector
        all_texts = every.texts.tokens[:, 0], every.texts.vector
        both = calibrated.beta_ce_ways(scaled, all_texts, pairs, alone)
        return _total([Term(0.5, mean) for mean in both], gather)


def flair_loss(  # noqa: PLR0913, all but tensors by name; two thirds are signature and docstring
    image: Tensor,
    tokens: Tensor,
    text: Tensor,
    pool: ConditionedPool,
    logit_scale: Scale,
    logit_bias: Scale,
    *,
    step: int,
    seed: int = 0,
    token_mask: Tensor | None = None,
    image_ids: Ids = None,
    text_ids: Ids = None,
    negatives: Negatives = "sampled",
    gather: bool = True,
) -> Tensor:
    """Both losses of FLAIR (arXiv 2412.03561, section 3), half each: []

    text       [M, D] as the text encoder gives them: the pooling reads their length
    pool       `grainline.nn.pooling.ConditionedPool`
    negatives  "sampled": one caption of every other image, others in each step; "all": their mean

    >>> pool, tokens = ConditionedPool(8, heads=2), torch.randn(2, 5, 8)
    >>> text = torch.randn(4, 8, requires_grad=True)
    >>> own = torch.tensor([0, 0, 1, 1])
    >>> loss = flair_loss(tokens.mean(1), tokens, text, pool, 14.0, -10.0, text_ids=own, step=0)
    >>> loss.backward()
    >>> loss.shape, text.grad.shape
    (torch.Size([]), torch.Size([4, 8]))
    """
    images, texts = _local(image, text, image_ids, text_ids, gather)
    images = _tokens_of(images, tokens, token_mask, "token_mask")
    scale, bias = _number("logit_scale", logit_scale, image), _number("logit_bias", logit_bias, image)
    _shape("text", text, (None, tokens.shape[2]))
    _pool(pool, tokens.shape[2])
    raw = texts._replace(vector=_padded(full(text), len(texts.item)))
    _, every = _gathered(Pair(images, raw), gather)
    parts = every.texts
    with exact(image):
        pairs = _part_pairs(images, row_ids(parts.item, parts.image), negatives, step, seed)
        pooled = part_loss(pool, (images.tokens, images.mask), parts.vector, pairs, scale, bias)
        means = flair_means(pooled, images, every.images.item, parts, scale, bias)
        return _total([Term(0.5, mean) for mean in means.values()], gather)


def caft_loss(  # noqa: PLR0913, all but tensors by name; two thirds are signature and docstring
    image: Tensor,
    tokens: Tensor,
    text: Tensor,
    parts: Tensor,
    pool: ConditionedPool,
    logit_scale: Scale,
    logit_bias: Scale,
    *,
    step: int,
    seed: int = 0,
    part_scale: Scale | None = None,
    part_bias: Scale | None = None,
    token_mask: Tensor | None = None,
    part_mask: Tensor | None = None,
    image_ids: Ids = None,
    text_ids: Ids = None,
    negatives: Negatives = "sampled",
    gather: bool = True,
) -> Tensor:
    """CAFT (arXiv 2602.02977, equations 8 and 9), added up: []

    tokens      segments of images
    parts       [M, S, D] sub-captions of texts, of any length; part_mask [M, S] bool, True = real
    pool, negatives        as for `flair_loss`
    part_scale, part_bias  of equation 8; None: the same as for the wholes

    >>> pool, tokens = ConditionedPool(8, heads=2), torch.randn(2, 5, 8)
    >>> text, parts = torch.randn(2, 8), torch.randn(2, 3, 8, requires_grad=True)
    >>> loss = caft_loss(tokens.mean(1), tokens, text, parts, pool, 14.0, -10.0, step=0)
    >>> loss.backward()
    >>> loss.shape, parts.grad.shape
    (torch.Size([]), torch.Size([2, 3, 8]))
    """
    images, texts = _local(image, text, image_ids, text_ids, gather)
    images = _tokens_of(images, tokens, token_mask, "token_mask")
    _shape("parts", parts, (len(text), None, tokens.shape[2]))
    _pool(pool, tokens.shape[2])
    scale, bias = _number("logit_scale", logit_scale, image), _number("logit_bias", logit_bias, image)
    part_scale = scale if part_scale is None else _number("part_scale", part_scale, image)
    part_bias = bias if part_bias is None else _number("part_bias", part_bias, image)
    local = Pair(images, _tokens_of(texts, parts, part_mask, "part_mask"))
    local, every = _gathered(local, gather, ("vector", "tokens", "mask"))
    texts, slots = every.texts, every.texts.mask.shape[1]
    real = texts.mask & ((texts.item >= 0) & (texts.image >= 0))[:, None]
    item = texts.item[:, None] * slots + torch.arange(slots, device=image.device)
    ids = row_ids(item.masked_fill(~real, -1).flatten(), texts.image[:, None].expand_as(item).flatten())
    with exact(image):
        pairs = _part_pairs(images, ids, negatives, step, seed)
        vectors, segments = texts.tokens.flatten(0, 1), (images.tokens, images.mask)
        part = part_loss(pool, segments, vectors, pairs, part_scale, part_bias)
        return _total([Term(1.0, part), Term(1.0, sigmoid_loss(local, every, scale, bias))], gather)


def seps_triplet(  # noqa: PLR0913, all but tensors by name; two thirds are signature and docstring
    tokens: Tensor,
    words: Tensor,
    selector: Selector,
    *,
    step: int,
    seed: int = 0,
    word_mask: Tensor | None = None,
    description: Tensor | None = None,
    image_ids: Ids = None,
    text_ids: Ids = None,
    margin: float = 0.2,
    hardest: bool = True,
    gather: bool = True,
) -> Tensor:
    """The triplet loss of SEPS (arXiv 2511.01390, equation 6), summed over the texts of all processes: []

    words        [M, W, D] of texts; word_mask [M, W] bool, True = real; None: all are
    selector     `grainline.nn.patch_selection.selector.Selector`, whose patches are L
    description  [N, D] of images, for a selector whose branches need it
    hardest      the hardest negative alone counts; False: all of them

    >>> from grainline.nn.patch_selection.selector import SelectionConfig
    >>> selector = Selector(SelectionConfig(keep_ratio=0.5, aggregation_ratio=0.5, beta=0.4), 8, 4)
    >>> tokens, words = torch.randn(3, 4, 8), torch.randn(3, 5, 8, requires_grad=True)
    >>> loss = seps_triplet(tokens, words, selector, step=0, hardest=False)
    >>> loss.backward()
    >>> loss.shape, words.grad.shape
    (torch.Size([]), torch.Size([3, 5, 8]))
    """
    _shape("tokens", tokens, (None, selector.number, selector.width))
    _shape("words", words, (None, None, selector.width))
    if selector.choice.branches != "sparse" and description is None:
        raise UserError(f"a selector with branches {selector.choice.branches} needs a description of images")
    mask = words.new_ones(words.shape[:2], dtype=torch.bool) if word_mask is None else word_mask
    _shape("word_mask", mask, (len(words), words.shape[1]))
    with exact(tokens):
        vector = mean_pool(full(tokens), tokens.new_ones(tokens.shape[:2], dtype=torch.bool)).vector
        text = mean_pool(full(words), mask).vector
        images, texts = _local(vector, text, image_ids, text_ids, gather)
        about = zeros = torch.zeros_like(images.vector)
        if description is not None:
            _shape("description", description, (len(tokens), selector.width))
            about = _padded(unit(description), len(images.item))
        extra = SelectionExtra(zeros, torch.zeros_like(images.item, dtype=torch.bool), about)
        images = _tokens_of(images, tokens, None, "tokens")._replace(extra=extra)
        local = Pair(images, _tokens_of(texts, words, mask, "word_mask"))
        local, every = _gathered(local, gather, ("vector", "tokens", "mask", "extra"), both=True)
        decide = selector.top if selector.predictor is None else gumbel_decisions(Clock(step, 0.0, seed))
        rule = TripletSchedule(margin, hardest, 1.0)
        return _total(both_triplets(graded(selector, decide), local, every, rule, 1.0).values(), gather)


def _batch(image: Tensor, text: Tensor, image_ids: Ids, text_ids: Ids, gather: bool) -> tuple[Pair, Pair]:
    """Vectors of unit length with ids: those of this process, and of all."""
    return _gathered(_local(image, text, image_ids, text_ids, gather), gather)


def _local(image: Tensor, text: Tensor, image_ids: Ids, text_ids: Ids, gather: bool) -> Pair:
    """The rows of this process, padded to the most of any process."""
    _shape("image", image, (None, None))
    _shape("text", text, (None, image.shape[1]))
    image_ids, text_ids = (
        torch.tensor(ids, device=image.device) if isinstance(ids, Sequence) else ids
        for ids in (image_ids, text_ids)
    )
    across = gather and world_size() > 1
    n, m = (largest(len(x), x.device) if across else len(x) for x in (image, text))
    start = rank() if across else 0
    if text_ids is None and len(image) != len(text):
        count = f"{len(image)} images and {len(text)} texts"
        raise UserError(f"{count}: text_ids must say which image each text describes")
    rows = torch.arange(len(image), device=image.device)
    if text_ids is None:
        text_ids = rows if image_ids is None else image_ids
    _ids("text_ids", text_ids, len(text), -1)
    if image_ids is None:
        if int(text_ids.max()) >= len(image):
            wrong = f"text_ids has {int(text_ids.max())}, and there are {len(image)} images"
            raise UserError(f"{wrong}; without image_ids they are rows of image")
        image_ids = rows + start * n
        text_ids = torch.where(text_ids < 0, text_ids, text_ids + start * n)
    _ids("image_ids", image_ids, len(image), 0)
    if not across and not bool(torch.isin(text_ids, image_ids).any()):
        raise UserError("no id of text_ids is in image_ids: no text describes an image of the batch")
    item = torch.arange(len(text), device=text.device) + start * m
    return Pair(_side(image, image_ids, image_ids, n), _side(text, item, text_ids, m))


def _side(vector: Tensor, item: Tensor, image: Tensor, number: int) -> Encoded:
    """Unit vectors and ids as rows, with padding up to a number."""
    vector = _padded(unit(vector), number)
    ids = (torch.cat([x, x.new_full((number - len(x),), -1)]) for x in (item, image))
    empty = vector.new_zeros(number, 0, vector.shape[1])
    return Encoded(vector, empty, empty.new_zeros(number, 0, dtype=torch.bool), *ids)


def _tokens_of(side: Encoded, tokens: Tensor, mask: Tensor | None, name: str) -> Encoded:
    """A side with tokens, in full precision."""
    _shape("tokens", tokens, (None, None, None))
    mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
    _shape(name, mask, (len(tokens), tokens.shape[1]))
    if len(tokens) > len(side.item) or mask.dtype != torch.bool:
        raise UserError(f"{name} must be bool, with as many rows of tokens as vectors")
    number = len(side.item)
    return side._replace(tokens=_padded(full(tokens), number), mask=_padded(mask, number))


def _gathered(
    local: Pair, gather: bool, fields: tuple[str, ...] = ("vector",), both: bool = False
) -> tuple[Pair, Pair]:
    """Local rows, and those of all processes: the same object if they are all. Fields are those of texts."""
    if not gather or world_size() == 1:
        return local, local
    ids = ("item", "image")
    images = all_rows(local.images, (*(fields if both else ("vector",)), *ids))
    return local, Pair(images, all_rows(local.texts, (*fields, *ids)))


def _part_pairs(images: Encoded, texts: RowIds, negatives: Negatives, step: int, seed: int) -> Any:
    if negatives not in ("sampled", "all"):
        raise UserError(f"negatives is {negatives!r}; it must be sampled or all")
    return part_pairs(row_ids(images.item, images.image), texts, negatives, Clock(step, 0.0, seed))


def _total(terms: Iterable[Term], gather: bool) -> Tensor:
    """The weighted sum of means, whose average over processes is that over all rows."""
    values = []
    for weight, mean in terms:
        if weight is not None:
            alone = mean.total / mean.number.detach().float().clamp(min=1e-8)
            values.append(weight * (ddp_mean(mean) if gather else alone))
    return torch.stack(values).sum()


def _padded(x: Tensor, number: int) -> Tensor:
    return torch.cat([x, x.new_zeros(number - len(x), *x.shape[1:])])


def _number(name: str, value: Scale, like: Tensor) -> Tensor:
    """A scale or bias as a tensor [1]."""
    value = value if isinstance(value, Tensor) else torch.tensor(float(value))
    if value.numel() != 1:
        raise UserError(f"{name} has shape {list(value.shape)}; it must have one element")
    return value.to(like.device, full(like).dtype).reshape(1)


def _shape(name: str, x: Tensor, shape: tuple[int | None, ...]) -> None:
    """UserError for no tensor, one without rows, or one of another shape; None: any size."""
    if not isinstance(x, Tensor):
        raise UserError(f"{name} is a {type(x).__name__}; it must be a torch tensor")
    fits = x.dim() == len(shape) and all(b is None or a == b for a, b in zip(x.shape, shape, strict=True))
    if not fits or not len(x):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise UserError(f"{name} has shape {list(x.shape)}; it must be [{wanted}], with a row or more")


def _pool(pool: Any, width: int) -> None:
    """UserError for a pool of another width than the tokens."""
    query = getattr(pool, "to_query", None)
    if isinstance(query, nn.Linear) and query.in_features != width:
        raise UserError(f"pool reads vectors of {query.in_features} numbers, and tokens have {width}")


def _ids(name: str, ids: Tensor, number: int, least: int) -> None:
    if ids.dtype != torch.int64 or ids.shape != (number,):
        raise UserError(f"{name} is {ids.dtype} {list(ids.shape)}; it must be int64 [{number}]")
    if int(ids.min()) < least:
        raise UserError(f"{name} has {int(ids.min())}; the least id is {least}")
