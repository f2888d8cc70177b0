"""Models for other programs: ONNX graphs that run without this package and without torch, and more.

huggingface  A CLIP or SigLIP, of others or fine-tuned here, in the form of other programs: `grainline
             convert`.
mteb         A model as an encoder of the library mteb, for its image-text tasks.
onnx         `grainline export MODEL OUT`: both towers as ONNX graphs, compared with torch, with tokenizer and
             description.
"""
