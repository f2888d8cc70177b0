"""The losses of `grainline.losses` for other loops: published values, the methods, processes, wrong input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from golden import inputs
from golden.adapter import filled, leaves, made, side, total
from golden.inputs import FLOAT, Case, normal
from processes import exit_codes, free_port, start_ranks
from test_golden import agree, cases, siglip_loop, waves
from torch import Tensor

from grainline import losses
from grainline.errors import UserError
from grainline.losses.contrastive import TripletSchedule, both_triplets
from grainline.methods.beta_clip import BetaCLIPExtra
from grainline.methods.caft import CAFT, CAFTConfig, CAFTExtra
from grainline.methods.patch_words import summary
from grainline.nn.patch_selection.scoring import graded
from grainline.nn.patch_selection.selector import SelectionConfig, SelectionExtra, Selector, gumbel_decisions
from grainline.nn.pooling import ConditionedPool, CrossPool, unit
from grainline.types import Clock, Pair

OWN = torch.tensor([0, 0, 1, 2, 2, 3])  # the image of each text: four images, six texts


def gradients(loss: Tensor, by: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, by, materialize_grads=True, allow_unused=True))


def vectors() -> list[Tensor]:
    draw = normal(3)
    return leaves(draw(4, 8), draw(6, 8), draw(4, 5, 8), draw(6, 3, 8))


def modules() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    choice = SelectionConfig(keep_ratio=0.6, aggregation_ratio=0.7, beta=0.4)
    parts = ConditionedPool(8, 2), CrossPool(8, 2), Selector(choice, 8, 5)
    return filled(parts[0], 1), filled(parts[1], 2), filled(parts[2], 4)


Loss = Callable[[list[Tensor], dict[str, Any]], Tensor]


def all_losses() -> dict[str, Loss]:
    """Every loss of images, texts, image tokens, text tokens and ids."""
    pool, cross, selector = modules()
    mask = torch.tensor([[True, True, False]] * 6)
    mask[0, 2] = True

    def of(by: list[Tensor]) -> Tensor:
        return mask[5:] if len(by[3]) == 1 else mask[: len(by[3])]  # of the second process: the last text

    return {
        "info_nce": lambda by, ids: losses.info_nce(by[0], by[1], 9.0, **ids),
        "sigmoid": lambda by, ids: losses.sigmoid(by[0], by[1], 9.0, -3.0, **ids),
        "himo": lambda by, ids: losses.himo_loss(
            by[0], by[1], 9.0, settings=losses.MoLo(threshold=0.7), **ids
        ),
        "beta ce": lambda by, ids: losses.beta_cal(by[2], by[1], cross, 9.0, **ids),
        "beta bce": lambda by, ids: losses.beta_cal(by[2], by[1], cross, 9.0, form="bce", **ids),
        "flair": lambda by, ids: losses.flair_loss(by[0], by[2], by[1], pool, 9.0, -3.0, step=3, **ids),
        "caft": lambda by, ids: losses.caft_loss(
            by[0], by[2], by[1], by[3], pool, 9.0, -3.0, step=3, part_mask=of(by), **ids
        ),
        "seps": lambda by, ids: losses.seps_triplet(
            by[2], by[3], selector, step=3, word_mask=of(by), hardest=False, **ids
        ),
    }


def published(case: Case) -> tuple[Tensor, list[Tensor]]:
    """The loss of a golden case by the functions, and what its gradients are by."""
    c = case["inputs"]
    if case["case"] in ("contrastive", "himo"):
        by = leaves(*inputs.sides(c))
        if case["case"] == "himo":
            return losses.himo_loss(*by, 20.0, settings=losses.MoLo(threshold=c["tau"], **c["model"])), by
        return losses.info_nce(*by, 14.0) if c["loss"] == "clip" else losses.sigmoid(*by, 14.0, -10.0), by
    batch, model = inputs.grained(c), c["model"]
    cls, texts, patches = by = leaves(batch.cls, batch.texts, batch.patches)
    pool = filled(CrossPool(c["d"], 4, 4.0, model.get("input_norm", False)), c["seed"] + 2)
    settings = {"beta": c["beta"], "form": c["form"], "group": model["group"]}
    settings["divisor"] = model["divisor"].replace("slots", "pairs")  # the same without padding
    own = torch.arange(c["B"]).repeat_interleave(texts.shape[1])
    parts = losses.beta_cal(patches, texts.flatten(0, 1), pool, 12.0, text_ids=own, **settings)
    return losses.info_nce(cls, texts[:, 0], 14.0) + parts, by


def offered(case: Case) -> bool:
    """Whether the functions do what a golden case has; padding and texts of others are the method's."""
    c = case["inputs"]
    plain = case["case"] == "beta_clip" and "empty" not in c and "others" not in c["model"]
    return plain or case["case"] in ("contrastive", "himo")


