"""`grainline serve` and clients that hold connections: idle, slow, too many, behind a proxy; and its end."""

import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from indexes import TEXTS, photos, saved, texts, tiny_model
from PIL import Image
from runs import complaint
from servers import PATIENCE, Gate, running, until

from grainline import system
from grainline.config import parse
from grainline.index.sync import build
from grainline.web.engine import Engine
from grainline.web.guard import HEADERS, Limits
from grainline.web.server import listening

MODEL = tiny_model()
BEGUN = b"GET /api/index HTTP/1.1\r\nHost: localhost\r\n"
POSTED = (
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{"
)
OTHER = "127.0.0.2"  # a second client on the same machine


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    build(photos(folder / "photos", 18), folder / "index", model=MODEL, calibration_texts=texts(folder))
    return folder / "index"


@pytest.fixture(scope="module")
def engine(index: Path) -> Engine:
    return Engine(index, MODEL)


def connected(client: httpx.Client, source: str = "127.0.0.1") -> socket.socket:
    address = (client.base_url.host, client.base_url.port)
    return socket.create_connection(address, timeout=PATIENCE, source_address=(source, 0))


@contextmanager
def client_at(client: httpx.Client, source: str) -> Iterator[httpx.Client]:
    """A client of the same server with another address."""
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(base_url=client.base_url, timeout=PATIENCE, transport=transport) as other:
        yield other


def answer_of(one: socket.socket) -> tuple[int, str]:
    """Status and error of an answer, after which the server closes the connection."""
    data = b""
    while piece := one.recv(2**16):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    names = {line.split(b":")[0].lower() for line in head.splitlines()}
    assert {name.lower().encode() for name in HEADERS} <= names
    return int(head.split()[1]), json.loads(body)["error"]


def ask(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.post("/api/search", json={"text": TEXTS[0], "k": 2}, headers=headers)


# Time


def test_headers_that_do_not_end_are_not_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.web.server.HEADERS", 0.3)
    with running(engine) as client:
        for sent in (b"", BEGUN, BEGUN + b"\r\n", BEGUN + b"\r\n" + BEGUN):
            with connected(client) as slow:
                slow.sendall(sent)
                answer = b"".join(iter(lambda: slow.recv(2**16), b""))
                assert answer.startswith(b"HTTP/1.1 200" if b"\r\n\r\n" in sent else b"")
                assert answer.count(b"HTTP/1.1") == sent.count(b"\r\n\r\n")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a limit that Linux has")
def test_a_client_that_takes_no_answer_is_dropped(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.web.server.READING", 0.5)
    with running(engine) as client, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((client.base_url.host, client.base_url.port))
        deaf.setblocking(False)

        def dropped() -> bool:
            try:
                deaf.send(b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
            except BlockingIOError:
                pass
            except ConnectionError:
                return True
            return False

        until(dropped)
        assert client.get("/api/index").status_code == 200


def test_the_body_of_a_response_does_not_wait_for_its_headers_to_be_acknowledged() -> None:
    with listening("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# Number


def test_1100_idle_connections_and_100_slow_ones_keep_nobody_from_an_answer(engine: Engine) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if system.openable(4000) < 4000:
        pytest.skip(f"this system lets {hard} files be open; the test needs 4,000")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        client = stack.enter_context(running(engine))
        other = stack.enter_context(client_at(client, OTHER))
        for i in range(1200):
            one = stack.enter_context(connected(client))
            if i >= 1100:
                one.sendall(BEGUN)
        began = time.monotonic()
        assert ask(other).status_code == ask(client).status_code == 200
        assert time.monotonic() - began < 2


def test_bodies_of_one_address_have_a_share(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.web.guard.BUFFERED", 800)
    with running(engine, Limits(share=0.5)) as client, client_at(client, OTHER) as other:
        with connected(client) as slow:
            slow.sendall(POSTED.replace(b": 99", b": 900") + b" " * 390)
            until(lambda: ask(client).status_code == 503)
            assert ask(other).status_code == 200
        until(lambda: ask(client).status_code == 200)


def endless() -> bytes:
    """A small JPEG whose many scans take minutes to decode."""
    file = io.BytesIO()
    Image.new("RGB", (2000, 2000), (10, 200, 30)).save(file, "jpeg", progressive=True, quality=10)
    data = file.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 9000 + data[-2:]


def test_images_of_one_address_keep_nobody_else_waiting(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.web.guard.SECONDS", 600.0)
    form = httpx.Request("POST", "http://localhost/api/search/image", files={"image": endless()})
    head = "\r\n".join(f"{name}: {value}" for name, value in form.headers.items())
    sent = f"POST {form.url.path} HTTP/1.1\r\n{head}\r\n\r\n".encode() + form.read()
    with running(engine) as client, ExitStack() as stack:
        other, image = stack.enter_context(client_at(client, OTHER)), ask(client).json()["hits"][0]["image"]
        for _ in range(4):
            stack.enter_context(connected(client)).sendall(sent)
        assert other.get(image).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            client.get(image, timeout=0.5)
        stack.close()  # they leave, and their decoders end
        assert client.get(image).status_code == 200
    monkeypatch.setattr("grainline.web.guard.SECONDS", 0.3)
    with running(engine) as client:
        late = client.post("/api/search/image", files={"image": endless()})
        assert late.status_code == 413
        assert late.json()["error"] == "the image takes longer than 0.3 s to decode"


@pytest.mark.parametrize("proxies", [["127.0.0.0/8"], []])
def test_behind_a_listed_proxy_the_forwarded_address_counts(
    proxies: list[str], index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.web.guard.REQUESTS", 4)
    engine = Engine(index, MODEL)
    gate = Gate(engine, monkeypatch)
    limits = parse(Limits, {"share": 0.25, "batch": 1, "behind_proxy": proxies}, "test")
    with running(engine, limits) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, **{"X-Forwarded-For": "9.9.9.9"})
        until(lambda: gate.calls)
        assert ask(client, **{"X-Forwarded-For": "6.6.6.6, 9.9.9.9"}).status_code == 503
        other = pool.submit(ask, client, **{"X-Forwarded-For": "9.9.9.9, 8.8.8.8"})
        until(lambda: other.done() or client.get("/api/health").json()["waiting"] == 1)
        gate.open.set()
        assert (first.result().status_code, other.result().status_code) == (200, 200 if proxies else 503)


def test_a_proxy_that_is_none_is_one_line(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "serve", index, "--behind-proxy", "nginx")
    assert said.endswith("'nginx': value is not a valid IPv4 or IPv6 network"), said


# The end

SLOW = """
import sys, time
from pathlib import Path
from grainline.web import guard, server
from grainline.web.engine import Engine
real = Engine.answer
def answer(engine, requests):
    print("asked", flush=True)
    while not Path({go!r}).exists():
        time.sleep(0.02)
    return real(engine, requests)
Engine.answer = answer
server.GRACE, server.HEADERS, guard.SENDING = {grace}, 600, 600
server.serve(Path(sys.argv[1]), sys.argv[2], "127.0.0.1", 0)
"""


@pytest.mark.parametrize(("grace", "status"), [(60, 200), (0.3, 503)])
def test_at_sigterm_requests_under_way_are_answered_or_refused(
    grace: float, status: int, index: Path, tmp_path: Path
) -> None:
    model, go = saved(MODEL, tmp_path / "model"), tmp_path / "go"
    program = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(go=str(go), grace=grace), str(index), str(model)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    try:
        assert program.stdout is not None
        url = program.stdout.readline().split()[3]
        with (
            httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client,
            ThreadPoolExecutor(2) as pool,
            connected(client) as idle,
            connected(client) as posting,
        ):
            posting.sendall(POSTED)
            under_way: Any = pool.submit(ask, client)
            assert program.stdout.readline() == "asked\n"
            waiting = pool.submit(ask, client)
            until(lambda: httpx.get(f"{url}api/health", trust_env=False).json()["waiting"] == 1)
            program.send_signal(signal.SIGTERM)
            assert idle.recv(100) == b""
            if status == 503:
                for response in (under_way.result(), waiting.result()):
                    assert response.status_code == 503
                    assert response.json() == {"error": "the server is ending; try again in a moment"}
                assert answer_of(posting)[0] == 503
            else:
                go.touch()
                posting.sendall(b" " * 98)
                assert answer_of(posting)[0] == 422
                assert (under_way.result().status_code, waiting.result().status_code) == (200, 200)
        out, err = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert (program.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "ended"
