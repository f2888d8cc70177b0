"""Candidates from a Qdrant server, or from its client's local mode. Needs `pip install qdrant-client`.

The server has a copy of the vectors with the paths and hashes of their images. `sync` sends missing points
and deletes those that are not in the index. Scores always come from the index.
"""

import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from grainline.errors import UserError
from grainline.index.candidates import APPROXIMATE, Candidates
from grainline.index.reader import IndexReader
from grainline.index.store import VECTORS, Row

AT_ONCE = 256  # points sent or read at a time


def connect(where: str) -> Any:
    """A client of a server; ":memory:" or a folder for the local mode. UserError without one.

    where  a URL, or host:port; whatever holds a slash, or is there, is a folder
    """
    client = _library()
    try:
        url = f"http://{where}" if re.fullmatch(r"([\w.-]+|\[[\da-fA-F:.]+\]):\d+", where) else where
        if url.startswith(("http://", "https://")):
            connection = client.QdrantClient(
                url=url, check_compatibility=False
            )  # it only warns, from a thread
        elif where == ":memory:":
            connection = client.QdrantClient(where)
        elif "://" not in where and ("/" in where or Path(where).is_dir()):
            connection = client.QdrantClient(path=where)
        else:
            raise ValueError("neither a URL, nor host:port, nor a folder")
        connection.get_collections()
    except Exception as error:  # the client raises what its transport raises
        raise UserError(
            f"no Qdrant at {where}: {error}; give the URL of a server that runs, such as http://localhost:6333"
        ) from None
    return connection


class Qdrant:
    """A collection of a Qdrant server as the candidate search of an index.

    collection  its name; one of its own for each model if None, since vectors of two cannot be compared
    """

    note = APPROXIMATE

    def __init__(self, client: Any, reader: IndexReader, collection: str | None = None) -> None:
        self.client, self.reader = client, reader
        self.collection = collection or f"grainline-{reader.manifest.model_id.fingerprint[:16]}"
        self.models = _library().models
        self.number = {_id(row): i for i, row in enumerate(reader.rows)}

    def sync(self) -> tuple[int, int]:
        """Make the collection equal to the index. Returns the numbers of points sent and deleted."""
        if not self.client.collection_exists(self.collection):
            size = self.reader.segments[0].arrays[VECTORS].shape[1]
            config = self.models.VectorParams(size=size, distance=self.models.Distance.DOT)
            self.client.create_collection(self.collection, vectors_config=config)
        there = self._ids()
        missing = [i for point, i in self.number.items() if point not in there]
        for start in range(0, len(missing), AT_ONCE):
            self._send(np.array(missing[start : start + AT_ONCE]))
        stale = sorted(there - self.number.keys())
        for start in range(0, len(stale), AT_ONCE):
            points = self.models.PointIdsList(points=stale[start : start + AT_ONCE])
            self.client.delete(self.collection, points_selector=points, wait=True)
        return len(missing), len(stale)

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        row = np.full((len(queries), k), -1, dtype=np.int64)
        score = np.full((len(queries), k), -np.inf, dtype=np.float32)
        for i, query in enumerate(queries):
            points = self.client.query_points(self.collection, query=query.tolist(), limit=k).points
            known = [(self.number[str(p.id)], p.score) for p in points if str(p.id) in self.number]
            for j, (number, value) in enumerate(known):
                row[i, j], score[i, j] = number, value
        return Candidates(row, score)

    def _send(self, rows: np.ndarray) -> None:
        vectors = self.reader.take(VECTORS, rows)
        points = [
            self.models.PointStruct(
                id=_id(self.reader.rows[i]),
                vector=vector.tolist(),
                payload={"path": self.reader.rows[i].path, "sha256": self.reader.rows[i].sha256},
            )
            for i, vector in zip(rows.tolist(), vectors, strict=True)
        ]
        self.client.upsert(self.collection, points=points, wait=True)

    def _ids(self) -> set[str]:
        ids: set[str] = set()
        offset = None
        while True:
            points, offset = self.client.scroll(
                self.collection, limit=AT_ONCE, offset=offset, with_payload=False, with_vectors=False
            )
            ids |= {str(point.id) for point in points}
            if offset is None:
                return ids


def _id(row: Row) -> str:
    """The same image at the same path is the same point."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{row.sha256} {row.path}"))


def _library() -> Any:
    try:
        import qdrant_client
    except ImportError:
        raise UserError(
            "Qdrant needs its client, which is not installed: pip install qdrant-client"
        ) from None
    return qdrant_client
