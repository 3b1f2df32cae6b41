"""Files of a directory, and whether one of them has changed since a first look.

On Linux, inotify(7) tells what was opened, changed, made or removed, so that a check costs nothing while
nothing was. What it leaves open, a walk through the directory finds by the kernel's times of change. The walk
is also what remains where inotify is missing, or a limit of it is reached.

Each file is watched besides each directory: a watch of a directory hears nothing of what is done to its files
under another name, a hard link elsewhere. A write through a mapping raises no event before the last process
with the file has ended: so a file that was opened once is compared at each check from then on.
"""

from __future__ import annotations

import os
import select
import stat
import struct
import sys
from enum import IntEnum

from . import wire
from .processes import c_library

_MODIFY, _ATTRIB, _CLOSE_WRITE, _OPEN = 0x2, 0x4, 0x8, 0x20
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_ISDIR, _DONT_FOLLOW = 0x40000000, 0x02000000
_SELF = _DELETE_SELF | _MOVE_SELF
_OPENED = _OPEN | _CLOSE_WRITE
_OF_FILES = _OPENED | _MODIFY | _ATTRIB | _SELF
_BELOW = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_LIMIT = "/proc/sys/fs/inotify/max_user_watches"
_SHARE = 8
"""Part of a user's watches that one directory takes at most: all pods of a node may be of one user."""


class ChangedFiles:
    """What has changed below a directory since this object was made.

    Whoever inherits its descriptor can read events away: close it before the process forks.
    """

    def __init__(self, folder: str, *, watched: bool = True) -> None:
        """Look at all files, and watch them.

        Without `watched` each check is a walk. Raises OSError if they cannot be looked at.
        """
        self._folder, self._has_changed = folder, False
        self._reads = _is_in_memory(folder)
        self._watch = _watch(folder) if watched else None  # before the look: nothing falls between the two
        self._before = _states(folder, reads=self._reads)

    @property
    def is_watched(self) -> bool:
        """Whether the kernel tells of changes, so that a check is no walk."""
        return self._watch is not None

    def found(self) -> bool:
        """Return whether a file was changed, made, removed or replaced."""
        told = _Told.WALK_ALWAYS if self._watch is None else self._watch.read()
        if told is _Told.WALK_ALWAYS:
            self.close()
        if told is _Told.CHANGED:
            self._has_changed = True
        elif not self._has_changed:
            self._has_changed = self._differ() if told is _Told.OPENED else self._walk()
        return self._has_changed

    def close(self) -> None:
        """End the watch; from now on each check is a walk.

        A watch does not hear of writes by what was mapped before it, as `may_write` tells of a process.
        """
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    def _differ(self) -> bool:
        """Return whether one of the files that were opened is not as before."""
        assert self._watch is not None  # noqa: S101  it has told so
        try:
            opened = ((path, os.lstat(path)) for path in self._watch.opened)
            return any(
                _state(path, status, reads=self._reads) != self._before.get(path) for path, status in opened
            )
        except OSError:  # as for the walk
            return True

    def _walk(self) -> bool:
        try:
            return _states(self._folder, reads=self._reads) != self._before
        except OSError:  # it has gone, or its directory cannot be read any more
            return True


class _Told(IntEnum):
    """What the events since the last check say; of several, the highest counts."""

    OPENED = 0
    """Files were opened at most."""
    WALK = 1
    """Something was made, removed or renamed, maybe for a while: a walk tells whether it matters."""
    WALK_ALWAYS = 2
    """From now on not all events are told."""
    CHANGED = 3


