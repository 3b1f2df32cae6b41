"""Contents out of a fetched pack, each verified to be what its name says before it is used."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator

from . import stored_tree
from .stored_tree import DEFLATED, LOCAL_BYTES, PIECE, Member
from .tree_entries import BadTree

_LARGEST = 2 * PIECE
"""Bytes of the largest content: a segment may be larger than a piece."""


class Pack:
    """A pack in a local file, called `name` in messages. Raises BadTree if it is none."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        try:
            with open(path, "rb") as stream:
                self.members = stored_tree.read_members(stream)
        except stored_tree.PackFormatError as exc:
            raise BadTree(f"{name} is not a pack: {exc}") from exc

    def contents(self, names: list[str]) -> Iterator[tuple[str, bytes]]:
        """Members by name, in the order they lie in. Raises BadTree."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for member in sorted((self.members[name] for name in names), key=lambda found: found.offset):
                yield member.name, self._content(descriptor, member)
        finally:
            os.close(descriptor)

    def _content(self, descriptor: int, member: Member) -> bytes:
        if max(member.size, member.stored) > _LARGEST:
            raise BadTree(f"{self.name}: {member.name} is too large")
        body = os.pread(descriptor, member.stored, member.offset + LOCAL_BYTES)
        if len(body) < member.stored:
            raise BadTree(f"{self.name} is cut short")
        if member.method == DEFLATED:
            try:
                body = zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, member.size + 1)
            except zlib.error as exc:
                raise BadTree(f"{self.name}: {member.name} cannot be inflated: {exc}") from exc
        if len(body) > member.size:
            raise BadTree(f"{self.name}: {member.name} is larger than the {member.size} bytes declared")
        if len(body) < member.size or hashlib.sha256(body).hexdigest() != member.name:
            raise BadTree(f"{self.name}: {member.name} has another content than its name says")
        return body
