"""What pages and figures about a measurement show: single outcomes from the best to the worst.

extremes  Noise that changed a score most and least.
examples  Single outcomes of a suite: retrievals from the best rank to the worst; probes and classes most
          wrong and most right.
figure    Figures as PNG: score against the number of subtexts, as in HiMo-CLIP, for some images and
          several models.
report    The page about a measurement: its metrics, and single outcomes from the best to the worst.
shown     Images as `grainline show` draws them: segments, where texts look, patches that stay.
"""
