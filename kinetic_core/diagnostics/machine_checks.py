"""What `doctor` looks at on this machine: versions, settings, the local backend."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kinetic_core
from kinetic_core._runner.sizes import shown_size
from kinetic_core.backends.base import Backend
from kinetic_core.diagnostics.checks import Check, Finding
from kinetic_core.settings import Settings

_MEMORY_PROBE = 64 << 20
_LITTLE_DISK = 1 << 30


def machine_checks(settings: Settings) -> Iterator[Check]:
    """Of any backend."""
    yield Check("versions", _versions)
    yield Check("settings", lambda: _settings(settings))


def local_checks(settings: Settings, backend: Backend) -> Iterator[Check]:
    """Of the local backend."""
    yield Check("job directory", lambda: _directory(settings.local_store))
    yield Check("object store", lambda: store_check(backend), needs="job directory")
    yield Check("memory limits", _memory)


def store_check(backend: Backend) -> Finding:
    """Write, read and delete an object; its time tells how this machine's clock stands."""
    name = f"doctor/{os.getpid()}-{time.time_ns()}"
    backend.store.create_if_absent(name, b"kinetic")
    try:
        before = time.time()
        info = backend.store.find(name)
        backend.store.read(name)
    finally:
        backend.store.delete(name)
    skew = abs(before - info.created) if info else 0.0
    if skew > 60:
        return Finding(
            "warn",
            f"{backend.store.uri} can be used; the clocks differ by {skew:.0f} s",
            "set this machine's clock: tokens and certificates depend on it",
        )
    return Finding("ok", f"{backend.store.uri} can be written, read and deleted from; clocks agree")


def _versions() -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    found = f"airflow-provider-kinetic {kinetic_core.__version__}, Python {python}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        return Finding("fail", found, "use Python 3.11 to 3.14, in images too")
    return Finding("ok", found)


def _settings(settings: Settings) -> Finding:
    place = f"profile {settings.profile}" if settings.profile else "no profile"
    return Finding("ok", f"{place}, namespace {settings.namespace} (`kinetic config` shows all)")


def _directory(path: Path) -> Finding:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Finding(
            "fail", f"{path} cannot be made or written to", "set KINETIC_LOCAL_STORE to a directory of yours"
        )
    free = shutil.disk_usage(existing).free
    if free < _LITTLE_DISK:
        return Finding("warn", f"{path}: {shown_size(free)} free", "free space, or set KINETIC_LOCAL_STORE")
    return Finding("ok", f"{path}: {shown_size(free)} free")


def _memory() -> Finding:
    from kinetic_core.backends.local.memory_limit import limit_memory

    try:
        limit_memory(f"doctor-{os.getpid()}-{time.monotonic_ns()}", _MEMORY_PROBE).remove()
    except OSError as exc:
        return Finding(
            "warn", f"memory= cannot be enforced here: {exc.strerror}", "leave memory= out of local jobs"
        )
    return Finding("ok", "memory= is enforced")
