"""Cloud Storage over plain HTTP: the runner's store in a pod, in standard Python.

`STORAGE_EMULATOR_HOST` replaces the service and needs no token.
JSON API: https://cloud.google.com/storage/docs/json_api/v1/objects
"""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from . import wire
from .identity_tokens import NoCredentials, access_token
from .store import Content, MissingObject, SinkType, StoreUnavailable

if TYPE_CHECKING:
    from .store import Content

_LONGEST_ASKED = 30.0


def multipart(facts: Mapping[str, Any], content: bytes, mark: str) -> tuple[bytes, dict[str, str]]:
    """Encode an object and its metadata in the body of one request; return body and headers."""
    edge = f"kinetic-{mark}".encode()
    body = b"".join((
        b"--" + edge + b"\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n",
        json.dumps(facts).encode(),
        b"\r\n--" + edge + b"\r\nContent-Type: application/octet-stream\r\n\r\n",
        content,
        b"\r\n--" + edge + b"--\r\n",
    ))  # fmt: skip
    return body, {"Content-Type": f"multipart/related; boundary={edge.decode()}"}


def md5(content: bytes = b"") -> Any:
    """Return an MD5 hash; Cloud Storage's other checksum is not in Python's library."""
    return hashlib.md5(content, usedforsecurity=False)


def compare(response: http.client.HTTPResponse, found: Any) -> None:
    """Raise an error that `_try` retries if the content's digest is not the one the service reports."""
    told = ",".join(response.headers.get_all("x-goog-hash") or ())
    for part in told.split(","):
        kind, _, value = part.strip().partition("=")
        if kind == "md5" and base64.b64decode(value) != found.digest():
            raise http.client.HTTPException("what arrived has another checksum than what is stored")


def retry_after(headers: Message) -> float:
    """Return how many seconds the service asks to wait."""
    asked = headers.get("Retry-After") or ""
    return min(float(asked), _LONGEST_ASKED) if asked.isdigit() else 0.0


PATIENCE = 120.0
"""Seconds for which a request is repeated after 408, 429, 5xx and lost connections."""
SILENCE = 30.0
"""Seconds after which a connection without a byte counts as lost."""
HURRY = 5.0
"""Seconds in place of PATIENCE and SILENCE for callers in a hurry: ten seconds at most for both."""
WHOLE_BYTES = 8 << 20
"""Bytes up to which an object is sent in one request; a larger one is sent in pieces that can be repeated."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of this machine's disk: asking the service again does not help."""
_ROUNDS = 3
"""Attempts to write a name that was taken and is free again."""
_PIECE = 1 << 20
_TAKEN = (403, 412)
"""Status of a create whose name is taken: a writer that may not replace objects gets 403 first."""
_AGAIN = (408, 429, 500, 502, 503, 504)
_SPARE_SECONDS = 300.0


class Answer(NamedTuple):
    """Answer of the service to a request."""

    status: int
    headers: Message
    body: bytes


_Sink = Callable[[http.client.HTTPResponse], bytes]


