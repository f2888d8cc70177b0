# ruff: noqa
"""Breaks lines that a renaming made longer than 110 characters: strings, arguments, docstrings. Temporary."""

import re
import subprocess
import sys
from pathlib import Path

MOST = 110
out = subprocess.run(
    [
        sys.executable,
        "-m",
        "ruff",
        "check",
        ".",
        "--select",
        "E501",
        "--output-format",
        "concise",
        "--exclude",
        "tools",
    ],
    capture_output=True,
    text=True,
).stdout
places = sorted({(m[1], int(m[2])) for m in re.finditer(r"^(\S+?):(\d+):\d+: E501", out, re.M)}, reverse=True)
for path, number in places:
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    line = lines[number - 1]
    indent = re.match(r" *", line).group()
    m = re.fullmatch(r'( *)([rf]*)"(.*)"([,)]*)', line)
    if m and '", ' not in m[3]:
        cut = line.rfind(" ", 0, MOST - 1) + 1
        new = [line[:cut] + '"', f'{indent}{m[2]}"{line[cut:]}']
        if m[4] and len(lines[number - 2].strip()) and not lines[number - 2].rstrip().endswith(("(", '"')):
            new = [
                f"{indent}(",
                *("    " + x for x in new),
                f"{indent})",
            ]  # two strings would be one argument
    elif line[:MOST].count('"') % 2 or " = " in line[:40]:
        print(f"by hand: {path}:{number}")
        continue
    elif (
        re.match(r" *[\"'A-Za-z\[]", line) and ", " in line[:MOST] and line.rstrip().endswith((",", ")", "]"))
    ):
        cut = line.rfind(", ", 0, MOST) + 2
        new = [line[:cut].rstrip(), indent + line[cut:]]
    else:
        cut = line.rfind(" ", 0, MOST) + 1
        rest, new = line[cut:], [line[:cut].rstrip()]
        after = lines[number] if number < len(lines) else ""
        if after.strip() and re.match(r" *", after).group() == indent and len(after) + len(rest) < MOST:
            lines[number] = f"{indent}{rest} {after.strip()}"
        else:
            new.append(indent + rest)
    lines[number - 1 : number] = new
    Path(path).write_text("\n".join(lines), encoding="utf-8")
print(len(places), "lines")
