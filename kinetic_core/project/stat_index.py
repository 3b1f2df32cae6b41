"""What is known of a directory from the last time: its files' digests, and where its tree is stored.

Losing an index costs time, nothing else: one that is missing, damaged or of another version is empty.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kinetic_core._runner.trees import HEX, split_digests
from kinetic_core.cache import keep
from kinetic_core.project.files import FileFacts

_VERSION = 5
_COARSE = 1_000_000_000
_FINE_MARGIN = 100_000_000
_COARSE_MARGIN = 2_500_000_000
_NOT_TRUSTED = -1

Fingerprint = tuple[int, int, int, int]
"""Size, time of modification and of change, inode."""


@dataclass(frozen=True)
class StatIndex:
    """Digests by path (of a file's pieces, back to back), each with the fingerprint of the file it was taken
    from, and the tree and the packs that this machine has stored.

    Nothing here was read in the store, which anybody may have written, but `found_packs`. Without a tree, the
    last one was found there, as `found_tree`, with packs of which it is known only that they were there;
    `held` are the digests of what the packs contain that this machine has stored.
    """

    digests: dict[str, tuple[Fingerprint, str]] = field(default_factory=dict)
    tree: str | None = None
    segments: tuple[str, ...] = ()
    packs: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    found_tree: str | None = None
    found_packs: tuple[str, ...] = ()

    def digest(self, facts: FileFacts) -> str | None:
        """The digest of a file that is certainly unchanged, else None."""
        known = self.digests.get(facts.path)
        return known[1] if known is not None and known[0] == facts[2:] else None

    def contents(self) -> set[str]:
        """The digests of everything that is known to be in the packs."""
        if self.tree is None:
            return set(self.held)
        found = set(self.segments)
        for _, digests in self.digests.values():
            if len(digests) == HEX:
                found.add(digests)
            else:
                found.update(split_digests(digests))
        return found


def recorded(files: Iterable[tuple[FileFacts, str]], started: int) -> dict[str, tuple[Fingerprint, str]]:
    """What an index remembers of files whose hashing began at `started` (Unix nanoseconds).

    A file modified so shortly before that another edit could carry the same time is not trusted again.
    """
    return {
        facts.path: (facts[2:] if _is_settled(facts.modified, started) else (_NOT_TRUSTED, 0, 0, 0), digest)
        for facts, digest in files
    }


def _is_settled(modified: int, started: int) -> bool:
    # Times in whole seconds come from file systems that keep no finer ones, or only every second one.
    return modified < started - (_FINE_MARGIN if modified % _COARSE else _COARSE_MARGIN)


def index_path(cache: str, root: str, store_uri: str) -> str:
    """The file of the index of a root in a store."""
    name = hashlib.sha256(f"{root}\0{store_uri}".encode(errors="surrogateescape")).hexdigest()
    return os.path.join(cache, "trees", f"{name[:32]}.json")


def read_index(path: str) -> StatIndex:
    """The index in that file, empty if there is no usable one."""
    try:
        with open(path, "rb") as stream:
            fields = json.loads(stream.read())
        if fields["version"] != _VERSION:
            return StatIndex()
        paths, numbers, digests = fields["paths"], fields["facts"], fields["digests"].split()
        fingerprints = zip(numbers[::4], numbers[1::4], numbers[2::4], numbers[3::4], strict=True)
        return StatIndex(
            dict(zip(paths, zip(fingerprints, digests, strict=True), strict=True)),
            fields["tree"],
            tuple(fields["segments"]),
            tuple(fields["packs"]),
            tuple(fields["held"]),
            fields["found_tree"],
            tuple(fields["found_packs"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return StatIndex()


def write_index(path: str, index: StatIndex) -> None:
    """Replace the index; without a writable cache there is none."""
    text = json.dumps(
        {
            "version": _VERSION,
            "tree": index.tree,
            "segments": index.segments,
            "packs": index.packs,
            "held": index.held,
            "found_tree": index.found_tree,
            "found_packs": index.found_packs,
            "paths": list(index.digests),
            "facts": [number for fingerprint, _ in index.digests.values() for number in fingerprint],
            "digests": " ".join(digest for _, digest in index.digests.values()),
        },
        separators=(",", ":"),
    )
    keep(Path(path), text.encode("ascii"))
