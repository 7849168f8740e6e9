"""As much of the Hugging Face Hub as pushing a data set needs, on this machine."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Hub:
    """created: bodies of requests to make a repository. commits: of each, path -> content, None where it is deleted.

    files: in the repository. private: what the repository is. refuse: path's end -> (status, message). tokens: seen.
    """

    def __init__(self) -> None:
        self.url = ""
        self.created: list[dict[str, Any]] = []
        self.commits: list[dict[str, bytes | None]] = []
        self.messages: list[str] = []
        self.files: list[str] = []
        self.private = True
        self.refuse: dict[str, tuple[int, str]] = {}
        self.tokens: set[str] = set()

    def answer(self, path: str, body: bytes) -> Any:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return {"url": f"{self.url}/datasets/{self.created[-1].get('organization')}/{self.created[-1]['name']}"}
        if path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
        if path.endswith("/commit/main"):
            self._commit(body)
            return {"commitUrl": f"{self.url}/datasets/me/sigils/commit/1", "commitOid": "1" * 40, "success": True}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/tree/" in path:
            return [{"type": "file", "path": name, "size": 1, "oid": "2" * 40} for name in self.files]
        if path.startswith("/api/datasets/"):
            siblings = [{"rfilename": name} for name in self.files]
            return {"id": "me/sigils", "sha": "1" * 40, "private": self.private, "siblings": siblings, "tags": []}
        return {}

    def _commit(self, body: bytes) -> None:
        changes: dict[str, bytes | None] = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                changes[value["path"]] = None
        self.commits.append(changes)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """A running one."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            path = urlsplit(self.path).path
            hub.tokens.add(self.headers.get("Authorization", ""))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, message = next((hub.refuse[end] for end in hub.refuse if path.endswith(end)), (200, ""))
            error = {"error": message, "errors": [{"message": message}]}
            sent = json.dumps(hub.answer(path, body) if status == 200 else error).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)

        do_GET = do_HEAD = do_POST

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