@pytest.mark.parametrize("case", [case for case in cases("cosine") if offered(case.values[0])])
def test_values_and_gradients_are_those_of_published_code(case: Case) -> None:
    loss, by = published(case)
    agree(waves(loss), case["value"])
    for local, expected in zip(gradients(loss, by), case["gradients"], strict=True):
        agree(waves(local), expected)


def test_the_sigmoid_loss_of_several_texts_is_that_of_a_loop() -> None:
    batch = inputs.several({"seed": 81, "d": 16})
    real = batch.item >= 0  # a text without an image, the foil, stays
    by = leaves(batch.images[:5], batch.texts[real])
    loss = losses.sigmoid(*by, 14.0, -3.0, image_ids=batch.image[:5], text_ids=batch.owner[real])
    whole = leaves(batch.images, batch.tokens, batch.texts, batch.parts)
    slow = siglip_loop(batch, whole, 14.0, -3.0)
    agree([float(loss.detach())], [float(slow.detach())])
    for local, slowly in zip(gradients(loss, by), gradients(slow, [whole[0], whole[2]]), strict=True):
        agree(local.flatten(), slowly[: len(local)].flatten().tolist())


def of_method(name: str, by: list[Tensor]) -> Tensor:
    """The loss of a method on the same encodings."""
    pool, cross, selector = modules()
    image, text, tokens, words = by
    row, item = torch.arange(4), torch.arange(6)
    images, texts = side(unit(image), tokens), side(unit(text), None, item, OWN)
    if name == "flair":
        method = made("flair", width=8, heads=2, scale=9.0, bias=-3.0)
        method.pool.load_state_dict(pool.state_dict())
        pair = method.before_gather(Pair(images, side(unit(text), text[:, None], item, OWN)))
        return total(method.loss(pair, pair, Clock(3)))
    if name.startswith("beta"):
        form = name.split()[1]
        method = made("beta_clip", width=8, heads=2, pool_scale=9.0, form=form, whole=0.0)
        method.pool.load_state_dict(cross.state_dict())
        extra = BetaCLIPExtra(torch.zeros(6, dtype=torch.int64), unit(text)[:, :0])
        pair = method.before_gather(Pair(images, texts._replace(extra=extra)))
        return total(method.loss(pair, pair, Clock()))
    if name == "caft":
        from golden.adapter import TINY

        from grainline.config import parse

        small = {"width": 8, "heads": 2, "scale": 9.0, "bias": -3.0, "chunks": 3}
        small |= {"composer": {"depth": 1, "heads": 2}}
        method = CAFT(parse(CAFTConfig, TINY | small, "test")).double().eval()
        method.pool.load_state_dict(pool.state_dict())
        mask = torch.tensor([[True, True, False]] * 6)
        mask[0, 2] = True
        texts = side(unit(text), words, item, OWN, mask)
        extra = CAFTExtra(torch.zeros(6, dtype=torch.int64), None)
        pair = method.before_gather(Pair(images, texts._replace(extra=extra)))
        return total(method.loss(pair, pair, Clock(3)))
    if name == "seps":
        mask = torch.tensor([[True, True, False]] * 6)
        mask[0, 2] = True
        zeros = torch.zeros(4, 8, dtype=FLOAT)
        extra = SelectionExtra(zeros, zeros[:, 0] > 0, zeros)
        all_real = torch.ones(4, 5, dtype=torch.bool)
        images = side(summary(tokens, all_real), tokens)._replace(extra=extra)
        pair = Pair(images, side(summary(words, mask), words, item, OWN, mask))
        score = graded(selector, gumbel_decisions(Clock(3)))
        return total(both_triplets(score, pair, pair, TripletSchedule(0.2, False, 1.0), 1.0))
    kinds = {"info_nce": "clip", "sigmoid": "siglip", "himo": "himo"}
    more = {"sigmoid": {"bias": -3.0}, "himo": {"threshold": 0.7}}.get(name, {})
    pair = Pair(side(unit(image), None, row, row), texts)
    return total(made(kinds[name], scale=9.0, **more).loss(pair, pair, Clock()))


@pytest.mark.parametrize("name", list(all_losses()))
def test_the_method_on_the_same_encodings_has_the_same_loss(name: str) -> None:
    by = vectors()
    loss, wanted = all_losses()[name](by, {"text_ids": OWN}), of_method(name, by)
    assert loss.shape == ()
    agree([float(loss.detach())], [float(wanted.detach())])
    for local, other in zip(gradients(loss, by), gradients(wanted, by), strict=True):
        agree(local.flatten(), other.flatten().tolist())


ROWS = ([0, 1, 2], [3]), ([0, 1, 2, 3, 4], [5])  # images and texts of each of two processes


