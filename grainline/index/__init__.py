"""A folder of images that can be searched by text or image, and kept up to date.

from grainline.index.sync import build, add, remove, refresh
from grainline.index.search import open_index

build("photos/", "photos.index", model="runs/x")
answer = open_index("photos.index").search(["A brown dog runs over wet sand. The sea is grey."])[0]
answer.hits[0].path, answer.hits[0].score, answer.sure

    calibration        How sure an answer is, and whether an image shows a sentence: p, by what null texts
                       score in this index.
    calibration_texts  The texts that an index is calibrated by: they describe other images, and none of its
                       own.
    candidates         What finds candidates: the interface, and the exact search.
    image_files        The images below a folder: which there are, whether they changed, and their bytes.
    inverted           Candidates among very many images: an inverted file of 8-bit vectors (FAISS), kept
                       beside the segments.
    output             Results of a search as table, JSON, heat maps and a self-contained page.
    qdrant             Candidates from a Qdrant server, or from its client's local mode.
    reader             An index, opened for reading: its live rows numbered from 0, their arrays, and what
                       null texts score.
    results            What a search says, as plain tuples and as JSON.
    search             Searching an index by text or by image: candidates by vector, the order by the
                       method's own score.
    store              An index on disk: layout, manifest and commit, segments of rows, and arrays that are
                       checked before they are read.
    sync               Build an index and keep it up to date: build, add, remove, refresh.
    writer             The one process that changes an index: encodes, writes segments, commits, compacts.
"""
