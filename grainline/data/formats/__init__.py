"""File formats of data.

common   The base class of sources; how descriptions and image files are read.
folder   A folder of images, each with its texts in a file of the same name; classification folders.
joined   Sources over other sources: several as one, and one without some captions.
listed   The base class of sources whose images one file lists, and COCO's and Flickr's captions.
parquet  Parquet files with images inside, or with paths of images.
parsed   Files as text and JSON, and values, masks too, as pydantic models validate them.
table    Tables whose rows name an image and its texts; also captions without images: `texts:FILE`.
tars     WebDataset tars with random access, and the cached index of where their members lie.
"""
