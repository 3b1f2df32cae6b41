"""Lines as they are shown: cut from a stream of bytes, holding no more bytes than are shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 4000
"""Characters of a line that are shown."""
_KEPT = 4 * LONGEST


class Line(NamedTuple):
    """Line as it is shown, and its number of bytes in the stream, its end included."""

    text: str
    size: int


class LineBuffer:
    """Cutter of a log's bytes into lines.

    Of a line that a program has written over, as a progress bar does with carriage returns, the last state is
    shown. Of a long one, its beginning and its length.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the line that has not ended."""
        self._shown = b""
        self._length = 0
        self._begins_anew = False

    def add(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines that end in this chunk."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._take(chunk[start:end])
            yield self.end(1)
            start = end + 1
        self._take(chunk[start:])

    def end(self, newline: int = 0) -> Line:
        """End the current line, whose end has `newline` more bytes; return the line."""
        text = self._shown.decode(errors="replace")
        if self._length > len(self._shown) or len(text) > LONGEST:
            text = f"{text[:LONGEST]}... ({self._length} bytes)"
        line = Line(text, self.size + newline)
        self.size, self._shown, self._length, self._begins_anew = 0, b"", 0, False
        return line

    def _take(self, piece: bytes) -> None:
        self.size += len(piece)
        text = piece.rstrip(b"\r")
        if text:
            at = text.rfind(b"\r") + 1
            if at or self._begins_anew:
                self._shown, self._length = b"", 0
            self._shown += text[at : at + _KEPT - len(self._shown)]
            self._length += len(text) - at
        if piece:
            self._begins_anew = len(text) < len(piece)
