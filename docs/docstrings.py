"""Docstrings as the site shows them, by an extension of griffe.

Columns of names and meanings become lists, and the comment behind a field becomes its text.
"""

import re
from typing import Any

from griffe import Docstring, Extension

COMMENT = re.compile(r"  # (.+)$")
ENTRY = re.compile(r"^(\S(?:\S| (?! ))*)  +(\S.*)$")


def as_list(text: str) -> str:
    """Lines of the form "name  meaning", and the indented lines behind them, as a list.

    >>> as_list("Trains.\\n\\nout   folder\\n      of the run")
    'Trains.\\n\\n- `out`: folder of the run'
    """
    out: list[str] = []
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry:
            if out and out[-1] and not out[-1].startswith("- "):
                out.append("")
            out.append(f"- `{entry[1]}`: {entry[2]}")
        elif line.startswith("   ") and out and out[-1].startswith("- "):
            out[-1] += " " + line.strip()
        else:
            out.append(line)
    return "\n".join(out)


class Columns(Extension):
    """Rewrites the docstring of every object; a field has the comment behind it."""

    def on_attribute_instance(self, *, attr: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if attr.docstring is None and attr.parent.is_class and attr.lineno:
            line = attr.filepath.read_text(encoding="utf-8").splitlines()[attr.lineno - 1]
            if found := COMMENT.search(line):
                attr.docstring = Docstring(found[1].replace("[", r"\["), parent=attr)

    def on_instance(self, *, obj: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if getattr(obj, "docstring", None):
            # [shape][row] is no link
            obj.docstring.value = as_list(obj.docstring.value).replace("][", r"]\[")
