"""Scores of pairs in which a text selects patches of the image (SEPS, LAPS).

scoring   Scores of many pairs, in tiles of bounded memory, and what a text selects.
selector  The `Selector`: scores of pairs and their parameters, and the data of both sides.
"""
