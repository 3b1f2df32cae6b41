"""What a base image lacks is installed before user code is loaded. Offline: uv is told of a directory."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from kinetic_core._runner.notes import encode_note

PROGRAM = """
import sys
from kinetic_core._runner.dependencies import install
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.store import StoreUnavailable, open_store
facts = {"STORE": "", "JOB_ID": "j", "PAYLOAD_SHA256": "", "OUTCOME_KEY": "00" * 32, "WORK_DIR": sys.argv[1]}
job = take_job({f"KINETIC_{name}": value for name, value in facts.items()})
wanted = {"lines": sys.argv[2:], "constraints": [], "options": []}
try:
    install(wanted, job, open_store("file://" + sys.argv[1]), job.work_dir)
except (ValueError, StoreUnavailable) as exc:
    sys.exit(f"{type(exc).__name__}: {exc}")
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


class Index(http.server.ThreadingHTTPServer):
    """A package index: directories of links to wheels."""

    is_away = False
    is_back_soon = False
    """Whether it answers once somebody asks for anything but a package."""

    def __init__(self, wheels: Path) -> None:
        self.wheels = wheels
        super().__init__(("127.0.0.1", 0), Answering)

    @property
    def url(self) -> str:
        return f"http://user:secret@127.0.0.1:{self.server_port}/simple"


class Answering(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rstrip("/").rpartition("/")[2]
        wheel = self.server.wheels / name
        links = [each.name for each in self.server.wheels.glob(f"{name}-*.whl")] if name else []
        if not name and self.server.is_back_soon:
            self.server.is_away = False
        if self.server.is_away:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"")
        elif wheel.is_file():
            self._answer(HTTPStatus.OK, wheel.read_bytes())
        elif links:
            self._answer(HTTPStatus.OK, "".join(f'<a href="/{each}">{each}</a>' for each in links).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(wheels: Path) -> Iterator[Index]:
    with Index(wheels) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(
    work: Path, *lines: str, path: str | None = None, offline: bool = True
) -> subprocess.CompletedProcess[str]:
    here = str(Path(sys.executable).parent)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(work), *lines],
        env={
            **os.environ,
            "PATH": here + os.pathsep + os.environ["PATH"] if path is None else path,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "UV_CACHE_DIR": str(work / "cache"),
            "UV_HTTP_RETRIES": "0",
            **({"UV_OFFLINE": "1"} if offline else {}),
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


@pytest.mark.promise(
    "data: Installed at pod start from a lock, as the user, in a venv",
    "locked by the first attempt where the project has no lock",
)
def test_another_attempt_has_the_same(tmp_path: Path, wheels: Path) -> None:
    lines = ("--no-index", f"--find-links {wheels}", "tiny")
    run(tmp_path, *lines)
    lock = json.loads((tmp_path / "jobs/j/requirements.lock").read_text())
    assert "tiny==1.0" in lock["requirements"]
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


def test_what_an_index_does_not_have(tmp_path: Path, index: Index) -> None:
    done = run(tmp_path, f"--index-url {index.url}", "absent", offline=False)
    assert done.stderr.startswith("ValueError: the dependencies cannot be installed:")


def test_an_index_that_is_away_is_not_the_users_failure(tmp_path: Path, index: Index) -> None:
    index.is_away = True
    done = run(tmp_path, f"--index-url {index.url}", "tiny", offline=False)
    where = f"http://127.0.0.1:{index.server_port}"
    assert done.stderr.startswith(f"StoreUnavailable: the package index at {where} cannot be reached:")


def test_an_index_that_was_away_for_a_moment_is_asked_again(tmp_path: Path, index: Index) -> None:
    index.is_away = index.is_back_soon = True
    done = run(tmp_path, f"--index-url {index.url}", "tiny", "packaging", offline=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dependencies/install.txt").read_text().splitlines()[-1] == "tiny==1.0"


@pytest.mark.attack
def test_words_of_a_package_are_no_index_that_is_away(tmp_path: Path, wheels: Path) -> None:
    """An author of packages decides nothing with what a build prints."""
    source = tmp_path / "Failed to fetch"
    source.mkdir()
    (source / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'absent'\n")
    done = run(tmp_path, "--no-index", f"--find-links {wheels}", f"tiny @ {source.as_uri()}")
    assert done.stderr.startswith("ValueError: the dependencies cannot be installed:")


def test_an_image_without_uv(tmp_path: Path) -> None:
    assert "the image has no uv" in run(tmp_path, "tiny", path="/nowhere").stderr


@pytest.mark.attack
def test_a_planted_lock_installs_nothing(tmp_path: Path, wheels: Path) -> None:
    lock = tmp_path / "jobs/j/requirements.lock"
    lock.parent.mkdir(parents=True)
    planted: list[bytes] = [
        f"tiny @ file://{wheels}/tiny-1.0-py3-none-any.whl".encode(),
        json.dumps({"requirements": ["tiny==1.0"]}).encode(),
        encode_note(b"another key", "jobs/j/requirements.lock", {"requirements": ["tiny==1.0"]}),
        encode_note(bytes(32), "jobs/i/requirements.lock", {"requirements": ["tiny==1.0"]}),
    ]
    for content in planted:
        lock.write_bytes(content)
        done = run(tmp_path, "--no-index", f"--find-links {wheels}", "tiny")
        assert "jobs/j/requirements.lock is not what this job has stored" in done.stderr
        assert not list(tmp_path.glob("venv/lib/*/site-packages/tiny*"))


@pytest.mark.attack
def test_hosts_install_what_the_first_has_locked(tmp_path: Path, wheels: Path) -> None:
    """The other host's lock appears while this one resolves: uv itself is made to store it."""
    name = "jobs/j/requirements.lock"
    (tmp_path / "lock").write_bytes(encode_note(bytes(32), name, {"requirements": ["tiny==1.0"]}))
    newer = wheels / "tiny-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheels / "tiny-1.0-py3-none-any.whl") as old, zipfile.ZipFile(newer, "w") as new:
        for member in old.namelist():
            new.writestr(member.replace("1.0", "2.0"), old.read(member).replace(b"1.0", b"2.0"))
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    there = f"mkdir -p {tmp_path}/jobs/j && cp -n {tmp_path}/lock {tmp_path}/{name}"
    uv.write_text(f'#!/bin/sh\n{there}\nexec {Path(sys.executable).parent}/uv "$@"\n')
    uv.chmod(0o755)
    path = os.pathsep.join([str(uv.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = run(tmp_path, "--no-index", f"--find-links {wheels}", "tiny", path=path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dependencies/install.txt").read_text().splitlines()[-1] == "tiny==1.0"
