"""Positions of texts that never learn: the others learn as in one table, and other programs get one table."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CONTEXT, FAMILIES, OpenAI, save_state, texts, tokenizer, whole
from make import CLOCK
from runs import complaint
from safetensors.torch import load_file
from torch import Tensor, nn

from grainline.build import Description, Start, start
from grainline.config import parse
from grainline.encoders.pretrained import build_pretrained
from grainline.encoders.pretrained.convert import joined
from grainline.errors import UserError
from grainline.hub import fingerprint
from grainline.methods.clip import CLIPConfig
from grainline.model import Model
from grainline.nn.positions import KEEP, PartlyFrozen, to_context
from grainline.training.optim import OptimizerConfig, build_optimizer
from grainline.training.step import step
from grainline.types import Images, Texts

TABLE = "towers.text.model.embeddings.position_embedding"
ADAMW = {
    "lr": 0.01,
    "weight_decay": 0.5,
    "eps": 1e-3,
    "schedule": {"kind": "constant"},
    "rules": [{"pattern": r".*position.*", "weight_decay": 0.9, "lr_factor": 2.0}, {"pattern": ".*"}],
}


def begun(place: Path, **text: Any) -> Start:
    values = {"pretrained": str(place), "text": text}
    return start(Description("clip", parse(CLIPConfig, values, "test")))


@pytest.fixture(scope="module", params=["folder", "openai"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tensor]:
    """A checkpoint in two forms, and its table of positions."""
    home = tmp_path_factory.mktemp("checkpoint")
    if request.param == "folder":
        model = whole("clip", home / "clip")
        return home / "clip", model.text_model.embeddings.position_embedding.weight.detach()
    torch.manual_seed(0)
    theirs = OpenAI(vocab=tokenizer().vocab)
    save_state(theirs, home / "quickgelu.safetensors")
    return home / "quickgelu.safetensors", theirs.positional_embedding.detach()


def batch() -> tuple[Images, Texts]:
    """Texts of up to 48 tokens, so that positions on both sides of the border are read."""
    ids, mask = texts(context=48, rows=4)
    number = torch.arange(4)
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    return Images(pixels, number), Texts(
        ids[:, None], mask[:, None], number, number, torch.zeros_like(number)
    )


@pytest.mark.parametrize("family", ["clip", "siglip", "groupvit", "bert"])
def test_the_vectors_are_those_of_one_table(family: str) -> None:
    torch.manual_seed(0)
    config = FAMILIES[family]().config.to_dict()
    architecture = {"kind": family, "config": config, "mean": [0.5] * 3, "spread": [0.5] * 3, "pad": 0}
    encoder: Any = build_pretrained(architecture).text
    ids, mask = texts(encoder.context)
    before = encoder(ids, mask)
    state = {name: x.clone() for name, x in encoder.library_state().items()}
    assert state.keys() == encoder.model.state_dict().keys()
    encoder.freeze_positions(5)
    for a, b in zip(encoder(ids, mask), before, strict=True):
        assert torch.equal(a, b)
    again = encoder.library_state()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], x) for name, x in state.items())
    assert state.keys() - encoder.model.state_dict().keys() == {f"{encoder.table}.weight"}
    encoder.fill({name: x + 1 for name, x in state.items()})
    assert all(torch.equal(x, state[name] + 1) for name, x in encoder.library_state().items())


def test_a_table_that_would_learn_nothing_or_all_of_it_is_refused() -> None:
    for count in (0, 7, 8):
        with pytest.raises(ValueError, match=f"{count} of 7 positions cannot be frozen"):
            PartlyFrozen(torch.ones(7, 2), count)


def test_one_step_leaves_the_first_twenty_bit_for_bit_and_moves_the_others(
    checkpoint: tuple[Path, Tensor],
) -> None:
    place, table = checkpoint
    method: Any = begun(place, context=48, stretch="keep", frozen_positions=KEEP).method().train()
    wanted = to_context(table, 48, "keep")
    content: Any = method.get_submodule(TABLE)
    assert torch.equal(content.weight, wanted)
    optimizer = build_optimizer(method, OptimizerConfig.model_validate(ADAMW))
    step(method, *batch(), CLOCK)
    optimizer.step()
    assert torch.equal(content.weight[:KEEP], table[:KEEP])
    assert (content.weight[KEEP:] != wanted[KEEP:]).any(1).all()
    assert f"{TABLE}.frozen" not in dict(method.named_parameters())


def test_the_others_get_the_gradients_of_one_table(checkpoint: tuple[Path, Tensor]) -> None:
    content: Any = begun(checkpoint[0], context=48, frozen_positions=KEEP).method()
    one: Any = begun(checkpoint[0], context=48).method()
    for method in (content, one):
        torch.manual_seed(0)
        step(method, *batch(), CLOCK)
    plain = dict(one.named_parameters())
    for name, p in content.named_parameters():
        if name == f"{TABLE}.learnt":
            torch.testing.assert_close(p.grad, plain[f"{TABLE}.weight"].grad[KEEP:])
            assert p.grad.abs().sum() > 0
        else:
            torch.testing.assert_close(p.grad, plain[name].grad, msg=name)


def test_other_programs_get_one_table(checkpoint: tuple[Path, Tensor], tmp_path: Path) -> None:
    from grainline.encoders.pretrained.convert import to_hugging_face, to_open_clip
    from grainline.export.huggingface import parity, towers_of

    begin = begun(checkpoint[0], context=48, frozen_positions=KEEP)
    method: Any = begin.method()
    nn.init.ones_(method.get_submodule(TABLE).learnt)
    towers = towers_of(Model(begin.description, method, tokenizer()), "a run")
    state = joined(towers)
    rows = state["text_model.embeddings.position_embedding.weight"]
    assert torch.equal(rows, torch.cat([checkpoint[1][:KEEP], torch.ones(28, 64)]))
    assert not any("frozen" in name or "learnt" in name for name in state)
    to_hugging_face(towers, tmp_path / "folder")
    assert max(parity(towers, tmp_path / "folder")) < 1e-6
    if checkpoint[0].is_file():  # heads of 64, as a state dict must have
        to_open_clip(towers, tmp_path / "again.safetensors")
        assert max(parity(towers, tmp_path / "again.safetensors")) < 1e-6
        assert torch.equal(load_file(tmp_path / "again.safetensors")["positional_embedding"], rows)


def test_which_positions_learn_makes_no_other_model_of_the_same_names(
    checkpoint: tuple[Path, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indexes that were made before the field was there stay valid."""
    begin = begun(checkpoint[0])
    made = Model(begin.description, begin.method(), tokenizer())
    now = fingerprint(made)
    dump = CLIPConfig.model_dump

    def older(self: CLIPConfig, **how: Any) -> dict[str, Any]:
        values = dump(self, **how)
        del values["text"]["frozen_positions"], values["image"]["patches"]
        return values

    monkeypatch.setattr(CLIPConfig, "model_dump", older)
    assert fingerprint(made) == now


def test_as_many_positions_as_the_text_may_have_are_one_line(
    checkpoint: tuple[Path, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"^test: field 'text': frozen_positions 48: context is 48, not more"):
        begun(checkpoint[0], context=48, frozen_positions=48)
    with pytest.raises(UserError, match=f"frozen_positions 30: context is {CONTEXT}, not more"):
        begun(checkpoint[0], frozen_positions=30)
    with pytest.raises(
        UserError, match=r"field 'text\.frozen_positions' is -1: it must be greater than or equal to 0"
    ):
        begun(checkpoint[0], frozen_positions=-1)
    own = [f"model.pretrained={checkpoint[0]}", "model.text.frozen_positions=99", "model.text.context=48"]
    out = tmp_path / "run"
    said = complaint(capsys, "train", "clip/finetune", "--data", tmp_path, "--out", out, "--set", *own)
    assert "frozen_positions 99" in said
    assert not out.exists()
