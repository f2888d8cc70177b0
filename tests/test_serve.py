"""`grainline serve`: answers, limits, refusals, batches, overload, an index that changes meanwhile."""

import asyncio
import io
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from indexes import TEXTS, copied, photo, photos, saved, texts, tiny_model
from PIL import Image
from runs import complaint
from servers import PATIENCE, Gate, running, until
from starlette.exceptions import HTTPException

from grainline.data.captions import sentences
from grainline.data.other_texts import PHOTOGRAPHS
from grainline.index.calibration import SCENES
from grainline.index.search import Index, QueryHits, as_json, open_index
from grainline.index.store import read_manifest, write_manifest
from grainline.index.sync import add, build, refresh, remove
from grainline.web.engine import Batcher, Engine, examples
from grainline.web.guard import HEADERS, IMAGE, Limits
from grainline.web.schema import CHARACTERS, HITS, TextQuery

QUERY = "A red dog runs. The sand is green. A blue cat sleeps."
MODEL = tiny_model()
Client = httpx.Client


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos` and `index`."""
    folder = tmp_path_factory.mktemp("made")
    build(photos(folder / "photos", 18), folder / "index", model=MODEL, calibration_texts=texts(folder))
    return folder


@pytest.fixture(scope="module")
def client(made: Path) -> Iterator[Client]:
    """A client of a server that no test changes."""
    with running(Engine(made / "index", MODEL)) as client:
        yield client


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return copied(made, tmp_path / "copy")


def ask(client: Client, text: str = QUERY, k: int = 3) -> Any:
    return client.post("/api/search", json={"text": text, "k": k})


def why(response: Any) -> str:
    """The one line of an error; anything else in its body fails."""
    body = response.json()
    assert set(body) == {"error"}, body
    assert "\n" not in body["error"]
    assert "Traceback" not in body["error"]
    return str(body["error"])


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as `as_json` has it, without the names."""
    hits = [{key: hit[key] for key in hit if key not in ("name", "image")} for hit in answer["hits"]]
    return {"match": answer["match"], "hits": hits, "notes": answer["notes"]}


def expected(answer: QueryHits) -> dict[str, Any]:
    return {key: value for key, value in as_json(answer).items() if key != "query"}


def png(width: int, height: int, data: bytes, *more: bytes) -> bytes:
    """A PNG of one bit a pixel that claims a size, whatever its data hold."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"".join([b"\x89PNG\r\n\x1a\n", header, *more, chunk(b"IDAT", data), chunk(b"IEND", b"")])


# Answers


def test_a_text_is_answered_as_the_index_answers_it(client: Client, made: Path) -> None:
    index = open_index(made / "index", MODEL)
    answer = ask(client).json()
    assert plain(answer) == expected(index.search([QUERY], 3)[0])
    assert [s["text"] for s in answer["hits"][0]["sentences"]] == [s.text for s in sentences(QUERY)]
    shas = [index.reader.hashes[index.reader.numbers[hit["path"]]] for hit in answer["hits"]]
    assert [hit["name"] for hit in answer["hits"]] == [sha256[:24] for sha256 in shas]


def test_a_image_is_answered_as_the_index_answers_it(client: Client, made: Path) -> None:
    large = Image.open(made / "photos" / "07.png").resize((300, 200))
    file = io.BytesIO()
    large.save(file, "png")
    body = client.post("/api/search/image", files={"image": file.getvalue()}, data={"k": "4"}).json()
    index = open_index(made / "index", MODEL)
    assert plain(body) == expected(index.search_images([file.getvalue()], 4)[0])


def test_an_image_of_the_index_is_a_query_by_its_name_however_large(
    client: Client, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = ask(client).json()["hits"][1]
    index = open_index(made / "index", MODEL)
    monkeypatch.setattr("grainline.web.server.PIXELS", 4)  # of what is sent
    for name in (hit["name"], hit["image"]):
        body = client.post("/api/search/image", files={"name": (None, name), "k": (None, "4")}).json()
        assert plain(body) == expected(index.search_images([made / "photos" / hit["path"]], 4)[0])
        assert body["hits"][0]["name"] == hit["name"]
    image = png(4, 4, ZEROS)
    for files, status, line in (
        ({"image": image}, 413, "the image is too large; at most 4 pixels are allowed"),
        ({"name": (None, "0" * 24)}, 404, "no such image in this index"),
        ({"name": (None, "x")}, 422, "name: String should match pattern"),
        ({"image": (None, "x")}, 422, "image: it must be a file, with a name"),
        ({"image": image, "name": (None, hit["name"])}, 422, "give an image, or the name of one"),
        ({"k": (None, "4")}, 422, "give an image, or the name of one"),
    ):
        response = client.post("/api/search/image", files=files)
        assert (response.status_code, why(response)[: len(line)]) == (status, line)


def test_heat_is_that_of_the_index_and_small(client: Client, made: Path) -> None:
    hit = ask(client).json()["hits"][1]
    heat = client.post("/api/heat", json={"image": hit["name"], "text": QUERY}).json()
    assert client.post("/api/heat", json={"image": hit["image"], "text": QUERY}).json() == heat
    index = open_index(made / "index", MODEL)
    parts = [s.text for s in sentences(QUERY)]
    exact = index.heat([(index.reader.numbers[hit["path"]], parts)], (2, 2))[0].flatten(1).numpy()
    assert (heat["rows"], heat["columns"], heat["part"]) == (2, 2, "middle")
    assert [one["text"] for one in heat["maps"]] == parts
    for one, values in zip(heat["maps"], exact, strict=True):
        assert one["limit"] == pytest.approx(np.abs(values).max())
        assert max(map(abs, one["values"])) == 127
        assert np.array(one["values"]) * one["limit"] / 127 == pytest.approx(values, abs=one["limit"] / 250)


def test_a_method_without_a_grid_of_tokens_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ask(client).json()["hits"][0]["name"]
    monkeypatch.setattr(MODEL.method.towers.image, "grid", None)
    assert client.get("/api/index").json()["heat"] is False
    response = client.post("/api/heat", json={"image": name, "text": QUERY})
    assert response.status_code == 409
    assert "cannot show" in why(response)


def test_the_index_the_sentences_and_the_health_are_reported(client: Client) -> None:
    index = client.get("/api/index").json()
    assert (index["name"], index["images"], index["method"]) == ("index", 18, "maxsim")
    assert (index["calibrated_texts"], index["calibrated_images"], index["heat"]) == (True, True, True)
    assert index["limits"] == {"characters": CHARACTERS, "hits": HITS, "bytes": IMAGE, "pixels": 40_000_000}
    assert client.post("/api/sentences", json={"text": QUERY}).json()["sentences"] == [
        s.text for s in sentences(QUERY)
    ]
    assert client.post("/api/sentences", json={"text": ""}).json()["sentences"] == []
    assert client.get("/api/health").json() == {"status": "ok", "waiting": 0, "problem": ""}


def test_images_are_sent_small_and_without_metadata(copy: Path) -> None:
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a secret", 6
    Image.new("RGB", (400, 200), "red").save(copy / "photos" / "large.jpg", exif=exif)
    add(copy / "index", [copy / "photos" / "large.jpg"], model=MODEL)
    index = open_index(copy / "index", MODEL)
    name = index.reader.hashes[index.reader.numbers["large.jpg"]][:24]
    with running(Engine(copy / "index", MODEL)) as client:
        response = client.get(f"/api/image/{name}", params={"side": 100})
        assert response.headers["content-type"] == "image/jpeg"
        assert "immutable" in response.headers["cache-control"]
        image = Image.open(io.BytesIO(response.content))
        assert (image.format, image.size) == ("JPEG", (50, 100))
        assert not image.getexif()
        assert b"secret" not in response.content
        whole = client.get(f"/api/image/{name}").content
        assert Image.open(io.BytesIO(whole)).size == (200, 400)  # never enlarged
        assert client.get(f"/api/image/{name}", params={"side": 2049}).status_code == 422


def test_openapi_names_every_route_and_its_errors(client: Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    names = "search", "search/image", "heat", "image/{name}", "sentences", "index", "health"
    assert set(paths) == {f"/api/{name}" for name in names}
    for routes in paths.values():
        for route in routes.values():
            error = route["responses"]["422"]["content"]["application/json"]["schema"]
            assert error == {"$ref": "#/components/schemas/Error"}
    assert "docs.js" in client.get("/docs").text


# What is refused


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"text": " \n"}, "text: String should have at least 1 character"),
        ({"text": "a" * (CHARACTERS + 1)}, f"String should have at most {CHARACTERS} characters"),
        ({"text": "A dog.", "k": 0}, "k: it must be greater than or equal to 1"),
        ({"text": "A dog.", "k": HITS + 1}, f"k: it must be less than or equal to {HITS}"),
        ({"text": 5}, "text: it must be a valid string"),
        ({"text": "A dog.", "many": 3}, "many: Extra inputs are not permitted"),
        ({}, "text: Field required"),
        ([], "request: "),
    ],
)
def test_queries_are_limited(client: Client, values: Any, line: str) -> None:
    response = client.post("/api/search", json=values)
    assert response.status_code == 422
    assert line in why(response)


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b'{"text": "\\ud800"}', b"\xff", b"NaN"])
def test_bodies_that_are_no_json_are_one_line(client: Client, body: bytes) -> None:
    response = client.post("/api/search", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert why(response)
    if body == b"{":
        assert why(response).startswith("the body is no JSON: ")


def test_bodies_are_limited_whether_they_say_their_size_or_not(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.web.guard.IMAGE", 2**20)

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 2**16

    headers = {"Content-Type": "application/json"}
    for path, kind in (
        ("/api/search", headers),
        ("/api/search/image", {"Content-Type": "multipart/form-data"}),
    ):
        try:
            response = client.post(path, content=pieces(), headers=kind)
        except httpx.WriteError:
            continue  # refused and closed while it was being sent
        assert response.status_code == 413
        assert "too large" in why(response)
    response = client.post("/api/search", content=b" " * (256 * 1024 + 1), headers=headers)
    assert response.status_code == 413
    assert why(response) == "the request is too large; at most 262,144 bytes are allowed"


def test_a_content_type_that_a_foreign_form_could_send_is_refused(client: Client) -> None:
    for path, kind in (("/api/search", "text/plain"), ("/api/search", "multipart/form-data; boundary=x"),
                       ("/api/search/image", "application/json")):  # fmt: skip
        response = client.post(path, content=b"{}", headers={"Content-Type": kind})
        assert response.status_code == 415
        assert "content type must be" in why(response)


ZEROS = zlib.compress(bytes(2**26), 9)  # 64 MiB in 64 KiB
LONG_TEXT = struct.pack(">I", len(ZEROS) + 3) + b"zTXta\0\0" + ZEROS
LONG_TEXT += struct.pack(">I", zlib.crc32(LONG_TEXT[4:]))
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(boom) print\n"


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (png(50_000, 50_000, zlib.compress(b"")), 413, "too large; at most 40,000,000 pixels"),
        (png(9_500, 9_500, zlib.compress(b"")), 413, "too large"),
        (png(3, 3, b"", LONG_TEXT), 415, ""),
        (png(3_000, 4, zlib.compress(bytes(1600))), 415, "cannot be used"),
        (POSTSCRIPT, 415, "no image; allowed are JPEG, PNG"),
        (b"", 415, "no image"),
        (b"GIF89a", 415, "no image"),
    ],
    ids=["50000", "9500", "text", "thin", "eps", "empty", "short"],
)
def test_bombs_and_what_is_no_image_are_refused(client: Client, body: bytes, status: int, line: str) -> None:
    response = client.post("/api/search/image", files={"image": ("a.png", body)})
    assert response.status_code == status, response.text
    assert line in why(response)


def test_more_data_than_an_image_has_pixels_are_not_unpacked(client: Client) -> None:
    response = client.post("/api/search/image", files={"image": png(4, 4, ZEROS)})
    assert response.status_code == 200  # a decoder stops where the image ends


def test_no_path_leads_anywhere(client: Client) -> None:
    for path in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "07.png", "%00", "0" * 24, "0" * 25, "-1"):
        response = client.get(f"/api/image/{path}")
        assert response.status_code in (404, 422), path
        assert why(response)
    for path in ("/static/page.js", "/../app.py", "/%2e%2e/app.py", "//etc/passwd", "/style.css/../app.py"):
        assert client.get(path).status_code == 404


def test_a_image_that_is_no_longer_what_was_indexed_is_gone(copy: Path, tmp_path: Path) -> None:
    shutil.copy(copy / "photos" / "01.png", copy / "photos" / "twin.png")
    refresh(copy / "index", model=MODEL)
    index = open_index(copy / "index", MODEL)
    name = {path: index.reader.hashes[i][:24] for path, i in index.reader.numbers.items()}
    outside = shutil.copy(copy / "photos" / "02.png", tmp_path / "outside.png")
    (copy / "photos" / "02.png").unlink()
    (copy / "photos" / "02.png").symlink_to(outside)
    (copy / "photos" / "01.png").unlink()
    photo(copy / "photos" / "04.png", 99)
    with running(Engine(copy / "index", MODEL)) as client:
        for path in ("02.png", "04.png"):
            for response in (
                client.get(f"/api/image/{name[path]}"),
                client.post("/api/heat", json={"image": name[path], "text": QUERY}),
            ):
                assert response.status_code == 410
                assert why(response) == "the image is no longer what was indexed; refresh the index"
        assert client.get(f"/api/image/{name['01.png']}").status_code == 200  # its twin has the same bytes
        assert ask(client).status_code == 200


def test_foreign_names_and_foreign_pages_get_nothing(client: Client, made: Path) -> None:
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "192.168.0.7",
        "",
        "[",
        "a[b]c",
    ):
        response = client.get("/api/index", headers={"Host": host})
        assert response.status_code == 421, host
        assert "does not go by the name" in why(response)
        assert client.get("/", headers={"Host": host}).status_code == 421
    foreign = [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")]
    origins = "http://evil.example", "null", "http://[", "http://a[b]c"
    for headers in (*foreign, *({"Origin": origin} for origin in origins)):
        assert client.post("/api/search", json={"text": QUERY}, headers=headers).status_code == 403
        assert client.get("/api/index", headers=headers).status_code == 403
    port = client.base_url.port
    own = [{"Host": f"localhost:{port}"}, {"Host": f"[::1]:{port}"}, {"Sec-Fetch-Site": "same-origin"}]
    for headers in own:
        assert client.get("/api/index", headers=headers).status_code == 200
    with running(Engine(made / "index", MODEL), host="0.0.0.0") as wide:
        assert wide.get("/api/index", headers={"Host": "192.168.0.7"}).status_code == 200
        assert wide.get("/api/index", headers={"Host": "evil.example"}).status_code == 421


def test_every_answer_carries_the_same_strict_headers(client: Client) -> None:
    for response in (
        client.get("/"),
        client.get("/page.js"),
        client.get("/api/index"),
        client.get("/nothing"),
        client.put("/api/search"),
        client.get("/", headers={"Host": "evil.example"}),
        client.get(ask(client).json()["hits"][0]["image"]),
    ):
        assert {name: response.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in response.headers
        assert "set-cookie" not in response.headers
    page = client.get("/").text
    assert not re.search(r"https?://|<script>|\son\w+=|style=", page)


def test_a_failure_is_one_line_and_the_next_request_is_answered(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret\nplace")

    with running(Engine(made / "index", MODEL)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Index, "search", broken)
            response = ask(client)
            assert response.status_code == 500
            assert why(response) == "the server failed at this; its log says why"
            assert {name: response.headers[name] for name in HEADERS} == HEADERS
            assert [ask(client).status_code for _ in range(5)] == [500] * 5  # connections stay open
        assert ask(client).status_code == 200


# Together, too many, gone


def test_overload_is_refused_at_once_and_passes(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(made / "index", MODEL)
    gate = Gate(engine, monkeypatch)
    with running(engine, Limits(queue=2, batch=1, share=1)) as client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, client)]
        until(lambda: len(gate.calls) == 1)
        waiting += [pool.submit(ask, client) for _ in range(2)]
        until(lambda: client.get("/api/health").json()["waiting"] == 2)
        for _ in range(3):
            response = ask(client)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert "too much to do" in why(response)
        gate.open.set()
        assert [future.result().status_code for future in waiting] == [200] * 3
        assert ask(client).status_code == 200


def test_requests_that_wait_together_are_answered_together_and_equally(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, index = Engine(made / "index", MODEL), open_index(made / "index", MODEL)
    gate = Gate(engine, monkeypatch)
    requests = [(text, 2 + i % 2) for i, text in enumerate(TEXTS[:9])]
    with running(engine, Limits(batch=8)) as client, ThreadPoolExecutor(len(requests)) as pool:
        first = pool.submit(ask, client, *requests[0])
        until(lambda: len(gate.calls) == 1)
        others = [pool.submit(ask, client, *one) for one in requests[1:]]
        until(lambda: client.get("/api/health").json()["waiting"] == 8)
        gate.open.set()
        answers = [future.result().json()["hits"] for future in (first, *others)]
    assert [len(batch) for batch in gate.calls] == [1, 8]
    for (text, k), answer in zip(requests, answers, strict=True):
        alone = expected(index.search([text], k)[0])["hits"]
        assert [hit["path"] for hit in answer] == [hit["path"] for hit in alone]
        assert [hit["score"] for hit in answer] == pytest.approx([hit["score"] for hit in alone], abs=1e-5)


def test_more_requests_than_may_run_are_refused_but_health_answers(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(made / "index", MODEL)
    gate = Gate(engine, monkeypatch)
    monkeypatch.setattr("grainline.web.guard.REQUESTS", 1)
    with running(engine) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, client)
        until(lambda: gate.calls)
        response = client.get("/api/index")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "too many requests" in why(response)
        assert client.get("/api/health").status_code == 200
        gate.open.set()
        assert waiting.result().status_code == 200
        assert client.get("/api/index").status_code == 200


def test_a_client_that_has_left_costs_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(made / "index", MODEL)
    gate = Gate(engine, monkeypatch)
    with running(engine, Limits(queue=1)) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client)
        until(lambda: gate.calls)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/api/search", json={"text": "A cat has left."}, timeout=0.3)
        until(lambda: not client.get("/api/health").json()["waiting"])  # its place in the queue is free again
        last = pool.submit(ask, client, TEXTS[1])
        until(lambda: client.get("/api/health").json()["waiting"] == 1)
        gate.open.set()
        assert (first.result().status_code, last.result().status_code) == (200, 200)
    assert [[one.text for one in batch] for batch in gate.calls] == [[QUERY], [TEXTS[1]]]


def test_a_request_that_waits_too_long_gets_an_error(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(made / "index", MODEL)
    gate = Gate(engine, monkeypatch)
    monkeypatch.setattr("grainline.web.server.PATIENCE", 0.2)
    with running(engine) as client:
        response = ask(client)
        assert response.status_code == 504
        assert why(response) == "no answer within 0.2 s; try again"
        gate.open.set()
        until(lambda: ask(client).status_code == 200)


async def answers_of(batcher: Batcher, requests: Iterable[tuple[Any, str]]) -> list[Any]:
    """What requests and their clients get that all wait before the first batch."""
    waiting = [asyncio.create_task(batcher.answer(*one)) for one in requests]
    await asyncio.sleep(0)
    worker = asyncio.create_task(batcher.run())
    out = await asyncio.gather(*waiting, return_exceptions=True)
    worker.cancel()
    return out


def test_a_request_at_fault_does_not_spoil_its_batch() -> None:
    def work(numbers: list[int]) -> list[float]:
        return [1 / one for one in numbers]

    batcher = Batcher(work, lambda: None, limits=Limits(batch=4, queue=9, share=1))
    first, fault, *others = asyncio.run(answers_of(batcher, [(one, "a") for one in (1, 0, 4, 5, 8)]))
    assert [first, *others] == [1.0, 0.25, 0.2, 0.125]
    assert isinstance(fault, ZeroDivisionError)


def test_every_client_has_its_turn_and_its_share_of_the_queue() -> None:
    batches: list[list[Any]] = []

    def work(requests: list[Any]) -> list[Any]:
        batches.append(requests)
        return requests

    long = [TextQuery(text="a" * (CHARACTERS // 2 + 1)) for _ in range(2)]
    requests = [*enumerate("aaaabda", 1), *((one, "c") for one in long)]
    batcher = Batcher(work, lambda: None, limits=Limits(batch=2, queue=8, share=0.5))
    answers = asyncio.run(answers_of(batcher, requests))
    assert isinstance(answers.pop(6), HTTPException)
    assert answers == [1, 2, 3, 4, 5, 6, *long]
    assert batches == [[1, 5], [2, 6], [3, long[0]], [4, long[1]]]
    batcher = Batcher(work, lambda: None, limits=Limits())
    assert asyncio.run(answers_of(batcher, zip(long, "ab", strict=True))) == long
    assert batches[4:] == [long[:1], long[1:]]


# An index that changes


def test_a_refreshed_index_is_loaded_without_a_restart(copy: Path) -> None:
    engine = Engine(copy / "index", MODEL)
    with running(engine) as client:
        old = ask(client, k=HITS).json()["hits"]
        photo(copy / "photos" / "new.png", 77)
        (copy / "photos" / old[0]["path"]).unlink()
        refresh(copy / "index", model=MODEL)
        answer = ask(client, k=HITS).json()
        assert plain(answer) == expected(open_index(copy / "index", MODEL).search([QUERY], HITS)[0])
        paths = [hit["path"] for hit in answer["hits"]]
        assert "new.png" in paths
        assert old[0]["path"] not in paths
        assert client.get(old[0]["image"]).status_code == 404
        assert client.get(old[1]["image"]).status_code == 200
        photo(copy / "photos" / "newer.png", 78)
        add(copy / "index", [copy / "photos" / "newer.png"], model=MODEL)
        until(lambda: client.get("/api/index").json()["images"] == 19)  # without a search as well


def test_an_index_that_cannot_be_opened_leaves_the_old_one_in_place(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.web.engine.TICK", 0.02)
    engine = Engine(copy / "index", MODEL)
    manifest = (copy / "index" / "manifest.json").read_bytes()
    with running(engine) as client:
        (copy / "index" / "manifest.json").write_bytes(b"{}")
        until(lambda: client.get("/api/health").json()["status"] == "stale")
        problem = client.get("/api/health").json()["problem"]
        assert "index index is corrupt" in problem
        assert str(copy) not in problem
        assert ask(client).status_code == 200
        (copy / "index" / "manifest.json").write_bytes(manifest)
        until(lambda: client.get("/api/health").json()["status"] == "ok")
        mark = read_manifest(copy / "index")
        write_manifest(copy / "index", mark._replace(model_id=mark.model_id._replace(fingerprint="0" * 64)))
        until(lambda: client.get("/api/health").json()["status"] == "stale")
        assert "another model" in client.get("/api/health").json()["problem"]
        assert ask(client).status_code == 200


def test_an_empty_index_says_so(copy: Path) -> None:
    remove(copy / "index", ["."])
    with running(Engine(copy / "index", MODEL)) as client:
        assert client.get("/api/index").json()["images"] == 0
        for response in (ask(client), client.post("/api/search/image", files={"image": b"x"})):
            assert response.status_code == 409
            assert why(response) == "this index holds no images yet"


# The command


def test_the_command_serves_until_ctrl_c(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(MODEL, tmp_path / "model")
    arguments = ["serve", str(made / "index"), "--port", "0", "--model", str(model)]
    program = subprocess.Popen(
        [sys.executable, "-m", "grainline", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert address, line + (program.stderr.read() if program.stderr and not line else "")
        with httpx.Client(base_url=address.group(), trust_env=False) as client:
            assert ask(client).status_code == 200
            assert client.get("/api/health").status_code == client.get("/page.js").status_code == 200
            form = {"Content-Type": "multipart/form-data; boundary=B"}
            assert client.post("/api/search/image", content="broken\r\n", headers=form).status_code == 400
            with socket.create_connection(("127.0.0.1", client.base_url.port), PATIENCE) as odd:
                odd.sendall(b"nonsense\r\n\r\n")
                assert b" 400 " in odd.recv(100)
        taken = complaint(capsys, "serve", made / "index", "--port", address.group(1))
        assert re.fullmatch(r"grainline: cannot listen at 127\.0\.0\.1:\d+: [^(]*; .*--port", taken)
        assert "no index at" in complaint(capsys, "serve", tmp_path / "none")
        monkeypatch.setattr("grainline.cli.index.find_spec", lambda _: None)
        assert "pip install 'grainline[serve]'" in complaint(capsys, "serve", made / "index")
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert (program.returncode, err) == (0, "")
    assert re.fullmatch(r'\d\d:\d\d:\d\d search "A red dog runs\..*": 3 images, \d+ ms\nended\n', out)


@pytest.mark.parametrize(
    ("setting", "line"), [({}, "PASSIVE 1000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None")]
)
def test_threads_sleep_while_they_wait_unless_the_user_wants_otherwise(
    setting: dict[str, str], line: str
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in names} | setting
    code = f"import os, grainline; print(*map(os.environ.get, {names}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == line


def test_help_does_not_load_the_server() -> None:
    modules = "[n for n in ('torch', 'fastapi', 'uvicorn') if n in sys.modules]"
    code = f"import sys, grainline.cli.main; print({modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture(scope="module")
def of_scenes(made: Path) -> Path:
    """An index whose calibration texts are of drawn scenes."""
    build(made / "photos", made / "index-of-scenes", model=MODEL, calibration_texts=SCENES)
    return made / "index-of-scenes"


@pytest.mark.parametrize(("data", "general"), [(None, True), ("photos/", True), ("scenes:train", False)])
def test_examples_of_drawn_scenes_are_for_models_of_drawn_scenes(
    data: str | None, general: bool, of_scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = open_index(of_scenes, model=MODEL)
    monkeypatch.setattr(index.model, "run", tmp_path)
    if data is not None:
        (tmp_path / "recipe.yaml").write_text(f"data: {{paths: ['{data}']}}\n")
    tries = examples(index)
    assert tries
    assert (set(tries) <= set(PHOTOGRAPHS)) == general


def test_a_body_that_does_not_come_is_not_waited_for(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.web.guard.SENDING", 0.2)
    with running(Engine(made / "index", MODEL)) as client:
        address = (client.base_url.host, client.base_url.port)
        with socket.create_connection(address, timeout=PATIENCE) as slow:
            slow.sendall(
                b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            slow.sendall(b"Content-Length: 100\r\n\r\n{")
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        assert ask(client).status_code == 200
