"""The arguments of a batch's calls, in blocks of one object: each job reads the one that has its own."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from kinetic_core._runner import wire
from kinetic_core.packaging.payload import argument_parts
from kinetic_core.packaging.pickling import Pickled

_BLOCK_BYTES = 256 << 10
_BLOCK_INPUTS = 64

Block = tuple[int, int, int, str]
"""First index, offset and size in bytes, SHA-256 in hex. It holds the inputs up to the next block's first."""


class InputBlocks:
    """Writes blocks to a stream. A block is a frame with the arguments of some inputs, in rising order.

    A job reads a whole block, so it is small: 64 inputs, fewer where they fill 256 KiB.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._total = stream, hashlib.sha256()
        self._parts: dict[str, bytes] = {}
        self._first, self._inputs, self._bytes, self._offset = 0, 0, 0, 0
        self.blocks: list[Block] = []

    def add(self, index: int, arguments: Pickled) -> None:
        """Put in the arguments of the next input."""
        self._first = index if not self._parts else self._first
        self._parts |= argument_parts(arguments, f"{index}/")
        self._inputs += 1
        self._bytes += len(arguments.body) + len(arguments.copies)
        if self._inputs == _BLOCK_INPUTS or self._bytes >= _BLOCK_BYTES:
            self._write()

    def close(self) -> str:
        """Write what is left; the SHA-256, in hex, of all that was written. The stream stays open."""
        if self._parts:
            self._write()
        self._stream.flush()
        return self._total.hexdigest()

    def _write(self) -> None:
        frame = wire.encode_frame({"protocol": wire.PROTOCOL}, self._parts)
        self._stream.write(frame)
        self._total.update(frame)
        self.blocks.append((self._first, self._offset, len(frame), wire.digest(frame)))
        self._offset += len(frame)
        self._parts, self._inputs, self._bytes = {}, 0, 0
