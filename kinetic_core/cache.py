"""Files of the cache directory (`Settings.cache`): each can be lost at any time, and is made again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def keep(file: Path, content: bytes) -> None:
    """Put a file there, whole; where the cache cannot be written, each time is a first time."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            stream.write(content)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
