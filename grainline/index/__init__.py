"""A folder of pictures that can be searched by text or picture, and kept up to date.

from grainline.index.write import build, add, remove, refresh
from grainline.index.search import open_index

build("photos/", "photos.index", model="runs/x")
answer = open_index("photos.index").search(["A brown dog runs over wet sand. The sea is grey."])[0]
answer.hits[0].path, answer.hits[0].score, answer.sure
"""
