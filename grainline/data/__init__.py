"""Pictures and what is said about them: sources of records, their texts, and batches made of them.

batches       Samples to batches, made ahead in processes of their own, and the count of what was damaged.
cache         What is made once of every image of a source and read in training: rows, such as superpixels
              and features.
captions      Captions as strings: cleaning as CLIP does it, and splitting into sentences.
check         What a source holds and what is wrong with it, found by reading it: `grainline data check
              PATH`.
chunks        Texts as parts: sentences, sub-captions of whole sentences, windows.
dataset       From a source of records to training samples, and which samples stand in which batch.
decode        From the bytes of a record to an RGB picture, or `Damaged("damaged image")`.
describe      Descriptions of all pictures of a source, made once: `grainline data describe`.
descriptions  Dense descriptions of pictures: one longer text for each.
lines         Work that is written line by line and goes on where it was killed: JSON Lines, of which the
              first says what they were made from.
make_phrases  Phrases of all texts of a source, made once: `grainline data phrases`.
open_source   Where records come from: one file per kind, opened by the look of a path.
pack          Any source as WebDataset tars that the tars source reads back, record by record: `grainline
              data pack`.
record        What every source of data yields, and why a sample could not be used.
texts         Which texts of a record a training sample takes, and how a caption becomes several.
transforms    From a picture of any size to a square of pixels: random crops for training, one fixed crop
              for evaluation.
benchmarks/   Files of published benchmarks and data sets as sources, one file each.
formats/      Forms in which data lies on a disk: folders, tables, Parquet, tars, and what reads them.
phrases/      Captions taken apart into phrases: noun phrases, actions, spatial relations.
scenes/       A procedural world with known truth: what is in a picture, how it looks, and what people say
              about it.
tokenizers/   Tokenizers: CLIP-shaped ones of our own, and those of SigLIP, SigLIP 2 and BERT.
"""
