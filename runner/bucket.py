"""`gs://` data in any bucket: a directory, or one object."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from urllib.parse import quote

from .downloads import Item, Sink, download
from .gcs import Answer, GcsStore
from .store import MissingObject, StoreUnavailable
from .tokens import token_of_credentials

_FIELDS = "items(name,size,md5Hash,generation),nextPageToken"
_CHUNK = 1 << 20


class Bucket(GcsStore):
    """The objects of a bucket that is not the job's store, by their whole names."""

    def __init__(self, name: str) -> None:
        super().__init__(f"gs://{name}")

    def items(self, prefix: str) -> list[Item]:
        """The objects below a prefix that ends with a slash, or is empty."""
        found: list[Item] = []
        token = ""
        while True:
            query = f"prefix={quote(prefix, safe='')}&fields={quote(_FIELDS)}&pageToken={quote(token)}"
            answer = self._ask(prefix, f"/storage/v1/b/{self._bucket}/o?{query}")
            self._check_data(answer, f"{self.uri}/{prefix}")
            page = json.loads(answer.body)
            found += [_item(entry, prefix) for entry in page.get("items", ()) if entry["name"] != prefix]
            token = page.get("nextPageToken", "")
            if not token:
                return found

    def item(self, name: str) -> Item:
        """One object, under the last part of its name."""
        answer = self._ask(name, f"{self._object(name)}?fields=name,size,md5Hash,generation")
        self._check_data(answer, f"{self.uri}/{name}")
        return _item(json.loads(answer.body), name[: name.rfind("/") + 1])

    def fetch_range(self, item: Item, offset: int, size: int, sink: Sink) -> None:
        """Bytes of an object, of the generation that was listed."""

        def keep(response: http.client.HTTPResponse) -> bytes:
            position = offset
            while content := response.read(_CHUNK):
                sink(position, content)
                position += len(content)
            if position < offset + size:
                raise http.client.IncompleteRead(b"", offset + size - position)
            return b""

        headers = {"Range": f"bytes={offset}-{offset + size - 1}"}
        name, _, generation = item.source.rpartition("#")
        path = f"{self._object(name)}?alt=media&generation={generation}"
        self._check_data(self._ask(name, path, headers, keep), f"{self.uri}/{name} as it was listed")

    def _ask(
        self,
        name: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        sink: Callable[[http.client.HTTPResponse], bytes] | None = None,
    ) -> Answer:
        return self._try(name, lambda: self._request("GET", path, headers=headers, sink=sink))

    def _check_data(self, answer: Answer, what: str) -> None:
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

    def _authorization(self) -> dict[str, str]:
        """On this machine, which has no metadata server, perhaps its user's credentials."""
        if os.environ.get("KINETIC_BACKEND") != "local" or os.environ.get("STORAGE_EMULATOR_HOST"):
            return super()._authorization()
        if not self._token or self._clock() >= self._expires:
            self._token, self._expires = token_of_credentials(self._clock())
        return {"Authorization": f"Bearer {self._token}"}


class GcsData:
    """`gs://bucket/prefix/` or `gs://bucket/object`, as listed now."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._bucket, _, name = uri.removeprefix("gs://").partition("/")
        self.file = None if uri.endswith("/") else name.rpartition("/")[2]
        with closing(Bucket(self._bucket)) as bucket:
            self.items = bucket.items(name) if self.file is None else [bucket.item(name)]
        if not self.items:
            raise MissingObject(f"{uri} holds no object")

    def make(self, items: list[Item], target: str) -> None:
        """Download those of the items into a new directory."""
        own = threading.local()
        with ExitStack() as connections:

            def fetch(item: Item, offset: int, size: int, sink: Sink) -> None:
                if not hasattr(own, "bucket"):  # a connection is one thread's
                    own.bucket = connections.enter_context(closing(Bucket(self._bucket)))
                own.bucket.fetch_range(item, offset, size, sink)

            download(self._uri, items, target, fetch)


def _item(entry: dict[str, str], prefix: str) -> Item:
    """Composite objects have no MD5; their size and generation are what is known."""
    digest = base64.b64decode(entry["md5Hash"]).hex() if "md5Hash" in entry else None
    return Item(
        entry["name"].removeprefix(prefix),
        int(entry["size"]),
        ("md5", digest) if digest else None,
        f"{entry['name']}#{entry['generation']}",
    )
