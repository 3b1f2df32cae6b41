"""What travels by value and what by name; the rule belongs to one dump."""

from __future__ import annotations

import importlib
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

from kinetic_core.packaging.pickling import ProjectModules, dumps

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


def plainly(value: Any, root: Path) -> bytes:
    return dumps(value, ProjectModules(str(root)), lambda _obj: None)


def globals_named(pickled: bytes) -> set[str]:
    return {str(argument) for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}


def test_project_code_needs_no_import_of_it_elsewhere(project: Path) -> None:
    mine = importlib.import_module("mine_a")
    pickled = plainly(mine.work, project)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(1))"
    done = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True)
    assert done.stdout.startswith(b"(2, <class 'mine_a.Model'>, ~T)")


def test_installed_modules_go_by_name_even_in_a_virtualenv_of_the_project(project: Path) -> None:
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

    assert pickle.loads(plainly(uses_module, project))() is mine  # a lock in it does no harm


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
    )

    class Loader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return pid[0]

    import io

    assert Loader(io.BytesIO(pickled)).load() == {"x": ["token"], "token": ("token",)}
