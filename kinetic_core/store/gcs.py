"""The object store of jobs on a cluster: a Cloud Storage bucket, or everything below a prefix of one.

Create-only writes are writes with the precondition `ifGenerationMatch=0`. A write whose answer was lost is
repeated, and then finds its own object: every object carries a random mark of the write that made it.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from kinetic_core._runner.wire import WRITE_MARK
from kinetic_core.connections import Connections
from kinetic_core.errors import (
    ConfigurationError,
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    StoreError,
    StoreRefused,
)
from kinetic_core.settings import Account, Settings
from kinetic_core.store.protocol import ObjectInfo, SinkType

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket, Client


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


Result = TypeVar("Result")

PATIENCE = 60.0
"""Seconds for which one operation is tried again after 408, 429, 5xx and dropped connections."""
SILENCE = 25.0
"""Seconds after which a connection without a byte counts as dropped."""
_CONNECT_SECONDS = 5.0
_STREAM_BYTES = 8 << 20
_ROUNDS = 3
"""How often what arrived damaged is read, a name taken but free is written to, a prefix's rest is deleted."""
_A_CALL = 100
_NO_BUCKET = "bucket does not exist"
"""In the message of a 404 that is about the bucket."""
_FIELDS = "items(name,size,timeCreated,metadata,generation),nextPageToken"