def rank_worker(rank: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    place = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    images, texts = (torch.tensor(part[rank]) for part in ROWS)
    actual = {}
    for name, loss in all_losses().items():
        whole = vectors()
        by = [whole[0][images], whole[1][texts], whole[2][images], whole[3][texts]]
        value = loss(by, {"image_ids": images, "text_ids": OWN[texts]})
        grads = gradients(value, whole)
        for x in (value := value.detach(), *grads):
            dist.all_reduce(x)
        actual[name] = [value / 2, *(x / 2 for x in grads)]  # DistributedDataParallel takes the mean
        own = loss([x.detach() for x in by], {"text_ids": OWN[texts] - images[0], "gather": False})
        actual[f"{name} alone"] = [own.detach()]
        by_row = loss([x.detach() for x in by], {"text_ids": OWN[texts] - images[0]}).detach()
        dist.all_reduce(by_row)  # without image_ids: rows of this process, whose ids no other process has
        actual[f"{name} by row"] = [by_row / 2]
    torch.save(actual, out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    """They have three images and one, with five texts and one."""
    assert exit_codes(start_ranks(rank_worker, 2, free_port(), tmp_path)) == [0, 0]
    actual = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for name, loss in all_losses().items():
        by = vectors()
        value = loss(by, {"image_ids": torch.arange(4), "text_ids": OWN})
        for local, wanted in zip(actual[0][name], [value.detach(), *gradients(value, by)], strict=True):
            agree(local.flatten(), wanted.flatten().tolist())
        if name not in ("flair", "caft", "seps"):  # they sample by the ids, which differ
            agree(actual[0][f"{name} by row"][0].flatten(), [float(value.detach())])
        for rank in (0, 1):
            images, texts = (torch.tensor(part[rank]) for part in ROWS)
            some = [by[0][images], by[1][texts], by[2][images], by[3][texts]]
            alone = loss([x.detach() for x in some], {"text_ids": OWN[texts] - images[0]})
            assert float(actual[rank][f"{name} alone"][0]) == pytest.approx(float(alone.detach()), rel=1e-9)


def test_ids_may_be_lists() -> None:
    image, text = (x.detach() for x in vectors()[:2])
    for ids in ({"text_ids": OWN}, {"text_ids": OWN, "image_ids": torch.arange(len(image))}):
        lists: Any = {name: one.tolist() for name, one in ids.items()}
        assert losses.info_nce(image, text, 9.0, **lists) == losses.info_nce(image, text, 9.0, **ids)


def test_autocast_lowers_no_precision() -> None:
    image, text = (x.detach().float() for x in vectors()[:2])  # autocast leaves float64 alone
    for loss in (losses.info_nce, losses.himo_loss):
        wanted = loss(image, text, 9.0, text_ids=OWN)
        with torch.autocast("cpu", torch.bfloat16):
            assert float(loss(image, text, 9.0, text_ids=OWN)) == float(wanted), loss


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "lists": (lambda: losses.info_nce(torch.ones(3), torch.ones(3, 2), 1.0), "image has shape"),
    "width": (lambda: losses.info_nce(torch.ones(3, 4), torch.ones(3, 2), 1.0), r"it must be \[any, 4\]"),
    "no rows": (lambda: losses.info_nce(torch.ones(0, 4), torch.ones(0, 4), 1.0), "with a row or more"),
    "number": (lambda: losses.sigmoid(torch.ones(3, 4), torch.ones(2, 4), 1.0, 0.0), "text_ids must say"),
    "scale": (lambda: losses.sigmoid(torch.ones(3, 4), torch.ones(3, 4), torch.ones(2), 0.0), "one element"),
    "type": (
        lambda: losses.himo_loss(torch.ones(2, 4), torch.ones(2, 4), 1.0, text_ids=torch.ones(2)),
        "must be int64",
    ),
    "row": (
        lambda: losses.info_nce(torch.ones(2, 4), torch.ones(2, 4), 1.0, text_ids=torch.tensor([0, 2])),
        "there are 2 images",
    ),
    "none": (
        lambda: losses.info_nce(torch.ones(2, 4), torch.ones(2, 4), 1.0, text_ids=torch.tensor([-1, -1])),
        "no text describes",
    ),
    "beta": (
        lambda: losses.beta_cal(torch.ones(2, 3, 8), torch.ones(2, 8), modules()[1], 1.0, beta=2.0),
        "beta",
    ),
    "no tensor": (lambda: losses.info_nce([[1.0]], torch.ones(1, 1), 1.0), "image is a list"),  # type: ignore[arg-type]
    "settings": (
        lambda: losses.himo_loss(torch.eye(2), torch.eye(2), 1.0, settings={"threshold": 0.5}),  # type: ignore[arg-type]
        "settings is a dict; it must be a grainline.losses.MoLo",
    ),
    "pool": (
        lambda: losses.beta_cal(torch.ones(2, 3, 4), torch.ones(2, 4), modules()[1], 1.0),
        "pool reads vectors of 8 numbers, and tokens have 4",
    ),
    "patches": (
        lambda: losses.seps_triplet(torch.ones(2, 3, 8), torch.ones(2, 4, 8), modules()[2], step=0),
        r"\[any, 5, 8\]",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_input_is_one_line(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(UserError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
