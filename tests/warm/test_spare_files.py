"""Files of a project that the next call on a worker gets: it finds them as if they were new."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner.spare_files import KeptFiles, SpareFiles
from tests.conftest import wait_for
from tests.warm.places import Here

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no files are kept")

CALLER = """
import fcntl, os
from pathlib import Path

ROOT = Path(__file__).parent

def flags(path):
    try:
        with path.open() as stream:
            return fcntl.ioctl(stream, 0x80086601, bytes(8))
    except OSError:  # this file system has none
        return b""

def look():
    found = {}
    for path in sorted(ROOT.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        links = 0 if path.is_dir() else status.st_nlink
        facts = [content, oct(status.st_mode), links, os.listxattr(path, follow_symlinks=False)]
        facts.append(flags(path) if path.is_file() else b"")
        found[str(path.relative_to(ROOT))] = facts, status.st_ino, status.st_mtime
    return found

def call(program, outside):
    found = look()
    places = {"root": ROOT, "file": ROOT / "package/file.py", "outside": Path(outside)}
    exec(program, {"os": os, **places})
    return found, look() if program else found
"""
SPOILED = {
    "nothing": "",
    "write": """
before = file.stat()
file.write_text('value = 2')
os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
""",
    "append": "file.open('a').write('evil()')",
    "mapping": """
import mmap
with file.open('r+b') as stream:
    mmap.mmap(stream.fileno(), 0)[8:9] = b'2'
""",
    "remove": "file.unlink()",
    "replace": "(root / 'new').write_text('value = 2'); (root / 'new').rename(file)",
    "hard link": "os.link(file, outside / 'link')",
    "mode": "file.chmod(0o755)",
    "times": "os.utime(file, (1, 1))",
    "attribute": """
try:
    os.setxattr(file, 'user.canary', b'1')
except OSError:  # this file system has none
    pass
""",
    "flag": """
import fcntl, struct
try:
    with file.open() as stream:
        fcntl.ioctl(stream, 0x40086602, struct.pack('l', 0x80))  # that reading sets no time
except OSError:  # this file system has none
    pass
""",
    "link": "file.rename(outside / 'file.py'); file.symlink_to(outside / 'file.py')",
    "directory link": """
(root / 'package').rename(outside / 'package')
(root / 'package').symlink_to(outside / 'package')
""",
    "pipe": "file.unlink(); os.mkfifo(file)",
    "directory": "file.unlink(); file.mkdir(); (file / 'other.py').touch()",
    "new files": "(root / 'new.py').touch(); (root / 'new').mkdir(); (root / 'new' / 'file.py').touch()",
    "compiled file": """
import py_compile
py_compile.compile(str(file))
""",
    "mode of a directory": "(root / 'package').chmod(0o700)",
    "all": "import shutil; shutil.rmtree(root)",
    "process": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import mmap, time
        with file.open('r+b') as stream:
            mapped = mmap.mmap(stream.fileno(), 0)
        while True:
            mapped[8:9] = b'2'
            time.sleep(0.001)
    os._exit(0)
import time
while file.read_text() == 'value = 1':
    time.sleep(0.001)
""",
}
"""What a call does to its project, of which one that comes later must find nothing."""
LEAVE_THE_FILE = ("nothing", "times", "new files", "compiled file", "mode of a directory")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Here]:
    project = tmp_path / "project"
    (project / "package").mkdir(parents=True)
    (project / "package" / "file.py").write_text("value = 1")
    for number in range(10):
        (project / "package" / f"file{number}.py").write_text(f"value = {number}")
    (project / "link").symlink_to("package/file.py")
    (project / "spoiling.py").write_text(CALLER)
    (tmp_path / "outside").mkdir()
    sys.path.insert(0, str(project))
    made = Here(tmp_path, root=project)
    yield made
    sys.path.remove(str(project))
    sys.modules.pop("spoiling")
    made.close()


