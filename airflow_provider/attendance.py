"""Who looks after a place on this machine: a triggerer's triggers tell its main process that they do."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from kinetic_core.configuration import read_settings
from kinetic_core.errors import ConfigurationError

FRESH_SECONDS = 40.0
"""For how long a mark counts."""
_OLD_SECONDS = 86_400.0


class Attendance:
    """The marks of one triggerer, named by the process id of its main process: files of the cache directory.

    Where the cache cannot be written, nothing is marked, and a place is looked after twice.
    """

    def __init__(self, triggerer: int, folder: Path | None = None) -> None:
        self._triggerer = triggerer
        self._given = folder

    @cached_property
    def _folder(self) -> Path:
        """Raises ConfigurationError if the settings cannot be read now."""
        return self._given or read_settings().cache / "attendance"

    def mark(self, key: str) -> None:
        """Say that somebody looks after the place now."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file(key).touch()

    def is_marked(self, key: str) -> bool:
        """Whether somebody has done so just now."""
        try:
            return time.time() - self._file(key).stat().st_mtime < FRESH_SECONDS
        except OSError:
            return False

    def forget(self) -> None:
        """Remove the marks of an earlier process with this id, and those of triggerers long gone.

        What cannot be removed now is no harm: marks do not count for long.
        """
        long_ago = time.time() - _OLD_SECONDS
        with suppress(OSError, ConfigurationError):
            for file in self._folder.iterdir():
                if file.name.startswith(f"{self._triggerer}-") or file.stat().st_mtime < long_ago:
                    file.unlink()

    def _file(self, key: str) -> Path:
        return self._folder / f"{self._triggerer}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
