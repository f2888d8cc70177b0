"""The public functions `grainline.train`, `.evaluate` and `.load`; no module has one of these names."""

import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import grainline

TINY = [
    "train.max_steps=2", "train.global_batch_size=6", "train.save_every=2", "data.workers=0",
    "data.tokenizer_samples=12", "model.image.width=32", "model.image.depth=1", "model.image.heads=2",
    "model.image.size=32", "model.text.width=32", "model.text.depth=1", "model.text.heads=2",
    "model.width=16", "model.text.vocab=600", "train.optimizer.schedule.warmup=0",
]  # fmt: skip


def test_public_functions_work_after_every_submodule_is_imported(tmp_path: Path) -> None:
    for module in pkgutil.walk_packages(grainline.__path__, "grainline."):
        file = Path(grainline.__path__[0]).parent / f"{module.name.replace('.', '/')}.py"
        needs_triton = file.is_file() and "import triton" in file.read_text(encoding="utf-8")
        if not module.name.endswith("__main__") and (find_spec("triton") or not needs_triton):
            importlib.import_module(module.name)
    last = grainline.train("clip/patches", tmp_path / "run", data=["scenes:train?count=12"], changes=TINY)
    assert last == tmp_path / "run/last"
    result = grainline.evaluate(last, "scenes:dev?count=6", json=tmp_path / "result.json")
    assert result.suite == "retrieval"
    assert result.data["images"] == 6
    assert result.metric("text to image R@1").queries == 6
    assert (tmp_path / "result.json").is_file()
    model = grainline.load(last, device="cpu")
    assert isinstance(model, grainline.Model)
    assert model.encode(texts=["a red disc", "a dog"]).vector.shape == (2, 16)
    with pytest.raises(
        grainline.UserError, match=r"holds a run already; continue with --resume \(resume=True\)"
    ):
        grainline.train("clip/patches", tmp_path / "run", data=["scenes:train?count=12"], changes=TINY)


def test_wrong_arguments_of_train_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(grainline.UserError, match="needs --resume"):
        grainline.train("clip/patches", tmp_path / "x", checkpoint="step-00000200")
    from grainline.training.recipe import read_recipe

    with pytest.raises(grainline.UserError, match="go with the name or file of a recipe"):
        grainline.train(read_recipe("clip/patches", []), tmp_path / "x", data=["scenes"])
    assert not (tmp_path / "x").exists()


def test_options_go_with_the_name_of_a_suite() -> None:
    from grainline.evaluation.suite import load_suite

    with pytest.raises(grainline.UserError, match="options go with the name of a suite"):
        grainline.evaluate("nowhere", "scenes:dev", load_suite("retrieval"), k=1)


def test_the_import_loads_no_torch_and_knows_its_names() -> None:
    code = "import grainline, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert callable(grainline.train)
    assert not hasattr(grainline, "no_such_name")
    assert set(dir(grainline)) >= {"__version__"}
