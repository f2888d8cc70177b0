"""Tokenizers: byte-pair encodings of our own, in CLIP's form, and those of checkpoints, by transformers.

tokenizer        The interface of a tokenizer, byte-pair encoding in CLIP's form, and word dropout.
tokenizer_files  The tokenizer of a folder, a file, a checkpoint or a Hugging Face name.
"""
