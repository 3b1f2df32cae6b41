"""Outputs of a job: the files in its output directory, listed, read, downloaded."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kinetic_core._runner.object_names import outputs_prefix
from kinetic_core._runner.trees import is_plain
from kinetic_core.connections import Connections
from kinetic_core.errors import ObjectNotFound, StoreError, StoreFull
from kinetic_core.job import JobReference
from kinetic_core.store import open_store
from kinetic_core.store.directory import translated
from kinetic_core.store.protocol import ObjectStore

_THREADS = 16


@dataclass(frozen=True, slots=True)
class OutputFile:
    """File a job wrote: path below the output directory, bytes, time of writing (Unix seconds)."""

    name: str
    size: int
    written: float


class Outputs:
    """Files in a job's output directory at the time of listing, in name order.

    Iterate over the outputs, or take their `len`. `location` is the directory: a path or `gs://...`.
    """

    def __init__(self, location: str, store: ObjectStore) -> None:
        self.location = location
        self._store = store
        self._files = [
            OutputFile(info.name, info.size, info.created)
            for info in store.list("")
            if not info.name.endswith("/")  # what a console leaves to show an empty directory
        ]

    def __iter__(self) -> Iterator[OutputFile]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<{len(self)} files, {sum(file.size for file in self)} bytes, in {self.location}>"

    def read(self, name: str) -> bytes:
        """Return the content of one file. Raises ObjectNotFound."""
        return self._store.read(name)

    def download(self, folder: str | os.PathLike[str], pattern: str = "*") -> list[Path]:
        """Copy the files whose name matches a shell pattern (`*` also matches `/`) into a directory.

        Makes missing directories, writes each file atomically, and replaces files of the same name. Returns
        the paths, in name order. Raises ObjectNotFound if no file matches, StoreFull before anything is
        copied if the files do not fit, StoreError.
        """
        chosen = [file for file in self._files if fnmatchcase(file.name, pattern)]
        if not chosen:
            raise ObjectNotFound(f"{self.location} has no file like {pattern!r}")
        for file in chosen:
            if not is_plain(file.name):
                raise StoreError(f"{self.location}: {file.name!r} cannot be a path below a directory")
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise translated(exc, f"cannot make {target}") from exc
        needed, free = sum(file.size for file in chosen), shutil.disk_usage(target).free
        if needed > free:
            raise StoreFull(f"{needed} bytes of outputs do not fit into {target}, which has {free} free")
        with ThreadPoolExecutor(min(_THREADS, len(chosen))) as pool:
            return list(pool.map(lambda file: self._copy(file, target), chosen))

    def _copy(self, file: OutputFile, folder: Path) -> Path:
        path = folder / file.name
        part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._store.open(file.name) as source, part.open("xb") as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
            part.replace(path)
        except StoreError:
            raise
        except OSError as exc:
            raise translated(exc, f"cannot write {path}") from exc
        finally:
            part.unlink(missing_ok=True)
        return path


def find_outputs(connections: Connections, reference: JobReference) -> Outputs:
    """List the outputs of a job now. Raises StoreError."""
    location = outputs_location(reference)
    return Outputs(location, open_store(location, connections))


def outputs_location(reference: JobReference) -> str:
    """Return the directory of a job's outputs: a path or `gs://...`."""
    return reference.output_dir or f"{reference.store_uri}/{outputs_prefix(reference.job_id)}"


@dataclass(frozen=True)
class BatchOutputs:
    """Files in the output directories of a batch's inputs, counted.

    `location`: these directories, with a `*` in place of the input's index. `files`, and `size` in bytes, are
    None if there are too many files to count.
    """

    location: str
    files: int | None
    size: int | None


def count_batch_outputs(
    connections: Connections, whole: JobReference, size: int, most: int = 50_000
) -> BatchOutputs:
    """Count the files that the first `size` inputs of the batch `whole` have written until now.

    Takes a request for each thousand files; no more than `most` are listed. Raises StoreError.
    """
    begin = whole.output_dir or f"{whole.store_uri}/{outputs_prefix(whole.job_id)}-"
    folder, _, start = begin.rpartition("/")
    files = total = 0
    for seen, info in enumerate(open_store(folder, connections).list(start)):
        if seen == most:
            return BatchOutputs(f"{begin}*", None, None)
        index, _, name = info.name.removeprefix(start).partition("/")
        if index.isdecimal() and int(index) < size and name and not name.endswith("/"):
            files, total = files + 1, total + info.size
    return BatchOutputs(f"{begin}*", files, total)


_LISTED = 1_000_000
_NAMES = 100
_NAMES_CHARACTERS = 8000


def matching_names(connections: Connections, reference: JobReference, pattern: str) -> tuple[list[str], bool]:
    """Return the first names of outputs that match a shell pattern, and whether there are more.

    At most 100 names, of 8,000 characters together, are returned. Names that cannot be paths below a
    directory are left out, as is all that follows the first million outputs. Raises StoreError.
    """
    found: list[str] = []
    room = _NAMES_CHARACTERS
    store = open_store(outputs_location(reference), connections)
    for info in itertools.islice(store.list(""), _LISTED):
        if not fnmatchcase(info.name, pattern) or not is_plain(info.name):
            continue
        room -= len(info.name)
        if len(found) == _NAMES or (found and room < 0):
            return found, True
        found.append(info.name)
    return found, False
