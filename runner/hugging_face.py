"""Data at `hf://`: the files of a dataset on the Hugging Face Hub, over its HTTP API (ADR 0019).

API: https://huggingface.co/docs/hub/api. `HF_ENDPOINT` and `HF_TOKEN` have their usual meanings.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from .downloads import Item, Sink, download
from .shared_cache import SharedCache
from .store import MissingObject, SourceUnreachable, StoreUnavailable

ENDPOINT = "https://huggingface.co"
PATIENCE = 120.0
"""Seconds for which a request is repeated after 408, 429, 5xx and lost connections."""
SILENCE = 60.0
"""Seconds after which a connection without a byte counts as lost."""
_CONNECT_SECONDS = 10.0
"""Seconds to connect for all addresses of a host together, each of which gets _LEAST_SECONDS at least."""
_LEAST_SECONDS = 3.0
_TELL_AGAIN = 30.0
"""Seconds after which a job's log says again that the hub does not answer."""
_AGAIN = (408, 429, 500, 502, 503, 504)
_RANDOM = random.SystemRandom()
"""Not the module's own generator, whose numbers belong to the user: a seeded program stays reproducible."""
_CHUNK = 1 << 20
_PARQUET = "refs/convert/parquet"
"""Branch on which the hub keeps every dataset as `{config}/{split}/*.parquet`."""
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')


