"""What grainline makes of the inputs of golden cases. Only this file of the golden tests knows grainline.

`CASES` has a function for each kind of case. It takes the inputs of a case and returns an `Outcome`.
"""

import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from golden import inputs
from golden.inputs import FLOAT, Case, normal
from grainline.config import parse
from grainline.distributed import ddp_mean
from grainline.evaluation.statistics import ranks
from grainline.evaluation.suites.monotonicity import correlation
from grainline.evaluation.suites.phrases import overlap
from grainline.losses.contrastive import TripletSchedule, both_triplets, both_ways
from grainline.losses.hide import principal_part
from grainline.losses.text_conditioned import pooled_scores
from grainline.losses.tiled.pair_mask import PairMatrix
from grainline.methods.base import Method
from grainline.methods.beta_clip import BetaCLIP, BetaCLIPConfig, BetaCLIPExtra
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.methods.flair import FLAIR, FLAIRConfig
from grainline.methods.himo import HiMo, HiMoConfig
from grainline.methods.laps import LAPS, LAPSConfig
from grainline.methods.maxsim import MaxSim, MaxSimConfig
from grainline.methods.patch_words import summary
from grainline.methods.siglip import SigLIP, SigLIPConfig
from grainline.methods.text_parts import row_ids
from grainline.methods.tgt import TGT, TGTConfig
from grainline.nn.attention import Block, ValueAttention
from grainline.nn.grouping import GraphPool, GroupingBlock, farthest_points
from grainline.nn.patch_selection.selector import SelectionExtra
from grainline.nn.pooling import ConditionedPool, CrossPool, unit
from grainline.nn.positions import to_context
from grainline.nn.selection import Relevance
from grainline.training.step import Objective
from grainline.types import CAPTION, PHRASE, SENTENCE, Clock, Encoded, Images, Pair, Term, Texts

TINY = {
    "image": {"name": "toy/4", "size": 8},
    "text": {"name": "toy", "vocab": 300, "context": 24},
    "width": 16,
}
METHODS: dict[str, tuple[type, type]] = {
    "clip": (CLIP, CLIPConfig), "siglip": (SigLIP, SigLIPConfig), "maxsim": (MaxSim, MaxSimConfig),
    "himo": (HiMo, HiMoConfig), "beta_clip": (BetaCLIP, BetaCLIPConfig), "flair": (FLAIR, FLAIRConfig),
    "laps": (LAPS, LAPSConfig), "tgt": (TGT, TGTConfig),
}  # fmt: skip
TEXT_GROUPS = {
    "image": {
        "width": 16, "depth": 1, "heads": 2, "patch": 8, "size": 16, "stem": "conv", "pool": "mean",
    },
    "text": {
        "groups": 4, "width": 32, "depth": 2, "later": 1, "heads": 4, "vocab": 300, "context": 20,
    },
    "width": 24,
}  # fmt: skip


class Outcome(NamedTuple):
    """What comes out of a case."""

    value: Tensor
    gradients: tuple[Tensor, ...] = ()
    soft: Tensor | None = None  # of a grouping block: the soft assignment


def made(name: str, **changes: Any) -> Any:
    """A method in float64."""
    method, config = METHODS[name]
    return method(parse(config, TINY | changes, "golden case")).double().eval()


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


def outcome(value: Tensor, by: list[Tensor], along: Tensor | None = None) -> Outcome:
    """The value, and gradients of it, or of the sum of value x along, by some tensors."""
    total = value if along is None else (value * along).sum()
    result = torch.autograd.grad(total, by, materialize_grads=True, allow_unused=True)
    return Outcome(value.detach(), result)


def ramp(value: Tensor) -> Tensor:
    return torch.linspace(-1, 1, value.numel(), dtype=FLOAT).view(value.shape)


def side(
    vector: Tensor, tokens: Tensor | None = None, item: Tensor | None = None, image: Tensor | None = None,
    mask: Tensor | None = None,
) -> Encoded:  # fmt: skip
    """A side of a batch; rows have ids of their own where none are given, and all tokens are real."""
    row = torch.arange(len(vector))
    tokens = vector[:, None] if tokens is None else tokens
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
    return Encoded(vector, tokens, mask, row if item is None else item, row if image is None else image)


def total(terms: dict[str, Term]) -> Tensor:
    values = [term.weight * ddp_mean(term.mean) for term in terms.values() if term.weight is not None]
    return torch.stack(values).sum()


def loss(method: Method, pair: Pair) -> Tensor:
    return total(method.loss(pair, pair, Clock()))


