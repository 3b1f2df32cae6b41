"""Bootstrap of the runner in any container with Python: a program small enough for a command line."""

from __future__ import annotations

import functools
import importlib.util
import io
import marshal
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import kinetic_core
from kinetic_core._runner.wire import SPARE, digest
from kinetic_core.cache import keep

PACKAGE = "kinetic_runner"
"""The runner's name inside its archive; user code never sees a module called `runner`."""

_HEX = 64


class StoredArchive(NamedTuple):
    """Archive in a store as Jobs and payloads name it: its SHA-256 in hex, and its number of bytes."""

    sha256: str
    size: int


BOOTSTRAP = Path(__file__).with_name("fetch_runner.py").read_text("utf-8")
"""Run as `python3 -u -c BOOTSTRAP`. `KINETIC_RUNNER_DIR` may name an unpacked copy, which starts sooner.

The runner's process ends without tearing down its modules, and without garbage collection while it
imports them: a tenth of what a trivial job costs. The child that runs user code has its collector back."""


@functools.cache
def runner_archive(cache: Path) -> tuple[str, bytes]:
    """Return digest and bytes of the runner's zip, equal on any machine for one version and Python.

    The archive is kept in the directory `cache`, because every submitter needs it and few live long.
    """
    sources = [(path, file.read_bytes()) for path, file in _members()]
    key = [importlib.util.MAGIC_NUMBER, *(path.encode() + source for path, source in sources)]
    return _made(
        cache, key, lambda: [*sources, *((path + "c", _compiled(path, source)) for path, source in sources)]
    )


@functools.cache
def client_archive(cache: Path) -> tuple[str, bytes]:
    """Return digest and bytes of a zip of this package, for jobs in images that lack it."""
    root = Path(kinetic_core.__file__).parent
    files = [
        (file.relative_to(root.parent).as_posix(), file)
        for end in ("py", "json")
        for file in root.rglob(f"*.{end}")
    ]
    files += [(f"kinetic_core/_runner/{file.name}", file) for file in runner_files()]  # through a link
    members = sorted(dict(files).items())
    facts = ((path, stat.st_size, stat.st_mtime_ns) for path, file in members for stat in [file.stat()])
    return _made(
        cache,
        [repr(each).encode() for each in facts],
        lambda: [(path, file.read_bytes()) for path, file in members],
    )


def _made(
    cache: Path, key: Iterable[bytes], contents: Callable[[], Sequence[tuple[str, bytes]]]
) -> tuple[str, bytes]:
    """Return digest and bytes of an archive, kept for the next process under what it is made from."""
    made_with = (Path(__file__).read_bytes(), zlib.ZLIB_RUNTIME_VERSION.encode())
    file = cache.expanduser() / "runners" / digest(b"".join([*made_with, *key]))
    kept = _read(file)
    if kept is None:
        whole = _archive(contents())
        kept = digest(whole), whole
        keep(file, kept[0].encode() + whole)
    return kept


def _read(file: Path) -> tuple[str, bytes] | None:
    """Read digest and archive from a file of the cache, which is code and must be owned by this user."""
    try:
        if file.stat().st_uid != os.getuid():
            return None
        content = file.read_bytes()
    except OSError:
        return None
    sha256, whole = content[:_HEX].decode(errors="replace"), content[_HEX:]
    return (sha256, whole) if digest(whole) == sha256 else None


def _archive(contents: Sequence[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _members() -> Iterator[tuple[str, Path]]:
    """Yield the modules of the archive: the runner's, and cloudpickle's for images that lack it."""
    for file in runner_files():
        yield f"{PACKAGE}/{file.name}", file
    found = importlib.util.find_spec("cloudpickle")
    assert found is not None  # noqa: S101  a dependency
    assert found.origin is not None  # noqa: S101
    for file in sorted(Path(found.origin).parent.glob("*.py")):
        yield f"{PACKAGE}/{SPARE}/cloudpickle/{file.name}", file


@functools.cache
def _compiled(path: str, source: bytes) -> bytes:
    """Compile a module to a `.pyc`, which a job's Python of the same version as this one loads.

    The `.pyc` is unchecked and hash-based (PEP 552). Clients whose caches differ share it.
    """
    code = compile(source, path, "exec", dont_inherit=True)
    flags = (1).to_bytes(4, "little")
    header = importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source)
    return header + _dumped(code)


def _dumped(code: CodeType) -> bytes:
    """Serialize a module's code equally, whatever this process has done before.

    Marshal's version 2 has no references, whose use would depend on the process. It has no slices either. The
    code of Python 3.14 has them as constants: they are written here, as version 5 does, over stand-ins.
    """
    slices: dict[bytes, bytes] = {}

    def without_slices(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return constant.replace(co_consts=tuple(map(without_slices, constant.co_consts)))
        if isinstance(constant, tuple):
            return tuple(map(without_slices, constant))
        if not isinstance(constant, slice):
            return constant
        parts = (constant.start, constant.stop, constant.step)
        written = b":" + b"".join(marshal.dumps(part, 2) for part in parts)
        stand_in = digest(written).encode()
        slices[marshal.dumps(stand_in, 2)] = written
        return stand_in

    dumped = marshal.dumps(without_slices(code), 2)
    for stand_in, written in slices.items():
        dumped = dumped.replace(stand_in, written)
    return dumped


def runner_files() -> list[Path]:
    """List the runner's source files, in name order."""
    return sorted((Path(kinetic_core.__file__).parent / "_runner").glob("*.py"))
