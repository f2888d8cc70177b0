"""Numbers that a method tells beside its loss: logged, drawn, never minimised."""

from pathlib import Path

import pytest
import torch
from make import CLOCK, TINY, batch

from grainline.config import parse
from grainline.data.dataset import TrainSet
from grainline.data.scenes.source import Scenes
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training.log import read_log
from grainline.training.loop import Run, train_loop
from grainline.training.recipe import TrainConfig
from grainline.training.report import curves
from grainline.training.step import Loss, Objective, step
from grainline.types import Clock, Encoded, Mean, Pair, Term, Texts


class Telling(CLIP):
    """A CLIP that tells the step, the length of texts and, from the third step on, what is not a number."""

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        odd = torch.tensor(float("nan") if clock.step > 1 else 2.0)
        one = torch.tensor(1.0)
        sums = gathered.texts.vector.sum()  # with a gradient, which must not count
        return super().loss(local, gathered, clock) | {
            "step": Term(None, Mean(torch.tensor(float(clock.step)), one)),
            "odd": Term(None, Mean(odd, one)),
            "sums": Term(None, Mean(sums, one)),
        }

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:
        real = encoded.item >= 0
        return {"length": Term(None, Mean(texts.mask.sum().float(), real.sum().float()))}


def made(cls: type[CLIP], vocab: int = 300) -> CLIP:
    torch.manual_seed(0)
    values = {**TINY, "text": {"name": "toy", "vocab": vocab, "context": 24}}
    return cls(parse(CLIPConfig, values, "test"))


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_facts_stand_beside_the_loss_and_change_no_gradient(chunk: int | None) -> None:
    images, texts = batch(4)
    telling, silent = made(Telling).eval(), made(CLIP).eval()
    loss: Loss = Objective(telling)(images, texts, CLOCK, chunk)
    plain: Loss = Objective(silent)(images, texts, CLOCK, chunk)
    loss.total.backward()
    plain.total.backward()
    assert torch.equal(loss.total, plain.total)
    assert loss.terms.keys() == plain.terms.keys()
    assert plain.facts == {}
    assert {name: float(x) for name, x in loss.facts.items() if name != "sums"} == {
        "step": 0.0,
        "odd": 2.0,
        "length": pytest.approx(int(texts.mask.sum()) / int((texts.item >= 0).sum())),
    }
    assert not any(x.requires_grad for x in loss.facts.values())
    for (name, a), b in zip(telling.named_parameters(), silent.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_steps_return_terms_alone() -> None:
    for terms in (step(made(Telling), *batch(), CLOCK), step(made(Telling), *batch(), CLOCK, 2)):
        assert set(terms) == {"i2t", "t2i"}


def test_the_log_holds_means_of_facts_and_none_of_them_stops_a_run(tmp_path: Path) -> None:
    source = Scenes("scenes:train?count=16", size=32)
    tokenizer = Tokenizer.train((source[i].whole for i in range(16)), 600)
    data = TrainSet(source, tokenizer, TrainTransform(8), TextsConfig(), context=24, seed=0)
    values = {
        "max_steps": 4,
        "global_batch_size": 8,
        "grad_accum": 2,
        "precision": "fp32",
        "log_every": 2,
        "save_every": 4,
    }
    cfg = TrainConfig.model_validate(values)
    out = train_loop(
        Run(tmp_path / "a", made(Telling, tokenizer.vocab), data, cfg, 0, 0.0, None),
        torch.device("cpu"),
        None,
    )
    train_loop(
        Run(tmp_path / "b", made(CLIP, tokenizer.vocab), data, cfg, 0, 0.0, None), torch.device("cpu"), None
    )
    first, second = (line for line in read_log(out.parent) if line["kind"] == "train")
    assert (first["facts"]["step"], second["facts"]["step"]) == (0.5, 2.5)
    assert 3 < first["facts"]["length"] <= 24
    assert first["facts"]["odd"] == 2.0
    assert second["facts"]["odd"] is None
    assert second["non_finite"] == {"facts.odd": "nan"}
    plain = [line for line in read_log(tmp_path / "b") if line["kind"] == "train"]
    assert [line["terms"] for line in (first, second)] == [line["terms"] for line in plain]
    assert not any("facts" in line for line in plain)


def test_the_report_draws_each_fact_by_itself() -> None:
    line = {"kind": "train", "epoch": 0.5, "terms": {"loss": 1.0}, "norm": 1.0, "lr": {".*": 0.1}}
    lines = [
        {**line, "step": i, "images_per_s": 8.0, "facts": {"scale": 100.0, "kept": 3.0 * i}} for i in (1, 2)
    ]
    drawn = {chart.title: chart for chart in curves(lines)}
    assert list(drawn)[1:3] == ["Fact: scale", "Fact: kept"]
    (kept,) = drawn["Fact: kept"].series
    assert (list(kept.x), list(kept.y)) == ([1, 2], [3.0, 6.0])
