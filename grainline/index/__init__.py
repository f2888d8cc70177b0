"""A folder of images that can be searched by text or image, and kept up to date.

from grainline.index.sync import build, add, remove, refresh
from grainline.index.search import open_index

build("photos/", "photos.index", model="runs/x")
result = open_index("photos.index").search(["A brown dog runs over wet sand. The sea is grey."])[0]
result.hits[0].path, result.hits[0].score, result.match

    calibration  p of a hit and of a sentence in a hit, from texts that describe other images.
    candidates   The interface of a candidate search, the exact search, and that of FAISS.
    image_files  The images below a folder: list, stat and read them.
    output       Results of a search as table, JSON, heat maps and a page.
    reader       An index opened for reading.
    search       Search by text or by image, and its results as tuples and as JSON.
    store        An index on disk: layout, manifest, segments, checked arrays.
    sync         Build an index and keep it up to date.
    writer       The one process that changes an index.
"""
