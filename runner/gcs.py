"""Cloud Storage over plain HTTP: the runner's store in a pod, in standard Python.

Tokens come from the metadata server (workload identity); where `GOOGLE_APPLICATION_CREDENTIALS` names other
credentials, google-auth reads them. `STORAGE_EMULATOR_HOST` replaces the service and needs no token.
JSON API: https://cloud.google.com/storage/docs/json_api/v1/objects
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import random
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import quote, urlsplit

from . import wire
from .store import MissingObject, StoreUnavailable

PATIENCE = 120.0
"""Seconds for which a request is tried again after 408, 429, 5xx and lost connections."""
_TIMEOUT = 60.0
_PIECE = 1 << 20
_AGAIN = (408, 429, 500, 502, 503, 504)
_METADATA_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  a path
_SPARE_SECONDS = 300.0

Answer = tuple[int, bytes]
_Sink = Callable[[http.client.HTTPResponse], bytes]


class GcsStore:
    """The objects below `gs://bucket/prefix`."""

    def __init__(
        self, uri: str, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.time
    ) -> None:
        self.uri = uri
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        self._bucket = quote(bucket, safe="")
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = urlsplit(os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com")
        self._sleep, self._clock = sleep, clock
        self._token, self._expires = "", 0.0
        self._connection: tuple[int, http.client.HTTPConnection] | None = None

    def read(self, name: str) -> bytes:
        status, body = self._try(name, "GET", f"{self._object(name)}?alt=media")
        self._check(status, body, f"read {name}")
        return body

    def create(self, name: str, content: bytes) -> bool:
        mark = os.urandom(8).hex()
        facts = json.dumps({"name": self._prefix + name, "metadata": {wire.WRITE_MARK: mark}}).encode()
        edge = f"kinetic-{mark}".encode()
        body = b"".join((
            b"--" + edge + b"\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n" + facts,
            b"\r\n--" + edge + b"\r\nContent-Type: application/octet-stream\r\n\r\n",
            content,
            b"\r\n--" + edge + b"--\r\n",
        ))  # fmt: skip
        path = f"/upload/storage/v1/b/{self._bucket}/o?uploadType=multipart&ifGenerationMatch=0"
        headers = {"Content-Type": f"multipart/related; boundary={edge.decode()}"}
        status, answer = self._try(name, "POST", path, body, headers)
        if status == 412:
            return self._is_mine(name, mark)
        self._check(status, answer, f"store {name}")
        return True

    def fetch(self, name: str) -> str:
        """Downloads to a file below the working directory, which the caller's pod has for itself."""
        folder = os.path.join(os.environ["KINETIC_WORK_DIR"], "fetched")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name.replace("/", "_"))
        if os.path.exists(path):
            return path
        part = f"{path}.{os.getpid()}.part"

        def keep(response: http.client.HTTPResponse) -> bytes:
            with open(part, "wb") as stream:
                while piece := response.read(_PIECE):
                    stream.write(piece)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return b""

        status, body = self._try(name, "GET", f"{self._object(name)}?alt=media", sink=keep)
        self._check(status, body, f"read {name}")
        os.rename(part, path)
        return path

    def _is_mine(self, name: str, mark: str) -> bool:
        status, body = self._try(name, "GET", f"{self._object(name)}?fields=metadata")
        self._check(status, body, f"look at {name}")
        return bool((json.loads(body).get("metadata") or {}).get(wire.WRITE_MARK) == mark)

    def _object(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise MissingObject(f"{name!r} is not the name of an object")
        return f"/storage/v1/b/{self._bucket}/o/{quote(self._prefix + name, safe='')}"

    def _check(self, status: int, body: bytes, what: str) -> None:
        if status == 404:
            raise MissingObject(f"cannot {what}: {self.uri} does not have it")
        if status >= 300:
            text = body[:300].decode(errors="replace")
            raise StoreUnavailable(errno.EIO, f"cannot {what} in {self.uri}: HTTP {status}: {text}")

    def _try(
        self,
        name: str,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        sink: _Sink = http.client.HTTPResponse.read,
    ) -> Answer:
        """The answer to a request, tried again, at growing random intervals, as long as that may help."""
        give_up, pause = self._clock() + PATIENCE, 0.25
        while True:
            why, again = "", True
            try:
                answer = self._request(method, path, body, headers or {}, sink)
                if answer[0] == 401:
                    self._token, again = "", bool(self._token)
                if answer[0] not in (*_AGAIN, 401) or not again:
                    return answer
                why = f"HTTP {answer[0]}"
            except (OSError, http.client.HTTPException) as exc:
                self._drop()
                why = str(exc) or type(exc).__name__
            if self._clock() >= give_up:
                raise StoreUnavailable(errno.EIO, f"{self.uri}/{name} cannot be reached: {why}")
            self._sleep(pause * (0.5 + random.random()))  # noqa: S311  no secret
            pause = min(pause * 2, 8.0)

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], sink: _Sink
    ) -> Answer:
        connection = self._connected()
        token = self._authorization()
        connection.request(method, path, body, {**headers, **token})
        response = connection.getresponse()
        if response.status >= 300:
            return response.status, response.read()
        return response.status, sink(response)

    def _connected(self) -> http.client.HTTPConnection:
        """This process's connection: one that was made before a fork belongs to the other side."""
        if self._connection is None or self._connection[0] != os.getpid():
            kind = (
                http.client.HTTPSConnection
                if self._endpoint.scheme == "https"
                else http.client.HTTPConnection
            )
            self._connection = os.getpid(), kind(self._endpoint.netloc, timeout=_TIMEOUT)
        return self._connection[1]

    def _drop(self) -> None:
        if self._connection is not None and self._connection[0] == os.getpid():
            self._connection[1].close()
        self._connection = None

    def _authorization(self) -> dict[str, str]:
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            return {}
        if not self._token or self._clock() >= self._expires - _SPARE_SECONDS:
            self._token, self._expires = _token(self._clock())
        return {"Authorization": f"Bearer {self._token}"}


def _token(now: float) -> tuple[str, float]:
    """An access token and when it ends (Unix seconds)."""
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return token_of_credentials(now)
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", _METADATA_TOKEN, headers={"Metadata-Flavor": "Google"})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise OSError(errno.EACCES, f"the metadata server gives no token: HTTP {response.status}")
    values = json.loads(body)
    return values["access_token"], now + values["expires_in"]


def token_of_credentials(now: float) -> tuple[str, float]:
    """As `_token`, of the credentials that google-auth finds."""
    import google.auth  # type: ignore[import-untyped, unused-ignore]
    import google.auth.transport.requests  # type: ignore[import-untyped, unused-ignore]

    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    credentials, _ = google.auth.default(scopes=scopes)
    credentials.refresh(google.auth.transport.requests.Request())
    return cast("str", credentials.token), now + 1800
