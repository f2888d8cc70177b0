"""`grainline serve` and clients that hold connections: idle, slow, too many, behind a proxy; and its end."""

import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
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
from grainline.web import server
from grainline.web.engine import Engine
from grainline.web.guard import HEADERS
from grainline.web.limits import Limits

MODEL = tiny_model()
BEGUN = b"GET /api/index HTTP/1.1\r\nHost: localhost\r\n"
POSTED = (
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{"
)
OTHER = "127.0.0.2"  # a second client on the same machine
FOREVER = 600.0


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
    assert {name.lower().encode() for name in HEADERS} <= {
        line.split(b":")[0].lower() for line in head.splitlines()
    }
    return int(head.split()[1]), json.loads(body)["error"]


def whole_answer(one: socket.socket) -> bytes:
    """An answer on a connection that stays open; headers and body may come in several pieces."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += one.recv(2**16)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.splitlines() if line.lower().startswith(b"content-length:")]
    while len(body) < sum(lengths):
        body += one.recv(2**16)
    return head + b"\r\n\r\n" + body


def ask(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.post("/api/search", json={"text": TEXTS[0], "k": 2}, headers=headers)


# Time


def test_a_connection_without_a_request_ends_from_the_first_moment_on(engine: Engine) -> None:
    with running(engine, Limits(idle=0.1)) as client, connected(client) as silent:
        assert silent.recv(100) == b""


def test_headers_that_trickle_in_are_not_waited_for(engine: Engine) -> None:
    with running(engine, Limits(headers=0.2, idle=FOREVER)) as client:
        for first in (b"", BEGUN + b"\r\n"):  # before the first request, and after one
            with connected(client) as slow:
                if first:
                    slow.sendall(first)
                    assert whole_answer(slow).startswith(b"HTTP/1.1 200")
                slow.sendall(BEGUN)
                until(lambda slow=slow: slow.sendall(b"X") or readable(slow))
                assert answer_of(slow) == (408, "the headers were not sent within 0.2 s")
        assert client.get("/api/index").status_code == 200


def test_a_client_that_takes_no_answer_is_dropped(engine: Engine) -> None:
    with running(engine, Limits(idle=0.2)) as client, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((client.base_url.host, client.base_url.port))
        deaf.setblocking(False)
        asked = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
        broken = select.poll()
        broken.register(deaf, select.POLLHUP)

        def dropped() -> bool:
            try:
                deaf.send(asked)
            except BlockingIOError:
                pass
            except ConnectionError:
                return True
            return bool(broken.poll(0))

        until(dropped)
        assert client.get("/api/index").status_code == 200


def test_what_is_no_request_gets_the_error_of_the_interface(engine: Engine) -> None:
    with running(engine) as client, connected(client) as odd:
        odd.sendall(b"\x16\x03\x01\r\n\r\n")
        assert answer_of(odd) == (400, "this is no HTTP request")


# Number


def test_1100_connections_of_one_address_keep_nobody_else_from_an_answer(engine: Engine) -> None:
    number = 1100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3 * number:
        if hard < 3 * number:
            pytest.skip(f"this system lets {hard} files be open; the test needs {3 * number}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3 * number, hard))
    limits = Limits(idle=FOREVER, headers=FOREVER, sending=FOREVER)
    with ExitStack() as stack:
        client = stack.enter_context(running(engine, limits))
        other = stack.enter_context(client_at(client, OTHER))
        many = []
        for i in range(number):
            one = stack.enter_context(connected(client))
            many.append(one)
            if i % 3:
                one.sendall(BEGUN if i % 3 == 1 else POSTED)
        until(lambda: ask(client).status_code == 503)  # nothing is left for this address
        assert ask(other).status_code == 200
        assert client.get("/api/health").json()["status"] == "ok"
        refused = client.get("/api/index")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json() == {"error": "too many connections at a time; try again in a moment"}
        turned_away = [one for one in many if readable(one)]
        assert len(turned_away) > number / 2
        until(lambda: answer_of_any(turned_away) == (503, refused.json()["error"]))


def readable(one: socket.socket) -> bool:
    poll = select.poll()  # select() takes no numbers of files beyond 1023
    poll.register(one, select.POLLIN)
    return bool(poll.poll(0))


def answer_of_any(many: list[socket.socket]) -> tuple[int, str]:
    """The answer to one that sent nothing, which was closed before it could ask."""
    for one in many:
        try:
            head, _, body = one.recv(2**16, socket.MSG_PEEK).partition(b"\r\n\r\n")
        except ConnectionError:  # closed before the server had read what it sent
            continue
        if b"connection: close" in head.lower():
            return int(head.split()[1]), json.loads(body)["error"]
    return 0, ""


def test_an_address_has_a_share_of_the_connections_and_gets_it_back(engine: Engine) -> None:
    limits = Limits(connections=8, share=0.25, idle=FOREVER)
    with running(engine, limits) as client, client_at(client, OTHER) as other:
        client.close()  # its connection has a place too
        address = client.base_url
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(connected(client))
            until(lambda: httpx.get(f"{address}/api/index", trust_env=False).status_code == 503)
            assert httpx.get(f"{address}/api/health", trust_env=False).status_code == 200
            assert other.get("/api/index").status_code == 200
        until(lambda: httpx.get(f"{address}/api/index", trust_env=False).status_code == 200)


def test_of_connections_without_a_place_the_newest_stay(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SPARE", 2)
    with ExitStack() as stack:
        client = stack.enter_context(running(engine, Limits(connections=1, idle=FOREVER)))
        placed, oldest, *newer = [stack.enter_context(connected(client)) for _ in range(4)]
        assert answer_of(oldest) == (503, "too many connections at a time; try again in a moment")
        for one in newer:
            one.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert whole_answer(one).startswith(b"HTTP/1.1 200")
        placed.close()
        newer[0].sendall(BEGUN + b"\r\n")  # which takes the place that is free now
        until(lambda: newer[0].recv(2**16).startswith(b"HTTP/1.1 200") or newer[0].sendall(BEGUN + b"\r\n"))


def test_bodies_of_one_address_have_a_share_too(engine: Engine) -> None:
    with running(engine, Limits(buffered=800, share=0.5)) as client, client_at(client, OTHER) as other:
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


def test_images_of_one_address_keep_nobody_else_waiting(engine: Engine) -> None:
    form = httpx.Request("POST", "http://localhost/api/search/image", files={"image": endless()})
    head = "\r\n".join(f"{name}: {value}" for name, value in form.headers.items())
    sent = f"POST {form.url.path} HTTP/1.1\r\n{head}\r\n\r\n".encode() + form.read()
    with running(engine, Limits(patience=FOREVER, decoding=FOREVER)) as client, ExitStack() as stack:
        other, image = stack.enter_context(client_at(client, OTHER)), ask(client).json()["hits"][0]["image"]
        for _ in range(4):
            stack.enter_context(connected(client)).sendall(sent)
        assert other.get(image).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            client.get(image, timeout=0.5)
        stack.close()  # they leave, and their decoders end
        assert client.get(image).status_code == 200
    with running(engine, Limits(decoding=0.3)) as client:
        late = client.post("/api/search/image", files={"image": endless()})
        assert late.status_code == 413
        assert late.json()["error"] == "the image takes longer than 0.3 s to decode"


def test_behind_a_listed_proxy_the_forwarded_address_counts(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for proxies, second in (["127.0.0.0/8"], None), ([], 503):
        engine = Engine(index, MODEL)
        gate = Gate(engine, monkeypatch)
        limits = parse(Limits, {"requests": 4, "share": 0.25, "batch": 1, "behind_proxy": proxies}, "test")
        with running(engine, limits) as client, ThreadPoolExecutor(2) as pool:
            first = pool.submit(ask, client, **{"X-Forwarded-For": "9.9.9.9"})
            until(lambda gate=gate: gate.calls)
            assert ask(client, **{"X-Forwarded-For": "6.6.6.6, 9.9.9.9"}).status_code == 503
            if second:
                assert ask(client, **{"X-Forwarded-For": "8.8.8.8"}).status_code == second
            else:
                more = pool.submit(ask, client, **{"X-Forwarded-For": "9.9.9.9, 8.8.8.8"})
                until(lambda client=client: client.get("/api/health").json()["waiting"] == 1)
            gate.open.set()
            assert first.result().status_code == 200
            assert second or more.result().status_code == 200


def test_a_proxy_that_is_none_is_one_line(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "serve", index, "--behind-proxy", "nginx")
    assert said.endswith("'nginx': an address or a network is needed, such as 10.0.0.1 or 10.0.0.0/8"), said


def test_files_that_may_be_open_are_requested() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        assert system.openable(80) == 80
        assert system.openable(70) == 80  # what is there stays
        assert system.openable(hard + 1) == hard if hard != resource.RLIM_INFINITY else True
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The end

SLOW = """
import sys, time
from pathlib import Path
from grainline.web.engine import Engine
from grainline.web.limits import Limits
from grainline.web.server import serve
real = Engine.answer
def answer(engine, asked):
    print("asked", flush=True)
    while not Path({go!r}).exists():
        time.sleep(0.02)
    return real(engine, asked)
Engine.answer = answer
limits = Limits(grace={grace}, idle=600, headers=600, sending=600)
serve(Path(sys.argv[1]), sys.argv[2], "127.0.0.1", 0, limits)
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
