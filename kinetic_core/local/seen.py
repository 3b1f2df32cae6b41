"""What the records of jobs looked like at some moment, to tell later which have changed."""

from __future__ import annotations

import os


class Seen:
    """The records of a directory as last looked at."""

    def __init__(self, stamp: int, times: dict[str, tuple[int, int]], swept: float) -> None:
        self.stamp = stamp
        self.times = times
        self.swept = swept


def record_times(folder: str) -> dict[str, tuple[int, int]]:
    """Modification time (ns) and inode of every record in a directory: a rewritten one has another inode."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                try:
                    facts = entry.stat()
                except FileNotFoundError:
                    continue  # removed just now
                found[entry.name] = facts.st_mtime_ns, facts.st_ino
    return found
