"""What the papers of CAFT and FLAIR claim about their methods, one test a claim."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from indexes import tiny_model
from make import CLOCK, SEGMENTS, VOCAB, build
from torch import Tensor

from grainline.build import Description, scored
from grainline.build import build as build_method
from grainline.config import parse
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.distributed import ddp_mean
from grainline.errors import UserError
from grainline.evaluation.result import origin
from grainline.evaluation.suites.regions import PooledRegions, region_scorer
from grainline.methods.caft import BLEND, CAFT, Adapter, Composer, ComposerConfig
from grainline.methods.clip import CLIPConfig
from grainline.methods.flair import FLAIR
from grainline.methods.heat import on_pixels
from grainline.methods.shared import clamp_scales
from grainline.methods.text_parts import Parts, row_ids
from grainline.model import Model
from grainline.nn.pooling import unit
from grainline.training.optim import param_groups
from grainline.training.recipe import read_recipe
from grainline.training.step import Objective
from grainline.types import CAPTION, FOIL, LOOSE, Clock, Encoded, Images, Pair, Texts, rows


def caft(*changes: str, case: str = "caft") -> CAFT:
    method = build(case, *changes)
    assert isinstance(method, CAFT)
    return method


def flair(*changes: str) -> FLAIR:
    method = build("flair", *changes)
    assert isinstance(method, FLAIR)
    return method


def texts_of(n: int, loose: int = 2, parts: int = 4, seed: int = 0, length: int = 6) -> Texts:
    """One caption of some parts for each of n images, with loose captions of one part behind it."""
    g = torch.Generator().manual_seed(seed)
    count = n * (1 + loose)
    ids = torch.randint(3, VOCAB, (count, parts, length), generator=g)
    mask = torch.ones(count, parts, length, dtype=torch.bool)
    is_loose = torch.arange(count) % (1 + loose) > 0
    mask[is_loose, 1:] = False
    item, image = torch.arange(count), torch.arange(n).repeat_interleave(1 + loose)
    return Texts(ids, mask, item, image, torch.where(is_loose, LOOSE, CAPTION))


def images_of(n: int, seed: int = 0) -> Images:
    """Images of 16 squares, each of a colour by chance."""
    colours = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Images(colours.repeat_interleave(2, 2).repeat_interleave(2, 3), torch.arange(n))


def terms(method: CAFT | FLAIR, images: Images, texts: Texts, clock: Clock = CLOCK) -> dict[str, float]:
    with torch.no_grad():
        return {name: float(x) for name, x in Objective(method)(images, texts, clock).terms.items()}


def slow_terms(method: CAFT, images: Images, texts: Texts) -> tuple[Tensor, Tensor]:
    """Equations 8 and 9 with labels, one triple at a time; the negatives are all sub-captions."""
    a, b = method.encode_images(images), method.encode_texts(texts)
    names = images.image.tolist()
    number = len(names)
    own = [
        [(int(texts.image[m]), b.tokens[m, s]) for s in range(b.mask.shape[1]) if bool(b.mask[m, s])]
        for m in range(len(texts.item))
        if int(texts.level[m]) in (CAPTION, LOOSE) and int(texts.image[m]) >= 0
    ]
    parts = [one for row in own for one in row]
    count = {i: sum(owner == i for owner, _ in parts) for i in names}
    part = whole = torch.zeros((), dtype=a.vector.dtype)
    for i, name in enumerate(names):
        for owner, said in parts:
            pooled = method.pool(said[None, None], a.tokens[i : i + 1], a.mask[i : i + 1]).vector[0, 0]
            logit = method.part_scale() * F.cosine_similarity(pooled, said, dim=0) + method.part_bias
            part = part + (F.softplus(-logit) if owner == name else F.softplus(logit) / count[owner]).sum()
        for m in range(len(texts.item)):
            if int(texts.level[m]) in (CAPTION, FOIL):
                logit = method.whole_scale() * (a.vector[i] @ b.vector[m]) + method.whole_bias
                whole = whole + F.softplus(-logit if int(texts.image[m]) == name else logit).sum()
    return part.detach() / number, whole.detach() / number


@pytest.mark.parametrize("twice", [False, True])
def test_both_losses_are_their_equations_with_labels(twice: bool) -> None:
    """An image that is there twice has the captions of both as its own, and is no negative of itself."""
    method = caft("negatives=all", "bias=-2.0").double()
    images, texts = images_of(3), texts_of(3)
    images = images._replace(pixels=images.pixels.double())
    if twice:
        texts, images = texts._replace(image=texts.image // 2), images._replace(image=images.image // 2)
    result = terms(method, images, texts)
    part, whole = slow_terms(method, images, texts)
    assert result == {"part": pytest.approx(float(part)), "whole": pytest.approx(float(whole))}


def test_losses_begin_as_the_paper_says() -> None:
    """At cosines of 0, with 256 images of 8 captions: 80.0 and 10.01; 77.9 and 10.0 in FLAIR."""
    method = caft("heads=1", "composer.depth=1")
    n, k, width = 256, 8, method.towers.space
    torch.nn.init.zeros_(method.pool.to_out.weight)  # what is pooled is 0, and so is its cosine
    g = torch.Generator().manual_seed(0)
    vector, key = torch.zeros(n, width), torch.arange(n)
    images = Encoded(vector, torch.randn(n, 2, width, generator=g), torch.ones(n, 2).bool(), key, key)
    item, owner = torch.arange(n * k), torch.arange(n).repeat_interleave(k)
    raw = torch.randn(n * k, width, generator=g)
    texts = Encoded(unit(raw), raw[:, None], torch.ones(n * k, 1).bool(), item, owner)
    level = torch.where(item % k == 0, CAPTION, LOOSE)
    local = method.before_gather(
        Pair(images, texts._replace(extra=method.encode_texts(texts_of(1)).extra._replace(level=level)))
    )
    results = {
        name: float((x.mean.total / x.mean.number).detach())
        for name, x in method.loss(local, local, CLOCK).items()
    }
    assert results["part"] == pytest.approx(
        k * math.log1p(math.exp(10)) + (n - 1) * math.log1p(math.exp(-10))
    )
    assert results["part"] == pytest.approx(80.0, abs=0.05)
    assert results["whole"] == pytest.approx(10.01, abs=0.005)
    assert results["part scale"] == results["whole scale"] == pytest.approx(14.29, abs=0.01)
    other = flair("heads=1")
    torch.nn.init.zeros_(other.pool.to_out.weight)
    own = other.before_gather(Pair(images, texts))
    divided = {name: float(ddp_mean(x.mean).detach()) for name, x in other.loss(own, own, CLOCK).items()}
    assert divided["pooled"] == pytest.approx(77.88, abs=0.01)
    assert divided["summary"] == pytest.approx(10.01, abs=0.01)


def unlike(what: str) -> tuple[Images, Texts]:
    """A batch of segments and texts that lacks something."""
    number = 1 if what == "one image" else 3
    images, texts = images_of(number), texts_of(number)
    if what in ("no texts", "no texts of an image"):
        gone = texts.image < (number if what == "no texts" else 1)
        texts = texts._replace(
            mask=texts.mask & ~gone[:, None, None],
            item=texts.item.masked_fill(gone, -1),
            image=texts.image.masked_fill(gone, -1),
        )
    elif what == "texts without a token":
        texts = texts._replace(mask=torch.zeros_like(texts.mask))
    elif what == "one colour":
        images = images._replace(pixels=torch.full_like(images.pixels, 0.25))
    elif what == "twice":
        images, texts = images._replace(image=images.image // 2), texts._replace(image=texts.image // 2)
    return images, texts


UNLIKE = ("one image", "no texts", "no texts of an image", "texts without a token", "one colour", "twice")


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["caft-segments", "flair-segments"])
def test_a_batch_that_lacks_something_has_a_loss_and_gradients(case: str, precision: torch.dtype) -> None:
    for changes in ((), ("negatives=all",)):
        method = build(case, "bias=-1", "image.superpixels.iterations=1", *changes).train()
        objective = Objective(method, precision)
        for what in UNLIKE:
            method.zero_grad()
            loss = objective(*unlike(what), CLOCK)
            loss.total.backward()
            total = float(loss.total.detach())
            assert 0 <= total < math.inf, what
            assert total > 0 or what in ("no texts", "texts without a token"), what
            for name, p in method.named_parameters():
                assert p.grad is not None, (what, name)
                assert p.grad.isfinite().all(), (what, name)


def test_a_batch_without_wholes_is_refused_where_they_are_to_be_learnt() -> None:
    images, texts = images_of(2), texts_of(2)
    texts = texts._replace(level=torch.full_like(texts.level, LOOSE))
    with pytest.raises(UserError, match=r"data\.texts\.per_image is 0"):
        terms(caft(), images, texts)
    assert terms(caft("whole=0"), images, texts)["part"] > 0


def test_both_scales_are_clamped() -> None:
    method = caft()
    for scale, value in ((method.part_scale, 9.0), (method.whole_scale, -3.0)):
        torch.nn.init.constant_(scale.log_scale, value)
    clamp_scales(method)
    assert float(method.part_scale().detach()) == pytest.approx(100.0)
    assert float(method.whole_scale().detach()) == pytest.approx(1.0)


def test_caft_plus_adds_the_sum_over_parts() -> None:
    """Equation 10 pair by pair; a text with fewer parts is scaled up to all places."""
    method = caft("scoring=conditioned", "alpha=0.3").double()
    images, texts = images_of(3), texts_of(3, loose=0)
    images = images._replace(pixels=images.pixels.double())
    texts.mask[1, 2:] = False
    a, b = method.encode_images(images), method.encode_texts(texts)
    result = method.score(a, b)
    for i in range(3):
        for j in range(3):
            real = b.mask[j]
            pooled = method.pool(b.tokens[j : j + 1, real], a.tokens[i : i + 1], a.mask[i : i + 1]).vector[0]
            cosines = F.cosine_similarity(pooled, b.tokens[j, real], dim=1)
            wanted = 0.7 * a.vector[i] @ b.vector[j] + 0.3 * 4 * cosines.mean()
            torch.testing.assert_close(result[i, j], wanted)


def test_the_whole_depends_on_the_order_of_its_parts_and_on_no_loose_caption() -> None:
    method, texts = caft(), texts_of(2)
    whole = method.encode_texts(texts).vector
    turned = texts._replace(ids=texts.ids[:, [1, 0, 2, 3]])
    assert not torch.allclose(method.encode_texts(turned).vector[0], whole[0], atol=1e-4)
    other = texts_of(2, seed=1)
    kept = (texts.level == CAPTION)[:, None, None]
    torch.testing.assert_close(
        method.encode_texts(texts._replace(ids=torch.where(kept, texts.ids, other.ids))).vector[::3],
        whole[::3],
    )


def test_loose_captions_are_parts_and_no_wholes() -> None:
    method, images, texts = caft("negatives=all"), images_of(3), texts_of(3)
    before = terms(method, images, texts)
    other = texts_of(3, seed=1)
    loose = (texts.level == LOOSE)[:, None, None]
    after = terms(method, images, texts._replace(ids=torch.where(loose, other.ids, texts.ids)))
    assert after["whole"] == pytest.approx(before["whole"])
    assert after["part"] != pytest.approx(before["part"], rel=1e-4)


def test_a_foil_is_a_whole_and_its_parts_are_compared_with_nothing() -> None:
    method = caft("negatives=all").double()
    images, texts = images_of(3), texts_of(3, loose=0)
    images = images._replace(pixels=images.pixels.double())
    before = terms(method, images, texts)
    foil = rows(texts_of(4, loose=0, seed=2), slice(3, 4))
    foil = foil._replace(item=torch.tensor([99]), image=torch.tensor([-1]), level=torch.tensor([FOIL]))
    more = Texts(*(torch.cat(both) for both in zip(texts, foil, strict=True)))
    after = terms(method, images, more)
    assert after["part"] == pytest.approx(before["part"])
    assert after["whole"] > before["whole"]


def test_scales_biases_and_norms_do_not_decay() -> None:
    method = caft(case="caft-segments")
    recipe = read_recipe("caft/paper", []).train.optimizer
    groups = param_groups(method, recipe)
    names = {id(p): name for name, p in method.named_parameters()}
    free = {names[id(p)] for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    decays = {names[id(p)] for group in groups if group["weight_decay"] > 0 for p in group["params"]}
    assert free == {name for name, p in method.named_parameters() if p.dim() < 2}
    assert {
        "part_scale.log_scale", "whole_scale.log_scale", "part_bias", "whole_bias", "composer.class_token",
        "towers.image.class_token", "pool.norm_query.weight", "towers.image.norm_read.bias",
    } <= free  # fmt: skip
    assert {"to_part.weight", "composer.position", "pool.to_out.weight", "towers.to_text.weight"} <= decays
    assert len(free | decays) == len(list(method.parameters()))


def test_places_hold_segments_of_the_stage_that_is_read() -> None:
    method = caft(case="caft-segments")
    a = method.encode_images(images_of(3))
    assert a.tokens.shape[:2] == (3, 6)  # stage 2 of 16, 6, 4 and 2
    assert a.places is not None
    assert a.places.shape == (3, 8, 8)
    assert int(a.places.max()) < 6
    assert build("flair-segments").encode_images(images_of(3)).tokens.shape[1] == 2  # the last one
    assert method.train().encode_images(images_of(3)).places is None


def test_heat_of_a_segment_lies_on_its_pixels() -> None:
    method = caft(case="caft-segments")
    a, b = method.encode_images(images_of(2)), method.encode_texts(texts_of(2, loose=0))
    heat = method.heat(a, b)
    result = on_pixels(method, a, heat, (8, 8))
    assert a.places is not None
    for i in range(2):
        for y in range(8):
            for x in range(8):
                torch.testing.assert_close(result[i, y, x], heat[i, int(a.places[i, y, x])])
    half = on_pixels(method, a, heat, (4, 4))
    torch.testing.assert_close(half, F.avg_pool2d(result[:, None], 2)[:, 0])
    assert on_pixels(method, a, heat, (16, 12)).shape == (2, 16, 12)


@pytest.mark.parametrize("make", [caft, flair])
def test_attention_and_its_empty_slot_sum_to_one(make: type) -> None:
    method = make()
    texts = texts_of(2, loose=0, parts=method.parts)
    texts.mask[1, 1:] = False
    a, b = method.encode_images(images_of(2)), method.encode_texts(texts)
    result = method.attention(a, b)
    assert result.shape == (2, method.parts, 5)
    torch.testing.assert_close(result.sum(-1), b.mask.float())
    torch.testing.assert_close(method.heat(a, b), result[..., :-1].sum(1) / b.mask.sum(1, keepdim=True))
    shut = a._replace(mask=torch.zeros_like(a.mask))
    torch.testing.assert_close(method.attention(shut, b)[..., -1], b.mask.float())


def test_too_many_parts_are_an_error() -> None:
    with pytest.raises(ValueError, match="more than 4 parts; the method composes no more"):
        caft().encode_texts(texts_of(1, parts=5))


def test_flair_reads_a_text_whole_or_as_the_mean_of_chunks() -> None:
    whole, chunked = flair(), flair("chunks=4")
    texts = texts_of(2, loose=0)
    joined = texts._replace(ids=texts.ids.flatten(1)[:, None], mask=texts.mask.flatten(1)[:, None])
    torch.testing.assert_close(whole.encode_texts(texts).vector, whole.encode_texts(joined).vector)
    texts.mask[1, 2:] = False
    each = [
        chunked.towers.to_text(chunked.towers.text(texts.ids[:, s], texts.mask[:, s]).pooled)
        for s in range(4)
    ]
    wanted = torch.stack([sum(each)[0] / 4, (each[0] + each[1])[1] / 2])  # type: ignore[index]
    torch.testing.assert_close(chunked.encode_texts(texts).tokens[:, 0], wanted)


def slow_summary(method: FLAIR, images: Encoded, texts: Encoded) -> Tensor:
    """The loss of FLAIR over summaries: every image with every caption, divided by all captions of images."""
    vectors, total, captions = unit(texts.tokens[:, 0]), images.vector.new_zeros(()), 0
    for m in range(len(texts.item)):
        if texts.item[m] < 0:
            continue
        captions += int(texts.image[m] >= 0)
        for i in range(len(images.item)):
            if images.item[i] >= 0:
                logit = method.scale() * (images.vector[i] @ vectors[m]) + method.bias
                own = bool(texts.image[m] == images.image[i])
                total = total + F.softplus(-logit if own else logit).sum()
    return total / captions


@pytest.mark.parametrize("negatives", ["sampled", "all"])
def test_flair_compares_a_summary_with_all_captions_of_the_batch(negatives: str) -> None:
    """Four images, of which one is padding, with 3, 2 and 1 captions, a caption of padding and a foil."""
    method = flair(f"negatives={negatives}", "bias=-2").double()
    images, texts = images_of(4), texts_of(4, loose=1, parts=1)
    gone = torch.tensor([False, False, True, False])
    images = images._replace(pixels=images.pixels.double())
    a, b = method.encode_images(images), method.encode_texts(texts)
    a = a._replace(item=a.item.masked_fill(gone, -1), image=a.image.masked_fill(gone, -1))
    owner = torch.tensor([0, 0, 0, 1, -1, -1, 1, 3])  # the fifth is padding, the sixth a foil
    b = b._replace(image=owner, item=b.item.masked_fill(torch.arange(8) == 4, -1))
    slow = slow_summary(method, a, b)
    pair = method.before_gather(Pair(a, b))
    term = method.loss(pair, pair, CLOCK)["summary"]
    assert term.weight == 0.5
    torch.testing.assert_close(ddp_mean(term.mean), slow, rtol=1e-6, atol=0)
    leaves = [
        p
        for p in method.parameters()
        if torch.autograd.grad(slow, p, retain_graph=True, allow_unused=True)[0] is not None
    ]
    assert len(leaves) > 10
    for one, other in zip(
        *(torch.autograd.grad(x, leaves, retain_graph=True) for x in (ddp_mean(term.mean), slow)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_parts_are_rows_with_ids_of_their_own() -> None:
    b = caft().encode_texts(texts_of(2, loose=1))
    item = b.item.masked_fill(b.item == 2, -1)
    result = Parts.of(b._replace(item=item), foils=True)
    assert result.image.tolist() == [0] * 5 + [1]
    assert len(set(result.item.tolist())) == 6
    torch.testing.assert_close(result.vector[1], b.tokens[0, 1])
    assert row_ids(result.item, result.image).group.tolist() == [0] * 6


def test_adapter_begins_as_nothing_or_blends() -> None:
    x = torch.randn(3, 8)
    assert torch.equal(Adapter(8, 2, blend=False)(x), x)
    blend = Adapter(8, 2, blend=True)
    made = F.relu(F.relu(x @ blend.narrow.weight.T) @ blend.widen.weight.T)
    torch.testing.assert_close(blend(x), (1 - BLEND) * x + BLEND * made)


def test_composer_sees_all_parts_and_no_empty_place() -> None:
    composer = Composer(ComposerConfig(depth=1, heads=2), 8, 4)
    parts, mask = torch.randn(1, 4, 8), torch.tensor([[True, True, True, False]])
    result = composer(parts, mask)
    for place in range(4):
        other = parts.clone()
        other[0, place] += torch.randn(8)
        assert torch.allclose(composer(other, mask), result, atol=1e-6) == (place == 3)
    assert torch.allclose(composer(parts[:, :3], mask[:, :3]), result, atol=1e-6)
    assert torch.equal(composer(parts, torch.zeros_like(mask)), torch.zeros(1, 8))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("heads=3",), "width 16 is not a multiple of 3 heads of the pooling"),
        (("composer.heads=3",), "width 16 is not a multiple of 3 heads of composer"),
        (("part=0", "whole=0"), "part and whole are both 0: nothing is left to learn"),
        (("scale=200",), "scale 200 is above max_scale 100"),
        (("chunking.whole=true",), "reads a text as a whole as well, mosaic"),
        (("alpha=1.5",), "alpha"),
    ],
)
def test_configs_that_cannot_be_meant_are_one_line(changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError) as result:
        caft(*changes)
    assert said in str(result.value)
    assert "\n" not in str(result.value)


def test_a_way_to_score_may_say_the_share_of_the_parts() -> None:
    described = Description("caft", caft().cfg)
    result: Any = scored(described, "conditioned:0.7").config
    assert (result.scoring, result.alpha) == ("conditioned", 0.7)
    for config, way in ((result, "conditioned:0.7"), (described.config, "vectors")):
        description = Description("caft", config)
        model = Model(description, build_method(description), Tokenizer.train(["a cat"] * 2, 540))
        assert origin(model, "some/name")["scoring"] == way
    with pytest.raises(UserError, match="flair mixes no scores"):
        scored(Description("flair", flair().cfg), "conditioned:0.7")
    with pytest.raises(UserError, match="alpha"):
        scored(described, "conditioned:2")


def test_segments_are_for_methods_that_learn_from_them() -> None:
    with pytest.raises(UserError, match="superpixels are for methods that learn from segments"):
        parse(CLIPConfig, SEGMENTS, "test")


def test_recipes_of_the_paper_have_its_sizes() -> None:
    recipe = read_recipe("caft/paper", [])
    assert recipe.model["image"]["read"] == 2
    assert recipe.model["text"]["depth"] + recipe.model["composer"]["depth"] == 12
    assert recipe.data.texts.slots == 5
    assert recipe.data.texts.chunks + recipe.data.texts.sampled_captions == 8
    for name, pairs, decay in (
        ("paper", 2.82, 0.5),
        ("cc12m", 10.01, 0.5),
        ("yfcc15m", 14.07, 0.5),
        ("merged30m", 26.90, 0.2),
    ):
        train = read_recipe(f"caft/{name}", []).train
        assert train.max_steps == round(32 * pairs * 1e6 / 2048 - 0.5)
        assert (train.global_batch_size, train.optimizer.weight_decay) == (2048, decay)
    assert read_recipe("caft/ladder/visual", []).method == "flair"


def test_ladder_changes_one_thing_at_a_time() -> None:
    folder = Path(read_recipe.__code__.co_filename).parent / "recipes" / "caft"
    names = [str(p.relative_to(folder.parent)).removesuffix(".yaml") for p in sorted(folder.rglob("*.yaml"))]
    paper = read_recipe("caft/paper", []).model_dump()
    for name in names:
        recipe = read_recipe(name, [])
        if recipe.method == "caft" and name.split("/")[1] in ("ladder", "controls"):
            differs = {k for k, x in recipe.model.items() if x != paper["model"][k]}
            assert len(differs) == 1, name
            assert recipe.train.model_dump() == paper["train"]


def test_regions_attend_to_image_tokens_through_the_pooling_alone() -> None:
    scorer = region_scorer(tiny_model("caft", changes=("heads=2", "composer.heads=2")))
    assert isinstance(scorer, PooledRegions)
