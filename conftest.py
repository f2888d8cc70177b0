"""What is not collected: doctests of modules whose library is not installed."""

from importlib.util import find_spec

KERNELS = ["grainline/kernels/farthest.py", "grainline/kernels/pooled.py"]
collect_ignore = [] if find_spec("triton") else KERNELS
