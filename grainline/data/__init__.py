"""Images and their texts: sources of records, training samples, and batches.

annotate      Descriptions and phrases made once for all records: `grainline data describe`, `phrases`.
batches       Batches of samples, made by a data loader, and the counts of corrupt samples.
cache         Rows computed once for every image of a source, and superpixels.
captions      Captions as strings: cleaning, and splitting into sentences.
check         The content of a source and its errors: `grainline data check PATH`.
dataset       Training samples from a source of records, and which samples stand in which batch.
decode        From the bytes of a record to an RGB image.
descriptions  Dense descriptions of images: one longer text for each.
features      Features of a frozen image encoder: written once, and read in training.
lines         Files of JSON Lines that an interrupted run completes later.
open_source   From a path to the source of its records.
other_texts   Sentences of other images, which heat is measured against where nobody names any.
overlap       Copies of images, and how much of a test source is in training data.
pack          Any source as WebDataset tars: `grainline data pack`.
pairs         Images and captions that are given in Python: one image or several, pairs, and data sets.
record        What every source yields, and why a sample cannot be used.
texts         The texts of a training sample, and texts as token ids of their parts.
transforms    From an image of any size to a square of pixels.
vector_parts  The folder of `grainline encode`: its parts, and how they are read.
benchmarks/   Files of published benchmarks and data sets as sources.
formats/      File formats of data: folders, tables, Parquet, tars, and what reads them.
phrases/      Captions split into phrases: noun phrases, actions, spatial relations.
scenes/       A procedural world with known truth: images, captions, regions and foils.
tokenizers/   Tokenizers: CLIP-shaped ones of our own, and those of SigLIP, SigLIP 2 and BERT.
"""
