"""`Data`: local files a job needs besides its project, as a plain path inside the job."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kinetic_core.errors import InvalidRequest

_CHUNK = 1 << 20


class Data:
    """A local file or directory that a job should find on its disk.

    Wherever a `Data` stands in the arguments, however deep, the function receives a `str` path; as a
    value of `volumes={mount: Data(...)}` it appears at the mount path. Content is stored once per
    content, so passing the same data again uploads nothing.

    `path` may start with `~` and may be relative to the current directory. Raises FileNotFoundError if
    nothing is there, InvalidRequest for an empty path and for `gs://` and `hf://` paths and `fuse=True`,
    which this version does not have yet.
    """

    def __init__(self, path: str, fuse: bool = False, hf_trust_remote_code: bool = False) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"Data({path!r}): give the path of a file or directory")
        text = os.fspath(path)
        if not text:
            raise InvalidRequest("Data(path): the path is empty")
        scheme, separator, _ = text.partition("://")
        if separator:
            raise InvalidRequest(
                f"Data({text!r}): {scheme}:// data is not available in this version; give a local path, or "
                "pass the URI as a string and open it in the function"
            )
        if fuse or hf_trust_remote_code:
            raise InvalidRequest("Data: fuse and hf_trust_remote_code are not available in this version")
        self._path = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111  links stay links
        if not Path(self._path).exists():
            raise FileNotFoundError(f"Data({text!r}): {self._path} does not exist")

    @property
    def path(self) -> str:
        """The absolute local path."""
        return self._path

    @property
    def fuse(self) -> bool:
        return False

    @property
    def hf_trust_remote_code(self) -> bool:
        return False

    @property
    def is_gcs(self) -> bool:
        return False

    @property
    def is_hf(self) -> bool:
        return False

    @property
    def is_dir(self) -> bool:
        return Path(self._path).is_dir()

    def content_hash(self) -> str:
        """SHA-256 of the content, in hex.

        A file counts as SHA-256(name, NUL, bytes), a directory as the digests of its files in sorted
        depth-first order, each over its relative path; directory links are not followed, file links are
        read through. Names and bytes decide, modes and times do not.
        """
        total = hashlib.sha256(b"dir:" if self.is_dir else b"file:")
        root = Path(self._path)
        files = _files(root) if self.is_dir else [root]
        for file in files:
            relative = file.relative_to(root).as_posix() if self.is_dir else file.name
            total.update(_file_digest(file, relative))
        return total.hexdigest()

    def __repr__(self) -> str:
        return f"Data({self._path!r})"


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for base, folders, names in os.walk(folder):
        folders.sort()
        found.extend(Path(base) / name for name in names)
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix().split("/"))


def _file_digest(file: Path, relative: str) -> bytes:
    digest = hashlib.sha256(relative.encode() + b"\0")
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()
