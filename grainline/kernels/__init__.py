"""Kernels for GPUs, written in Triton: the extra `kernels`, on Linux. Without them torch computes the same.

dots      Losses over inner products: sums of exponentials, slopes and losses of tiles.
kmeans    Superpixels by local k-means: pixels are read once for each step.
launch    Whether kernels are used, and what happens where one is refused.
pooled    What texts pool of images: attention over segments, and lengths of what it gives.
lists     Sums over the pairs of each text, where each image has a list of its own.

The environment variable GRAINLINE_KERNELS is `auto` (the default: where there are Triton and a GPU) or `off`.
No setting is tried out at run time: launch settings are fixed, and results are the same bits in each run.
"""
