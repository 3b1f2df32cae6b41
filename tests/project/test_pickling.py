"""What travels by value and what by name; the rule belongs to one dump."""

from __future__ import annotations

import importlib
import io
import pickle
import pickletools
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from kinetic_core._runner.results import by_name
from kinetic_core.project.serialization import ProjectModules, dumps

MODULE = '''
import threading
from typing import TypeVar

T = TypeVar("T")
LOCK = threading.Lock()

class Model:
    """Of the project."""

def helper(x):
    return x + 1

def work(x: "T"):
    return helper(x), Model, T
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a module, and a virtualenv inside it with an installed one."""
    (tmp_path / "mine_a.py").write_text(MODULE)
    installed = tmp_path / ".venv" / "lib" / "python3" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "theirs_a.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))
    for name in ("mine_a", "theirs_a"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def plainly(value: Any, root: Path, own: str = "mine_a") -> bytes:
    return dumps(value, ProjectModules(str(root), own), lambda _obj: None).body


class Reader(pickle.Unpickler):
    """Reads what stands for something else, as the runner does in a directory called /shipped."""

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "shipped":
            return f"/shipped/{pid[1]}"
        return by_name(pid[1], pid[2])


def read(pickled: bytes) -> Any:
    return Reader(io.BytesIO(pickled)).load()


def globals_named(pickled: bytes) -> set[str]:
    return {str(argument) for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}


def test_project_code_needs_no_import_of_it_elsewhere(project: Path) -> None:
    mine = importlib.import_module("mine_a")
    pickled = dumps(mine.work, ProjectModules(str(project), "mine_a"), lambda _obj: None)
    program = """
import io, pickle, sys
def read(size, copies):
    class Reader(pickle.Unpickler):
        def persistent_load(self, pid):
            return pid[1] if pid[0] == "shipped" else copies[pid[1], pid[2]]
    return Reader(io.BytesIO(sys.stdin.buffer.read(size))).load()
print(read(int(sys.argv[2]), read(int(sys.argv[1]), {}))(1))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(len(pickled.copies)), str(len(pickled.body))],
        input=pickled.copies + pickled.body,
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(b"(2, <class 'mine_a.Model'>, ~T)")


def test_what_other_modules_define_goes_by_name(project: Path) -> None:
    mine = importlib.import_module("mine_a")
    pickled = dumps([mine.work, mine.Model], ProjectModules(str(project)), lambda _obj: None)
    assert read(pickled.body) == [mine.work, mine.Model]
    assert set(read(pickled.copies)) == {("mine_a", "work"), ("mine_a", "Model")}


def test_own_classes_go_by_name_and_functions_by_value(project: Path) -> None:
    mine = importlib.import_module("mine_a")
    assert read(plainly(mine.Model, project)) is mine.Model
    copy = read(plainly(mine.work, project))
    assert copy is not mine.work
    assert copy.__globals__["__file__"] == "/shipped/mine_a.py"


def test_modules_of_the_projects_virtualenv_go_by_name(project: Path) -> None:
    theirs = importlib.import_module("theirs_a")
    assert pickle.loads(plainly(theirs.work, project)) is theirs.work
    modules = ProjectModules(str(project))
    assert "theirs_a" not in modules
    assert "kinetic_core.errors" not in ProjectModules(str(Path(__file__).parents[2]))
    assert "json" not in modules


def test_a_module_object_goes_by_name(project: Path) -> None:
    mine = importlib.import_module("mine_a")

    def uses_module() -> types.ModuleType:
        return mine

    assert read(plainly(uses_module, project))() is mine  # a lock in it does no harm


def test_nothing_is_registered_and_threads_do_not_meet(project: Path) -> None:
    mine = importlib.import_module("mine_a")
    before = cloudpickle.list_registry_pickle_by_value()
    by_value: list[bytes] = []
    by_name: list[bytes] = []

    def dump(into: list[bytes], root: Path) -> None:
        into.extend(plainly(mine.work, root) for _ in range(50))

    threads = [
        threading.Thread(target=dump, args=(by_value, project)),
        threading.Thread(target=dump, args=(by_name, project / ".venv")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("helper" in globals_named(one) for one in by_value)
    assert all(pickle.loads(one) is mine.work for one in by_name)
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_what_is_substituted_is_never_pickled(project: Path) -> None:
    class Token:
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

    token = Token()
    container = {"x": [token], token: (token,)}
    pickled = dumps(
        container, ProjectModules(str(project)), lambda obj: ("token",) if type(obj) is Token else None
    ).body

    class Loader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return pid[0]

    assert Loader(io.BytesIO(pickled)).load() == {"x": ["token"], "token": ("token",)}
