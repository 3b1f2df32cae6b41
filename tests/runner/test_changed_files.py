"""Which changes of a project's files are found, by the kernel's events and by a walk."""

from __future__ import annotations

import mmap
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinetic_core._runner.changed_files import ChangedFiles
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere files are always walked through")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose files are older than what is done to them now, by the kernel's coarse clock."""
    folder = tmp_path / "project"
    (folder / "package" / "empty").mkdir(parents=True)
    for name in ("module.py", "package/__init__.py", "package/other.py"):
        (folder / name).write_text("value = 1")
    (folder / "link").symlink_to("module.py")
    now = tmp_path / "now"
    written = (folder / "package" / "other.py").stat().st_ctime_ns
    wait_for(lambda: now.write_text("") == 0 and now.stat().st_ctime_ns > written + 10_000_000)
    return folder


@contextmanager
def looked_at(project: Path, *, watched: bool) -> Iterator[ChangedFiles]:
    files = ChangedFiles(str(project), watched=watched)
    try:
        assert files.is_watched == watched
        yield files
    finally:
        files.close()


def writes_as_much(project: Path) -> None:
    module = project / "module.py"
    before = module.stat()
    module.write_text("value = 2")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))


def appends(project: Path) -> None:
    with (project / "package" / "other.py").open("a") as stream:
        stream.write("\n")


def writes_by_mapping(project: Path) -> None:
    with (project / "module.py").open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        mapped[8:9] = b"2"


def writes_elsewhere(project: Path) -> None:
    os.link(project / "module.py", project.parent / "elsewhere")
    (project.parent / "elsewhere").write_text("value = 2")


def replaces(project: Path) -> None:
    (project.parent / "new").write_text("value = 1")
    (project.parent / "new").rename(project / "module.py")


def swaps_the_link(project: Path) -> None:
    (project / "new").symlink_to("package/other.py")
    (project / "new").rename(project / "link")


def makes_a_directory(project: Path) -> None:
    (project / "new").mkdir()
    (project / "new" / "module.py").touch()


def makes_it_anew(project: Path) -> None:
    shutil.copytree(project, project.parent / "copy", symlinks=True)
    shutil.rmtree(project)
    (project.parent / "copy").rename(project)


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": writes_as_much,
    "append": appends,
    "mapping": writes_by_mapping,
    "hard link": writes_elsewhere,
    "hard link alone": lambda project: os.link(project / "module.py", project.parent / "elsewhere"),
    "truncate": lambda project: os.truncate(project / "module.py", 0),
    "replace": replaces,
    "rename": lambda project: (project / "module.py").rename(project / "other.py"),
    "rename away": lambda project: (project / "package/other.py").rename(project.parent / "other.py"),
    "remove": lambda project: (project / "module.py").unlink(),
    "mode": lambda project: (project / "module.py").chmod(0o755),
    "mode of a directory": lambda project: (project / "package").chmod(0o700),
    "time": lambda project: os.utime(project / "module.py"),
    "new file": lambda project: (project / "package" / "new.py").touch(),
    "new directory": makes_a_directory,
    "directory away": lambda project: (project / "package/empty").rmdir(),
    "link": swaps_the_link,
    "everything": makes_it_anew,
    "nothing left": shutil.rmtree,
}


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(project: Path, change: str, watched: bool) -> None:
    with looked_at(project, watched=watched) as files:
        assert not files.found()
        CHANGES[change](project)
        assert files.found()
        assert files.found(), "it stays so"


def reads(project: Path) -> None:
    for path in project.rglob("*"):
        if path.is_file():
            path.read_bytes()
            os.access(path, os.W_OK)
    program = "import module, package.other; print(module.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, cwd=project)


def maps_to_read(project: Path) -> None:
    with (project / "module.py").open("rb") as stream:
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ).close()


def makes_for_a_while(project: Path) -> None:
    with tempfile.TemporaryDirectory(dir=project) as folder, tempfile.NamedTemporaryFile(dir=folder):
        Path(folder, "other").write_text("text")