class GcsStore:
    """Store of the objects below `gs://bucket/prefix`."""

    def __init__(
        self,
        uri: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        silence: float = SILENCE,
    ) -> None:
        self.uri = uri
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        self._bucket = quote(bucket, safe="")
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = urlsplit(os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com")
        self._sleep, self._clock = sleep, clock
        self._patience, self._silence = PATIENCE, silence
        self._token, self._expires = "", 0.0
        self._connection: tuple[int, http.client.HTTPConnection] | None = None

    @contextmanager
    def hurried(self) -> Iterator[None]:
        usual = self._patience, self._silence
        self._limit(min(HURRY, self._patience), min(HURRY, self._silence))
        try:
            yield
        finally:
            self._limit(*usual)

    def _limit(self, patience: float, silence: float) -> None:
        self._patience, self._silence = patience, silence
        if self._connection is not None:
            connection = self._connection[1]
            connection.timeout = silence
            if connection.sock is not None:
                connection.sock.settimeout(silence)

    def read(self, name: str) -> bytes:
        def whole(response: http.client.HTTPResponse) -> bytes:
            content = response.read()
            compare(response, md5(content))
            return content

        return self._get(name, whole)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Read part of an object; the caller compares the part's digest, which the service does not have."""
        wanted = {"Range": f"bytes={offset}-{offset + size - 1}"}
        return self._get(name, http.client.HTTPResponse.read, wanted)

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        sinks: list[SinkType] = []

        def keep(response: http.client.HTTPResponse) -> bytes:
            sinks[:] = [new_sink()]
            found = md5()
            while piece := response.read(_PIECE):
                sinks[0].write(piece)
                found.update(piece)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            compare(response, found)
            return b""

        self._get(name, keep)
        return sinks[0]

    def create(self, name: str, content: bytes | Content, state: str = "") -> bool:
        mark = os.urandom(8).hex()
        metadata = {wire.WRITE_MARK: mark, **({wire.STATE: state} if state else {})}
        facts = {"name": self._prefix + name, "md5Hash": _checksum(content), "metadata": metadata}
        for _ in range(_ROUNDS):
            answer = self._send(name, facts, content, mark, "ifGenerationMatch=0&")
            if answer.status not in _TAKEN:
                self._check(answer, f"store {name}")
                return True
            try:
                holder = self._holder(name)
            except StoreUnavailable:
                holder = None
                if answer.status == 412:
                    raise
            if holder is not None:
                return holder == mark
            if answer.status == 403:
                self._check(answer, f"store {name}")
        return False

    def replace(self, name: str, content: bytes | Content, state: str = "") -> None:
        metadata = {wire.STATE: state} if state else {}
        facts = {"name": self._prefix + name, "md5Hash": _checksum(content), "metadata": metadata}
        self._check(self._send(name, facts, content, os.urandom(8).hex(), ""), f"store {name}")

    def fetch(self, name: str) -> str:
        """Download to a file below the working directory, which the caller's pod has for itself."""
        folder = os.path.join(os.environ["KINETIC_WORK_DIR"], "fetched")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name.replace("/", "_"))
        if os.path.exists(path):
            return path
        part = f"{path}.{os.getpid()}.part"

        def keep(response: http.client.HTTPResponse) -> bytes:
            found = md5()
            with open(part, "wb") as stream:
                while piece := response.read(_PIECE):
                    stream.write(piece)
                    found.update(piece)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            compare(response, found)
            return b""

        self._get(name, keep)
        os.rename(part, path)
        return path

    def age(self, name: str) -> float:
        from datetime import datetime
        from email.utils import parsedate_to_datetime

        answer = self._try(name, lambda: self._request("GET", f"{self._object(name)}?fields=timeCreated"))
        self._check(answer, f"look at {name}")
        stored = datetime.fromisoformat(self._facts(answer, name)["timeCreated"])
        return (parsedate_to_datetime(answer.headers["Date"]) - stored).total_seconds()

    def _get(self, name: str, sink: _Sink, headers: Mapping[str, str] | None = None) -> bytes:
        path = f"{self._object(name)}?alt=media"
        answer = self._try(name, lambda: self._request("GET", path, headers=headers, sink=sink))
        self._check(answer, f"read {name}")
        return answer.body

    def _send(
        self, name: str, facts: Mapping[str, Any], content: bytes | Content, mark: str, condition: str
    ) -> Answer:
        """Write an object; status 412 means that the condition was not met."""
        where = f"/upload/storage/v1/b/{self._bucket}/o?{condition}uploadType="
        content = Content(content) if isinstance(content, bytes) else content
        if len(content) <= WHOLE_BYTES:
            body, headers = multipart(facts, content.read(0, len(content)), mark)
            return self._try(name, lambda: self._request("POST", f"{where}multipart", body, headers))

        upload = ResumableUpload(self._request, f"{where}resumable", json.dumps(facts).encode(), content)
        answer = self._try(name, upload.step)
        while is_unfinished(answer):
            answer = self._try(name, upload.step)
        return answer

    def _holder(self, name: str) -> str | None:
        """Return the mark of the write that made the object; None if the object is gone."""
        path = f"{self._object(name)}?fields=metadata"
        answer = self._try(name, lambda: self._request("GET", path))
        try:
            self._check(answer, f"look at {name}")
        except MissingObject:
            return None
        return str((self._facts(answer, name).get("metadata") or {}).get(wire.WRITE_MARK))

    def _facts(self, answer: Answer, name: str) -> dict[str, Any]:
        """Return the service's metadata of an object, or raise if a proxy has answered with a page."""
        try:
            facts = json.loads(answer.body)
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise StoreUnavailable(errno.EIO, f"{self.uri}/{name}: the answer is none of Cloud Storage")
        return facts

    def _object(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise MissingObject(f"{name!r} is not the name of an object")
        return f"/storage/v1/b/{self._bucket}/o/{quote(self._prefix + name, safe='')}"

    def _check(self, answer: Answer, what: str) -> None:
        """Raise the error that an answer means for the job, with what to do about it."""
        if answer.status < 300:
            return
        text = answer.body[:300].decode(errors="replace")
        if answer.status == 404 and "bucket does not exist" in text:
            raise StoreUnavailable(
                errno.ENOENT,
                f"cannot {what}: the bucket {self._bucket!r} does not exist, or the pod may not see it. "
                "Create it, or set KINETIC_BUCKET to one that exists, and submit again",
            )
        if answer.status == 404:
            raise MissingObject(f"cannot {what}: {self.uri} does not have it")
        if answer.status in (401, 403):
            raise StoreUnavailable(
                errno.EACCES,
                f"cannot {what} in {self.uri}: not permitted (HTTP {answer.status}: {text}). The service "
                "account of the pod needs roles/storage.objectUser on the bucket",
            )
        raise StoreUnavailable(errno.EPROTO, f"cannot {what} in {self.uri}: HTTP {answer.status}: {text}")

    def _try(self, name: str, send: Callable[[], Answer]) -> Answer:
        """Send a request and return its answer, with retries at growing random intervals."""
        give_up, pause, may_renew = self._clock() + self._patience, 0.25, True
        while True:
            asked = 0.0
            try:
                answer = send()
                if answer.status == 401 and self._token and may_renew:
                    self._token, may_renew = "", False
                    continue
                if answer.status not in _AGAIN:
                    return answer
                why, asked = f"HTTP {answer.status}", retry_after(answer.headers)
            except (OSError, http.client.HTTPException) as exc:
                self.close()
                if isinstance(exc, NoCredentials) or (isinstance(exc, OSError) and exc.errno in _DISK_FULL):
                    raise
                why = str(exc) or type(exc).__name__
            if self._clock() >= give_up:
                raise StoreUnavailable(errno.EIO, f"{self.uri}/{name} cannot be reached: {why}")
            wait = max(asked, pause * (0.5 + random.random()))  # noqa: S311  no secret
            self._sleep(min(wait, max(0.0, give_up - self._clock())))
            pause = min(pause * 2, 8.0)

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        sink: _Sink | None = None,
    ) -> Answer:
        connection = self._connected()
        token = self._authorization()
        connection.request(method, path, body, {**(headers or {}), **token})
        response = connection.getresponse()
        if response.status >= 300 or sink is None:
            return Answer(response.status, response.headers, response.read())
        return Answer(response.status, response.headers, sink(response))

    def _connected(self) -> http.client.HTTPConnection:
        """Return this process's connection: one from before a fork belongs to the other process."""
        if self._connection is None or self._connection[0] != os.getpid():
            kind = (
                http.client.HTTPSConnection
                if self._endpoint.scheme == "https"
                else http.client.HTTPConnection
            )
            self._connection = os.getpid(), kind(self._endpoint.netloc, timeout=self._silence)
        return self._connection[1]

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None and self._connection[0] == os.getpid():
            self._connection[1].close()
        self._connection = None

    def _authorization(self) -> dict[str, str]:
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            return {}
        if not self._token or self._clock() >= self._expires - _SPARE_SECONDS:
            self._token, self._expires = access_token(self._clock())
        return {"Authorization": f"Bearer {self._token}"}


