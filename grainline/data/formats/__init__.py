"""File formats of data.

blocks     A cache of blocks of remote files on the disk.
common     The base class of sources; how descriptions and image files are read.
folder     A folder of images, each with its texts in a file of the same name; classification folders.
joined     Sources over other sources: several as one, and one without some captions.
listed     The base class of sources whose images one file lists, and COCO's and Flickr's captions.
parquet    Parquet files with images inside, or with paths of images.
parsed     Files as text and JSON, and values, masks too, as pydantic models validate them.
ranges     Parts of files at URLs, ahead and through the cache.
remote     Files at URLs, by fsspec: tries, what is there, lists, and writing.
storage    The files and folders that all others read, here or at a URL.
table      Tables whose rows name an image and its texts; also captions without images: `texts:FILE`.
tar_index  The samples of a tar, and the index of their places.
tars       WebDataset tars with random access.
"""
