"""File formats of data.

checked      Values of a row or a description, validated by pydantic models.
coco         COCO captions, in the two files that the field evaluates on.
common       The base class of sources; how descriptions and image files are read.
folder       A folder of images, each with its texts in a file of the same name; classification folders.
joined       Sources over other sources: several as one, and one without some captions.
listed       The base of sources whose images are files that one file of annotations lists.
masks        Masks as JSON, in the forms of COCO's files.
parquet      Parquet files with images inside, or with paths of images.
plain        Regular files as bytes, text and JSON.
table        Tables whose rows name an image and its texts: JSON Lines, CSV, TSV, or a JSON list of rows.
tarindex     The index of a tar: where its members lie, read from its headers and cached.
tars         WebDataset tars with random access.
texts_alone  Captions without images: `texts:FILE`.
"""
