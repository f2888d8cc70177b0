"""Tokenizers: CLIP-shaped ones of our own, and those of SigLIP, SigLIP 2 and BERT.

bpe                The byte alphabet of CLIP, its split into words, and how merges of pairs are learnt
                   from captions.
library_tokenizer  Tokenizers of SigLIP, SigLIP 2 and BERT on the tokenizers library, and their files.
tokenizer          What the rest of the package asks of a tokenizer, what all share, and CLIP-shaped
                   byte-pair encoding.
tokenizer_files    The tokenizer of a folder, a file, a checkpoint or a Hugging Face name.
"""
