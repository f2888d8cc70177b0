"""ONNX: the two towers of a trained method as graphs that run without this package and without torch.

huggingface  A CLIP or SigLIP, of others or fine-tuned here, in the form of other programs: `grainline
             convert`.
onnx         `grainline export MODEL OUT`: both towers as ONNX graphs, compared with torch, with tokenizer and
             description.
"""
