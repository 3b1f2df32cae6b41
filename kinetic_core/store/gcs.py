"""The object store of jobs on a cluster: a Cloud Storage bucket, or everything below a prefix of one.

It is the runner's client (`runner/gcs.py`) with what pods do not need: a user's credentials, metadata, lists
and deletes. Writes and their preconditions, checksums, repeated requests and reads are the runner's.
"""

from __future__ import annotations

import base64
import email
import errno
import io
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, cast

from kinetic_core._runner.gcs import ENDPOINT, Checksum, GcsStore
from kinetic_core._runner.http_pool import HttpPool
from kinetic_core._runner.store import Content, MissingObject, SinkType, StoreUnavailable
from kinetic_core._runner.wire import WRITE_MARK
from kinetic_core.connections import Connections
from kinetic_core.errors import (
    CloudUnreachable,
    ConfigurationError,
    InvalidRequest,
    KineticError,
    ObjectNotFound,
    StoreError,
    StoreRefused,
)
from kinetic_core.google_cloud import Credentials, credentials
from kinetic_core.settings import Settings
from kinetic_core.store.protocol import ObjectInfo, check_name


class PartsFile(io.RawIOBase):
    """An object as a file that is downloaded where it is read: `part(start, end)` gets bytes of it."""

    def __init__(self, part: Callable[[int, int], bytes], size: int) -> None:
        self._part, self._size, self._at = part, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readall(self) -> bytes:
        return self._take(self._size)

    def readinto(self, buffer: Any) -> int:
        content = self._take(self._at + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _take(self, end: int) -> bytes:
        end = min(end, self._size)
        content = self._part(self._at, end) if end > self._at else b""
        self._at += len(content)
        return content


PATIENCE = 60.0
"""Seconds for which one operation is tried again after 408, 429, 5xx and dropped connections."""
SILENCE = 25.0
"""Seconds after which a connection without a byte counts as dropped."""
_STREAM_BYTES = 8 << 20
_ROUNDS = 3
"""How often a prefix's rest is deleted."""
_A_CALL = 100
_GONE = frozenset([200, 204, 404, 412])
"""What a part of a request for many says of an object that is no longer there as it was seen."""
_KINDS: Mapping[int, type[KineticError]] = {errno.EACCES: StoreRefused, errno.ENOENT: ConfigurationError}
"""Kinds of the errors of the runner's client, if they do not pass. ENOENT: the bucket does not exist."""
_FIELDS = "name,size,timeCreated,metadata,generation,md5Hash"


class GcsObjectStore:
    """An `ObjectStore` in `bucket`, below `prefix` (without slashes at its ends, "" for all of it).

    Settings name the credentials, Google's application default ones unless there is an account, or an
    emulator, which needs none.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        connections: Connections | None = None,
    ) -> None:
        self._connections = connections or Connections(Settings())
        self._bucket, self._limits = f"{bucket}/{prefix}".rstrip("/"), (patience, silence)

    @classmethod
    def at(cls, location: str, connections: Connections | None = None) -> GcsObjectStore:
        """Return the store at `bucket`, `bucket/prefix`, or one of these behind `gs://`, as settings say."""
        bucket, _, prefix = location.removeprefix("gs://").strip("/").partition("/")
        if not bucket:
            raise ConfigurationError(f"{location!r} names no bucket; write 'bucket' or 'bucket/prefix'")
        return cls(bucket, prefix, connections=connections)

    @property
    def uri(self) -> str:
        return f"gs://{self._bucket}"

    def create_if_absent(
        self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
    ) -> bool:
        whole = content if isinstance(content, bytes) else Content(b"", str(content))
        with self._asked(name) as store:
            return store.create_if_absent(name, whole, metadata)

    def read(self, name: str) -> bytes:
        with self._asked(name) as store:
            return store.read(name)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        with self._asked(name) as store:
            return store.read_range(name, offset, size)

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        with self._asked(name) as store:
            return store.download(name, new_sink)

    def open(self, name: str) -> BinaryIO:
        info = self.find(name)
        if info is None:
            raise ObjectNotFound(f"cannot read {name} in {self.uri}: there is no such object")
        generation = info.generation

        def part(start: int, end: int) -> bytes:
            with self._asked(name) as store:
                return store.read_range(name, start, end - start, generation)

        return cast("BinaryIO", io.BufferedReader(PartsFile(part, info.size), _STREAM_BYTES))

    def find(self, name: str) -> ObjectInfo | None:
        with self._asked(name) as store:
            try:
                return _info(store.entry(name, _FIELDS), store.prefix)
            except MissingObject:
                return None

    def present(self, names: Sequence[str]) -> Set[str]:
        calls = [("GET", name, "?fields=name") for name in names]
        found = {
            name for name, status in zip(names, self._batches("look at", calls), strict=True) if status == 200
        }
        missing = [name for name in names if name not in found]
        if missing and self.find(missing[0]) is not None:  # a part of a call that failed says less than none
            found |= {name for name in missing if self.find(name) is not None}
        return found

    def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
        with self._asked() as store:
            for entry in store.entries(prefix, _FIELDS, pattern, since):
                yield _info(entry, store.prefix)

    def delete(self, name: str) -> bool:
        with self._asked(name) as store:
            try:
                store.request("delete", name, "DELETE", store.path(name))
            except MissingObject:
                return False
        return True

    def delete_many(self, names: Sequence[str]) -> None:
        self._batches("delete", [("DELETE", name, "") for name in names])

    def delete_seen(self, seen: Sequence[ObjectInfo]) -> None:
        calls = [("DELETE", info.name, f"?ifGenerationMatch={info.generation}") for info in seen]
        for info, status in zip(seen, self._batches("delete", calls), strict=True):
            if status not in _GONE:
                self._delete_alone(info)

    def _delete_alone(self, info: ObjectInfo) -> None:
        """Delete an object that a request for many has left there. Raises StoreError for what keeps it."""
        with self._asked(info.name) as store:
            try:
                path = f"{store.path(info.name)}?ifGenerationMatch={info.generation}"
                store.request("delete", info.name, "DELETE", path)
            except MissingObject:
                return
            except StoreUnavailable:
                now = self.find(info.name)
                if now is not None and now.generation == info.generation:
                    raise

    def delete_all(self, prefix: str) -> int:
        if not prefix.endswith("/"):
            raise InvalidRequest(f"prefix {prefix!r} must end with '/': 'jobs/a' would also match 'jobs/ab'")
        check_name(prefix + "any")
        deleted: set[str] = set()
        for _ in range(_ROUNDS):
            names = [info.name for info in self.list(prefix)]
            deleted.update(names)
            if not names:
                return len(deleted)
            self.delete_many(names)
        left = next(iter(self.list(prefix)), None)
        if left is not None:
            raise StoreError(f"cannot delete {self.uri}/{left.name}: call again, or look at your permissions")
        return len(deleted)

    def _batches(self, verb: str, calls: Sequence[tuple[str, str, str]]) -> Sequence[int]:
        """Send calls (method, name, query), a hundred in a request; return the status of each.

        A call that failed is not repeated: the caller looks at what it has done.
        """
        found: list[int] = []
        for start in range(0, len(calls), _A_CALL):
            some = calls[start : start + _A_CALL]
            with self._asked(*(name for _, name, _ in some)) as store:
                parts = [f"{method} {store.path(name)}{query}" for method, name, query in some]
                what, kind = f"{len(calls)} objects", {"Content-Type": "multipart/mixed; boundary=call"}
                answer = store.request(verb, what, "POST", "/batch/storage/v1", _batch(parts), kind)
                found += _statuses(answer.headers["Content-Type"], answer.body, len(some))
        return found

    @contextmanager
    def _asked(self, *names: str) -> Iterator[GcsStore]:
        """The runner's client with this client's credentials, and its errors as Kinetic's."""
        for name in names:
            check_name(name)
        settings, (patience, silence) = self._connections.settings, self._limits
        emulator = settings.storage_emulator_host or os.environ.get("STORAGE_EMULATOR_HOST", "")
        endpoint = emulator or settings.api_endpoint_overrides.get("storage", ENDPOINT)
        endpoint = endpoint.rstrip("/").removesuffix("/storage/v1")  # gcloud's value includes it
        pool = self._connections.get(
            (HttpPool, endpoint), lambda: HttpPool(endpoint, None if emulator else _authorities())
        )
        buckets = self._connections.get((GcsStore, endpoint), set[str])
        access = None if emulator else _Access(credentials(self._connections, settings.google_account))
        try:
            yield GcsStore(
                self.uri,
                silence=silence,
                patience=patience,
                pool=pool,
                access=access,
                checksum=_crc32c(),
                buckets=buckets,
            )
        except MissingObject as exc:
            raise ObjectNotFound(str(exc)) from exc
        except StoreUnavailable as exc:
            raise _KINDS.get(exc.errno or 0, StoreError)(exc.strerror) from exc


class _Access:
    """Google's credentials as the runner's client asks for them."""

    def __init__(self, held: Credentials) -> None:
        self._held = held

    def headers(self) -> dict[str, str]:
        try:
            return self._held.headers()
        except CloudUnreachable as exc:
            raise StoreUnavailable(errno.EIO, str(exc)) from exc

    def renew(self) -> bool:
        self._held.refresh()
        return True


def _crc32c() -> Checksum:
    """The checksum that every object has, a composite one too, and that is the cheapest to compute."""
    from google_crc32c import Checksum as Crc32c

    return Checksum("crc32c", "crc32c", Crc32c)


def _authorities() -> ssl.SSLContext:
    """Trust whom requests trusts: those of certifi, as not every Python finds the system's."""
    import certifi

    place = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or certifi.where()
    is_folder = Path(place).is_dir()
    return ssl.create_default_context(
        cafile=None if is_folder else place, capath=place if is_folder else None
    )


def _info(entry: Mapping[str, Any], prefix: str) -> ObjectInfo:
    metadata = {key: value for key, value in (entry.get("metadata") or {}).items() if key != WRITE_MARK}
    created = datetime.fromisoformat(entry["timeCreated"]).timestamp()
    name = entry["name"].removeprefix(prefix)
    md5 = base64.b64decode(entry.get("md5Hash", "")).hex()
    return ObjectInfo(name, int(entry["size"]), created, metadata, str(entry["generation"]), md5)


def _batch(requests: Sequence[str]) -> bytes:
    """Encode requests as parts of one."""
    head = "--call\r\nContent-Type: application/http\r\nContent-ID: <{}>\r\n\r\n{} HTTP/1.1\r\n\r\n\r\n"
    return "".join([*(head.format(*part) for part in enumerate(requests)), "--call--\r\n"]).encode()


def _statuses(kind: str, body: bytes, count: int) -> Sequence[int]:
    """Return the status of each of so many requests that were sent as one; 0 for what has no answer."""
    statuses = [0] * count
    answer = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    for part in answer.walk():
        number = str(part["Content-ID"] or "").strip("<>").rpartition("-")[2]  # "response-7" answers "7"
        told = str(part.get_payload()).split(maxsplit=2)
        if number.isdecimal() and int(number) < count and len(told) > 1 and told[1].isdecimal():
            statuses[int(number)] = int(told[1])
    return statuses


class Sight(Enum):
    """What is at a URI. NOT_SEEN: this account may not look, or has no credentials; jobs may have."""

    THERE = "there"
    NOTHING = "nothing"
    DIRECTORY = "directory"
    NO_BUCKET = "no bucket"
    NOT_SEEN = "not seen"


def look(bucket: str, name: str, connections: Connections) -> Sight:
    """Look at an object, or at a prefix that ends with a slash or is empty. DIRECTORY: there is no such
    object, but there are some below it.

    Raises StoreError if the service cannot be reached.
    """
    store = GcsObjectStore.at(bucket, connections)
    try:
        if name and not name.endswith("/"):
            if store.find(name) is not None:
                return Sight.THERE
            return Sight.DIRECTORY if _any(store, name + "/") else Sight.NOTHING
        return Sight.THERE if _any(store, name) else Sight.NOTHING
    except ConfigurationError as exc:
        return Sight.NO_BUCKET if isinstance(exc.__cause__, StoreUnavailable) else Sight.NOT_SEEN
    except StoreRefused:
        return Sight.NOT_SEEN


def _any(store: GcsObjectStore, prefix: str) -> bool:
    return any(info.name != prefix for info in store.list(prefix))
