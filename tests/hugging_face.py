"""A stand-in of the Hugging Face Hub: the few requests that `hf://` data needs, over HTTP on this machine.

Large files are redirected to another host name, as the hub does; listings come in pages of two, whose links
name the hub itself, as those of a mirror do.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_PAGE = 2
_LARGE = 1000
_API = re.compile(r"/api/datasets/(?P<repo>.+?)/(?P<what>revision|tree)/(?P<revision>[^/]+)")
_FILE = re.compile(r"(?P<cdn>/cdn)?/datasets/(?P<repo>.+?)/resolve/(?P<commit>[0-9a-f]{40})/(?P<path>.+)")


class FakeHub:
    """Serves the datasets it is given: repository → revision → path → content.

    `token` makes everything private. `failures` is how many requests for files are answered with 503;
    `damaged` makes files arrive with other bytes than they have. `host` is the address it listens on.
    `requests` lists what was asked, each with its authorization.
    """

    def __init__(
        self,
        datasets: Mapping[str, Mapping[str, Mapping[str, bytes]]],
        token: str | None = None,
        failures: int = 0,
        damaged: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.datasets = datasets
        self.token = token
        self.failures = failures
        self.damaged = damaged
        self._host = host
        self.requests: list[tuple[str, str | None]] = []
        self._server = ThreadingHTTPServer((host, 0), type("_OwnHandler", (_Handler,), {"hub": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def endpoint(self) -> str:
        """What `HF_ENDPOINT` is set to."""
        return f"http://{self._host}:{self._server.server_port}"

    @property
    def cdn(self) -> str:
        """The same server, under another name if it has one."""
        name = "localhost" if self._host == "127.0.0.1" else self._host
        return f"http://{name}:{self._server.server_port}/cdn"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def files(self, repo: str, revision: str) -> Mapping[str, bytes] | None:
        """The files of a revision, or of the commit it is at."""
        revisions = self.datasets.get(repo, {})
        for name, files in revisions.items():
            if revision in (name, commit_of(files)):
                return files
        return None


def commit_of(files: Mapping[str, bytes]) -> str:
    """The commit that consists of these files."""
    digest = hashlib.sha1(usedforsecurity=False)
    for path in sorted(files):
        digest.update(path.encode() + b"\0" + files[path])
    return digest.hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob.hexdigest()}
    if len(content) > _LARGE:
        entry["oid"] = "0" * 40  # of the pointer file that Git has in its place
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return entry


class _Handler(BaseHTTPRequestHandler):
    """Answers for the hub of its server."""

    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        token = self.headers.get("Authorization")
        self.hub.requests.append((self.path, token))
        if (match := _FILE.fullmatch(unquote(asked.path))) is not None:
            self._file(match)
        elif self.hub.token and token != f"Bearer {self.hub.token}":
            self._answer(401, b"")
        elif (match := _API.fullmatch(asked.path)) is not None:
            self._api(match, int(parse_qs(asked.query).get("cursor", ["0"])[0]))
        else:
            self._answer(404, b"")

    def _api(self, match: re.Match[str], start: int) -> None:
        files = self.hub.files(match["repo"], unquote(match["revision"]))
        if files is None:
            self._answer(404, b"")
        elif match["what"] == "revision":
            self._answer(200, json.dumps({"sha": commit_of(files)}).encode())
        else:
            entries = [_entry(path, files[path]) for path in sorted(files)]
            folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
            entries += [{"type": "directory", "path": folder, "oid": "", "size": 0} for folder in folders]
            following = f"https://huggingface.co{match[0]}?recursive=true&cursor={start + _PAGE}"
            more = {"Link": f'<{following}>; rel="next"'} if start + _PAGE < len(entries) else {}
            self._answer(200, json.dumps(entries[start : start + _PAGE]).encode(), more)

    def _file(self, match: re.Match[str]) -> None:
        content = (self.hub.files(match["repo"], match["commit"]) or {}).get(match["path"])
        if self.hub.failures:
            self.hub.failures -= 1
            self._answer(503, b"")
        elif content is None:
            self._answer(404, b"")
        elif self.hub.damaged:
            self._answer(206, bytes(len(content)))
        elif match["cdn"] is None and len(content) > _LARGE:
            self._answer(302, b"", {"Location": self.hub.cdn + self.path})
        elif (asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))) is not None:
            self._answer(206, content[int(asked[1]) : int(asked[2]) + 1])
        else:
            self._answer(200, content)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Tests read `requests` instead."""
