"""What pages and figures about a measurement show: single outcomes from the best to the worst.

examples  Single outcomes of a suite: retrievals from the best rank to the worst; probes and classes most
          wrong and most right.
extremes  Single outcomes: items of two pictures and regions, most wrong and most right; noise that
          changed most and least; pictures that look most and least alike to their texts; expressions
          whose heat covers least and most; pictures in which the empty slot tells own texts and others
          apart least and best.
figure    Figures as PNG: score against the number of subtexts, as in HiMo-CLIP, for some pictures and
          several models; heat maps of sentences, or of the texts of regions, in single outcomes.
look      A caption over its picture: its sentences and the phrases in them, each with its score and its
          heat.
pointing  The parts of a page about expressions that speak of one thing in a picture.
report    The page about a measurement: its metrics, and single outcomes from the best to the worst.
shown     Images as `grainline show` draws them: segments, where texts look, patches that stay.
tokened   Captions with what the groups of a method take of their tokens, from the lowest tIoU to the
          highest.
"""
