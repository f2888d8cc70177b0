"""ONNX: the two towers of a trained method as graphs that run without this package and without torch.

huggingface  A CLIP or SigLIP, of others or fine-tuned here, in the form of other programs: `grainline
             convert`.
onnx         `grainline export MODEL OUT`: two graphs, tokenizer and description, measured before they are
             there.
"""