class GcsObjectStore:
    """An `ObjectStore` in `bucket`, below `prefix` (without slashes at its ends, "" for all of it).

    Credentials are an `account`'s, or Google's application default ones; an `emulator`, which needs none,
    replaces the service.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        project: str = "",
        emulator: str = "",
        account: Account | None = None,
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        connections: Connections | None = None,
    ) -> None:
        self._connections = connections or Connections(Settings())
        self._bucket_name = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._project = project
        self._emulator = emulator
        self._account = account
        self._patience = patience
        self._times: dict[str, Any] = {"timeout": (_CONNECT_SECONDS, silence)}

    @property
    def _again(self) -> dict[str, Any]:
        """How every request is sent: tried again, and never waited for in silence."""
        return {**self._times, "retry": _retry(self._patience)}

    @classmethod
    def at(cls, location: str, connections: Connections | None = None) -> GcsObjectStore:
        """Return the store at `bucket`, `bucket/prefix`, or one of these behind `gs://`, as settings say."""
        settings = connections.settings if connections else Settings()
        bucket, _, prefix = location.removeprefix("gs://").strip("/").partition("/")
        if not bucket:
            raise ConfigurationError(f"{location!r} names no bucket; write 'bucket' or 'bucket/prefix'")
        host, account = settings.storage_emulator_host, settings.google_account
        return cls(bucket, prefix, settings.project, host, account, connections=connections)

    @property
    def uri(self) -> str:
        return f"gs://{self._bucket_name}/{self._prefix}".rstrip("/")

    def create(self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None) -> None:
        mark = secrets.token_hex(8)
        with self._told(f"store {name}"):
            blob = self._blob(name)
            blob.metadata = {**(metadata or {}), WRITE_MARK: mark}
            for _ in range(_ROUNDS):
                holder = self._store_or_find(name, blob, content)
                if holder == mark:
                    return
                if holder is not None:
                    break
        raise ObjectExists(f"{self.uri}/{name} exists already")

    def read(self, name: str) -> bytes:
        return self.download(name, io.BytesIO).getvalue()

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        with self._told(f"read {name}"):
            try:
                content = self._blob(name).download_as_bytes(
                    start=offset, end=offset + size - 1, raw_download=True, **self._again
                )
            except self._errors().RequestRangeNotSatisfiable:
                return b""  # it ends before
        return cast("bytes", content)

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        import requests
        from google.cloud.storage.exceptions import DataCorruption

        with self._told(f"read {name}"):
            for last in range(_ROUNDS)[::-1]:
                sink = new_sink()
                try:
                    self._blob(name).download_to_file(sink, raw_download=True, **self._again)
                    break
                except (DataCorruption, requests.exceptions.ChunkedEncodingError):  # Google's client gave up
                    if not last:
                        raise
        return sink

    def open(self, name: str) -> BinaryIO:
        blob = self._existing(name)
        if blob is None:
            raise ObjectNotFound(f"cannot read {self.uri}/{name}: there is no such object")
        generation = blob.generation

        def part(start: int, end: int) -> bytes:
            with self._told(f"read {name}"):
                found = blob.download_as_bytes(
                    start=start, end=end - 1, raw_download=True, if_generation_match=generation, **self._again
                )
            return cast("bytes", found)

        return cast("BinaryIO", io.BufferedReader(PartsFile(part, blob.size or 0), _STREAM_BYTES))

    def find(self, name: str) -> ObjectInfo | None:
        blob = self._existing(name)
        return None if blob is None else self._info(blob)

    def present(self, names: Sequence[str]) -> Set[str]:
        found: set[str] = set()
        with self._told(f"look at {len(names)} objects"):
            for start in range(0, len(names), _A_CALL):
                found |= _retry(self._patience)(self._some_present)(names[start : start + _A_CALL])
        missing = [name for name in names if name not in found]
        if missing and self.find(missing[0]) is not None:  # a part of a call that failed says less than none
            found |= {name for name in missing if self.find(name) is not None}
        return found

    def list(self, prefix: str, pattern: str = "") -> Iterator[ObjectInfo]:
        with self._told(f"list {prefix}"):
            found = self._client().list_blobs(
                self._bucket_name,
                prefix=self._prefix + prefix,
                match_glob=self._prefix + pattern if pattern else None,
                fields=_FIELDS,
                **self._again,
            )
            for blob in found:
                yield self._info(blob)

    def delete(self, name: str) -> bool:
        with self._told(f"delete {name}"):
            try:
                self._blob(name).delete(**self._again)
            except self._errors().NotFound as exc:
                if _NO_BUCKET in str(exc):
                    raise
                return False
        return True

    def delete_many(self, names: Sequence[str]) -> None:
        with self._told(f"delete {len(names)} objects"):
            for start in range(0, len(names), _A_CALL):
                _retry(self._patience)(self._delete_some)(names[start : start + _A_CALL])

    def delete_seen(self, seen: Sequence[ObjectInfo]) -> None:
        with self._told(f"delete {len(seen)} objects"):
            for start in range(0, len(seen), _A_CALL):
                _retry(self._patience)(self._delete_seen)(seen[start : start + _A_CALL])

    def delete_all(self, prefix: str) -> int:
        if not prefix.endswith("/"):
            raise InvalidRequest(f"prefix {prefix!r} must end with '/': 'jobs/a' would also match 'jobs/ab'")
        with self._told(f"delete {prefix}"):
            self._blob(prefix + "any")
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

    def _delete_some(self, names: Sequence[str]) -> None:
        """One request; what it says of each object is not believed, but looked at afterwards."""
        with self._client().batch(raise_exception=False):
            for name in names:
                self._blob(name).delete(**self._times)

    def _some_present(self, names: Sequence[str]) -> Set[str]:
        """One request."""
        blobs = {name: self._blob(name) for name in names}
        with self._client().batch(raise_exception=False):
            for blob in blobs.values():
                blob.reload(**self._times)
        return {name for name, blob in blobs.items() if blob.generation is not None}

    def _delete_seen(self, seen: Sequence[ObjectInfo]) -> None:
        """One request, as `_delete_some`."""
        with self._client().batch(raise_exception=False):
            for info in seen:
                self._blob(info.name).delete(if_generation_match=int(info.generation), **self._times)

    def _store_or_find(self, name: str, blob: Blob, content: bytes | Path) -> str | None:
        """The mark of the write whose object has the name afterwards; None if none has it any more."""
        try:
            self._upload(blob, content)
        except self._errors().PreconditionFailed:
            found = self._existing(name)
            return None if found is None else str((found.metadata or {}).get(WRITE_MARK))
        return str(blob.metadata[WRITE_MARK])

    def _upload(self, blob: Blob, content: bytes | Path) -> None:
        options: dict[str, Any] = {"if_generation_match": 0, "checksum": "crc32c", **self._again}
        if isinstance(content, bytes):
            blob.upload_from_string(content, content_type="application/octet-stream", **options)
        else:
            blob.upload_from_filename(str(content), content_type="application/octet-stream", **options)

    def _existing(self, name: str) -> Blob | None:
        with self._told(f"look at {name}"):
            try:
                blob = self._blob(name)
                blob.reload(**self._again)
            except self._errors().NotFound as exc:
                if _NO_BUCKET in str(exc):
                    raise
                return None
        return blob

    def _blob(self, name: str) -> Blob:
        if not name or any(part in ("", ".", "..") for part in name.split("/")):
            raise InvalidRequest(f"object name {name!r} must be relative, without empty or '..' parts")
        return self._bucket().blob(self._prefix + name)

    def _info(self, blob: Blob) -> ObjectInfo:
        metadata = {key: value for key, value in (blob.metadata or {}).items() if key != WRITE_MARK}
        created = blob.time_created.timestamp() if blob.time_created else 0.0
        name, generation = blob.name.removeprefix(self._prefix), str(blob.generation)
        return ObjectInfo(name, blob.size or 0, created, metadata, generation)

    def _bucket(self) -> Bucket:
        return self._client().bucket(self._bucket_name)

    def _client(self) -> Client:
        # Google's client reads the variable too, but only when it is made.
        emulator = self._emulator or os.environ.get("STORAGE_EMULATOR_HOST", "")
        project, account = self._project, self._account
        return self._connections.get(
            (_client, project, emulator, account), lambda: _client(project, emulator, account)
        )

    @staticmethod
    def _errors() -> Any:
        from google.api_core import exceptions

        return exceptions

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Google's errors as ours, which say what was tried, where, and what to do."""
        import google.auth.exceptions
        import requests
        from google.cloud.storage.exceptions import DataCorruption

        errors = self._errors()
        try:
            yield
        except errors.NotFound as exc:
            if _NO_BUCKET in str(exc):
                raise ConfigurationError(
                    f"cannot {what}: the bucket {self._bucket_name!r} does not exist, or this account may "
                    "not see it. Create it, or set KINETIC_BUCKET to one that exists"
                ) from exc
            raise ObjectNotFound(f"cannot {what} in {self.uri}: there is no such object") from exc
        except (errors.Forbidden, errors.Unauthorized) as exc:
            raise StoreRefused(
                f"cannot {what} in {self.uri}: not permitted ({exc.message}). The account needs "
                "roles/storage.objectUser on the bucket"
            ) from exc
        except (errors.GoogleAPICallError, errors.RetryError, google.auth.exceptions.TransportError) as exc:
            raise StoreError(f"cannot {what} in {self.uri}: {exc}") from exc
        except google.auth.exceptions.GoogleAuthError as exc:
            if exc.retryable:  # a metadata server that is busy
                raise StoreError(f"cannot {what} in {self.uri}: {exc}") from exc
            raise ConfigurationError(
                f"cannot {what} in {self.uri}: Google credentials are missing or have expired: {exc}. Run "
                "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
            ) from exc
        except (requests.exceptions.RequestException, DataCorruption) as exc:
            raise StoreError(f"cannot {what} in {self.uri}: {exc}") from exc


