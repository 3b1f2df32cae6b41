"""The promised content hash of a file or directory: names and bytes, nothing else."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_CHUNK = 256 << 10


def content_hash(path: Path) -> str:
    """See `Data.content_hash`. Files are read side by side. Raises OSError for one that cannot be read."""
    if not path.is_dir():
        return hashlib.sha256(b"file:" + _file_digest(path, path.name)).hexdigest()
    total = hashlib.sha256(b"dir:")
    files = _files(path)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for digest in pool.map(_file_digest, files, (file.relative_to(path).as_posix() for file in files)):
            total.update(digest)
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for base, _, names in os.walk(folder):
        found.extend(file for file in (Path(base) / name for name in names) if file.exists())
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix().split("/"))


def _file_digest(file: Path, relative: str) -> bytes:
    digest = hashlib.sha256(relative.encode(errors="surrogateescape") + b"\0")
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(view[:count])
    return digest.digest()
