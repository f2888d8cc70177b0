"""Whole training steps on a GPU: images a second, and the share of the machine's measured ceiling.

    python -m benchmarks.bench_gpu_steps [--images 256] [--repeats 7] [--only STEP ...] [--rehearse]

A step is forward, loss, backward and a fused AdamW, in bfloat16, on data that are there already. FLOP are
those of the products that torch counts in such a step, a multiplication and an addition each; those of Triton
kernels, some percent, are left out. Where texts share rows, attention counts the pairs that are read, half of
those of a padded causal text, and what stands empty, some percent of the rows, counts as text.
  caft       `caft/paper`: texts in shared rows, in padded groups, and in shared rows with compiled layers
  clip       `clip/vit_b16` at 77 tokens, its layers compiled too; where open_clip is installed, its step as
             well, as its documentation has it: all texts padded, autocast around model and loss, the scale
             clamped after the update
  beta_clip  `beta_clip/paper` with the encoders of its checkpoint, CLIP ViT-B/16 of transformers with fresh
             weights: 36 texts an image; its layers compiled too
  methods    steps of the papers' recipes, with encoders of ViT-B/16, and scores of 1,000 images with 5,000
             texts. Run once more with an engine switched off (GRAINLINE_KERNELS=off, TORCH_COMPILE_DISABLE=1)
             to see what it saves
`--rehearse` runs all in tiny shapes on a CPU, where no number means anything.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import bench_caft
from benchmarks.harness import report, seconds
from grainline.encoders import text as text_encoder
from grainline.evaluation.score import all_scores
from grainline.methods import method_class
from grainline.methods.base import Method
from grainline.training.recipe import read_recipe
from grainline.training.step import Objective, compile_layers
from grainline.types import CAPTION, PHRASE, SENTENCE, Clock, Images, Texts, rows, to

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Entered where inputs are made, left where time is taken: inside, torch asks Python at every operation. A
CPU is for rehearsals."""
SIDE = 8192  # of the matrices whose product is the ceiling
CAFT_GOAL, CAFT_PACKED = 1770.0, 2300.0  # images a second on an H100
SHARE = 40.0  # percent of the ceiling
CONTEXT = 77
SIZES: dict[str, Any] = {"image": "B/16", "side": 224, "text": "B", "width": 512}
TINY: dict[str, Any] = {"image": "toy/16", "side": 32, "text": "toy", "width": 32}


class Cost(NamedTuple):
    """The cost of a call."""

    ms: float  # median
    mib: float  # most memory beyond what was there before


