"""A project in a place of its own, for tests of what is stored of it."""

import json
import os
import stat
from pathlib import Path

from kinetic_core._runner.store import DirectoryStore
from kinetic_core._runner.unpack import materialise_tree
from kinetic_core.project.root import Project
from kinetic_core.project.tree import StoredTree, store_project
from kinetic_core.store.directory import DirectoryObjectStore

LONG_AGO = 1_600_000_000_123_456_789


class World:
    """A project, a cache, and what is stored of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "proj"
        self.cache = home / "cache"
        self.store = DirectoryObjectStore(home / "store")
        self.clock = LONG_AGO
        self.root.mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.clock += 1
        os.utime(path, ns=(self.clock, self.clock))

    def ship(self, **options) -> StoredTree:
        return store_project(Project(self.root), self.store, cache=self.cache, **options)

    def unpack(self, tree: str, target: str = "out") -> Path:
        runner = DirectoryStore(self.store.uri, str(self.store.root))
        materialise_tree(tree, str(self.home / target), read=runner.read, fetch=runner.fetch)
        return self.home / target

    def packs(self, tree: str) -> list[str]:
        return json.loads(self.store.read(f"trees/{tree}.json"))["packs"]

    def index_file(self) -> Path:
        return next((self.cache / "trees").iterdir())


def picture(root: Path) -> dict[str, object]:
    """All a job can see of a directory."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            facts = path.lstat()
            if path.is_symlink():
                found[str(path.relative_to(root))] = f"-> {path.readlink()}"
            elif path.is_dir():
                found[str(path.relative_to(root))] = None
            else:
                found[str(path.relative_to(root))] = (stat.S_IMODE(facts.st_mode), path.read_bytes())
    return found
