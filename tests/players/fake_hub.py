"""A stand-in for Hugging Face on the loopback: it answers the hub's own client as the hub would for one repository."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0" * 40


@dataclass
class FakeHub:
    """A repository with some files.

    Attributes:
        digests: SHA-256 that is published for a file, where it is not its own.
        breaks_at: so many bytes of a file are sent, once, and then the connection ends.
        ranges: the Range headers that were sent with requests for a file's bytes, empty where there was none.
    """

    repository: str
    files: Mapping[str, bytes]
    digests: dict[str, str] = field(default_factory=dict)
    breaks_at: dict[str, int] = field(default_factory=dict)
    status: int = 200
    ranges: list[str] = field(default_factory=list)
    url: str = ""

    def digest(self, name: str) -> str:
        """What is published of a file."""
        return self.digests.get(name) or hashlib.sha256(self.files[name]).hexdigest()

    def listing(self) -> bytes:
        """The answer to a question for the repository's files."""
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": "0" * 40,
                "lfs": {"sha256": self.digest(name), "size": len(content), "pointerSize": 134},
            }
            for name, content in self.files.items()
        ]
        return json.dumps({"id": self.repository, "sha": COMMIT, "siblings": siblings}).encode()

    @contextmanager
    def serving(self) -> Iterator[FakeHub]:
        """Answer on a free port of the loopback until the end of the block."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Nothing."""

            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                self.answer(with_body=True)

            def answer(self, *, with_body: bool) -> None:
                path = self.path.partition("?")[0]
                if hub.status != 200 or not path.startswith((f"/api/models/{hub.repository}", f"/{hub.repository}/")):
                    status = hub.status if hub.status != 200 else 404
                    code = {403: "GatedRepo", 404: "RepoNotFound"}.get(status, "")
                    return self.send(status, {"X-Error-Code": code}, b"", with_body)
                if path.startswith("/api/"):
                    return self.send(200, {"Content-Type": "application/json"}, hub.listing(), with_body)
                return self.file(path.rpartition(f"/resolve/{COMMIT}/")[2], with_body)

            def file(self, name: str, with_body: bool) -> None:
                content = hub.files[name]
                headers = {
                    "X-Repo-Commit": COMMIT,
                    "ETag": f'"{hub.digest(name)}"',
                    "X-Linked-Etag": f'"{hub.digest(name)}"',
                    "X-Linked-Size": str(len(content)),
                    "Accept-Ranges": "bytes",
                }
                if not with_body:
                    return self.send(200, headers, content, with_body)
                asked = self.headers.get("Range", "")
                hub.ranges.append(asked)
                start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
                if asked:
                    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                return self.send(206 if asked else 200, headers, content[start:], True, hub.breaks_at.pop(name, None))

            def send(
                self, status: int, headers: Mapping[str, str], body: bytes, with_body: bool, only: int | None = None
            ) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(body[:only])
                self.close_connection = self.close_connection or only is not None

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
