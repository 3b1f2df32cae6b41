"""What a base image lacks is installed before user code is loaded. Offline: uv is told of a directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROGRAM = """
import sys
from kinetic_core._runner.dependencies import install
from kinetic_core._runner.store import open_store
wanted = {"lines": sys.argv[2:], "constraints": [], "options": []}
try:
    install(wanted, sys.argv[1], open_store("file://" + sys.argv[1]), "jobs/j/requirements.lock")
except ValueError as exc:
    sys.exit(str(exc))
import os, subprocess, tiny, packaging
print(tiny.__file__)
print(packaging.__file__)
print(subprocess.check_output(["python", "-c", "import tiny, packaging; print(tiny.VALUE)"], text=True))
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "VALUE = 7\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    with zipfile.ZipFile(folder / "packaging-99-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "packaging-99.dist-info/METADATA", "Metadata-Version: 2.1\nName: packaging\nVersion: 99\n"
        )
        wheel.writestr("packaging-99.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("packaging-99.dist-info/RECORD", "")
    return folder


def run(work: Path, *lines: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    here = str(Path(sys.executable).parent)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(work), *lines],
        env={
            **os.environ,
            "PATH": here + os.pathsep + os.environ["PATH"] if path is None else path,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "UV_CACHE_DIR": str(work / "cache"),
            "UV_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_only_what_is_missing_is_installed(tmp_path: Path, wheels: Path) -> None:
    done = run(tmp_path, "--no-index", f"--find-links {wheels}", "Tiny>=1", "packaging")
    tiny, packaging, value = done.stdout.split() or pytest.fail(done.stderr)
    assert tiny.startswith(str(tmp_path / "venv"))
    assert not packaging.startswith(str(tmp_path))
    assert value == "7"
    assert (tmp_path / "dependencies/install.txt").read_text().splitlines()[-1] == "tiny==1.0"


def test_another_attempt_has_the_same(tmp_path: Path, wheels: Path) -> None:
    lines = ("--no-index", f"--find-links {wheels}", "tiny")
    run(tmp_path, *lines)
    assert "tiny==1.0" in (tmp_path / "jobs/j/requirements.lock").read_text().splitlines()
    newer = wheels / "tiny-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheels / "tiny-1.0-py3-none-any.whl") as old, zipfile.ZipFile(newer, "w") as new:
        for name in old.namelist():
            new.writestr(name.replace("1.0", "2.0"), old.read(name).replace(b"1.0", b"2.0"))
    again = run(tmp_path, *lines)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "dependencies/install.txt").read_text().splitlines()[-1] == "tiny==1.0"


def test_what_cannot_be_resolved(tmp_path: Path, wheels: Path) -> None:
    done = run(tmp_path, "--no-index", f"--find-links {wheels}", "tiny>=2")
    assert "the dependencies cannot be installed" in done.stderr
    assert "tiny" in done.stderr


def test_an_image_without_uv(tmp_path: Path) -> None:
    assert "the image has no uv" in run(tmp_path, "tiny", path="/nowhere").stderr
