"""The examples of CONTRIBUTING.md run as they stand, each section in a folder of its own."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from make import CLOCK, batch, build
from runs import call

from grainline.distributed import ddp_mean
from grainline.training.step import step
from grainline.types import Clock, Pair, Term

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (A \w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
SMALL = (
    "model.width=16", "model.image.width=32", "model.image.depth=1", "model.image.heads=2",
    "model.image.size=32",
    "model.text.width=32", "model.text.depth=1", "model.text.heads=2", "model.text.vocab=600",
    "data.tokenizer_samples=12", "data.workers=0", "train.optimizer.schedule.warmup=0",
)  # fmt: skip
"""Added to the command that trains a recipe of the package, for time."""


@pytest.mark.parametrize("title", SECTIONS)
def test_the_example_runs_as_it_stands(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # where modules of the folder are found again
    files = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```", SECTIONS[title], re.M | re.S)
    assert files
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = re.findall(r"^grainline (.*)$", SECTIONS[title], re.M)
    assert commands
    for command in commands:
        arguments = shlex.split(command)
        if arguments[:2] == ["train", "clip/patches"]:
            arguments += SMALL
        assert call(*arguments) == 0, (command, capsys.readouterr().err)


def test_a_scalar_in_a_term_is_the_mean_of_one_process() -> None:
    method, (images, texts) = build("clip"), batch()
    plain = step(method, images, texts, CLOCK)

    class Scalar(type(method)):  # type: ignore[misc]
        def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
            terms = super().loss(local, gathered, clock)
            return {name: Term(term.weight, ddp_mean(term.mean)) for name, term in terms.items()}

    method.__class__ = Scalar
    torch.testing.assert_close(step(method, images, texts, CLOCK), plain)
