"""Tokenizers: CLIP-shaped ones of our own, and those of SigLIP, SigLIP 2 and BERT.

bpe                The byte alphabet of CLIP, its split into words, and how merges of pairs are learnt
                   from captions.
library_tokenizer  Tokenizers of SigLIP, SigLIP 2 and BERT on the tokenizers library, and their files.
tokenized          What the rest of the package asks of a tokenizer, and what all tokenizers share: files
                   and checks.
tokenizer          CLIP-shaped byte-pair encoding: a checkpoint's own vocabulary, or one trained on the
                   training captions.
"""
