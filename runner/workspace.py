"""Workspace of user code: project files, working directory, `sys.path`, data, outputs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from . import wire
from .attempt import Job
from .data import DataFolder, Source
from .phases import note
from .shared_cache import SharedCache
from .store import Store

IMPORTED_FOR_CALLS = ("logging", "platform", "traceback", "uuid")
"""Modules of the standard library that each call needs to load its function; its worker imports them."""


class Workspace:
    """Directories of the attempt; `data` finds each source's data once."""

    def __init__(self, job: Job, store: Store) -> None:
        self.workspace = os.path.join(job.work_dir, "workspace")
        shard, away = (job.host, job.hosts), self.workspace
        if job.cache_dir is not None and job.volumes_dir is not None:  # jobs of one user, on one machine
            self._data = DataFolder(
                os.path.join(job.cache_dir, "data"), store, shared=True, shard=shard, away=away
            )
        else:
            cache = None if job.cache_dir is None else SharedCache(job.cache_dir)
            own = os.path.join(job.work_dir, "data")
            self._data = DataFolder(own, store, shared=False, shard=shard, cache=cache, away=away)
        self._project = DataFolder(job.work_dir, store, shared=False, spare=job.spare)
        self._volumes = job.volumes_dir
        self._job, self._has_noted = job, False
        self._store = store
        self._shard = shard

    def data(self, source: Source) -> str:
        """Return the path of a data directory, or of the one file in it."""
        self._note_data()
        folder, file = self._data.find(source)
        return os.path.join(folder, file) if file else folder

    def unpack(self, tree: str) -> None:
        """Unpack the project into the workspace, unless it is there."""
        if not os.path.isdir(self.workspace):
            os.rename(self._project.unpack(tree), self.workspace)

    def mount(self, mount: str, source: Source) -> None:
        """Make a volume's data appear at its absolute mount path: a directory, with a single file in it.

        In a pod the path is the container's own. On a machine shared with others (the local backend) it
        becomes a link to a copy that all jobs with the same data share.
        """
        self._note_data()
        if self._volumes is None:
            folder, file = self._data.find(source)
            if folder == mount:
                return
            os.makedirs(mount, exist_ok=True)  # the manifest has made it, where this user may not
            for name in [file] if file else os.listdir(folder):
                os.symlink(os.path.join(folder, name), os.path.join(mount, name))
            return
        shared = DataFolder(self._volumes, self._store, shared=True, shard=self._shard, away=self.workspace)
        folder, _ = shared.find(source)
        try:
            self._link(mount, folder)
        except OSError as exc:
            raise OSError(
                exc.errno, f"the local backend cannot make volume {mount!r} on this machine: {exc.strerror}"
            ) from exc

    def _note_data(self) -> None:
        """Note that the phase of data begins with the first source: it is the longest before user code."""
        if not self._has_noted:
            self._has_noted = True
            note(self._job, "data")

    def _link(self, mount: str, folder: str) -> None:
        """Link the mount path to `folder` for as long as this process lives.

        Jobs with the same data share the link. A job with other data waits until all of them have ended; the
        kernel releases the lock of a process that dies.
        """
        import fcntl

        assert self._volumes is not None  # noqa: S101  only then there are links
        os.makedirs(self._volumes, exist_ok=True)
        name = "lock-" + wire.digest(mount.encode())
        lock = os.open(os.path.join(self._volumes, name), os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.islink(mount) and os.readlink(mount) == folder:
                return
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write(f"kinetic: waiting: other data is at {mount} for a job that runs\n")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.islink(mount) and os.readlink(mount).startswith(self._volumes + os.sep):
                os.unlink(mount)  # left by an earlier job, and so are the directories that it made
                _, *made = os.fsdecode(os.pread(lock, 1 << 16, 0)).split("\0")
            else:
                made = _missing_parents(mount)
            os.ftruncate(lock, 0)
            os.pwrite(lock, os.fsencode("\0".join([mount, *made])), 0)  # for `unlink_volumes`
            with suppress(FileNotFoundError):  # a job that ends has just removed one: again
                os.makedirs(os.path.dirname(mount), exist_ok=True)
                os.symlink(folder, mount)


def _missing_parents(path: str) -> list[str]:
    """Return the directories above `path` that do not exist, the deepest first."""
    missing = []
    while not os.path.lexists(path := os.path.dirname(path)):
        missing.append(path)
    return missing


def unlink_volumes(folder: str) -> None:
    """Remove links to volumes below `folder` that no running job has, and the directories made for them."""
    import fcntl

    for name in os.listdir(folder):
        if not name.startswith("lock-"):
            continue
        lock = os.open(os.path.join(folder, name), os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mount, *made = os.fsdecode(os.read(lock, 1 << 16)).split("\0")
            if os.path.islink(mount) and os.readlink(mount).startswith(folder + os.sep):
                os.unlink(mount)
                for directory in made:
                    os.rmdir(directory)  # an OSError: something else is in it, and it stays
        except OSError:  # a job has it, or it is gone
            continue
        finally:
            os.close(lock)


def make_workspace(job: Job, store: Store, header: dict[str, Any]) -> Workspace:
    """Unpack the project, then set the working directory, `sys.path`, volumes and the output directory."""
    workspace = Workspace(job, store)
    if header["tree"] is None:
        os.makedirs(workspace.workspace, exist_ok=True)
    else:
        workspace.unpack(header["tree"])
    if job.spare:  # what the earlier call has left there is not for user code
        shutil.rmtree(job.spare, ignore_errors=True)
    os.chdir(_inside(workspace.workspace, header["cwd"] or ""))
    paths = [_inside(workspace.workspace, entry) for entry in header["sys_path"]]
    sys.path[:0] = list(dict.fromkeys(paths))
    if job.on_worker:
        forget_shadowed(paths)
    sys.argv = [header["function_name"]]
    for volume in header["volumes"]:
        workspace.mount(volume["mount"], volume["source"])
    if header["output_dir"] and "://" not in header["output_dir"]:
        os.makedirs(header["output_dir"], exist_ok=True)
    return workspace


def forget_shadowed(paths: Iterable[str]) -> None:
    """Forget modules, imported before the call came, of which the project has its own in these places."""
    names = {name.partition(".")[0] for path in paths for name in os.listdir(path)}
    for name in names.intersection(IMPORTED_FOR_CALLS):
        sys.modules.pop(name, None)


def _inside(workspace: str, relative: str) -> str:
    """Return a directory of the workspace, created if the project ships nothing in it."""
    path = os.path.normpath(os.path.join(workspace, relative))
    if path != workspace and not path.startswith(workspace + os.sep):
        raise ValueError(f"{relative!r} leads out of the project")
    os.makedirs(path, exist_ok=True)
    return path
