"""Tokenizers: byte-pair encodings of our own, in CLIP's form, and those of checkpoints, by transformers.

bpe                The byte alphabet of CLIP, its split into words, and how merges of pairs are learnt
                   from captions.
library_tokenizer  The tokenizer of a checkpoint's folder, as transformers reads it.
tokenizer          What the rest of the package asks of a tokenizer, and byte-pair encoding in CLIP's form.
tokenizer_files    The tokenizer of a folder, a file, a checkpoint or a Hugging Face name.
"""
