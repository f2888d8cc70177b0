"""Pages of the site that come from the code, and the notebooks: a hook of mkdocs, which `make docs` runs.

Every command with its options, every field of a recipe and every option of a suite is read from the package
at build time, so these pages cannot differ from it. Notebooks are run when they or the package have changed.

`python docs/gen.py notebooks` runs the notebooks alone. NOTEBOOKS=skip builds the pages without running any.
"""

import hashlib
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

ROOT = Path(__file__).resolve().parents[1]
DOCS, EXECUTED = ROOT / "docs", ROOT / "build/notebooks"
FROM_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Files above docs/ that are pages too."""

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"(!?\[[^]]*\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
LONGEST = 4000
"""Letters of an output of a notebook on its page."""


def pages() -> dict[str, str]:
    """All generated pages: path in the site -> Markdown."""
    made = {
        "reference/commands.md": commands(),
        "reference/recipe.md": fields(),
        "reference/suites.md": suites(),
    }
    for name in FROM_ROOT:
        text = (ROOT / name).read_text(encoding="utf-8")
        made[name] = re.sub(r"\]\(docs/", "](", text)
    return made


def cell(text: Any) -> str:
    """Text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", r"\|").replace("<", "&lt;")


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Rows as a table of Markdown, in the form of `.fields` in site.css."""
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f'<div class="fields" markdown>\n\n{text}\n\n</div>\n'


# Commands


def commands() -> str:
    """Every command of the command line, with arguments, options and an example."""
    import typer

    from grainline.cli.main import app

    parts = [
        "# Commands\n\nMade from the code of this version. `grainline COMMAND --help` prints the same.\n",
        "Exit codes: 0 for success, 2 for a mistake in what was given, 130 after Ctrl-C.\n",
    ]
    for name, command in leaves(typer.main.get_command(app), "grainline"):
        parts.append(f"## {name}\n\n{plain(command.help)}\n")
        if command.epilog:
            parts.append(f"```\n{command.epilog.removeprefix('Example: ')}\n```\n")
        rows = [[f"`{usage(p)}`", default(p), cell(plain(p.help))] for p in command.params if not p.hidden]
        rows = [row for row in rows if row[0] != "`--help`"]
        parts.append(table(["argument or option", "default", "meaning"], rows) if rows else "")
    return "\n".join(parts)


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        yield name, command
        return
    for key, below in inside.items():
        if not below.hidden:
            yield from leaves(below, f"{name} {key}")


def plain(text: str | None) -> str:
    return re.sub(r"\[/?(?:dim|bold|bright_black)[^]]*\]", "", text or "").strip()


def usage(param: Any) -> str:
    if param.opts[0].startswith("-"):
        return ", ".join([*param.opts, *param.secondary_opts])
    return param.metavar or param.name.upper()


def default(param: Any) -> str:
    if param.required:
        return "required"
    value = param.default() if callable(param.default) else param.default
    if value is None or value is False or value == ():
        return ""
    return f"`{cell(value)}`"


# Recipes


def fields() -> str:
    """Every field of a recipe: of the run, of each method, of each kind of encoder."""
    from grainline.encoders.towers import ImageSide, TextSide, TowersConfig
    from grainline.methods import METHODS, method_class
    from grainline.training.recipe import Recipe

    parts = [
        "# Fields of a recipe\n\nMade from the code of this version. A recipe is a YAML file with these fields;"
        " `--set a.b=value` changes one. What they are for, with examples: [training](../training.md) and"
        " [data](../data.md).\n",
        "## The run\n",
        table(COLUMNS, list(rows_of(Recipe, "", leave=("model",)))),
        "## Both encoders\n\nFields of every method, under `model`.\n",
        table(COLUMNS, list(rows_of(TowersConfig, "model.", leave=("image", "text")))),
    ]
    for name in METHODS:
        rows = list(
            rows_of(method_class(name).config_class, "model.", leave=tuple(TowersConfig.model_fields))
        )
        parts.append(f"## Method {name}\n")
        parts.append(table(COLUMNS, rows) if rows else "No fields of its own.\n")
    for side, kinds in (("image", ImageSide), ("text", TextSide)):
        for config in configs_in(kinds):
            parts.append(f"## {config.__name__}\n\n{summary(config)} Under `model.{side}`.\n")
            parts.append(table(COLUMNS, list(rows_of(config, f"model.{side}."))))
    return "\n".join(parts)


COLUMNS = ["field", "default", "meaning"]


def rows_of(config: Any, prefix: str, leave: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """A row for each field, those of configs inside it too."""
    said = comments(config)
    for name, field in config.model_fields.items():
        if name in leave:
            continue
        inner = next(iter(configs_in(field.annotation)), None)
        one = len(configs_in(field.annotation)) == 1 and tuple not in origins(field.annotation)
        if inner is not None and one and inner is not config:
            if field.default is None:
                yield [f"`{prefix}{name}`", "`null`", cell(said.get(name) or summary(inner))]
            yield from rows_of(inner, f"{prefix}{name}.")
            continue
        value = (
            "required"
            if field.is_required()
            else f"`{yaml_text(field.get_default(call_default_factory=True))}`"
        )
        allowed = " or ".join(f"`{one}`" for one in choices(field.annotation))
        meaning = [part for part in (field.description or said.get(name), allowed) if part]
        yield [f"`{prefix}{name}`", cell(value), cell("; ".join(meaning))]


def choices(kind: Any) -> list[str]:
    """The names that a field of this type may hold."""
    if getattr(kind, "__origin__", None) is Literal:
        return [one for one in get_args(kind) if isinstance(one, str)]
    return [one for part in get_args(kind) for one in choices(part)]


def yaml_text(value: Any) -> str:
    dumped = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return json.dumps(
        dumped, default=lambda x: x.model_dump(mode="json") if hasattr(x, "model_dump") else str(x)
    )


def configs_in(kind: Any) -> list[Any]:
    """The configs that a field of this type may hold."""
    from pydantic import BaseModel

    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return list(dict.fromkeys(config for part in get_args(kind) for config in configs_in(part)))


def origins(kind: Any) -> set[Any]:
    return {getattr(kind, "__origin__", None)} | {o for part in get_args(kind) for o in origins(part)}


def comments(cls: type) -> dict[str, str]:
    """The comment above or behind each field in the source of a class and of those that it derives from."""
    out: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("grainline"):
            source = inspect.getsource(each)
            above = re.findall(r"((?:^    # .*\n)+)    (\w+): ", source, re.M)
            out |= {name: " ".join(re.findall("# (.*)", lines)) for lines, name in above}
            out |= dict(re.findall(r"^    (\w+): .*?  # (?!noqa|type:)(.*)$", source, re.M))
    return out


def summary(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


# Suites


def suites() -> str:
    """Every suite with its options."""
    from grainline.evaluation.suite import SUITES, suite_class

    parts = [
        "# Suites and their options\n\nMade from the code of this version. `grainline evaluate MODEL --data DATA"
        " --suite NAME --set option=value` sets an option. Commands and results: [evaluation](../evaluation.md).\n"
    ]
    for name in SUITES:
        cls = suite_class(name)
        protocol = (inspect.getdoc(sys.modules[cls.__module__]) or "").replace("\n  1. ", "\n\n1. ")
        parts.append(f"## {name}\n\n{summary(cls)}\n\n{protocol}\n")
        rows = list(rows_of(cls.Options, ""))
        parts.append(table(["option", "default", "meaning"], rows) if rows else "No options.\n")
    return "\n".join(parts)


# Notebooks


def digest(notebook: Path) -> str:
    """Of a notebook and of all code that it may run."""
    made = hashlib.sha256(notebook.read_bytes())
    for path in sorted((ROOT / "grainline").rglob("*")):
        if path.suffix in (".py", ".yaml"):
            made.update(path.read_bytes())
    return made.hexdigest()


def executed(notebook: Path) -> dict[str, Any]:
    """A notebook with its outputs, from an earlier run of the same notebook and code where there is one."""
    if os.environ.get("NOTEBOOKS") == "skip":
        return json.loads(notebook.read_text(encoding="utf-8"))
    target = EXECUTED / f"{notebook.stem}-{digest(notebook)[:16]}.ipynb"
    if not target.is_file():
        import nbformat
        from nbclient import NotebookClient

        place = EXECUTED / f"work-{notebook.stem}"
        shutil.rmtree(place, ignore_errors=True)  # runs of a build that failed
        place.mkdir(parents=True)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        content = nbformat.read(notebook, as_version=4)
        NotebookClient(
            content, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(place)}}
        ).execute()
        for old in EXECUTED.glob(f"{notebook.stem}-*.ipynb"):
            old.unlink()
        nbformat.write(content, target)
    return json.loads(target.read_text(encoding="utf-8"))


def notebook_page(name: str, content: dict[str, Any]) -> str:
    """The cells of a notebook as Markdown, with what they printed and drew."""
    parts = []
    for each in content["cells"]:
        text = "".join(each["source"])
        parts.append(text if each["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if len(parts) == 1:
            parts.append(f"The notebook itself: `docs/notebooks/{name}.ipynb`.")
        parts += [shown for output in each.get("outputs", ()) if (shown := output_text(output))]
    return "\n\n".join(parts) + "\n"


def output_text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Output of the cell above](data:image/png;base64,{''.join(data['image/png'].split())})"
    if output.get("name") == "stderr":  # progress bars
        return ""
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'```{{ .text .output title="Output" }}\n{text[:LONGEST].rstrip()}\n```' if text.strip() else ""


# Hooks of mkdocs


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages."""
    from mkdocs.structure.files import File

    made = pages()
    made |= {f"notebooks/{path.stem}.md": notebook_page(path.stem, executed(path)) for path in NOTEBOOKS}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Links to files above docs/ lead to their pages, or are text where they have none."""
    if page.file.src_uri in FROM_ROOT:
        return markdown
    here = (DOCS / page.file.src_uri).parent

    def target(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(here / found[2]))
        if path.is_relative_to(DOCS) or not path.is_relative_to(ROOT):
            return found[0]
        if path.name in FROM_ROOT:
            return f"{found[1]}{os.path.relpath(DOCS / path.name, here)}{found[3]}"
        return f"`{path.relative_to(ROOT).as_posix()}`"

    return LINK.sub(target, markdown)


if __name__ == "__main__":
    if sys.argv[1:] != ["notebooks"]:
        sys.exit("usage: python docs/gen.py notebooks")
    for path in NOTEBOOKS:
        cells = executed(path)["cells"]
        print(f"{path.name}: {len(cells)} cells ran")