def _client(project: str, emulator: str, account: Account | None) -> Client:
    """Make the client for a project and an account, whose connections threads share."""
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    if emulator:
        options = {"api_endpoint": emulator}
        client = storage.Client(project or None, client_options=options, use_auth_w_custom_endpoint=False)
    else:
        client = storage.Client(project or None, None if account is None else account.held)
    # Else it asks for the bucket, for traces: https://github.com/googleapis/google-cloud-python/issues/17650
    client._bucket_metadata_cache = None
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=32)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, adapter)
    return client


def _retry(patience: float) -> Callable[..., Any]:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return cast("Callable[..., Any]", DEFAULT_RETRY.with_delay(0.25, 8.0, 2.0).with_timeout(patience))


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
    from google.api_core import exceptions

    store = GcsObjectStore.at(bucket, connections)
    try:
        if name and not name.endswith("/"):
            if store.find(name) is not None:
                return Sight.THERE
            return Sight.DIRECTORY if _any(store, name + "/") else Sight.NOTHING
        return Sight.THERE if _any(store, name) else Sight.NOTHING
    except ConfigurationError as exc:
        return Sight.NO_BUCKET if isinstance(exc.__cause__, exceptions.NotFound) else Sight.NOT_SEEN
    except StoreError as exc:
        if isinstance(exc.__cause__, exceptions.Forbidden | exceptions.Unauthorized):
            return Sight.NOT_SEEN
        raise


def _any(store: GcsObjectStore, prefix: str) -> bool:
    return any(info.name != prefix for info in store.list(prefix))