def cost(call: Callable[[], Any], repeats: int) -> Cost:
    """Time and memory of a call on the device."""
    call()
    if GPU.type == "cpu":
        return Cost(1e3 * statistics.median(seconds(call) for _ in range(repeats)), 0.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return Cost(statistics.median(_ms(call) for _ in range(repeats)), peak / 2**20)


def _ms(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def product_speed(dtype: torch.dtype, side: int, repeats: int) -> float:
    """TFLOP/s of a product of two matrices."""
    a, b = (torch.randn(side, side, dtype=dtype, device=GPU) for _ in range(2))
    return 2 * side**3 / cost(partial(torch.matmul, a, b), repeats).ms / 1e9


class Step:
    """A training step of a method."""

    def __init__(self, method: Method, images: Images, texts: Texts) -> None:
        self.objective = Objective(method.to(GPU).train(), torch.bfloat16)
        self.optimizer = optimizer(method)
        self.batch = to(images, GPU), to(texts, GPU)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.objective(*self.batch, Clock(1)).total.backward()
        self.optimizer.step()


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=GPU.type == "cuda")


def of_recipe(name: str, sizes: dict[str, Any]) -> Method:
    """The method of a recipe, its encoders of some sizes, of the library where it names a checkpoint."""
    recipe = read_recipe(name, [])
    if recipe.model.get("pretrained"):
        pixels = {
            "mean": [0.5] * 3,
            "spread": [0.5] * 3,
            "resize": "crop",
            "filter": "bicubic",
            "margin": 1.0,
        }
        own = {"kind": "clip", "config": library_config(sizes).to_dict(), "pad": 0, **pixels}
        sides = {side: {"pretrained": "fresh", "architecture": own} for side in ("image", "text")}
    else:
        sides = {
            "image": {"name": sizes["image"], "size": sizes["side"]},
            "text": {"name": sizes["text"], "vocab": 49408, "context": CONTEXT},
        }
    cls: Any = method_class(recipe.method)
    torch.manual_seed(0)
    return cls(
        cls.config_class.model_validate(
            recipe.model | {"pretrained": None} | sides | {"width": sizes["width"]}
        )
    )


def images_of(number: int, side: int) -> Images:
    g = torch.Generator().manual_seed(1)
    return Images(torch.rand(number, 3, side, side, generator=g), torch.arange(number))


def texts_of(images: int, each: tuple[int, int, int], length: float) -> Texts:
    """So many captions, sentences and phrases of each image, with so many tokens on average."""
    g, slots = torch.Generator().manual_seed(0), sum(each)
    number = torch.normal(length, length / 3, (images * slots, 1), generator=g).round().clamp(3, CONTEXT)
    mask = torch.arange(CONTEXT) < number[..., None]
    ids = torch.randint(3, 40_000, mask.shape, generator=g)
    level = torch.tensor([CAPTION, SENTENCE, PHRASE]).repeat_interleave(torch.tensor(each)).repeat(images)
    return Texts(ids, mask, torch.arange(len(ids)), torch.arange(images).repeat_interleave(slots), level)


@contextmanager
def padding(wanted: bool) -> Iterator[None]:
    """Texts in padded groups, where they would be packed."""
    before: Any = text_encoder.can_pack
    text_encoder.can_pack = (lambda _: False) if wanted else before
    try:
        yield
    finally:
        text_encoder.can_pack = before


def flop_of_rows(products: int, query: int, bias: int) -> Callable[..., int]:
    """FLOP of attention with a mask: so many products of the pairs that are read. torch counts all pairs.

    query, bias  places of the queries, in front of the keys, and of the mask, 0 where a token is read
    """

    def count(*args: Any, **_: Any) -> int:
        q, k, mask = args[query], args[query + 1], args[bias]
        heads, width = q.shape[1], q.shape[3]
        pairs = len(q) * q.shape[2] * k.shape[2] if mask is None else int((mask[:, 0] == 0).sum())
        return 2 * products * pairs * heads * width

    count._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
    return count


def flop_of_product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Of [..., n, k] @ [..., k, m], whose type of the result torch takes for its shape"""
    return 2 * math.prod(a) * int(b[-1])


def tflop(step: Callable[[], None]) -> float:
    """Of a step, in 10**12."""
    ops = torch.ops.aten
    counts: dict[Any, Any] = {ops.mm: flop_of_product, ops.bmm: flop_of_product}
    added = (ops.addmm, ops.addmm_, ops.baddbmm)
    counts |= dict.fromkeys(added, lambda _, *given, **__: flop_of_product(*given))
    for name, bias in (("efficient", 4), ("cudnn", 8)):
        counts[getattr(ops, f"_scaled_dot_product_{name}_attention")] = flop_of_rows(2, 0, 3)
        counts[getattr(ops, f"_scaled_dot_product_{name}_attention_backward")] = flop_of_rows(5, 1, bias)
    with FlopCounterMode(display=False, custom_mapping=counts) as counter:
        step()
    return counter.get_total_flops() / 1e12


class Measure:
    """Reports steps of so many images, with the ceiling measured first."""

    def __init__(self, images: int, repeats: int, tiny: bool) -> None:
        self.images, self.repeats, self.tiny = images, repeats, tiny
        side = 256 if tiny else SIDE
        self.ceiling = product_speed(torch.bfloat16, side, repeats)
        report("steps: ceiling, product in bfloat16", self.ceiling, "TFLOP/s")

    def step(self, name: str, step: Callable[[], None], work: float, **goals: float | None) -> float:
        """Milliseconds. work: TFLOP of a step"""
        found = cost(step, self.repeats)
        rate = 1e3 * self.images / found.ms
        report(f"{name}: images", rate, "img/s", at_least=goals.get("rate"), mib=found.mib, ms=found.ms)
        speed = 1e3 * work / found.ms
        share = 100 * speed / self.ceiling
        report(f"{name}: of the ceiling", share, "%", at_least=goals.get("share"), tflops=speed)
        return found.ms

    def caft(self) -> None:
        texts = bench_caft.texts_of(self.images)
        for name in ("packed", "padded", "compiled"):
            method = bench_caft.made("Ti" if self.tiny else "B", "heads=8")
            step = Step(method, bench_caft.images_of(self.images), texts)
            with padding(name == "padded"):
                work = tflop(step)
                if name == "compiled":  # counting does not see into such layers
                    self.compile(step)
                goal = CAFT_GOAL if name == "padded" else CAFT_PACKED
                self.step(f"caft/paper, {name}", step, work, rate=goal, share=SHARE)
            del step, method

    def compile(self, step: "Step") -> None:
        compile_layers(step.objective.method, "eager" if self.tiny else "inductor")

    def compiled(self, name: str, step: "Step", work: float) -> None:
        """Another row, of the same step with compiled layers."""
        self.compile(step)
        self.step(f"{name}, compiled", step, work, share=SHARE)

    def clip(self) -> None:
        sizes = TINY if self.tiny else SIZES
        images, texts = images_of(self.images, sizes["side"]), texts_of(self.images, (1, 0, 0), 24.0)
        ours = Step(of_recipe("clip/vit_b16", sizes), images, texts)
        work = tflop(ours)
        own = self.step("clip/vit_b16", ours, work, share=SHARE)
        self.compiled("clip/vit_b16", ours, work)
        del ours
        try:
            theirs = OpenClip(images, texts)
        except ImportError:
            print("# open_clip is not installed: it is not measured")
            return
        other = self.step("open_clip", theirs, tflop(theirs))
        report("clip/vit_b16: time of open_clip's step / of ours", other / own, "x", at_least=1.0)

    def beta_clip(self) -> None:
        sizes = TINY if self.tiny else SIZES
        step = Step(
            of_recipe("beta_clip/paper", sizes),
            images_of(self.images, sizes["side"]),
            texts_of(self.images, (1, 5, 30), 12.0),
        )
        work = tflop(step)
        self.step("beta_clip/paper", step, work, share=SHARE)
        self.compiled("beta_clip/paper", step, work)

    def methods(self) -> None:
        sizes = TINY if self.tiny else SIZES
        for name, images, each, length in METHODS:
            number = min(images, self.images)
            pixels, texts = images_of(number, sizes["side"]), texts_of(number, each, length)
            if caft := name.startswith("caft"):
                pixels, texts = bench_caft.images_of(number), bench_caft.texts_of(number)
            elif name.startswith("seps"):
                pixels = pixels._replace(dense=texts_of(number, (1, 0, 0), 60.0))
            method = (
                bench_caft.made("Ti" if self.tiny else "B", "heads=8") if caft else of_recipe(name, sizes)
            )
            step = Step(method, pixels, texts)
            found = cost(step, self.repeats)
            report(f"{name}, {number} images: step", found.ms, "ms", mib=found.mib)
            if name.startswith(SCORED):
                self.scores(name, step)
            del step, method

    @torch.no_grad()
    def scores(self, name: str, step: Step) -> None:
        """All scores of 1,000 images with 5,000 texts, as a suite computes them."""
        method, (images, texts) = step.objective.method.eval(), step.batch
        sides = (method.encode_images(images), 1000), (method.encode_texts(texts), 5000)
        many = [rows(x, torch.arange(2 * len(x.item) if self.tiny else n) % len(x.item)) for x, n in sides]
        found = cost(lambda: all_scores(method, *many), self.repeats)
        report(f"{name}: scores of {len(many[0].item)} x {len(many[1].item)}", found.ms, "ms", mib=found.mib)


METHODS = (  # recipe, images, texts of each level for an image, mean number of their tokens
    ("clip/vit_b16", 256, (1, 0, 0), 24.0),
    ("himo/official", 256, (1, 0, 0), 60.0),
    ("flair/paper", 256, (8, 0, 0), 24.0),
    ("caft/paper", 256, (1, 4, 0), 36.0),
    ("beta_clip/paper", 256, (1, 5, 30), 12.0),
    ("beta_clip/paper", 64, (1, 5, 30), 12.0),
    ("seps/vit_224", 64, (1, 0, 0), 14.0),
)
SCORED = ("flair", "seps")


def library_config(sizes: dict[str, Any]) -> Any:
    """The sizes of a CLIP ViT-B/16, or tiny ones, as transformers writes them."""
    from transformers import CLIPConfig

    tiny = sizes is TINY
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    vision = {"image_size": sizes["side"], "patch_size": 16}
    return CLIPConfig(
        text_config={"max_position_embeddings": CONTEXT} | (small if tiny else text),
        vision_config=vision | (small if tiny else {}),
        projection_dim=sizes["width"],
    )


class OpenClip:
    """CLIP's step after open_clip's documentation, with fresh weights. Raises ImportError."""

    def __init__(self, images: Images, texts: Texts) -> None:
        import open_clip

        self.model = open_clip.create_model("ViT-B-16").to(GPU).train()
        self.loss = open_clip.ClipLoss()
        self.optimizer = optimizer(self.model)
        side = images.pixels.shape[-1]
        self.images = F.interpolate(images.pixels, 224).to(GPU) if side != 224 else images.pixels.to(GPU)
        self.ids = ended(texts).to(GPU)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(GPU.type, torch.bfloat16):
            loss = self.loss(*self.model(self.images, self.ids)[:3])
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(0, math.log(100))


def ended(texts: Texts) -> Tensor:
    """The first part of each text, its last token the end token of CLIP, then zeros."""
    ids = texts.ids[:, 0].masked_fill(~texts.mask[:, 0], 0)
    return ids.scatter(1, texts.mask[:, 0].sum(1, keepdim=True) - 1, 49407)


STEPS = ("caft", "clip", "beta_clip", "methods")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to see that it runs")
    args = parser.parse_args()
    if GPU.type == "cpu" and not args.rehearse:
        print("# no CUDA device: nothing is measured")
        return
    images, repeats = (2, 1) if args.rehearse else (args.images, args.repeats)
    measure = Measure(images, repeats, args.rehearse)
    for name in args.only:
        getattr(measure, name)()


if __name__ == "__main__":
    main()
