"""Data in buckets other than the job's store: objects as they are listed when the job starts.

Imported only for such data: http.client and ssl would delay the start of every job.
"""

from __future__ import annotations

import base64
import errno
import http.client
import os
from contextlib import closing

from .downloads import Item, Sink, download
from .gcs import ENDPOINT, GcsStore
from .http_pool import Answer, HttpPool
from .identity_tokens import Identity, token_of_credentials
from .shared_cache import SharedCache
from .store import MissingObject, StoreUnavailable

_FIELDS = "name,size,md5Hash,generation"
_CHUNK = 1 << 20


class Bucket(GcsStore):
    """Objects of a bucket that is not the job's store, by their whole names."""

    def __init__(self, name: str) -> None:
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        is_users = (
            os.environ.get("KINETIC_BACKEND") == "local"
        )  # this machine, and perhaps its user's account
        identity = Identity(get=token_of_credentials if is_users else None)
        super().__init__(
            f"gs://{name}", pool=HttpPool(emulator or ENDPOINT), access=None if emulator else identity
        )

    def items(self, prefix: str) -> list[Item]:
        """List the objects below a prefix that ends with a slash, or is empty."""
        return [_item(entry, prefix) for entry in self.entries(prefix, _FIELDS) if entry["name"] != prefix]

    def item(self, name: str) -> Item:
        """Return one object, under the last part of its name."""
        return _item(self.entry(name, _FIELDS), name[: name.rfind("/") + 1])

    def fetch_range(self, item: Item, offset: int, size: int, sink: Sink) -> None:
        """Fetch bytes of an object, of the generation that was listed."""

        def keep(response: http.client.HTTPResponse) -> bytes:
            position = offset
            while content := response.read(_CHUNK):
                sink(position, content)
                position += len(content)
            if position < offset + size:
                raise http.client.IncompleteRead(b"", offset + size - position)
            return b""

        name, _, generation = item.source.rpartition("#")
        self.read_range(name, offset, size, generation, keep)

    def check(self, answer: Answer, verb: str, name: str) -> None:
        what = f"{self.uri}/{name}" + (" as it was listed" if verb == "read" else "")
        if answer.status == 404:
            raise MissingObject(f"{what} is not there, or went away while it was downloaded")
        if answer.status in (401, 403):
            raise PermissionError(
                errno.EACCES,
                f"{what}: the job's service account may not read it (roles/storage.objectViewer lets it)",
            )
        if answer.status >= 300:
            text = answer.body[:300].decode(errors="replace")
            raise StoreUnavailable(errno.EIO, f"cannot read {what}: HTTP {answer.status}: {text}")


class GcsData:
    """Data at `gs://bucket/prefix/` or `gs://bucket/object`, as listed now."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._bucket, _, name = uri.removeprefix("gs://").partition("/")
        self.file = None if uri.endswith("/") else name.rpartition("/")[2]
        with closing(Bucket(self._bucket)) as bucket:
            self.items = bucket.items(name) if self.file is None else [bucket.item(name)]
        if not self.items:
            raise MissingObject(f"{uri} holds no object")

    def make(self, items: list[Item], target: str, cache: SharedCache | None = None) -> None:
        """Download the given items into a new directory."""
        with closing(Bucket(self._bucket)) as bucket:
            download(self._uri, items, target, bucket.fetch_range, cache)


def _item(entry: dict[str, str], prefix: str) -> Item:
    """Make an item from a listing; composite objects have no MD5, only size and generation."""
    digest = base64.b64decode(entry["md5Hash"]).hex() if "md5Hash" in entry else None
    return Item(
        entry["name"].removeprefix(prefix),
        int(entry["size"]),
        ("md5", digest) if digest else None,
        f"{entry['name']}#{entry['generation']}",
    )
