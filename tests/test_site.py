"""The documentation: links lead somewhere, generated pages are complete, examples run as they stand."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from indexes import photo, saved, tiny_model
from runs import call, recipe

import grainline

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = ("reference/commands.md", "reference/recipe.md", "reference/suites.md")


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gen() -> ModuleType:
    return script("docs/gen.py")


def broken(page: Path, text: str) -> list[str]:
    targets = re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", text)
    return [x for x in targets if not (page.parent / x).exists() and not x.endswith(GENERATED)]


def test_relative_links_of_all_pages_lead_to_files() -> None:
    assert {p.name: b for p in PAGES if (b := broken(p, p.read_text(encoding="utf-8")))} == {}
    assert broken(PAGES[0], "[a](docs/nowhere.md)") == ["docs/nowhere.md"]


def test_generated_pages_have_every_command_field_and_suite(gen: ModuleType) -> None:
    from grainline.evaluation.suite import SUITES
    from grainline.methods import METHODS
    from grainline.training.recipe import TrainConfig

    made = gen.pages()
    assert "## grainline index refresh" in made["reference/commands.md"]
    assert "`--resume`" in made["reference/commands.md"]
    for name in TrainConfig.model_fields:
        assert f"`train.{name}" in made["reference/recipe.md"], name
    assert "in random order; `few` or `any` |" in made["reference/recipe.md"], "the names of a choice"
    assert "Otsu's threshold" in made["reference/suites.md"], "what a suite measures"
    assert all(f"## Method {name}" in made["reference/recipe.md"] for name in METHODS)
    assert all(f"## {name}" in made["reference/suites.md"] for name in SUITES)


def test_the_navigation_names_pages_that_exist_and_leaves_none_out() -> None:
    nav = re.findall(r": ?(\S+\.md)$|- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    names = {a or b for a, b in nav}
    present = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{p.stem}.md" for p in (ROOT / "docs/notebooks").glob("*.ipynb")}
    assert names == present | notebooks | {*GENERATED, "CONTRIBUTING.md", "CHANGELOG.md"}


def test_the_search_of_the_site_works_from_files_and_loads_nothing_from_elsewhere() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in site["plugins"]
    scripts = site["extra"]["polyfills"]
    assert any("iframe-worker" in script for script in scripts)  # else the plugin names one of another host
    assert all((ROOT / "docs" / script).is_file() for script in scripts)


def test_the_encoder_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/howto/encoder.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```", page, re.M | re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in re.findall(r"^grainline (.*)$", page, re.M):
        assert call(*shlex.split(command)) == 0, command


def test_the_python_of_the_readme_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    result = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.S)
    assert result is not None
    saved(tiny_model("maxsim"), tmp_path / "out/demo")
    monkeypatch.chdir(tmp_path)
    exec(compile(result[1], "README.md", "exec"), {})
    assert capsys.readouterr().out == result[2]


def test_the_badges_are_those_of_the_project() -> None:
    draw = script("docs/figures/draw.py")
    badges = (ROOT / "docs/figures/badges.svg").read_text(encoding="utf-8")
    assert badges == draw.badges(), "python docs/figures/draw.py"
    for part in (f">{grainline.__version__}<", ">3.11+<", ">2.6+<", ">Apache-2.0<"):
        assert part in badges


def test_the_loss_of_the_page_runs() -> None:
    page = (ROOT / "docs/howto/losses.md").read_text(encoding="utf-8")
    exec(compile(re.findall(r"```python\n(.*?)```", page, re.S)[0], "losses.md", "exec"), {})


@pytest.mark.filterwarnings("ignore")  # sentence-transformers warns while it is imported
def test_the_short_vectors_of_the_page_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    page = (ROOT / "docs/howto/small-vectors.md").read_text(encoding="utf-8")
    exec(compile(re.findall(r"```python\n(.*?)```", page, re.S)[0], "small-vectors.md", "exec"), {})
    assert capsys.readouterr().out.split() == ["0", "0"]


def test_the_vectors_of_the_page_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/howto/vectors.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    write, evaluate = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(compile(write, "vectors.md", "exec"), names)
    for command in re.findall(r"^grainline (.*)$", page, re.M):
        assert call(*shlex.split(command)) == 0, command
    exec(compile(evaluate, "vectors.md", "exec"), names)
    by_file = json.loads(Path("x.json").read_text())["metrics"]
    assert [m["value"] for m in by_file] == [m.value for m in names["result"].metrics]


def test_the_training_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/howto/callbacks.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "more-photos"):
        for i, name in enumerate("abcdefgh"):
            photo(tmp_path / folder / f"{name}.jpg", i)
            (tmp_path / folder / f"{name}.txt").write_text(f"A {name} lies by the sea. It is small.")
    small = {'"photos/starter"': repr(recipe(tmp_path)), "=64": "=2", "max_steps=500": "max_steps=2"}
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        for long, short in small.items():
            code = code.replace(long, short)
        exec(compile(code.replace("validate_every=100", "validate_every=3"), "callbacks.md", "exec"), names)
    assert all((tmp_path / "runs" / name / "last").is_dir() for name in "xyz")
