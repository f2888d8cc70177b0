"""Methods in which a text selects the patches of an image that it is compared with (SEPS, LAPS).

training  The method class around a `Selector` of `nn/patch_selection/`, encoding and losses, for SCAN too.
"""
