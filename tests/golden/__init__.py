"""Golden vectors: values and gradients that published code gives for inputs drawn from a seed.

cosine.json, ramp.json    the cases, and how their numbers are summed up
inputs.py                 what is drawn for each kind of case
adapter.py                the same computed with grainline, which nothing else here imports
"""
