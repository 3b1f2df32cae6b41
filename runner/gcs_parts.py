"""What goes with a request to Cloud Storage, and what is seen of its answer. See `gcs`."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
from collections.abc import Mapping
from email.message import Message
from typing import Any

_LONGEST_ASKED = 30.0


def multipart(facts: Mapping[str, Any], content: bytes, mark: str) -> tuple[bytes, dict[str, str]]:
    """An object and what is said about it, in the body of one request, and that request's headers."""
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
    """Cloud Storage's other checksum is not in Python's library."""
    return hashlib.md5(content, usedforsecurity=False)


def compare(response: http.client.HTTPResponse, found: Any) -> None:
    """Raise what makes `_try` ask again, if the content is not what the service says it is."""
    told = ",".join(response.headers.get_all("x-goog-hash") or ())
    for part in told.split(","):
        kind, _, value = part.strip().partition("=")
        if kind == "md5" and base64.b64decode(value) != found.digest():
            raise http.client.HTTPException("what arrived has another checksum than what is stored")


def retry_after(headers: Message) -> float:
    """Seconds the service asks to wait for."""
    asked = headers.get("Retry-After") or ""
    return min(float(asked), _LONGEST_ASKED) if asked.isdigit() else 0.0
