"""Cache of contents on a volume that several pods share, none of which is trusted.

Every pod that mounts the volume may write all of it, at any time: content that was verified there may differ
a moment later. Content is therefore named by its digest, copied to the pod's own disk, hashed on the way, and
used only there. Content with another digest than its name is removed, and fetched from its source.
Only the pod's own disk can fail an attempt here: a volume that cannot be used is reported, and ignored.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

_CHUNK = 1 << 20
_FOLDER = "contents"
_HEX = re.compile("[0-9a-f]{32,128}")
PATIENCE = 600.0
"""Seconds to wait for another attempt's download: any writer of the volume can hold a lock for ever."""
_PAUSE = 0.2
_LEFT_SECONDS = 86400.0
"""Seconds after which an unfinished file is one that a killed attempt left."""


class Content(NamedTuple):
    """Bytes named by their digest. `algorithm` is one of hashlib's, or `git` for that of Git's blobs; `size`
    is in bytes, and may be unknown for contents of at most `most` bytes.
    """

    algorithm: str
    digest: str
    size: int | None
    most: int = 0

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.digest}"

    def hasher(self, size: int) -> Any:
        """Return a hash object for the digest of `size` bytes."""
        found = hashlib.new("sha1" if self.algorithm == "git" else self.algorithm, usedforsecurity=False)
        if self.algorithm == "git":
            found.update(b"blob %d\0" % size)
        return found

    def fits(self, size: int) -> bool:
        return size == self.size if self.size is not None else size <= self.most


class SharedCache:
    """Contents in a directory of the volume. Methods may be called from several threads."""

    def __init__(self, volume: str, patience: float = PATIENCE) -> None:
        self._volume, self._patience = volume, patience
        self._said: set[str] = set()
        self._has_swept = False

    def take(self, content: Content, path: str) -> bool:
        """Copy a content to a new file of the pod's own; return False if the volume does not have it.

        Raises OSError if the pod's own disk is full.
        """
        if not _HEX.fullmatch(content.digest):
            return False
        try:
            with self._opened() as folder:
                descriptor = os.open(content.name, _READ, dir_fd=folder)
        except FileNotFoundError:
            return False
        except OSError as exc:
            self._say(f"{content.name} in the cache volume cannot be opened ({exc.strerror}): not used")
            return False
        try:
            if _copy(descriptor, path, content):
                return True
        finally:
            os.close(descriptor)
        os.unlink(path)
        self._say(f"{content.name} in the cache volume is not what its name says: not used, fetched again")
        with suppress(OSError), self._opened() as folder:
            os.unlink(content.name, dir_fd=folder)
        return False

    def keep(self, content: Content, path: str) -> None:
        """Copy a file of the pod's own into the volume, if its digest is that of the content."""
        if not _HEX.fullmatch(content.digest):
            return
        part = f".{os.urandom(8).hex()}.part"
        try:
            with self._opened(make=True) as folder:
                self._sweep(folder)
                try:
                    if _store(path, part, folder, content):
                        os.rename(part, content.name, src_dir_fd=folder, dst_dir_fd=folder)
                finally:
                    with suppress(OSError):
                        os.unlink(part, dir_fd=folder)
        except OSError as exc:
            self._say(f"the cache volume takes nothing in ({exc.strerror}): going on without it")

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Lock something while it is fetched, so that others wait for it; for a while, if at all."""
        import fcntl

        descriptor = -1
        try:
            with self._opened(make=True) as folder:
                descriptor = os.open(f".{name}.lock", _LOCK, 0o666, dir_fd=folder)
            self._wait_for(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except OSError as exc:
            self._say(f"no lock can be had in the cache volume ({exc.strerror}): going on without it")
        try:
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _wait_for(self, take: Callable[[], None]) -> None:
        """Take a lock; after a while go on without."""
        give_up, has_said = time.monotonic() + self._patience, False
        while True:
            try:
                take()
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    self._say("another job has not finished that download: not waiting any longer")
                    return
            else:
                return
            if not has_said:
                sys.stderr.write("kinetic: waiting: another job downloads the same data\n")
                has_said = True
            time.sleep(_PAUSE)

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        """Open the directory of the contents, without following a link."""
        volume = os.open(self._volume, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(_FOLDER, 0o777, dir_fd=volume)
            folder = os.open(_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=volume)
        finally:
            os.close(volume)
        try:
            yield folder
        finally:
            os.close(folder)

    def _sweep(self, folder: int) -> None:
        """Remove, once, the files that killed attempts have left."""
        if self._has_swept:
            return
        self._has_swept = True
        for name in os.listdir(folder):
            if name.startswith(".") and name.endswith(".part"):
                with suppress(OSError):
                    if (
                        os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                        < time.time() - _LEFT_SECONDS
                    ):
                        os.unlink(name, dir_fd=folder)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            sys.stderr.write(f"kinetic: {text}\n")


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags that follow no link, which could lead to a file of this pod, and do not wait for a pipe."""
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _copy(source: int, path: str, content: Content) -> bool:
    """Copy an open file to a new one; return whether the bytes that were read are the content."""
    facts = os.fstat(source)
    if not stat.S_ISREG(facts.st_mode) or not content.fits(facts.st_size):
        with open(path, "xb"):
            return False
    hasher, left = content.hasher(facts.st_size), facts.st_size
    with open(path, "xb", buffering=0) as stream:
        while left:
            try:
                piece = os.read(source, min(_CHUNK, left))
            except OSError:
                return False
            if not piece:
                return False  # somebody has cut it
            hasher.update(piece)
            _write(stream.fileno(), piece)
            left -= len(piece)
    return bool(hasher.hexdigest() == content.digest)


def _store(path: str, name: str, folder: int, content: Content) -> bool:
    """Copy a file into the folder; return whether the bytes are the content."""
    with open(path, "rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        hasher = content.hasher(size)
        target = os.open(name, _NEW, 0o644, dir_fd=folder)
        try:
            while piece := source.read(_CHUNK):
                hasher.update(piece)
                _write(target, piece)
        finally:
            os.close(target)
    return content.fits(size) and bool(hasher.hexdigest() == content.digest)


def _write(descriptor: int, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(descriptor, left) :]
