"""Forms in which data lies on a disk: folders, tables, Parquet, tars, and what reads them.

checked      Values of a row or a description, checked once: models whose fields say what is allowed.
coco         COCO captions, in the two files that the field evaluates on: two protocols, so two sources.
common       What all sources share: the base class, and how descriptions and picture files are read.
folder       A folder of pictures, subfolders included, each with its texts in a file of the same name
             beside it.
joined       Sources made of sources: several as one, and one without some of its captions.
masks        Masks as JSON, in the forms that COCO's files have:
parquet      Parquet files with pictures inside, or with paths of pictures.
plain        Files as bytes, text and JSON: only regular files are read, and JSON says what is wrong with
             it.
table        Tables whose rows name a picture and its texts: JSON Lines, CSV, TSV, or a JSON list of rows.
tarindex     Where everything lies in a tar: found by reading its headers only, and kept in the user's
             cache folder.
tars         WebDataset tars with random access: every sample is one or two reads at a known place,
             whatever the order.
texts_alone  Captions without pictures: `texts:FILE`, for what learns from texts alone.
"""
