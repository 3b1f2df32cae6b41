"""How the runner gets into any container that has Python: a program small enough for a command line."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

import kinetic_core
from kinetic_core._runner.wire import digest

PACKAGE = "kinetic_runner"
"""The runner's name inside its archive; user code never sees a module called `runner`."""

BOOTSTRAP = Path(__file__).with_name("fetch_runner.py").read_text("utf-8")
"""Run as `python3 -u -c BOOTSTRAP`. `KINETIC_RUNNER_DIR` may name an unpacked copy, which starts sooner.

The runner's process ends without tearing down its modules, and without garbage collection while it
imports them: a tenth of what a trivial job costs. The child that runs user code has its collector back.
"""


@functools.cache
def runner_archive() -> tuple[str, bytes]:
    """Digest and bytes of the runner's zip: the same for the same version, on any machine."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in runner_files():
            entry = zipfile.ZipInfo(f"{PACKAGE}/{file.name}", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    content = stream.getvalue()
    return digest(content), content


def runner_files() -> list[Path]:
    """The runner's source files, in name order."""
    return sorted((Path(kinetic_core.__file__).parent / "_runner").glob("*.py"))
