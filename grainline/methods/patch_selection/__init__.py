"""Methods in which a text selects the patches of an image that it is compared with (SEPS, LAPS).

scoring   Scores of many pairs, in tiles of bounded memory, and what a text selects.
selector  The `Selector`: scores of pairs and their parameters; fast cosines with the words of many texts.
training  The method class around a `Selector`, encoding and losses.
types     The data of patch selection.
"""
