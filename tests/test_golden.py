"""Values and gradients of published code, or of loops where there is none, against those of grainline."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from golden.adapter import CASES, Outcome
from golden.inputs import FLOAT, Case, Several, several
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

HERE = Path(__file__).parent / "golden"
CLOSE = 1e-6
"""Greatest difference of two lists of numbers, as a share of the greatest of the published ones."""


def cases(name: str) -> list[Any]:
    result = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in result]


def agree(ours: Tensor | list[float], published: list[float]) -> None:
    result, wanted = torch.as_tensor(ours).to(FLOAT), torch.tensor(published, dtype=FLOAT)
    torch.testing.assert_close(result, wanted, rtol=0, atol=CLOSE * float(wanted.abs().max()) + 1e-12)


def waves(x: Tensor) -> list[float]:
    """The sums of cosine.json."""
    flat = x.detach().to(FLOAT).flatten()
    if len(flat) == 1:
        return [float(flat)]
    return [float(flat.norm()), float(flat @ torch.cos(torch.arange(len(flat), dtype=FLOAT)))]


def ramps(result: Outcome, fields: Case) -> dict[str, list[float]]:
    """The sums of ramp.json."""
    flat = [x.detach().flatten() for x in result.gradients]
    out = {
        "value": result.value.flatten()[: len(fields["value"])].tolist(),
        "sum": [float(result.value.sum())],
        "grad_norm": [float(x.norm()) for x in flat],
        "grad_checksum": [float(x @ torch.linspace(0, 1, len(x), dtype=FLOAT)) for x in flat],
    }
    return (
        out if result.soft is None else out | {"soft": result.soft.flatten()[: len(fields["soft"])].tolist()}
    )


@pytest.mark.parametrize("case", cases("cosine"))
def test_values_and_gradients_are_those_of_published_code(case: Case) -> None:
    result = CASES[case["case"]](case["inputs"])
    agree(waves(result.value), case["value"])
    assert len(result.gradients) == len(case["gradients"])
    for ours, published in zip(result.gradients, case["gradients"], strict=True):
        agree(waves(ours), published)


@pytest.mark.parametrize("case", cases("ramp"))
def test_values_and_checksums_are_those_of_published_code(case: Case) -> None:
    expected = case["expected"]
    result = ramps(CASES[case["case"]](case["inputs"]), expected)
    for field, published in expected.items():
        agree(result[field], published)


class Drawn(TorchFunctionMode):
    """Numbers from a generator of the CPU, on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None:
            return func(*args, **kwargs)
        if func.__name__.endswith("_"):
            return args[0].copy_(func(args[0].cpu(), *args[1:], **kwargs))
        return func(*args, **kwargs | {"device": "cpu"}).cuda()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", [*cases("cosine"), *cases("ramp")])
def test_on_a_gpu_they_are_those_of_published_code(case: Case) -> None:
    inputs = case["inputs"]
    if "noise" in inputs:
        pytest.skip("the noise of this case is that of the CPU")
    with torch.device("cuda"), Drawn():
        result = CASES[case["case"]](inputs)
    result = Outcome(*(tree_map_only(Tensor, Tensor.cpu, x) for x in result))
    if "expected" in case:
        sums = ramps(result, case["expected"])
        pairs = [(sums[field], published) for field, published in case["expected"].items()]
    else:
        pairs = [
            *zip(
                map(waves, (result.value, *result.gradients)),
                (case["value"], *case["gradients"]),
                strict=True,
            )
        ]
    for ours, published in pairs:
        agree(ours, published)


# Methods without published code: loops in float64


def siglip_loop(batch: Several, by: list[Tensor], scale: float, bias: float) -> Tensor:
    """The loss of SigLIP with several positives: the sum over pairs, divided by the number of images."""
    images, texts = F.normalize(by[0], dim=-1), F.normalize(by[2], dim=-1)
    total, number = images.new_zeros(()), 0
    for i, image in enumerate(batch.image.tolist()):
        number += image >= 0
        for j, owner in enumerate(batch.owner.tolist()):
            if image >= 0 and batch.item[j] >= 0:
                logit = scale * (images[i] @ texts[j]) + bias
                total = total - F.logsigmoid(logit if owner == image else -logit)
    return total / number


def late_loop(batch: Several, by: list[Tensor], sharpness: float) -> list[list[Tensor]]:
    """The score of every image with every text: the mean over parts of what they find softly."""
    table = []
    for tokens, record in zip(F.normalize(by[1], dim=-1), batch.real_tokens, strict=True):
        row = []
        for parts, report in zip(F.normalize(by[3], dim=-1), batch.real_parts, strict=True):
            finds = []
            for part in parts[report]:
                cosine = torch.stack([token @ part for token in tokens[record]])
                weight = (sharpness * cosine).exp()
                finds.append((weight * cosine).sum() / weight.sum())
            row.append(torch.stack(finds).mean())
        table.append(row)
    return table


def both_ways_loop(batch: Several, scores: list[list[Tensor]], scale: float) -> Tensor:
    """Half of the cross-entropy of images and of texts, whose positives share the target."""
    image, owner = batch.image.tolist(), batch.owner.tolist()
    rows = [i for i, x in enumerate(image) if x >= 0]
    columns = [j for j, x in enumerate(batch.item.tolist()) if x >= 0]
    halves = []
    for ours, others, flipped in ((rows, columns, False), (columns, rows, True)):
        losses = []
        for a in ours:
            logits = {b: scale * (scores[b][a] if flipped else scores[a][b]) for b in others}
            own = [b for b in others if (image[b] == owner[a] if flipped else owner[b] == image[a])]
            if own:
                norm = torch.stack(list(logits.values())).logsumexp(0)
                losses.append(torch.stack([norm - logits[b] for b in own]).mean())
        halves.append(torch.stack(losses).mean())
    return (halves[0] + halves[1]) / 2


def maxsim_loop(batch: Several, by: list[Tensor], scale: float, sharpness: float, coarse: float) -> Tensor:
    plain = F.normalize(by[0], dim=-1) @ F.normalize(by[2], dim=-1).T
    fine = both_ways_loop(batch, late_loop(batch, by, sharpness), scale)
    return fine + coarse * both_ways_loop(batch, [list(row) for row in plain], scale)


LOOPS = {"siglip": siglip_loop, "maxsim": maxsim_loop}


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("siglip", {"scale": 14.0, "bias": -3.0}),
        ("maxsim", {"scale": 14.0, "sharpness": 10.0, "coarse": 0.1}),
        ("maxsim", {"scale": 5.0, "sharpness": 2.0, "coarse": 0.0}),
    ],
)
def test_several_texts_of_an_image_are_compared_as_loops_compare_them(
    method: str, model: dict[str, float]
) -> None:
    case = {"seed": 81, "d": 16, "method": method, "model": model}
    batch = several(case)
    by = [x.clone().requires_grad_() for x in (batch.images, batch.tokens, batch.texts, batch.parts)]
    slow = LOOPS[method](batch, by, **model)
    wanted = torch.autograd.grad(slow, by, materialize_grads=True, allow_unused=True)
    result = CASES["several"](case)
    agree(result.value.flatten(), [float(slow.detach())])
    for ours, slowly in zip(result.gradients, wanted, strict=True):
        agree(ours.flatten(), slowly.flatten().tolist())