def filled(module: nn.Module, seed: int) -> Any:
    """All parameters in their order, 0.3 times normal numbers; scales of norms lie about 1."""
    draw = normal(seed)
    norms = {id(one.weight) for one in module.modules() if isinstance(one, nn.LayerNorm)}
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(0.3 * draw(*parameter.shape) + float(id(parameter) in norms))
    return module


# Losses of the batch


def contrastive(c: Case) -> Outcome:
    images, texts = leaves(*inputs.sides(c))
    method = made(c["loss"], scale=14.0)
    return outcome(loss(method, Pair(side(unit(images)), side(unit(texts)))), [images, texts])


def info_nce(c: Case) -> Outcome:
    (both,) = leaves(normal(c["seed"])(2, 10, 6))
    pair = Pair(*(side(unit(x)) for x in both))
    return outcome(total(both_ways(lambda a, b: a.vector @ b.vector.T / 0.07, pair, pair)), [both])


def himo(c: Case) -> Outcome:
    images, texts = leaves(*inputs.sides(c))
    method = made("himo", scale=20.0, max_scale=None, threshold=c["tau"], **c["model"])
    return outcome(loss(method, Pair(side(unit(images)), side(unit(texts)))), [images, texts])


def flair_loss(c: Case) -> Outcome:
    """One of the two losses, both of which the method halves, by all that it reads."""
    batch, number = inputs.flair(c), c["B"]
    scale, bias = torch.tensor([14.0], dtype=FLOAT), torch.tensor([-10.0], dtype=FLOAT)
    texts, patches, vectors, scale, bias = leaves(batch.texts, batch.patches, batch.summaries, scale, bias)
    method = made("flair", heads=c["heads"])
    filled(method.pool, c["seed"] + 2)
    del method.scale.log_scale, method.bias
    method.scale.log_scale, method.bias = scale.log(), bias
    owner = torch.arange(number).repeat_interleave(c["K"])
    pair = method.before_gather(
        Pair(side(unit(vectors), patches), side(unit(texts), texts[:, None], image=owner))
    )
    # Columns are captions on a GPU, and images on a CPU.
    drawn = "grainline.losses.tiled.pair_mask.hash_pairs"
    with patch(drawn, lambda _, images, of_cols: batch.negatives[images][:, of_cols]):
        result = ddp_mean(method.loss(pair, pair, Clock())[c["term"]].mean)
    by = [texts, patches] if c["term"] == "pooled" else [vectors, texts]
    return outcome(result, [*by, scale, bias])


