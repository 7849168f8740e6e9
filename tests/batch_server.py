"""The scripted judge's server with files and batches: what was uploaded, and batches that end as a test says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.parser import BytesParser
from typing import Any

from judge_server import Call, JudgeServer, Say, Script, as_script, fail, running


class BatchServer(JudgeServer):
    """files: contents by id. batches: as the server tells them. takes: batches until it takes no more; None for any number.

    has_batches: whether it has files and batches at all.
    """

    def __init__(self, script: Script):
        super().__init__(script)
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.sent: list[dict[str, Any]] = []
        self.takes: int | None = None
        self.has_batches = True

    def requests(self, batch: str) -> list[dict[str, Any]]:
        """The lines that were uploaded for a batch."""
        content = self.files[self.batches[batch]["input_file_id"]].decode()
        return [json.loads(line) for line in content.split("\n") if line]

    def replies(self, batch: str) -> list[dict[str, Any]]:
        """What the script says to each of them, as lines of an output file."""
        return [
            {
                "id": f"r{n}",
                "custom_id": line["custom_id"],
                "error": None,
                "response": {"status_code": said.status, "request_id": "q", "body": said.body},
            }
            for n, line in enumerate(self.requests(batch))
            for said in [self.script(Call(line["body"], {}, 0))]
        ]

    def end(
        self,
        batch: str,
        lines: Sequence[Any] | None = None,
        *,
        status: str = "completed",
        error_lines: Sequence[Any] = (),
        **more: Any,
    ) -> None:
        """Let a batch end. lines: of its output file (bytes as they are), by default the script's; none for no output file."""
        record = self.batches[batch]
        record.update({"status": status, **more})
        lines = self.replies(batch) if lines is None else lines
        for name, content in (("output_file_id", lines), ("error_file_id", error_lines)):
            if content:
                record[name] = f"file-{len(self.files) + 1}"
                self.files[record[name]] = b"".join(_line(line) + b"\n" for line in content)

    def get(self, path: str, headers: dict[str, str]) -> Say:
        kind, _, name = path.removeprefix("/v1/").partition("/")
        if kind == "models":
            return super().get(path, headers)
        if self.has_batches and kind == "batches" and name in self.batches:
            return Say(self.batches[name])
        if self.has_batches and kind.partition("?")[0] == "batches" and not name:
            return Say({"object": "list", "data": list(self.batches.values())[::-1], "has_more": False})
        if self.has_batches and kind == "files" and name.removesuffix("/content") in self.files:
            return Say(self.files[name.removesuffix("/content")], headers={"Content-Type": "application/octet-stream"})
        return fail(404, f"no {path}")

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Say:
        if path == "/v1/chat/completions":
            return super().post(path, headers, body)
        if self.has_batches and path == "/v1/files":
            name = f"file-{len(self.files) + 1}"
            parts = _multipart(headers["content-type"], body)
            assert parts["purpose"] == b"batch"
            self.files[name] = parts["file"]
            return Say({"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "x", "purpose": "batch"})
        if self.has_batches and path == "/v1/batches":
            return self.take(json.loads(body))
        return fail(404, f"no {path}")

    def take(self, asked: dict[str, Any]) -> Say:
        self.sent.append(asked)
        if self.takes is not None and len(self.batches) >= self.takes:
            return fail(400, "the queue is full")
        name = f"batch-{len(self.batches) + 1}"
        self.batches[name] = {**asked, "id": name, "object": "batch", "created_at": 1, "status": "validating"}
        return Say(self.batches[name])


def _line(line: Any) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()


def _multipart(content_type: str, body: bytes) -> dict[str, bytes]:
    message = BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    parts: Any = message.get_payload()
    return {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in parts}


@contextmanager
def batch_server(script: Script | int = 2) -> Iterator[BatchServer]:
    """Serve ``script`` on 127.0.0.1 with files and batches; an integer is every call's level."""
    with running(BatchServer(as_script(script))) as state:
        yield state
