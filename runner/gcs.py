"""Cloud Storage over plain HTTP, in standard Python: the client of pods, which Kinetic's own uses too.

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
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit

from . import wire
from .http_pool import Answer, Body, HttpPool, Reader
from .identity_tokens import Identity, NoCredentials
from .store import Content, Limited, MissingObject, ObjectTooLarge, Sink, SinkType, StoreUnavailable

PATIENCE = 120.0
"""Seconds for which a request is repeated after 408, 429, 5xx and lost connections."""
SILENCE = 30.0
"""Seconds after which a connection without a byte counts as lost."""
HURRY = 5.0
"""Seconds in place of PATIENCE and SILENCE for callers in a hurry: ten seconds at most for both."""
WHOLE_BYTES = 8 << 20
"""Bytes up to which an object is sent in one request; a larger one is sent in pieces that can be repeated."""
PIECE_BYTES = 96 << 20
"""Bytes of such a piece: a multiple of 256 KiB, as the service requires of all but the last. Each one costs a
request; none is in memory as a whole."""
ENDPOINT = "https://storage.googleapis.com"
_LONGEST_ASKED = 30.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of this machine's disk: asking the service again does not help."""
_ROUNDS = 3
"""Attempts to write a name that was taken and is free again."""
_PIECE = 1 << 20
_TAKEN = (403, 412)
"""Status of a create whose name is taken: a writer that may not replace objects gets 403 first."""
_AGAIN = (408, 429, 500, 502, 503, 504)
_RANDOM = random.SystemRandom()
"""Not the module's own generator, whose numbers belong to the user: a seeded program stays reproducible."""
_AS_STORED = {"Accept-Encoding": "gzip"}
"""Headers of a read: else the service unpacks what was stored packed, and its checksum is of other bytes."""


class Checksum(NamedTuple):
    """Kind of checksum: its name in headers and in an object's metadata, and what makes an empty one."""

    name: str
    field: str
    new: Callable[[], Any]


MD5 = Checksum("md5", "md5Hash", partial(hashlib.md5, usedforsecurity=False))
"""The one of Cloud Storage's checksums that is in Python's library."""


class Access(Protocol):
    """Who asks."""

    def headers(self) -> dict[str, str]:
        """Return the headers that say who asks. Raises OSError if they cannot be had now."""

    def renew(self) -> bool:
        """Have other headers made for the next request; return False if these cannot be renewed."""