HARMLESS: dict[str, Callable[[Path], object]] = {
    "reading": reads,
    "mapping": maps_to_read,
    "opening": lambda project: (project / "module.py").open("r+").close(),
    "temporary files": makes_for_a_while,
}


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("use", HARMLESS)
def test_what_changes_nothing_is_no_change(project: Path, use: str, watched: bool) -> None:
    with Path("/proc/self/mounts").open() as mounts, looked_at(project, watched=watched) as files:
        for _ in range(3):
            HARMLESS[use](project)
            assert not files.found()
        # A cluster beside the tests mounts directories, upon which no watch is believed any more.
        assert files.is_watched == watched or select.select([], [], [mounts], 0)[2]
        writes_as_much(project)
        assert files.found()


@pytest.mark.parametrize("watched", [True, False])
def test_a_write_to_what_stays_mapped_is_found(project: Path, watched: bool) -> None:
    """Its file is closed, which would raise an event, only by whoever outlives the check."""
    with looked_at(project, watched=watched) as files, (project / "module.py").open("r+b") as stream:
        assert not files.found()
        with mmap.mmap(stream.fileno(), 0) as mapped:
            assert not files.found()
            mapped[8:9] = b"2"
            assert files.found()


@pytest.mark.parametrize("watched", [True, False])
def test_a_directory_made_anew_hides_nothing(project: Path, watched: bool) -> None:
    with looked_at(project, watched=watched) as files:
        (project / "package" / "empty").rmdir()
        (project / "package" / "empty").mkdir()
        files.found()  # which it may be: the kernel may give a directory the same number again
        (project / "package" / "empty" / "new.py").touch()
        assert files.found()


def test_lost_events_hide_no_change(project: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with looked_at(project, watched=True) as files:
        for _ in range(most // 2 + 1):  # two that are the same would be one
            (project / "module.py").open().close()
            (project / "package" / "other.py").open().close()
        assert not files.found()
        assert not files.is_watched
        writes_by_mapping(project)
        assert files.found()


_WITHOUT_DESCRIPTORS = """
import os, resource, sys
from kinetic_core._runner.changed_files import ChangedFiles

folder, left = sys.argv[1], int(sys.argv[2])
number = os.open(folder, os.O_RDONLY)
os.close(number)
resource.setrlimit(resource.RLIMIT_NOFILE, (number + left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = ChangedFiles(folder)
found = [files.is_watched, files.found()]
os.rmdir(folder + "/package/empty")
print(*found, files.found())
"""
"""In a process of its own: what else a process opens and closes meanwhile changes what is left."""


@pytest.mark.parametrize(("left", "watched"), [(1, "False"), (2, "False"), (4, "True")])
def test_without_descriptors_files_are_walked_through(project: Path, left: int, watched: str) -> None:
    command = [sys.executable, "-c", _WITHOUT_DESCRIPTORS, str(project), str(left)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [watched, "False", "True"]


def test_an_executed_process_has_no_descriptor_of_it(project: Path) -> None:
    with looked_at(project, watched=True):
        own = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        command = ["ls", "-l", "/proc/self/fd"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, close_fds=False)
    assert "anon_inode:inotify" in own
    assert "inotify" not in done.stdout


_HOLDER = """
import mmap, subprocess, sys
from kinetic_core._runner.changed_files import may_write

folder = sys.argv[1]
found = [may_write(folder)]
with open(folder + "/module.py") as stream:
    found.append(may_write(folder))
with open(folder + "/module.py", "r+b") as stream:
    found.append(may_write(folder))
    mapped = mmap.mmap(stream.fileno(), 0)
found.append(may_write(folder))
mapped.close()
with subprocess.Popen(["cat"], stdin=subprocess.PIPE):
    found.append(may_write(folder))
print(*found, may_write(folder))
"""


def test_what_a_process_holds_lets_it_write(project: Path) -> None:
    """A file that is open to write, a mapping, and another process; not one that is read."""
    done = subprocess.run(
        [sys.executable, "-c", _HOLDER, str(project)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "True", "True", "False"]
