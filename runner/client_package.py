"""Package `kinetic_core` for user code in an image without it: fetched only if something imports it.

Modules that define jobs import it, and many classes are in such a module. No other package is brought along:
a job that starts jobs needs an image in which this one is installed.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from . import object_names, wire
from .store import MissingObject, ObjectTooLarge, open_store, read_at_most

_PACKAGE = "kinetic_core"


class ClientPackage:
    """Last entry of `sys.meta_path`, so that it is asked for what the image does not have.

    `sha256` and `size` (bytes) are those of the archive in the store, as the verified payload says.
    """

    def __init__(self, sha256: str, size: int, store_uri: str, folder: str) -> None:
        self._sha256, self._size, self._store_uri, self._folder = sha256, size, store_uri, folder

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a spec, as `importlib.abc.MetaPathFinder` does.

        Raises ImportError if the archive is gone or another one, OSError (ENOSPC) if the disk is full.
        """
        if name != _PACKAGE:
            return None
        if not os.path.isdir(self._folder):
            self._unpack()
        if self._folder not in sys.path:
            sys.path.append(self._folder)
        return PathFinder.find_spec(name, [self._folder])

    def _unpack(self) -> None:
        import shutil  # with what these import, they would delay the start of every job
        import zipfile

        another = f"the stored {_PACKAGE} is not the one this job was submitted with"
        store, name = open_store(self._store_uri), object_names.runner(self._sha256)
        try:
            archive = read_at_most(store, name, self._size)
        except ObjectTooLarge as exc:
            raise ImportError(f"{another}: {exc}") from exc
        except (OSError, MissingObject) as exc:
            raise ImportError(f"{_PACKAGE} is not in this image, and cannot be fetched: {exc}") from exc
        if wire.digest(archive) != self._sha256:
            raise ImportError(another)
        part = f"{self._folder}.{os.getpid()}"
        try:
            with zipfile.ZipFile(io.BytesIO(archive)) as content:
                content.extractall(part)
            os.rename(part, self._folder)
        except OSError as exc:
            shutil.rmtree(part, ignore_errors=True)
            if os.path.isdir(self._folder):  # another process of this job was quicker
                return
            if exc.errno == errno.ENOSPC:
                text = (
                    f"no space to unpack {_PACKAGE}, which this image lacks: give the job more disk (disk=)"
                )
                raise OSError(errno.ENOSPC, text, self._folder) from exc
            raise
