"""The recipes that ship with the package: YAML files, one folder for each method, read without torch.

The comment at the top of a file says what the recipe is for. Ablations of a paper and controls of a study lie
one folder deeper: `seps/ablations/keep_010`.
"""

import re
from importlib import resources
from pathlib import Path

from grainline.errors import UserError, suggestion

ENOUGH = 30  # letters of a comment that say something
FOLDER = Path(str(resources.files(__name__)))


def names() -> list[str]:
    """All recipes by name: `clip/scenes`."""
    return sorted(p.relative_to(FOLDER).with_suffix("").as_posix() for p in FOLDER.rglob("*.yaml"))


def is_ablation(name: str) -> bool:
    """Whether a recipe is an ablation or a control, and no starting point."""
    return name.count("/") > 1


def find(name: str) -> Path:
    """The file of a recipe: a name of the package, a YAML file, or the folder of a run, which holds its own.

    Raises UserError with the nearest names.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"no recipe file {path}; `grainline recipes` lists those of the package")
        return path
    if name not in names():
        if (Path(name) / "recipe.yaml").is_file():
            return Path(name) / "recipe.yaml"
        raise UserError(
            f"no recipe {name!r}{suggestion(name, names())}; `grainline recipes` lists all,"
            " and a file of your own ends in .yaml"
        )
    return FOLDER / f"{name}.yaml"


def about(name: str) -> str:
    """The purpose of a recipe, in one line: the beginning of the comment at its top.

    >>> about("clip/locked")
    'CLIP ViT-B/16 whose texts are tuned to its images as they are, as in LiT (Zhai et al., arXiv 2111.07991)'
    """
    lines = find(name).read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("# "):
            break
        comment.append(line[2:].strip())
    text = " ".join(comment)
    ends = [end.start() for end in re.finditer(r"(?<!et al)[.;:](?= |$)", text) if end.start() >= ENOUGH]
    return text[: ends[0]] if ends else text
