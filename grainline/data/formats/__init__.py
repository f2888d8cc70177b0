"""File formats of data.

checked      Values of a row or a description, validated by pydantic models.
common       The base class of sources; how descriptions and image files are read.
folder       A folder of images, each with its texts in a file of the same name; classification folders.
joined       Sources over other sources: several as one, and one without some captions.
listed       Sources whose images are files that one file of annotations lists: their base class, and COCO
             captions.
masks        Masks as JSON, in the forms of COCO's files.
parquet      Parquet files with images inside, or with paths of images.
plain        Regular files as bytes, text and JSON.
table        Tables whose rows name an image and its texts: JSON Lines, CSV, TSV, or a JSON list of rows; also
             captions without images: `texts:FILE`.
tarindex     The index of a tar: where its members lie, read from its headers and cached.
tars         WebDataset tars with random access.
"""
