"""An S3 server on this machine (moto), behind a proxy that fails as networks do."""

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OK, ERROR, SLOW, CUT, EMPTY = "ok", "500", "slow", "cut", "empty"
BUCKET = "bucket"


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server; `fault` says by the number of a request what goes wrong with it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        """port: of the server behind"""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.lock = port, threading.Lock()
        self.reset()

    def reset(self) -> None:
        """No faults, and no requests yet; parts of files are served."""
        self.ranges = True
        self.fault: Callable[[int], str] = lambda _: OK
        self.requests: list[tuple[str, str, str]] = []  # method, path, range of bytes
        self.sent = 0  # bytes of answers to GET

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append((self.command, self.path, self.headers.get("Range", "")))
        fault = self.server.fault(number)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault[:3].isdigit():
            status, _, code = fault.partition(":")  # such as "503:SlowDown"
            wrong = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(wrong)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else wrong)
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        left_out = () if self.server.ranges else ("Range",)
        sent = {name: value for name, value in self.headers.items() if name not in left_out}
        behind.request(self.command, self.path, body, sent)
        answer = behind.getresponse()
        data = answer.read()
        if fault == SLOW:
            time.sleep(0.3)
        self.send_response(answer.status)
        dropped = ("transfer-encoding", "connection", "content-length")
        for name, value in answer.getheaders():
            if name.lower() not in dropped:
                self.send_header(name, value)
        length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        data = data[: len(data) // 2] if fault == CUT else b"" if fault == EMPTY else data
        self.wfile.write(data)
        if self.command == "GET":
            self.server.sent += len(data)
        if fault in (CUT, EMPTY):
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def s3_server() -> Iterator[Proxy]:
    """The proxy, with moto behind it."""
    from s3fs import S3FileSystem

    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as moto:
        assert moto.stderr is not None
        port = next(int(hit[1]) for line in moto.stderr if (hit := re.search(r"127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=moto.stderr.read, daemon=True).start()  # it would wait for room in the pipe
        proxy = Proxy(port)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        S3FileSystem.clear_instance_cache()  # it would speak to the server of another file of tests
        try:
            yield proxy
        finally:
            proxy.shutdown()
            proxy.server_close()
            moto.terminate()


def upload(fs: Any, folder: Path, prefix: str) -> str:
    """Put the files below a folder there. Returns the URL."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        fs.pipe_file(
            f"{BUCKET}/{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes(), ACL="public-read"
        )
    return f"s3://{BUCKET}/{prefix}"
