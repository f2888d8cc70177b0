"""Kernels for GPUs, written in Triton: the extra `kernels`, on Linux. Without them torch computes the same.

kmeans    Superpixels by local k-means: pixels are read once for each step.
launch    The one door: a kernel or a compiled function where there is one, else torch.

The environment variable GRAINLINE_KERNELS is `auto` (the default: where there are Triton and a GPU) or `off`.
No setting is tried out at run time: launch settings are fixed, and results are the same bits in each run.
"""