class _Watch:
    """Watch of files and directories, by a descriptor of inotify(7)."""

    def __init__(self) -> None:
        """Open the descriptor. Raises OSError; ImportError or AttributeError without C."""
        self._files: dict[int, str] = {}
        self.opened: set[str] = set()
        """Files that were opened: somebody may write to them, through a mapping, later."""
        self._library = c_library()
        self._mounts = os.open("/proc/self/mounts", os.O_RDONLY)
        self._descriptor = int(self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        if self._descriptor < 0:
            os.close(self._mounts)
            raise OSError("inotify_init1(2) has failed")

    def add(self, folder: str) -> None:
        """Watch a directory and all below it. Raises OSError."""
        with open(_LIMIT) as stream:
            most = int(stream.read()) // _SHARE
        self._add(folder, _BELOW | _SELF)
        pending, count = [folder], 1
        while pending:  # a directory is watched before what is in it is listed
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > most:
                        raise OSError("these are too many files to watch")
                    if entry.is_dir(follow_symlinks=False):
                        self._add(entry.path, _BELOW | _SELF)
                        pending.append(entry.path)
                    else:
                        self._files[self._add(entry.path, _OF_FILES)] = entry.path

    def read(self) -> _Told:
        """Read the events since the last time; `opened` then has what was opened, too."""
        _, _, remounted = select.select([], [], [self._mounts], 0)
        told = _Told.WALK_ALWAYS if remounted else _Told.OPENED
        while True:
            try:
                content = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return told
            at = 0
            while at < len(content):
                number, mask, _, size = _EVENT.unpack_from(content, at)
                at += _EVENT.size + size
                told = max(told, self._meaning(number, mask & ~_ISDIR))

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._mounts)

    def _add(self, path: str, mask: int) -> int:
        number = int(
            self._library.inotify_add_watch(self._descriptor, os.fsencode(path), mask | _DONT_FOLLOW)
        )
        if number < 0:
            raise OSError(f"inotify_add_watch(2) has failed for {path}")
        return number

    def _meaning(self, number: int, mask: int) -> _Told:
        path = self._files.get(number)
        if path is None:  # a directory; or events were lost (IN_Q_OVERFLOW)
            return _Told.WALK_ALWAYS if mask & ~_BELOW else _Told.WALK
        if mask & ~_OPENED:
            return _Told.CHANGED
        self.opened.add(path)
        return _Told.OPENED


def _watch(folder: str) -> _Watch | None:
    """Watch a directory and all below it; return None where the kernel cannot."""
    if sys.platform != "linux":
        return None
    try:
        watch = _Watch()
    except (ImportError, AttributeError, OSError):
        return None
    try:
        watch.add(folder)
    except (OSError, ValueError):
        watch.close()
        return None
    return watch


def _is_in_memory(folder: str) -> bool:
    """Return whether a directory is on a tmpfs, which keeps no time of a write through a mapping."""
    try:
        with open("/proc/self/mounts", errors="replace") as stream:
            mounts = [line.split()[1:3] for line in stream]
    except OSError:
        return False
    place = os.path.realpath(folder) + os.sep
    above = [(len(where), kind) for where, kind in mounts if place.startswith(where.rstrip(os.sep) + os.sep)]
    return bool(above) and max(above)[1] in ("tmpfs", "ramfs")


def _states(folder: str, *, reads: bool) -> dict[str, tuple[int, int, int | str]]:
    """Return what tells whether a file below a directory has changed, for each of them."""
    found: dict[str, tuple[int, int, int | str]] = {}
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            listed = list(entries)  # one descriptor at a time: there may be few
        for entry in listed:
            status = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):  # whose time changes with each temporary file
                found[entry.path] = status.st_ino, status.st_mode, 0
                pending.append(entry.path)
            else:
                found[entry.path] = _state(entry.path, status, reads=reads)
    return found


def _state(path: str, status: os.stat_result, *, reads: bool) -> tuple[int, int, int | str]:
    """Return what tells whether a file has changed: its `ctime`, which nobody can set, or its content."""
    if reads and stat.S_ISREG(status.st_mode):
        with open(path, "rb") as stream:
            return status.st_ino, status.st_ctime_ns, wire.digest(stream.read())
    return status.st_ino, status.st_ctime_ns, status.st_size


def may_write(folder: str) -> bool:
    """Return whether this process, or one it has started, may write to files below a directory unseen.

    It may through what is open or mapped already, which a process that it forks inherits.
    """
    if sys.platform != "linux":
        return True
    folder = os.path.realpath(folder) + os.sep
    try:
        return _has_children() or _has_mapped(folder) or _has_open(folder)
    except OSError:
        return True


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _has_mapped(folder: str) -> bool:
    """Return whether a file is mapped so that others see what is written there."""
    with open("/proc/self/maps", errors="replace") as stream:
        lines = [line.rstrip("\n").split(None, 5) for line in stream]
    return any(line[1].endswith("s") and line[5:] and line[5].startswith(folder) for line in lines)


def _has_open(folder: str) -> bool:
    """Return whether a file is open to write."""
    import fcntl

    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
            flags = fcntl.fcntl(int(name), fcntl.F_GETFL)
        except OSError:
            continue  # the one that has listed them
        if path.startswith(folder) and flags & os.O_ACCMODE != os.O_RDONLY:
            return True
    return False
