"""Which directory a job finds, by keras-kinetic's rules; on a cluster in test_compat_nightly.py."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from tests.compat.project import write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_jobs")]
ENTRY = '''\
def look():
    """The files that the job has, and where it works."""
    from pathlib import Path

    from compat_beside import NAME

    assert NAME
    here = Path.cwd()
    root = next(above for above in (here, *here.parents) if list(above.glob("root-of-*")))
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return str(here.relative_to(root)), sorted(str(path.relative_to(root)) for path in files)
'''
BESIDE = "NAME = 'beside it'\n"
Look = Callable[[Path], Any]


@pytest.fixture
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """Run `look` of a file that is written now, from the directory that is the current one."""
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)

    def call(file: Path) -> Any:
        write(file.parent, **{file.name: ENTRY, "compat_beside.py": BESIDE})
        monkeypatch.syspath_prepend(str(file.parent))
        return kinetic.run(accelerator="cpu")(imported(file).look).run_async().result(timeout=300)

    yield call
    for name in ("compat_entry", "compat_beside"):
        sys.modules.pop(name, None)


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compat_entry", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compat_entry"] = module
    spec.loader.exec_module(module)
    return module


def test_without_a_marker_the_root_is_the_files_own_directory(look: Look, tmp_path: Path) -> None:
    write(tmp_path, **{"beyond.txt": "x", "scratch/root-of-scratch": "x"})
    assert look(tmp_path / "scratch/compat_entry.py") == (
        ".",
        ["compat_beside.py", "compat_entry.py", "root-of-scratch"],
    )


def test_each_call_ships_what_is_there_then(look: Look, tmp_path: Path) -> None:
    write(tmp_path, **{"pyproject.toml": "", "root-of-all": "x"})
    _, before = look(tmp_path / "compat_entry.py")
    write(tmp_path, **{"made-meanwhile.txt": "x"})
    _, after = look(tmp_path / "compat_entry.py")
    assert set(after) - set(before) == {"made-meanwhile.txt"}


def test_a_home_directory_is_no_root_whatever_is_in_it(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, **{"requirements.txt": "", "private.txt": "x", "scratch/root-of-scratch": "x"})
    _, files = look(tmp_path / "scratch/compat_entry.py")
    assert files == ["compat_beside.py", "compat_entry.py", "root-of-scratch"]


def test_the_working_directory_below_the_root_is_kept(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, **{"setup.cfg": "", "root-of-all": "x", "conf/a.yaml": "x"})
    monkeypatch.chdir(tmp_path / "conf")
    working, files = look(tmp_path / "tools/compat_entry.py")
    assert (working, "conf/a.yaml" in files) == ("conf", True)


def test_a_variable_names_the_root(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{"root-of-all": "x", "service/pyproject.toml": "", "shared/a.txt": "x"})
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path))
    _, files = look(tmp_path / "service/compat_entry.py")
    assert {"service/compat_entry.py", "shared/a.txt"} <= set(files)


@pytest.mark.parametrize(("root", "said"), [("gone", "not a directory"), ("other", "does not hold")])
def test_a_variable_that_names_no_root_is_refused(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, said: str
) -> None:
    write(tmp_path, **{"other/a.txt": "x"})
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path / root))
    with pytest.raises(ValueError, match=f"KINETIC_PACKAGE_ROOT=.*{said}"):
        look(tmp_path / "project/compat_entry.py")


def of_a_notebook(body: str) -> Callable[[], Any]:
    """A function as cells of notebooks define it: its module has no file."""
    module = ModuleType("__main__")
    exec(f"def cell():\n    {body}\n", module.__dict__)
    cell: Callable[[], Any] = module.cell
    return cell


def test_a_notebook_belongs_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)
    write(tmp_path, **{"setup.py": "", "helpers.txt": "x", "notebooks/data.txt": "of the notebook"})
    monkeypatch.chdir(tmp_path / "notebooks")
    cell = of_a_notebook("return open('data.txt').read(), open('../helpers.txt').read()")
    assert kinetic.run(accelerator="cpu")(cell)() == ("of the notebook", "x")


def test_the_root_of_the_file_system_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)
    monkeypatch.chdir("/")
    cell = of_a_notebook("import os; return sorted(os.listdir())")
    assert kinetic.run(accelerator="cpu")(cell)() == []


@pytest.mark.parametrize(("limit", "warned"), [("0.1", True), ("0", False)])
def test_a_project_above_the_size_of_a_variable_is_warned_of(
    look: Look,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: str,
    warned: bool,
) -> None:
    write(tmp_path, **{"pyproject.toml": "", "root-of-all": "x"})
    (tmp_path / "weights.bin").write_bytes(b"\0" * (1 << 18))
    monkeypatch.setenv("KINETIC_CONTEXT_SIZE_WARN_MB", limit)
    with caplog.at_level(logging.WARNING):
        look(tmp_path / "compat_entry.py")
    assert any("weights.bin (256 KiB)" in message for message in caplog.messages) is warned
