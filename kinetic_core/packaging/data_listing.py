"""What a `Data` of this machine consists of: everything below a directory, or one file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kinetic_core.errors import InvalidProject
from kinetic_core.packaging.ignore import Rules
from kinetic_core.packaging.scan import Listing, file_facts, scan, unreadable

_LINE_BREAKS = ("\n", "\r")


def data_listing(path: Path) -> tuple[str, Callable[[], Listing]]:
    """The root that a path's entries are relative to, and what lists them, each time it is called.

    Listing raises InvalidProject, naming the path, if it is not there, cannot be read, or holds a name with
    a line break, which Cloud Storage does not have.
    """
    full = os.path.abspath(path)
    root, name = (full, None) if os.path.isdir(full) else os.path.split(full)

    def look() -> Listing:
        listing = scan(root, Rules(everything=True)) if name is None else _alone(full, name)
        _refuse_line_breaks(root, listing)
        return listing

    return root, look


def _alone(full: str, name: str) -> Listing:
    if not os.path.isfile(full):
        raise InvalidProject(f"data {full!r} is neither a file nor a directory")
    try:
        return Listing(files=[file_facts(name, os.stat(full))])
    except OSError as exc:
        raise unreadable(full, exc) from exc


def _refuse_line_breaks(root: str, listing: Listing) -> None:
    paths = [facts.path for facts in listing.files]
    paths += [path for path, _ in listing.empty] + [path for path, _ in listing.links]
    for path in paths:
        if any(mark in path for mark in _LINE_BREAKS):
            raise InvalidProject(
                f"data {os.path.join(root, path)!r} has a line break in its name, which Cloud Storage does "
                "not allow. Rename it"
            )