class _Connection(http.client.HTTPConnection):
    """Connection that is made within seconds or not at all; the request's timeout is for its silence."""

    def connect(self) -> None:
        silence = self.timeout
        count = len(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        self.timeout = min(silence or SILENCE, max(_LEAST_SECONDS, _CONNECT_SECONDS / count))
        super().connect()
        self.timeout = silence
        self.sock.settimeout(silence)


class _SafeConnection(http.client.HTTPSConnection, _Connection):
    """The same with TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SafeConnection, req)


class HubData:
    """Dataset, or one configuration or split of it, at the commit that its revision is now.

    `say` gets the lines for the job's log. Raises SourceUnreachable if the hub gives no answer within its
    patience, StoreUnavailable if its answers are of no use, PermissionError, MissingObject, ValueError.
    """

    def __init__(
        self,
        source: dict[str, Any],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self._sleep, self._clock, self._say = sleep, clock, say or sys.stderr.write
        self._patience, self._silence = patience, silence
        self._has_answered = False
        self._told_at: float | None = None
        self._open = urllib.request.build_opener(_Http, _Https).open
        self._endpoint = (os.environ.get("HF_ENDPOINT") or source["endpoint"] or ENDPOINT).rstrip("/")
        self._repo = source["repo"]
        self._name = self.uri = f"hf://{self._repo}"
        config, split, asked = source["config"], source["split"], source["revision"]
        whole = bool(source.get("plain")) and not (config or split)
        revision = asked or ("main" if whole else _PARQUET)
        self._say(f"kinetic: looking up {self._name} at {self._endpoint}\n")
        commit = self._commit(revision)
        if commit is None and revision == _PARQUET:
            commit = self._commit("main")
        if commit is None:
            raise MissingObject(
                f"{self._name}: {self._endpoint} has no dataset {self._repo!r} with revision {revision!r}, "
                "or it is private: give the job a token (secrets={'HF_TOKEN': ...})"
            )
        self.commit = commit
        found = self._tree(commit)
        if not (source.get("plain") or split or asked):
            found = self._of_one_configuration(found, config)
        self.items = self._selected(found, config, split)
        if not source["code"]:
            self.items = [item for item in self.items if not item.path.endswith(".py")]
            if not self.items:
                raise PermissionError(
                    f"{self._name} holds nothing but code; Data(..., hf_trust_remote_code=True) downloads it"
                )

    def make(self, items: list[Item], target: str, cache: SharedCache | None = None) -> None:
        """Download the given items into a new directory."""
        download(f"{self._name} at {self.commit[:12]}", items, target, self._fetch, cache)

    def _commit(self, revision: str) -> str | None:
        body = self._json(f"/api/datasets/{self._repo}/revision/{quote(revision, safe='')}")
        return None if body is None else str(body[0]["sha"])

    def _tree(self, commit: str) -> list[Item]:
        found: list[Item] = []
        path: str | None = f"/api/datasets/{self._repo}/tree/{commit}?recursive=true"
        while path is not None:
            answer = self._json(path)
            if answer is None:
                raise MissingObject(f"{self._name}: commit {commit} is gone from {self._endpoint}")
            page, path = answer
            found += [_item(entry) for entry in page if entry["type"] == "file"]
        return found

    def _of_one_configuration(self, items: list[Item], config: str | None) -> list[Item]:
        """Leave out other configurations than the default one, of a dataset that has several and no split."""
        configs = sorted({item.path.split("/")[0] for item in items if item.path.count("/") == 2})
        if (
            config is not None
            or len(configs) < 2
            or not all(item.path.endswith(".parquet") for item in items)
        ):
            return items
        if "default" not in configs:
            raise ValueError(f"{self._name} has several configurations: add config_name= one of {configs}")
        return [item for item in items if item.path.startswith("default/")]

    def _selected(self, items: list[Item], config: str | None, split: str | None) -> list[Item]:
        data = [item for item in items if "/" in item.path or _is_data(item.path)]
        if config is not None:
            items = data = [item for item in data if config in item.path.split("/")[:-1]]
            _refuse_none(items, f"{self._name} has no configuration {config!r}")
        if split is None:
            return items
        configs = sorted({item.path.split("/")[0] for item in data if item.path.count("/") >= 2})
        if config is None and len(configs) > 1:
            if "default" not in configs:
                raise ValueError(
                    f"{self._name} has several configurations: add config_name= one of {configs}"
                )
            data = [item for item in data if item.path.startswith("default/")]
        items = [item for item in data if _is_of_split(item.path, split)]
        _refuse_none(items, f"{self._name} has no split {split!r}")
        return items

    def _fetch(self, item: Item, offset: int, size: int, sink: Sink) -> None:
        path = f"/datasets/{self._repo}/resolve/{self.commit}/{quote(item.source)}"

        def keep(response: Any) -> None:
            if offset and response.status != 206:
                raise OSError(f"{self._endpoint} does not give parts of {item.source!r}")
            position, end = offset, offset + size
            while position < end and (content := response.read(min(_CHUNK, end - position))):
                sink(position, content)
                position += len(content)
            if position < end:
                raise http.client.IncompleteRead(b"", end - position)

        if self._request(path, keep, {"Range": f"bytes={offset}-{offset + size - 1}"}) is None:
            raise MissingObject(f"{self._name}: {item.source!r} is gone from {self._endpoint}")

    def _json(self, path: str) -> tuple[Any, str | None] | None:
        """Return an answer and the path of its next page; None for 404."""

        def parse(response: Any) -> tuple[Any, str | None]:
            following = _NEXT.search(response.headers.get("Link") or "")
            if following is None:
                return json.load(response), None
            # A mirror may pass on the hub's own links; the rest is asked of the mirror too.
            query = urlsplit(following.group(1)).query
            return json.load(response), f"{path.partition('?')[0]}?{query}"

        answer: tuple[Any, str | None] | None = self._request(path, parse, {})
        return answer

    def _request(self, path: str, use: Callable[[Any], Any], headers: dict[str, str]) -> Any:
        """Return `use` of an answer, or True if that is None; None for 404. Retries while that may help."""
        url = self._endpoint + path
        request = urllib.request.Request(url, headers={"User-Agent": "kinetic", **headers})  # noqa: S310
        if token := os.environ.get("HF_TOKEN"):
            # Files are redirected to other hosts, which must not see the token.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        began, pause = self._clock(), 0.25
        while True:
            try:
                with self._open(request, timeout=self._silence) as response:
                    self._has_answered = True
                    result = use(response)
                    self._told_at = None
                    return True if result is None else result
            except urllib.error.HTTPError as exc:
                exc.close()
                self._has_answered = True
                if exc.code == 404:
                    return None
                if exc.code in (401, 403):
                    raise PermissionError(
                        f"{self._name}: {self._endpoint} says {exc.code}: it is private or gated. Give the "
                        "job a token that may read it (secrets={'HF_TOKEN': ...})"
                    ) from exc
                why, again = f"HTTP {exc.code}", exc.code in _AGAIN
            except (OSError, http.client.HTTPException) as exc:
                why, again = _reason(exc)
            left = began + self._patience - self._clock()
            if not again or left <= 0:
                raise self._unavailable(url, why, self._clock() - began)
            self._tell(why, left)
            self._sleep(pause * (0.5 + _RANDOM.random()))
            pause = min(pause * 2, 8.0)

    def _tell(self, why: str, left: float) -> None:
        """Say in the job's log what it waits for: at the first failure, and now and then after that."""
        now = self._clock()
        if self._told_at is None or now - self._told_at >= _TELL_AGAIN:
            self._told_at = now
            self._say(
                f"kinetic: waiting for {self._endpoint} to answer for {self._name}: {why}; "
                f"asking again for {left:.0f} s\n"
            )

    def _unavailable(self, url: str, why: str, seconds: float) -> OSError:
        """Return the error of a request that is given up: one for a hub that has not answered at all."""
        if self._has_answered:
            return StoreUnavailable(f"{url} cannot be read: {why}")
        return SourceUnreachable(
            f"{self._name}: {self._endpoint} cannot be reached from where the job runs: {why}, for "
            f"{seconds:.0f} s. Give the job a way there (network, DNS, HTTPS_PROXY), or set HF_ENDPOINT to "
            "a hub that it can reach"
        )


def _reason(error: Exception) -> tuple[str, bool]:
    """Return why a request failed without an answer, and whether another one may succeed."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    text = str(cause) or type(cause).__name__
    broken = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return text, not isinstance(cause, ssl.SSLError) or isinstance(cause, broken)


def _item(entry: dict[str, Any]) -> Item:
    """Make an item: large files are named by their SHA-256, others by the digest of their Git blob."""
    large = entry.get("lfs")
    digest = ("sha256", large["oid"].removeprefix("sha256:")) if large else ("git", entry["oid"])
    return Item(entry["path"], entry["size"], digest, entry["path"])


def _is_data(path: str) -> bool:
    return path not in ("README.md", ".gitattributes", "dataset_infos.json") and not path.endswith(".py")


def _is_of_split(path: str, split: str) -> bool:
    """Return whether a folder is named like the split, or the file's name begins with it (the hub's rule)."""
    folders = path.split("/")
    name = folders.pop()
    return split in folders or re.match(rf"{re.escape(split)}(?![A-Za-z0-9])", name) is not None


def _refuse_none(items: list[Item], why: str) -> None:
    if not items:
        raise MissingObject(f"{why}. Look at the dataset's viewer for what it has")
