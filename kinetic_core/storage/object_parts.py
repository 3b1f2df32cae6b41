"""An object of a distant store as a file: what is read of it is downloaded then."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class ObjectParts(io.RawIOBase):
    """`size` bytes, of which `part(start, end)` gets some. Wrap it in a `BufferedReader`."""

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
