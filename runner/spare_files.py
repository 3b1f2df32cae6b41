"""Files of an earlier call's project that a later call's project may have, instead of new ones.

To make thousands of files takes longer than to read them. Nothing of the earlier call reaches the later one:
a file is taken only if it is, byte by byte, the one that would be made, has no other name, and owner, mode,
attributes and flags of a new file; its times are set anew. Directories are always new: a person's shell may
still be in an old one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_GET_FLAGS = 0x80086601
"""FS_IOC_GETFLAGS (ioctl_iflags(2)), such as that a file can only be appended to."""
_MOST_BYTES = 64 << 20
"""Bytes of a directory that is kept at most: what is in it takes disk from the next call."""


class SpareFiles:
    """Files below a directory in which nobody works any more."""

    def __init__(self, folder: str, target: str) -> None:
        """Look for the files; `target` is a directory in which a new file is made, to compare with."""
        self._files = {entry.path[len(folder) + 1 :]: entry.path for entry in _files(folder)}
        path = os.path.join(target, os.urandom(8).hex())
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self._facts = _facts(descriptor, os.fstat(descriptor))
        finally:
            os.close(descriptor)
            os.unlink(path)

    def take(self, name: str, path: str, content: bytes, mode: int) -> bool:
        """Move the file of that name to `path`, and return True, if it is like a new one of this content."""
        spare = self._files.pop(name, None)
        if spare is None:
            return False
        try:
            descriptor = os.open(spare, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if not self._is_like_new(descriptor, content, mode):
                    return False
                os.utime(descriptor)
            finally:
                os.close(descriptor)
            os.rename(spare, path)
        except OSError:
            return False
        return True

    def _is_like_new(self, descriptor: int, content: bytes, mode: int) -> bool:
        status = os.fstat(descriptor)
        if status.st_mode != stat.S_IFREG | mode or status.st_nlink != 1 or status.st_size != len(content):
            return False
        return (
            os.pread(descriptor, len(content) + 1, 0) == content and _facts(descriptor, status) == self._facts
        )


class KeptFiles:
    """Directory of the files of the last call's project, which the worker keeps for its next call."""

    def __init__(self, folder: str) -> None:
        """Keep nothing yet. `folder` is where the directory is, under a name that no call can know."""
        self._folder = folder
        self.path = ""
        """The directory, "" for none."""

    def replace(self, workspace: str) -> None:
        """Keep the project of a call of which nothing lives, if it is small, in place of the one before."""
        self.clear()
        kept = os.path.join(self._folder, f"spare-{os.urandom(8).hex()}")
        with suppress(OSError):  # the call has removed it, or has made what cannot be moved
            is_directory = stat.S_ISDIR(os.lstat(workspace).st_mode)
            if is_directory and sum(_size(entry) for entry in _files(workspace)) <= _MOST_BYTES:
                os.rename(workspace, kept)
                self.path = kept

    def clear(self) -> None:
        """Remove what is kept."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path = ""


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files below a directory, and follow no link."""
    pending = [folder]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry


def _size(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_blocks * 512


def _facts(descriptor: int, status: os.stat_result) -> tuple[Any, ...]:
    """Return what a file has besides content, mode, names and times."""
    try:
        flags = fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))
    except OSError:
        flags = b""  # this file system has none
    return status.st_uid, status.st_gid, tuple(os.listxattr(descriptor)), flags