def _checksum(content: bytes | Content) -> str:
    found = md5()
    for piece in (content,) if isinstance(content, bytes) else content.pieces():
        found.update(piece)
    return base64.b64encode(found.digest()).decode()


PIECE_BYTES = 16 << 20
"""Bytes of a piece: a multiple of 256 KiB, as the service requires of all but the last."""
_UNFINISHED = 308
_SESSIONS = 3


class ResumableUpload:
    """Upload in several requests; `request(method, path, body, headers)` sends one to the service.

    Each `step` sends one request. After a step that failed, whether or not it arrived, the next asks how
    much the service has.
    """

    def __init__(self, request: Callable[..., Answer], start: str, facts: bytes, content: Content) -> None:
        self._request, self._start, self._facts = request, start, facts
        self._content = content
        self._session, self._sessions = "", 0
        self._stored: int | None = None
        """Bytes the service has; None if unknown."""

    def step(self) -> Answer:
        """Send the next request. Raises what `request` raises."""
        if not self._session:
            return self._begin()
        stored, self._stored = self._stored, None
        total = len(self._content)
        if stored is None:
            piece, place = b"", f"bytes */{total}"
        else:
            piece = self._content.read(stored, PIECE_BYTES)
            place = f"bytes {stored}-{stored + len(piece) - 1}/{total}"
        answer = self._request("PUT", self._session, piece, {"Content-Range": place})
        if answer.status == _UNFINISHED:
            self._stored = _bytes_stored(answer.headers.get("Range"))
        elif answer.status in (404, 410) and self._sessions < _SESSIONS:
            self._session = ""  # the service has forgotten it: from the start
            return answer._replace(status=_UNFINISHED)
        return answer

    def _begin(self) -> Answer:
        headers = {
            "Content-Type": "application/json; charset=UTF-8",
            "X-Upload-Content-Type": "application/octet-stream",
            "X-Upload-Content-Length": str(len(self._content)),
        }
        answer = self._request("POST", self._start, self._facts, headers)
        if answer.status != 200:
            return answer
        place = urlsplit(answer.headers["Location"])
        self._session, self._stored = f"{place.path}?{place.query}", 0
        self._sessions += 1
        return answer._replace(status=_UNFINISHED)


def is_unfinished(answer: Answer) -> bool:
    """Return whether another step must follow."""
    return answer.status == _UNFINISHED


def _bytes_stored(told: str | None) -> int:
    """Parse the Range header of an answer, `bytes=0-N`; no header means that nothing is stored."""
    found = re.fullmatch(r"bytes=0-(\d+)", told or "")
    return int(found[1]) + 1 if found else 0
