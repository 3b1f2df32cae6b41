"""Trees as an attacker, or a broken disk, would have them."""

import hashlib
import zlib
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import trees
from kinetic_core._runner.store import MissingObject
from kinetic_core._runner.trees import DEFLATED, STORED, Member, canonical
from kinetic_core._runner.unpack import BadTree, materialise_tree

BODY = b"print('hello')\n"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Forge:
    """A store whose objects are made by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: list[tuple[Member, bytes]] = []
        self.small: dict[str, bytes] = {}
        self.target = folder / "work" / "out"
        (folder / "work").mkdir()

    def content(
        self, body: bytes, *, name: str | None = None, size: int | None = None, deflate: bool = False
    ) -> str:
        raw = zlib.compress(body, 9, -15) if deflate else body
        method = DEFLATED if deflate else STORED
        declared = len(body) if size is None else size
        name = name or digest(body)
        self.members.append((Member(name, method, zlib.crc32(body), len(raw), declared, 0), raw))
        return name

    def pack(self) -> str:
        out, members = b"", []
        for member, raw in self.members:
            members.append(member._replace(offset=len(out)))
            out += trees.local_record(member) + raw
        out += trees.directory_records(members, len(out))
        return self.add_pack(out)

    def add_pack(self, raw: bytes) -> str:
        (self.folder / digest(raw)).write_bytes(raw)
        return digest(raw)

    def tree(self, entries: Any) -> str:
        return self.document([self.content(canonical(entries))], [self.pack()])

    def document(self, segments: list[str], packs: list[str], **more: Any) -> str:
        tree = trees.tree_digest(segments)
        self.small[f"trees/{tree}.json"] = canonical(
            {"version": 1, "segments": segments, "packs": packs} | more
        )
        return tree

    def read(self, name: str) -> bytes:
        if name not in self.small:
            raise MissingObject(name)
        return self.small[name]

    def fetch(self, name: str, _most: int) -> str:
        path = self.folder / name.removeprefix("packs/").removesuffix(".zip")
        if not path.exists():
            raise MissingObject(name)
        return str(path)

    def unpack(self, tree: str) -> Path:
        self.materialise(tree)
        return self.target

    def materialise(self, tree: str, **options: Any) -> None:
        materialise_tree(tree, str(self.target), read=self.read, fetch=self.fetch, **options)

    def refused(self, tree: str, match: str) -> None:
        """The tree is refused, and there is nothing new anywhere."""
        before = sorted(self.folder.rglob("*"))
        with pytest.raises(BadTree, match=match):
            self.unpack(tree)
        assert sorted(self.folder.rglob("*")) == before


def file(path: str, body: bytes = BODY, mode: int = 0o644) -> list[Any]:
    return ["f", path, digest(body), mode, len(body)]