class GcsStore:
    """Store of the objects below `gs://bucket/prefix`. Methods may be called from several threads.

    `pool` and `access` are the pod's unless they are given; `buckets` are those known to exist, which the
    stores of a process may share.
    """

    def __init__(
        self,
        uri: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        silence: float = SILENCE,
        *,
        patience: float = PATIENCE,
        pool: HttpPool | None = None,
        access: Access | None = None,
        checksum: Checksum = MD5,
        hurry: float = HURRY,
        piece_bytes: int = PIECE_BYTES,
        buckets: set[str] | None = None,
    ) -> None:
        self.uri = uri
        self._bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self.objects = f"/storage/v1/b/{quote(self._bucket, safe='')}/o"
        """Path of the bucket's objects in the API."""
        if pool is None:
            emulator = os.environ.get("STORAGE_EMULATOR_HOST")
            pool = HttpPool(emulator or ENDPOINT)
            access = access or (None if emulator else Identity(clock))
        self._pool, self._access, self._checksum = pool, access, checksum
        self._sleep, self._clock = sleep, clock
        self._patience, self._silence, self._hurry = patience, silence, hurry
        self._piece_bytes = piece_bytes
        self._buckets = set[str]() if buckets is None else buckets

    @contextmanager
    def hurried(self) -> Iterator[None]:
        usual = self._patience, self._silence
        self._patience, self._silence = (min(self._hurry, seconds) for seconds in usual)
        try:
            yield
        finally:
            self._patience, self._silence = usual

    def read(self, name: str) -> bytes:
        def whole(response: http.client.HTTPResponse) -> bytes:
            content = response.read()
            found = self._checksum.new()
            found.update(content)
            self._compare(response, found)
            return content

        return self._get(name, whole)

    def read_range(
        self,
        name: str,
        offset: int,
        size: int,
        generation: str = "",
        read: Reader = http.client.HTTPResponse.read,
    ) -> bytes:
        """Read part of an object; the caller compares the part's digest, which the service does not have."""
        return self._get(name, read, {"Range": f"bytes={offset}-{offset + size - 1}"}, generation)

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        sinks: list[SinkType] = []

        def keep(response: http.client.HTTPResponse) -> bytes:
            sinks[:] = [new_sink()]
            return self._copy(response, sinks[0])

        self._get(name, keep)
        return sinks[0]

    def create_if_absent(
        self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None
    ) -> bool:
        mark = os.urandom(8).hex()
        facts = self._described(name, content, {**(metadata or {}), wire.WRITE_MARK: mark})
        for _ in range(_ROUNDS):
            answer = self._send(name, facts, content, "ifGenerationMatch=0&")
            if answer.status not in _TAKEN:
                self.check(answer, "store", name)
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
                self.check(answer, "store", name)
        return False

    def replace(self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None) -> None:
        facts = self._described(name, content, metadata or {})
        self.check(self._send(name, facts, content, ""), "store", name)

    def fetch(self, name: str, most: int) -> str:
        """Download to a file below the working directory, which the caller's pod has for itself."""
        folder = os.path.join(os.environ["KINETIC_WORK_DIR"], "fetched")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name.replace("/", "_"))
        if os.path.exists(path):
            return path
        part = f"{path}.{os.getpid()}.part"

        def keep(response: http.client.HTTPResponse) -> bytes:
            with open(part, "wb") as stream:
                return self._copy(response, Limited(stream, most))

        try:
            self._get(name, keep)
        except ObjectTooLarge:
            os.unlink(part)
            raise
        os.rename(part, path)
        return path

    def age(self, name: str) -> float:
        from datetime import datetime
        from email.utils import parsedate_to_datetime

        answer = self.request("look at", name, "GET", f"{self.path(name)}?fields=timeCreated")
        stored = datetime.fromisoformat(self.facts(answer, name)["timeCreated"])
        return (parsedate_to_datetime(answer.headers["Date"]) - stored).total_seconds()

    def entry(self, name: str, fields: str) -> dict[str, Any]:
        """Return these fields of an object's metadata. Raises MissingObject."""
        return self.facts(self.request("look at", name, "GET", f"{self.path(name)}?fields={fields}"), name)

    def entries(
        self, prefix: str, fields: str, pattern: str = "", since: str = ""
    ) -> Iterator[dict[str, Any]]:
        """List these fields of the objects below a prefix, in name order.

        `pattern` is one of whole names; names that sort before `since` are left out.
        """
        query = {"prefix": self.prefix + prefix, "fields": f"items({fields}),nextPageToken"}
        if pattern:
            query["matchGlob"] = self.prefix + pattern
        if since:
            query["startOffset"] = self.prefix + since
        while True:
            answer = self.request(
                "list", prefix, "GET", f"{self.objects}?{urlencode(query, quote_via=quote)}"
            )
            page = self.facts(answer, prefix)
            yield from page.get("items", ())
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def request(
        self,
        verb: str,
        name: str,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        read: Reader | None = None,
    ) -> Answer:
        """Send a request, again while that may help, and return the answer if it is one of success.

        `verb` and `name` say in an error what cannot be done. Raises MissingObject, StoreUnavailable.
        """
        answer = self._try(name, lambda: self._once(method, path, body, headers, read))
        self.check(answer, verb, name)
        return answer

    def path(self, name: str) -> str:
        """Return the path of an object in the API."""
        if name.startswith("/") or ".." in name.split("/"):
            raise MissingObject(f"{name!r} is not the name of an object")
        return f"{self.objects}/{quote(self.prefix + name, safe='')}"

    def facts(self, answer: Answer, name: str) -> dict[str, Any]:
        """Return the JSON object of an answer, or raise if a proxy has answered with a page."""
        try:
            facts = json.loads(answer.body)
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise StoreUnavailable(errno.EIO, f"{self.uri}/{name}: the answer is none of Cloud Storage")
        return facts

    def check(self, answer: Answer, verb: str, name: str) -> None:
        """Raise the error that an answer means for the job, with what to do about it."""
        if answer.status < 300:
            return
        text = answer.body[:300].decode(errors="replace")
        if answer.status == 404 and not self._has_bucket(name):
            raise StoreUnavailable(
                errno.ENOENT,
                f"cannot {verb} {name}: the bucket {self._bucket!r} does not exist, or this account may not "
                "see it. Create it, or set KINETIC_BUCKET to one that exists",
            )
        if answer.status == 404:
            raise MissingObject(f"cannot {verb} {name} in {self.uri}: there is no such object")
        if answer.status in (401, 403):
            raise StoreUnavailable(
                errno.EACCES,
                f"cannot {verb} {name} in {self.uri}: not permitted (HTTP {answer.status}: {text}). The "
                "account needs roles/storage.objectUser on the bucket",
            )
        raise StoreUnavailable(
            errno.EPROTO, f"cannot {verb} {name} in {self.uri}: HTTP {answer.status}: {text}"
        )

    def close(self) -> None:
        """Close the connections; the next request opens another."""
        self._pool.close()

    def _get(
        self, name: str, read: Reader, headers: Mapping[str, str] | None = None, generation: str = ""
    ) -> bytes:
        path = f"{self.path(name)}?alt=media{generation and f'&generation={generation}'}"
        answer = self._try(
            name, lambda: self._once("GET", path, None, {**_AS_STORED, **(headers or {})}, read)
        )
        if answer.status == 416:
            return b""  # it ends before the range
        self.check(answer, "read", name)
        return answer.body

    def _copy(self, response: http.client.HTTPResponse, sink: Sink) -> bytes:
        found = self._checksum.new()
        while piece := response.read(_PIECE):
            sink.write(piece)
            found.update(piece)
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        self._compare(response, found)
        return b""

    def _compare(self, response: http.client.HTTPResponse, found: Any) -> None:
        """Raise an error that `_try` retries if the content's checksum is not the one the service reports."""
        told = ",".join(response.headers.get_all("x-goog-hash") or ())
        for part in told.split(","):
            kind, _, value = part.strip().partition("=")
            if kind == self._checksum.name and base64.b64decode(value) != found.digest():
                raise http.client.HTTPException("what arrived has another checksum than what is stored")

    def _described(self, name: str, content: bytes | Content, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Return the metadata of an object that is to be stored."""
        found = self._checksum.new()
        for piece in (content,) if isinstance(content, bytes) else content.pieces():
            found.update(piece)
        digest = base64.b64encode(found.digest()).decode()
        return {"name": self.prefix + name, self._checksum.field: digest, "metadata": dict(metadata)}

    def _send(self, name: str, facts: Mapping[str, Any], content: bytes | Content, condition: str) -> Answer:
        """Write an object; status 412 means that the condition was not met."""
        where = f"/upload{self.objects}?{condition}uploadType="
        content = Content(content) if isinstance(content, bytes) else content
        if len(content) <= WHOLE_BYTES:
            body, headers = multipart(facts, content.read(0, len(content)), os.urandom(8).hex())
            return self._try(name, lambda: self._once("POST", f"{where}multipart", body, headers))
        upload = ResumableUpload(
            self._once, f"{where}resumable", json.dumps(facts).encode(), content, self._piece_bytes
        )
        answer = self._try(name, upload.step)
        while is_unfinished(answer):
            answer = self._try(name, upload.step)
        return answer

    def _holder(self, name: str) -> str | None:
        """Return the mark of the write that made the object; None if the object is gone."""
        try:
            return str((self.entry(name, "metadata").get("metadata") or {}).get(wire.WRITE_MARK))
        except MissingObject:
            return None

    def _try(self, name: str, send: Callable[[], Answer]) -> Answer:
        """Send a request and return its answer, with retries at growing random intervals."""
        give_up, pause, may_renew = self._clock() + self._patience, 0.25, True
        while True:
            asked = 0.0
            try:
                answer = send()
                if answer.status == 401 and may_renew and self._access is not None and self._access.renew():
                    may_renew = False
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
            wait = max(asked, pause * (0.5 + _RANDOM.random()))
            self._sleep(min(wait, max(0.0, give_up - self._clock())))
            pause = min(pause * 2, 8.0)

    def _once(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        read: Reader | None = None,
    ) -> Answer:
        who = self._access.headers() if self._access is not None else {}
        answer = self._pool.send(method, path, body, {**(headers or {}), **who}, read, self._silence)
        if answer.status < 300 and self.objects in path:
            self._buckets.add(self._bucket)
        elif answer.status == 404 and path.partition("?")[0].endswith(self.objects):
            self._buckets.discard(self._bucket)  # it was no object that is missing
        return answer

    def _has_bucket(self, name: str) -> bool:
        """Return False if there is no such bucket, which is asked unless the bucket has answered before.

        For a bucket and for an object that is missing, the service has one status and one reason.
        """
        if self._bucket not in self._buckets:
            prefix = quote(self.prefix, safe="")  # below which pods may list
            path = f"{self.objects}?maxResults=1&fields=kind&prefix={prefix}"
            if self._try(name, lambda: self._once("GET", path)).status == 404:
                return False
            self._buckets.add(self._bucket)  # also if this account may not list it
        return True


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


def retry_after(headers: Message) -> float:
    """Return how many seconds the service asks to wait."""
    asked = headers.get("Retry-After") or ""
    return min(float(asked), _LONGEST_ASKED) if asked.isdigit() else 0.0


_UNFINISHED = 308
_SESSIONS = 3


class ResumableUpload:
    """Upload in several requests; `request(method, path, body, headers)` sends one to the service.

    Each `step` sends one request. After a step that failed, whether or not it arrived, the next asks how
    much the service has.
    """

    def __init__(
        self, request: Callable[..., Answer], start: str, facts: bytes, content: Content, piece_bytes: int
    ) -> None:
        self._request, self._start, self._facts = request, start, facts
        self._content, self._piece_bytes = content, piece_bytes
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
            answer = self._request("PUT", self._session, b"", {"Content-Range": f"bytes */{total}"})
        else:
            end = min(stored + self._piece_bytes, total)
            place = {
                "Content-Range": f"bytes {stored}-{end - 1}/{total}",
                "Content-Length": str(end - stored),
            }
            answer = self._request("PUT", self._session, self._content.pieces(stored, end), place)
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
