"""File formats of data: folders, tables, Parquet, tars, and what reads them.

checked      Values of a row or a description, validated by pydantic models.
coco         COCO captions, in the two files that the field evaluates on: two protocols, so two sources.
common       What all sources share: the base class, and how descriptions and image files are read.
folder       A folder of images, subfolders included, each with its texts in a file of the same name
             beside it.
joined       Sources over other sources: several as one, and one without some captions.
listed       The base of sources whose images are files that one file of annotations lists.
masks        Masks as JSON, in the forms of COCO's files.
parquet      Parquet files with images inside, or with paths of images.
plain        Files as bytes, text and JSON: only regular files are read, and JSON says what is wrong with
             it.
table        Tables whose rows name an image and its texts: JSON Lines, CSV, TSV, or a JSON list of rows.
tarindex     The index of a tar: where its members lie, read from its headers and cached.
tars         WebDataset tars with random access: every sample is one or two reads at a known place,
             whatever the order.
texts_alone  Captions without images: `texts:FILE`.
"""