def beta_clip(c: Case) -> Outcome:
    batch = inputs.grained(c)
    number, each = batch.mask.shape
    method = made(
        "beta_clip", scale=14.0, pool_scale=12.0, heads=4, beta=c["beta"], form=c["form"], **c["model"]
    )
    filled(method.pool, c["seed"] + 2)
    by = leaves(batch.cls, batch.texts, batch.patches)
    row, empty = torch.arange(number * each), ~batch.mask.flatten()
    level = torch.tensor([CAPTION] + [SENTENCE] * c["S"] + [PHRASE] * c["P"]).repeat(number)
    vectors = unit(by[1]).flatten(0, 1)
    texts = side(vectors, None, row.masked_fill(empty, -1), (row // each).masked_fill(empty, -1))
    texts = texts._replace(extra=BetaCLIPExtra(level, vectors[:, :0]))
    return outcome(loss(method, method.before_gather(Pair(side(unit(by[0]), by[2]), texts))), by)


def triplets(c: Case) -> Outcome:
    (score,) = leaves(0.3 * normal(c["seed"])(12, 12))
    nothing, image = torch.zeros(12, 2), torch.arange(12) // c["share"]
    pair = Pair(side(nothing, item=image, image=image), side(nothing, image=image))
    rule = TripletSchedule(0.2, c["hardest"], 1.0)
    return outcome(total(both_triplets(lambda *_: score, pair, pair, rule, 1.0)), [score])


def several(c: Case) -> Outcome:
    """A method whose images have several texts each, by vectors and tokens of both sides."""
    batch = inputs.several(c)
    by = leaves(batch.images, batch.tokens, batch.texts, batch.parts)
    method = made(c["method"], **c["model"])
    images = side(unit(by[0]), unit(by[1]), batch.image, batch.image, batch.real_tokens)
    texts = side(unit(by[2]), unit(by[3]), batch.item, batch.owner, batch.real_parts)
    return outcome(loss(method, Pair(images, texts)), by)


# Parts of methods


def positions(c: Case) -> Outcome:
    return Outcome(to_context(normal(c["seed"])(77, c["d"]), 248, "keep"))


def principal(c: Case) -> Outcome:
    along, texts = inputs.sides(c)
    (texts,) = leaves(texts)
    result = principal_part(unit(texts), torch.ones(c["n"], dtype=torch.bool), c["tau"]).rows
    return outcome(result, [texts], along)


def text_pool(c: Case) -> Outcome:
    batch = inputs.flair(c)
    by = leaves(batch.texts.unflatten(0, (c["B"], c["K"])), batch.patches)
    pool = filled(ConditionedPool(c["d"], c["heads"]), c["seed"] + 2)
    return outcome(pool(*by).vector, by, normal(c["seed"] + 3)(c["B"], c["K"], c["d"]))


def pooled(c: Case) -> Outcome:
    draw = normal(c["seed"])
    texts, patches = draw(c["M"], c["K"], c["d"]), draw(c["N"], c["L"], c["d"])
    pool = filled(ConditionedPool(c["d"], c["heads"]), c["seed"] + 2)
    return Outcome(pooled_scores(pool, pool.keys(patches), texts).detach())


def cross_pool(c: Case) -> Outcome:
    draw = normal(c["seed"])
    by = leaves(unit(draw(c["B"], c["K"], c["d"])), unit(draw(c["B"], c["L"], c["d"])))
    pool = filled(CrossPool(c["d"], c["heads"], 4.0, c["norm"]), c["seed"] + 2)
    return outcome(pool(*by), by, draw(c["B"], c["K"], c["d"]))


def value_block(c: Case) -> Outcome:
    draw = normal(c["seed"])
    by = leaves(draw(3, 17, c["d"]))
    block = filled(Block(c["d"], c["heads"], 4.0, 0.0, ValueAttention), c["seed"] + 2)
    return outcome(block(*by), by, draw(3, 17, c["d"]))


def calibration(c: Case) -> Outcome:
    """Weights of the second to fourth text of an image beside the first, to two decimals as printed."""
    keys = row_ids(torch.arange(c["K"]), torch.zeros(c["K"], dtype=torch.int64))
    weight = PairMatrix(keys, keys, 1.0, c["beta"], c["decay"]).where(dtype=FLOAT).weight
    return Outcome((100 * weight[0, 1:4]).round() / 100)


def graph_pool(c: Case) -> Outcome:
    draw = normal(c["seed"])
    x, cls = leaves(draw(c["N"], c["L"], c["d"]), draw(c["N"], c["d"]))
    pool = filled(GraphPool(c["d"], c["heads"], c["M"], dropout=0.0), c["seed"] + 2)
    result = pool(x, cls, torch.ones(x.shape[:2], dtype=torch.bool))
    assert result.picked.tolist() == c["picks"]
    value = torch.cat([result.tokens.flatten(), result.cls.flatten()])
    return outcome(value, [x, cls], normal(c["seed"] + 3)(len(value)))


def picks(c: Case) -> Outcome:
    result = farthest_points(normal(c["seed"])(c["N"], c["L"], c["d"]), None, c["M"])
    return Outcome(result.token.sort(1).values.to(FLOAT))


def laps(c: Case) -> Outcome:
    """Scores of all pairs, by patches, words and both layers of the aggregation."""
    batch, width, number = inputs.laps(c), c["width"], c["patches"]
    method = made(
        "laps", image={"name": "toy/4", "size": 4 * round(number**0.5)}, width=width, keep_ratio=c["keep"],
        aggregation_ratio=c["aggregate"],
    )  # fmt: skip
    slots = method.selector.slots
    norm, first, _, second = slots.mlp
    own = (norm.weight, norm.bias, first.weight, first.bias, second.weight, slots.scale)
    with torch.no_grad():
        for parameter, value in zip(own, batch.weights, strict=True):
            parameter.copy_(value)
    patches, words = leaves(batch.patches, batch.words)
    zeros, mask = torch.zeros(4, width, dtype=FLOAT), torch.ones(4, number, dtype=torch.bool)
    has_cls = torch.full((4,), batch.cls is not None)
    extra = SelectionExtra(zeros if batch.cls is None else batch.cls, has_cls, zeros)
    images = side(summary(patches, mask), patches, mask=mask)._replace(extra=extra)
    texts = side(summary(words, batch.mask), words, mask=batch.mask)
    result = method.score(images, texts)
    return outcome(result, [patches, words, first.weight, second.weight], ramp(result))


def relevance(c: Case) -> Outcome:
    """The mean of what patches and words find, and the same with negative cosines at a tenth."""
    cosine = torch.tensor(c["cosines"], dtype=FLOAT)
    weight, real = torch.ones(len(cosine), dtype=FLOAT), torch.ones(cosine.shape[1], dtype=torch.bool)
    ways = [Relevance(2, "mean", leaky=leaky).double() for leaky in (False, True)]
    return Outcome(torch.stack([way(cosine, weight, real) for way in ways]).detach())


def grouping(c: Case) -> Outcome:
    batch = inputs.grouping(c)
    block = GroupingBlock(c["width"], c["groups"], c["heads"]).double().train(c["train"])
    with torch.no_grad():
        for name, (weight, bias) in batch.weights.items():
            layer = block.get_submodule(name)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    by = leaves(batch.groups, batch.tokens)
    with patch("grainline.nn.grouping.gumbel", lambda like: batch.noise.to(like.dtype)):
        result = block(*by, torch.ones(batch.tokens.shape[:2], dtype=torch.bool))
    return outcome(result.groups, by, ramp(result.groups))._replace(soft=result.soft)


# Text groups as a whole


def text_groups(c: Case, **changes: Any) -> tuple[Any, Images, Texts]:
    """A small model whose parameters are drawn by name, and its batch.

    The values are those of a stem whose windows all begin before their cells.
    """
    method, draw = made("tgt", **TEXT_GROUPS, **changes), normal(c["weights"])
    for layer in method.modules():
        if isinstance(layer, nn.ZeroPad2d):
            layer.padding = (1, 0, 1, 0)
    with torch.no_grad():
        for parameter in by_name(method):
            size = 0.3 if parameter.dim() < 2 else 1.0 / parameter.shape[-1] ** 0.5
            parameter.copy_(draw(*parameter.shape) * size)
    pixels, ids, mask = inputs.words(c)
    row = torch.arange(12)
    texts = Texts(ids[:, None], mask[:, None], row, row, torch.zeros(12, dtype=torch.int64))
    return method, Images(pixels, row), texts


def by_name(method: nn.Module) -> list[nn.Parameter]:
    """Parameters in the order of their names, numbers by size."""
    numbered = {re.sub(r"\d+", lambda m: m[0].zfill(3), n): p for n, p in method.named_parameters()}
    return [numbered[name] for name in sorted(numbered)]


def gradcache(c: Case) -> Outcome:
    """The loss of a step in chunks, by all parameters in the order of their names, as one vector."""
    method, images, texts = text_groups(c, reconstruction=0.0)
    torch.manual_seed(c["noise"])
    number = -(-len(images.image) // c["chunk"])
    noise: list[torch.Tensor] = []  # of each chunk, as torch draws it in the first pass
    calls = itertools.count()

    def drawn(share: torch.Tensor) -> torch.Tensor:
        call = next(calls)
        if call < number:
            noise.append(-torch.empty(share.shape, dtype=FLOAT).exponential_().log())
        return noise[call] if call < number else noise[2 * number - 1 - call]  # backward goes back

    with patch("grainline.nn.grouping.gumbel", drawn):
        result = Objective(method.train())(images, texts, Clock(), c["chunk"]).total
        result.backward()
    each = [p.grad.flatten() for p in by_name(method) if p.grad is not None]
    return Outcome(result.detach(), (torch.cat(each),))


def reconstruction(c: Case) -> Outcome:
    method, _, texts = text_groups(c)
    terms = method.row_loss(texts, method.encode_texts(texts))
    return outcome(ddp_mean(terms["reconstruction"].mean), [method.words.weight])


# Measures


def monotonicity(c: Case) -> Outcome:
    return Outcome(torch.tensor(correlation(normal(c["seed"])(c["K"]).tolist()), dtype=FLOAT))


def recalls(c: Case) -> Outcome:
    """Recalls at 1, 5 and 10 of images that look for texts, and of texts, in percent; sum of all ranks."""
    score = inputs.ranked(c)
    own = torch.arange(200) // 5 == torch.arange(40)[:, None]
    both = ranks(score, own).rank, ranks(score.T, own.T).rank
    recall = [100 * float((x <= k).double().mean()) for x in both for k in (1, 5, 10)]
    return Outcome(torch.tensor([*recall, float(sum(x.sum() for x in both))]))


def overlaps(c: Case) -> Outcome:
    return Outcome(torch.tensor([overlap(*one).tiou for one in inputs.segmented(c)], dtype=FLOAT))


CASES: dict[str, Callable[[Case], Outcome]] = {
    "contrastive": contrastive, "info_nce": info_nce, "himo": himo, "flair_loss": flair_loss,
    "beta_clip": beta_clip, "triplets": triplets, "several": several, "positions": positions,
    "principal_part": principal, "text_pool": text_pool, "pooled_scores": pooled, "cross_pool": cross_pool,
    "value_block": value_block, "calibration": calibration, "graph_pool": graph_pool,
    "farthest_points": picks, "laps": laps, "relevance": relevance, "grouping": grouping,
    "gradcache": gradcache, "reconstruction": reconstruction, "monotonicity": monotonicity,
    "ranks": recalls, "overlaps": overlaps,
}  # fmt: skip
