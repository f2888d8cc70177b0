"""Methods in which a text chooses the patches of an image that it is compared with (SEPS, LAPS).

fast_cosines  Cosines of aggregated patches with words, for many texts, without gradients: what texts
              share is made once.
inspect       What a `Selector` keeps of images for texts, and what words find there, as it is scored:
              for figures.
scoring       Many pairs of images and texts whose patches the text chooses, in tiles of bounded memory.
selector      Images whose patches are chosen by the text they are compared with: what `seps` and `laps`
              share.
training      Encoding and training where texts choose patches: what `seps` and `laps` do alike around a
              `Selector`.
types         What pairs of images and texts are made of where texts choose patches: for
              `selector.py`, `scoring.py`.
"""
