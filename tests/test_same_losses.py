"""The parts of `same_losses.py` that compare; the losses themselves are for two versions of the package."""

from pathlib import Path

import same_losses
import torch
from safetensors.torch import save_file

from grainline.methods import METHODS


def test_the_hash_of_weights_knows_types_shapes_and_bytes_but_no_names(tmp_path: Path) -> None:
    a, b = torch.arange(6.0), torch.ones(2, 3)

    def digest(**tensors: torch.Tensor) -> str:
        save_file(tensors, tmp_path / "x.safetensors", metadata={"format": str(len(tensors))})
        return same_losses.weights_hash(tmp_path / "x.safetensors")

    same = digest(first=a, second=b)
    assert digest(renamed=b, other=a) == same
    others = [
        {"first": a},
        {"first": a, "second": b, "third": b.clone()},
        {"first": a.view(2, 3), "second": b},
    ]
    others += [{"first": a, "second": b.nextafter(b + 1)}, {"first": a.int(), "second": b}]
    assert len({same, *(digest(**tensors) for tensors in others)}) == 6


def test_differences_say_which_case_and_from_which_step_on() -> None:
    one = {"losses": ["0x1", "0x2", "0x3"], "norms": ["0x1"], "weights": "a"}
    here = [{"case": "same"} | one, {"case": "loss"} | one, {"case": "end"} | one, {"case": "new"} | one]
    there = [{"case": "same"} | one, {"case": "loss"} | one | {"losses": ["0x1", "0x0", "0x0"]}]
    there += [{"case": "end"} | one | {"weights": "b"}, {"case": "old"} | one]
    assert same_losses.differences(here, here) == []
    assert same_losses.differences(here, there) == [
        "old: only there",
        "loss: losses from step 2 on differ",
        "end: norms or final weights differ",
        "new: only here",
    ]


def test_a_case_that_failed_on_both_sides_is_no_equal_one() -> None:
    failed = [{"case": "x", "error": "no such field"}]
    assert same_losses.differences(failed, failed) == ["x: no such field / no such field"]


def test_every_method_has_a_case_and_each_is_small() -> None:
    result = same_losses.cases(same_losses.HERE, Path("checkpoints"))
    assert {values["method"] for values in result.values()} == set(METHODS)
    sizes = {
        (values["train"]["global_batch_size"], values["train"]["max_steps"]) for values in result.values()
    }
    assert sizes == {(16, same_losses.STEPS)}
