"""What is not collected: doctests of modules whose library is not installed."""

from importlib.util import find_spec
from pathlib import Path

KERNELS = [
    str(path)
    for path in Path(__file__).parent.glob("grainline/kernels/*.py")
    if "import triton" in path.read_text(encoding="utf-8")
]
collect_ignore = [] if find_spec("triton") else KERNELS