def call(place: Here, program: str) -> Any:
    import spoiling  # type: ignore[import-not-found]

    return place.submit(spoiling.call, program, str(place.folder / "outside")).value()


def kept(place: Here) -> dict[str, int]:
    """The numbers (inodes) of the files that a worker keeps while it waits."""
    found: list[Path] = []

    def is_there() -> bool:
        found[:] = place.folder.glob("local/**/calls/spare-*")
        return bool(found)

    wait_for(is_there)
    wait_for(lambda: not list(found[0].parent.glob("*/[0-9]")))  # it has removed all else
    return {str(path.relative_to(found[0])): path.lstat().st_ino for path in found[0].rglob("*")}


def compared(looked: dict[str, Any]) -> dict[str, Any]:
    """What a call finds but for what its own import has compiled."""
    return {name: facts for name, (facts, _, _) in looked.items() if "spoiling" not in name}


@pytest.mark.attack
@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_call_finds_its_project_as_it_was_shipped(place: Here, spoiled: str) -> None:
    """And yet it has the files of the call before that were left alone."""
    first, after = call(place, SPOILED[spoiled])
    assert spoiled in ("nothing", "attribute", "flag") or after != first, "it has done something"
    numbers = {} if spoiled == "all" else kept(place)
    outside = set((place.folder / "outside").rglob("*"))
    second, _ = call(place, "assert not list(root.parents[2].glob('spare-*')), 'another call has left it'")
    assert compared(second) == compared(first)
    assert all(mtime > first[name][2] for name, (_, _, mtime) in second.items())
    assert set((place.folder / "outside").rglob("*")) == outside
    same = {name for name, (_, number, _) in second.items() if numbers.get(name) == number}
    assert ("package/file3.py" in same) == (spoiled not in ("directory link", "all"))
    has_no = spoiled in ("attribute", "flag") and compared(after) == compared(first)  # such a file system
    assert ("package/file.py" in same) == (spoiled in LEAVE_THE_FILE or has_no)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "package").mkdir(parents=True)
    (made / "package" / "file").write_bytes(b"content")
    (made / "package" / "file").chmod(0o644)
    return made


@pytest.mark.parametrize("is_large", [False, True])
def test_a_small_directory_is_kept(tmp_path: Path, workspace: Path, is_large: bool) -> None:
    """A large one may be what a call has written, and takes disk from the next one."""
    if is_large:
        with (workspace / "large").open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, 65 << 20)
    kept = KeptFiles(str(tmp_path))
    kept.replace(str(workspace))
    assert (kept.path != "", workspace.exists()) == (not is_large, is_large)
    kept.replace(str(tmp_path / "absent"))
    assert kept.path == ""
    assert [path.name for path in tmp_path.iterdir()] == (["workspace"] if is_large else [])


def test_a_link_in_its_place_is_not_kept(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "link").symlink_to(workspace)
    kept = KeptFiles(str(tmp_path))
    kept.replace(str(tmp_path / "link"))
    assert kept.path == ""
    assert workspace.exists()


@pytest.mark.parametrize(
    ("name", "content", "mode", "is_taken"),
    [
        ("package/file", b"content", 0o644, True),
        ("package/file", b"Content", 0o644, False),
        ("package/file", b"content and more", 0o644, False),
        ("package/file", b"cont", 0o644, False),
        ("package/file", b"content", 0o755, False),
        ("file", b"content", 0o644, False),
        ("package", b"", 0o755, False),
    ],
)
def test_a_file_is_taken_if_it_is_like_a_new_one(
    tmp_path: Path, workspace: Path, name: str, content: bytes, mode: int, is_taken: bool
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    spares = SpareFiles(str(workspace), str(target))
    assert spares.take(name, str(target / "new"), content, mode) is is_taken
    assert [path.read_bytes() for path in target.iterdir()] == ([content] if is_taken else [])
    assert (workspace / "package" / "file").exists() is not is_taken
