"""Cloud Storage over plain HTTP: the runner's store in a pod, in standard Python.

`STORAGE_EMULATOR_HOST` replaces the service and needs no token.
JSON API: https://cloud.google.com/storage/docs/json_api/v1/objects
"""

from __future__ import annotations

import base64
import errno
import http.client
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from . import wire
from .gcs_parts import compare, md5, multipart, retry_after
from .store import MissingObject, StoreUnavailable

PATIENCE = 120.0
"""Seconds for which a request is tried again after 408, 429, 5xx and lost connections."""
SILENCE = 30.0
"""Seconds after which a connection without a byte counts as lost."""
HURRY = 5.0
"""Both of them, for who must not be kept: together ten seconds at most, if nothing trickles."""
WHOLE_BYTES = 8 << 20
"""Up to here an object is sent in one request; a larger one in pieces, each of which may be repeated."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Of this machine, where a download is kept: asking the service again mends nothing."""
_ROUNDS = 3
"""How often a name is written to that was taken and is free again."""
_PIECE = 1 << 20
_AGAIN = (408, 429, 500, 502, 503, 504)
_SPARE_SECONDS = 300.0


class Answer(NamedTuple):
    """What the service says to a request."""

    status: int
    headers: Message
    body: bytes


_Sink = Callable[[http.client.HTTPResponse], bytes]


class GcsStore:
    """The objects below `gs://bucket/prefix`."""

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
        """Whoever reads a part of an object has a digest of that part: the service has none."""
        wanted = {"Range": f"bytes={offset}-{offset + size - 1}"}
        return self._get(name, http.client.HTTPResponse.read, wanted)

    def create(self, name: str, content: bytes, state: str = "") -> bool:
        mark = os.urandom(8).hex()
        metadata = {wire.WRITE_MARK: mark, **({wire.STATE: state} if state else {})}
        facts = {
            "name": self._prefix + name,
            "md5Hash": base64.b64encode(md5(content).digest()).decode(),
            "metadata": metadata,
        }
        for _ in range(_ROUNDS):
            answer = self._send(name, facts, content, mark)
            if answer.status != 412:
                self._check(answer, f"store {name}")
                return True
            holder = self._holder(name)
            if holder is not None:
                return holder == mark
        return False

    def replace(self, name: str, content: bytes) -> None:
        where = f"/upload/storage/v1/b/{self._bucket}/o?uploadType=multipart"
        facts = {"name": self._prefix + name, "md5Hash": base64.b64encode(md5(content).digest()).decode()}
        body, headers = multipart(facts, content, os.urandom(8).hex())
        self._check(self._try(name, lambda: self._request("POST", where, body, headers)), f"store {name}")

    def fetch(self, name: str) -> str:
        """Downloads to a file below the working directory, which the caller's pod has for itself."""
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
        stored = datetime.fromisoformat(json.loads(answer.body)["timeCreated"])
        return (parsedate_to_datetime(answer.headers["Date"]) - stored).total_seconds()

    def _get(self, name: str, sink: _Sink, headers: Mapping[str, str] | None = None) -> bytes:
        path = f"{self._object(name)}?alt=media"
        answer = self._try(name, lambda: self._request("GET", path, headers=headers, sink=sink))
        self._check(answer, f"read {name}")
        return answer.body

    def _send(self, name: str, facts: Mapping[str, Any], content: bytes, mark: str) -> Answer:
        """Write an object if there is none of its name; 412 says that there was."""
        where = f"/upload/storage/v1/b/{self._bucket}/o?ifGenerationMatch=0&uploadType="
        if len(content) <= WHOLE_BYTES:
            body, headers = multipart(facts, content, mark)
            return self._try(name, lambda: self._request("POST", f"{where}multipart", body, headers))
        from .resumable import ResumableUpload, is_unfinished

        upload = ResumableUpload(self._request, f"{where}resumable", json.dumps(facts).encode(), content)
        answer = self._try(name, upload.step)
        while is_unfinished(answer):
            answer = self._try(name, upload.step)
        return answer

    def _holder(self, name: str) -> str | None:
        """The mark of the write that made the object; None if it is gone."""
        path = f"{self._object(name)}?fields=metadata"
        answer = self._try(name, lambda: self._request("GET", path))
        try:
            self._check(answer, f"look at {name}")
        except MissingObject:
            return None
        return str((json.loads(answer.body).get("metadata") or {}).get(wire.WRITE_MARK))

    def _object(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise MissingObject(f"{name!r} is not the name of an object")
        return f"/storage/v1/b/{self._bucket}/o/{quote(self._prefix + name, safe='')}"

    def _check(self, answer: Answer, what: str) -> None:
        """Raise what an answer means for the job, and what to do about it."""
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
        raise StoreUnavailable(errno.EIO, f"cannot {what} in {self.uri}: HTTP {answer.status}: {text}")

    def _try(self, name: str, send: Callable[[], Answer]) -> Answer:
        """The answer to a request, tried again, at growing random intervals, as long as that may help."""
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
                if isinstance(exc, OSError) and exc.errno in _DISK_FULL:
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
        """This process's connection: one that was made before a fork belongs to the other side."""
        if self._connection is None or self._connection[0] != os.getpid():
            kind = (
                http.client.HTTPSConnection
                if self._endpoint.scheme == "https"
                else http.client.HTTPConnection
            )
            self._connection = os.getpid(), kind(self._endpoint.netloc, timeout=self._silence)
        return self._connection[1]

    def close(self) -> None:
        """Let go of the connection; another request makes another."""
        if self._connection is not None and self._connection[0] == os.getpid():
            self._connection[1].close()
        self._connection = None

    def _authorization(self) -> dict[str, str]:
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            return {}
        if not self._token or self._clock() >= self._expires - _SPARE_SECONDS:
            from .tokens import access_token

            self._token, self._expires = access_token(self._clock())
        return {"Authorization": f"Bearer {self._token}"}
