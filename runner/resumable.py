"""A large object, uploaded in pieces: what arrived before a failure need not be sent again.

https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from .gcs import Answer

PIECE_BYTES = 16 << 20
"""A multiple of 256 KiB, as the service demands of all but the last."""
_UNFINISHED = 308
_SESSIONS = 3


class ResumableUpload:
    """One upload; `request(method, path, body, headers)` sends a request to the service.

    Each `step` sends one. A step that failed, whether or not it arrived, is followed by one that asks how
    much the service has.
    """

    def __init__(self, request: Callable[..., Answer], start: str, facts: bytes, content: bytes) -> None:
        self._request, self._start, self._facts = request, start, facts
        self._content = memoryview(content)
        self._session, self._sessions = "", 0
        self._stored: int | None = None
        """Bytes the service has; None if that is not known."""

    def step(self) -> Answer:
        """Send what is next. Raises what `request` raises."""
        if not self._session:
            return self._begin()
        stored, self._stored = self._stored, None
        total = len(self._content)
        if stored is None:
            piece, place = self._content[:0], f"bytes */{total}"
        else:
            piece = self._content[stored : stored + PIECE_BYTES]
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
    """Whether another step must follow."""
    return answer.status == _UNFINISHED


def _bytes_stored(told: str | None) -> int:
    """From the Range header of an answer: `bytes=0-N`; none says that nothing is stored."""
    found = re.fullmatch(r"bytes=0-(\d+)", told or "")
    return int(found[1]) + 1 if found else 0
