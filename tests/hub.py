"""A Hugging Face hub on this machine that serves folders of models: fetching and uploading one."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Models by name, each a folder, and the requests so far."""

    models: dict[str, Path]
    asked: list[str]
    home: Path  # of the models that are uploaded
    created: list[dict[str, Any]]  # what was asked for a new repository, and said of each commit
    commits: list[dict[str, Any]]


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        for name, folder in self.server.models.items():
            files = sorted(file.name for file in folder.iterdir())
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                about = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
                return self.send(json.dumps(about).encode(), body)
            if path.startswith(f"/api/models/{name}/tree/"):
                return self.send(json.dumps([entry(folder / file) for file in files]).encode(), body)
            if path.startswith(f"/{name}/resolve/") and path.rpartition("/")[2] in files:
                return self.send((folder / path.rpartition("/")[2]).read_bytes(), body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def do_POST(self) -> None:
        path = self.path.split("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(f"POST {path}")
        reply: dict[str, Any] = {}
        if path == "/api/repos/create":
            values = json.loads(body)
            self.server.created.append(values)
            name = "/".join(filter(None, (values.get("organization"), values["name"])))
            self.server.models[name] = self.server.home / name
            self.server.models[name].mkdir(parents=True, exist_ok=True)
            reply = {"url": f"http://{self.headers['Host']}/{name}"}
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            reply = {
                "files": [
                    {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files
                ]
            }
        elif path.endswith("/commit/main"):
            name = path.removeprefix("/api/models/").removesuffix("/commit/main")
            for line in map(json.loads, body.splitlines()):
                self.server.commits += [line["value"]] if line["key"] == "header" else []
                if line["key"] == "file":
                    data = base64.b64decode(line["value"]["content"])
                    (self.server.models[name] / line["value"]["path"]).write_bytes(data)
            reply = {
                "commitUrl": f"http://{self.headers['Host']}/{name}/commit/{COMMIT}",
                "commitOid": COMMIT,
            }
        self.send(json.dumps(reply).encode(), body=True)

    def send(self, data: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@contextmanager
def hub(models: dict[str, Path], home: Path = Path("none")) -> Iterator[Hub]:
    """A hub that runs for as long as the block lasts, on a free port."""
    server = Hub(("127.0.0.1", 0), Answers)
    server.models, server.asked, server.home = models, [], home
    server.created, server.commits = [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def entry(file: Path) -> dict[str, Any]:
    """A file as the list of a repository has it."""
    data = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(data), "oid": hashlib.sha256(data).hexdigest()}
