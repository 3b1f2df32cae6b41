"""Modules that a job imports ship, and have the values that they had here; no others are looked at."""

from __future__ import annotations

import http
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import pytest

from kinetic_core.errors import InvalidProject
from kinetic_core.project.imported_modules import check_ships, reached
from kinetic_core.project.module_variables import change_notices, changed_variables
from kinetic_core.project.root import Project
from kinetic_core.project.serialization import ProjectModules, dumps

Load = Callable[..., ModuleType]
"""Write a module of the project, and import it."""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, text: str) -> ModuleType:
        file = tmp_path / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def modules_of(tmp_path: Path, module: ModuleType) -> ProjectModules:
    """What is known after the function `f` of a module was pickled."""
    modules = ProjectModules(str(tmp_path), module.__name__)
    dumps(module.f, modules, lambda _: None)
    return modules


def changed(tmp_path: Path, module: ModuleType) -> dict[str, dict[str, object]]:
    found = changed_variables(reached(modules_of(tmp_path, module)))
    return {name: {key: now for key, (now, _) in each.items()} for name, each in found.sent.items()}


def test_an_edited_file_is_read_again(load: Load, tmp_path: Path) -> None:
    load("edited", "LR = 1")
    job = load("editing", "import edited\ndef f(): return edited.LR")
    assert changed(tmp_path, job) == {}
    (tmp_path / "edited.py").write_text("LR = 10")
    assert changed(tmp_path, job) == {"edited": {"LR": 1}}


def test_a_file_that_could_not_be_read_is_tried_again(load: Load, tmp_path: Path) -> None:
    cfg: Any = load("cfg", "LR = 0.1\n")
    job = load("job", "import cfg\ndef f(): return cfg.LR")
    cfg.LR = 0.5
    file = tmp_path / "cfg.py"
    source, facts = file.read_text(), file.stat()
    seen = []
    for text in ("(" * facts.st_size, source):
        file.write_text(text)
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        seen.append(changed(tmp_path, job))
    assert seen == [{}, {"cfg": {"LR": 0.5}}]


@pytest.mark.parametrize(
    "importing",
    [
        "import team.cfg as c\ndef f(): return c.LR",
        "def f():\n    from team import cfg\n    return cfg.LR",
        "def f():\n    from .cfg import LR\n    return LR",
        "from team.model import Model\ndef f(): return Model()",
        "from team import model\ndef f(): return model.Model.rate(None)",
    ],
)
def test_what_a_job_imports_in_any_way_is_reached(load: Load, tmp_path: Path, importing: str) -> None:
    load("team.cfg", "LR = 0.1\n")
    load(
        "team.model", "class Model:\n    def rate(self):\n        from . import cfg\n        return cfg.LR\n"
    )
    load("team.client", "import team.cfg\nVERBOSE = False\n")
    found = reached(modules_of(tmp_path, load("team.job", importing)))
    assert "team.cfg" in found
    assert "team.client" not in found


def test_a_variable_that_was_set_is_found(load: Load, tmp_path: Path) -> None:
    cfg = load(
        "cfg",
        "LR = 0.1\nSTEPS: int = 10 * 100\nSIZES = [1, 2]\nMODEL = {'name': 'a'}\nON = False\nSEED = 1\n",
    )
    job = load("job", "import cfg\ndef f(): return cfg.LR")
    assert changed(tmp_path, job) == {}
    cfg.LR, cfg.STEPS, cfg.ON = 0.5, None, True  # type: ignore[attr-defined]
    cfg.MODEL["name"] = "b"  # type: ignore[attr-defined]
    expected = {"LR": 0.5, "STEPS": None, "ON": True, "MODEL": {"name": "b"}}
    assert changed(tmp_path, job) == {"cfg": expected}
    (notice,) = change_notices(changed_variables(reached(modules_of(tmp_path, job))))
    assert "variables of cfg were set" in notice
    assert "LR is 0.5, in the file 0.1;" in notice


OPTIONS = """
import enum, http, pathlib
from pathlib import Path
class Mode(enum.Enum):
    A = 1
    B = 2
class Held:
    MODE = Mode.B
OUT = Path("out") / "a"
DATA: Path = pathlib.PurePosixPath("data", "b")
MODE = Mode.A
BOTH = {Mode.A: [Path("x")]}
STATUS = http.HTTPStatus.OK
MADE = Path(str(1 + 1))
TEXT = "a".upper()
AWAY = Path("b").absolute()
BY_NAME = Held.MODE
"""


def test_paths_and_members_of_enumerations_are_plain(load: Load, tmp_path: Path) -> None:
    cfg: Any = load("cfg", OPTIONS)
    job = load("job", "import cfg\ndef f(): return cfg.OUT")
    assert changed(tmp_path, job) == {}
    cfg.OUT, cfg.DATA, cfg.MODE = Path("b"), PurePosixPath("c"), cfg.Mode.B
    cfg.BOTH[cfg.Mode.A].append(Path("y"))
    cfg.STATUS, cfg.NEW = http.HTTPStatus.GONE, Path("new")
    cfg.MADE, cfg.AWAY, cfg.BY_NAME = Path("not known"), Path("nor this"), cfg.Mode.A
    cfg.TEXT = "computed, as the last three"
    found = changed_variables(reached(modules_of(tmp_path, job)))
    assert changed(tmp_path, job)["cfg"] == {
        "OUT": Path("b"),
        "DATA": PurePosixPath("c"),
        "MODE": cfg.Mode.B,
        "BOTH": {cfg.Mode.A: [Path("x"), Path("y")]},
        "STATUS": http.HTTPStatus.GONE,
        "NEW": Path("new"),
    }
    assert found.kept == {}
    (notice,) = change_notices(found)
    assert "OUT is PosixPath('b'), in the file PosixPath('out/a'); " in notice
    assert "MODE is Mode.B, in the file Mode.A" in notice
    assert "BOTH is {Mode.A: [" in notice


REGISTRIES = """
OPTIONS: dict = {}
NAMES = []
SEEN = []
LATER = {}
CALLED = {}
LARGE = []
def see(name):
    SEEN.append(name)
"""


def test_what_was_empty_and_is_filled_from_elsewhere(load: Load, tmp_path: Path) -> None:
    """A registry or a cache is the business of the code that fills it."""
    cfg: Any = load("cfg", REGISTRIES)
    load("other", "import cfg\nfrom cfg import NAMES\ndef add(): cfg.LATER['a'] = NAMES\n")
    job = load("job", "import cfg, other\ndef f(): return cfg.OPTIONS, other")
    assert changed(tmp_path, job) == {}
    cfg.OPTIONS["lr"] = 0.5
    cfg.NAMES = ["a"]
    cfg.see("b")
    cfg.LATER["c"] = 1
    cfg.CALLED["d"] = print
    cfg.LARGE.extend(range(1001))
    found = changed_variables(reached(modules_of(tmp_path, job)))
    assert changed(tmp_path, job) == {"cfg": {"OPTIONS": {"lr": 0.5}, "NAMES": ["a"]}}
    assert found.kept == {}


def test_what_is_in_itself_is_not_plain(load: Load, tmp_path: Path) -> None:
    cfg: Any = load("cfg", "A = [1]\nB = {1: 2}\nC = [0]\nD = []\n")
    job = load("job", "import cfg\ndef f(): return cfg.A")
    cfg.A.append(cfg.A)
    cfg.B["b"] = {"c": cfg.B}
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    cfg.C = deep
    cfg.NEW = deep
    cfg.D = [1]
    for _ in range(60):
        cfg.D = [cfg.D, cfg.D]
    assert list(changed(tmp_path, job)["cfg"]) == ["D"]
    (_, notice) = change_notices(changed_variables(reached(modules_of(tmp_path, job))))
    assert "A is an object of class list, in the file [1]; B is an object of class dict" in notice


def test_what_cannot_be_sent_is_named(load: Load, tmp_path: Path) -> None:
    """Its value may be a client that holds a secret: only its class is said."""
    cfg: Any = load("cfg", "CLIENT = None\nMODE = 1\nSIZES = [1]\nLATE = None\n")
    load("other", "import cfg\ndef begin():\n    cfg.LATE = object()\n")
    job = load("job", "import cfg, other\ndef f(): return cfg.CLIENT, other")

    class Token(Enum):
        SECRET = "hunter2"

    cfg.CLIENT, cfg.MODE, cfg.SIZES, cfg.LATE = Token, Token.SECRET, [Token.SECRET], object()
    found = changed_variables(reached(modules_of(tmp_path, job)))
    assert found.sent == {}
    (notice,) = change_notices(found)
    assert notice.startswith(
        "variables of cfg were set since it was imported, and the job does not get their"
    )
    assert "CLIENT is an object of class EnumType, in the file None; MODE is an object of class " in notice
    assert "SIZES is an object of class list, in the file [1]" in notice
    assert "LATE" not in notice, "what the job imports may set it there, too"
    assert "hunter2" not in notice


@pytest.mark.attack
def test_a_notice_shows_no_secret(load: Load, tmp_path: Path) -> None:
    """A notice ends in the log of a task. Whether there is a secret at all, it may say."""
    cfg = load("cfg", "API_KEY = ''\nDATABASE = {'password': None, 'tokens': {'a': 'x'}, 'port': 1}\n")
    job = load("job", "import cfg\ndef f(): return cfg.API_KEY, cfg.DATABASE")
    cfg.API_KEY = "sk-1234"  # type: ignore[attr-defined]
    cfg.DATABASE = {"password": "hunter2", "tokens": {"a": "ghp"}, "port": 2}  # type: ignore[attr-defined]
    (notice,) = change_notices(changed_variables(reached(modules_of(tmp_path, job))))
    assert "API_KEY is ***, in the file ''; DATABASE is {'password': ***, 'tokens':" in notice
    assert not any(secret in notice for secret in ("sk-1234", "hunter2", "ghp"))


OWN_BUSINESS = """
import os, logging
count = 0
ready = False
seen: list = []
cache = {}
names = ["a"]
table = {"a": 1}
log = logging.getLogger("x")
home = os.environ.get("HOME")
retries = 1
if home:
    retries = 2
try:
    speed = 1
except ValueError:
    pass
total = 0
for total in range(3):
    pass
_private = 1
def work():
    global count, ready
    count += 1
    ready = True
    seen.append(1)
    cache["a"] = 1
    names.append("b")
    table.setdefault("b", 2)
"""


def test_what_a_module_changes_itself_is_no_news(load: Load, tmp_path: Path) -> None:
    module = load("busy", OWN_BUSINESS)
    module.work()
    vars(module)["_private"] = 2
    module.log = module.work  # type: ignore[attr-defined]
    assert changed(tmp_path, load("job", "import busy\ndef f(): return busy.count")) == {}


def test_equal_values_are_no_change(load: Load, tmp_path: Path) -> None:
    cfg = load("cfg", "A = float\nNAN = 1e999 - 1e999\nPAIR = (1, -2)\nTEXT = 'a' 'b'\nSIZE = 1 << 20\n")
    job = load("job", "import cfg\ndef f(): return cfg.A")
    assert changed(tmp_path, job) == {}
    cfg.PAIR = [1, -2]  # type: ignore[attr-defined]
    assert changed(tmp_path, job) == {"cfg": {"PAIR": [1, -2]}}


def test_only_what_the_job_reaches_counts(load: Load, tmp_path: Path) -> None:
    cfg = load("cfg", "LR = 0.1\n")
    cfg.LR = 0.5  # type: ignore[attr-defined]
    job = load("job", "import cfg\ndef f(): return 1\ndef main(): return cfg.LR")
    assert changed(tmp_path, job) == {}


@pytest.mark.parametrize(
    ("pattern", "entry"), [("*_pb2.py\n", "gen/a_pb2.py"), ("gen/\n", "gen/"), ("/gen\n", "gen/")]
)
def test_an_imported_module_that_would_not_ship(load: Load, tmp_path: Path, pattern: str, entry: str) -> None:
    load("gen.a_pb2", "X = 1\n")
    load("gen.b_pb2", "X = 1\n")
    modules = modules_of(tmp_path, load("job", "from gen import a_pb2\ndef f(): return a_pb2.X"))
    project = Project(tmp_path)
    check_ships(project, modules, reached(modules), True)
    (tmp_path / ".gitignore").write_text(pattern)
    with pytest.raises(InvalidProject) as caught:
        check_ships(project, modules, reached(modules), True)
    text = str(caught.value)
    assert text.startswith(
        "the job would import gen.a_pb2, and gen/a_pb2.py does not ship: .gitignore leaves"
    )
    for line in (f"!{entry}", entry):
        assert f"'{line}'" in text
        (tmp_path / ".kineticignore").write_text(line + "\n")
        check_ships(project, modules, reached(modules), True)


def test_a_default_rule_is_named_too(load: Load, tmp_path: Path) -> None:
    load("logs.reader", "")
    modules = modules_of(tmp_path, load("job", "import logs.reader\ndef f(): return logs.reader"))
    with pytest.raises(InvalidProject, match=r"a default rule leaves out logs/\. Add a line '!logs/'"):
        check_ships(Project(tmp_path), modules, reached(modules), True)


def test_sets_and_new_names_are_found(load: Load, tmp_path: Path) -> None:
    cfg = load("cfg", "TAGS = {'a', 'b'}\nSEEN = {1}\ndef see(x): SEEN.add(x)\n")
    job = load("job", "import cfg\ndef f(): return cfg.TAGS, cfg.EXTRA")
    assert changed(tmp_path, job) == {}
    cfg.TAGS.add("c")
    cfg.see(2)
    cfg.EXTRA = 7  # type: ignore[attr-defined]
    cfg.LOCK = object()  # type: ignore[attr-defined]
    assert changed(tmp_path, job) == {"cfg": {"TAGS": {"a", "b", "c"}, "EXTRA": 7}}
    (notice,) = change_notices(changed_variables(reached(modules_of(tmp_path, job))))
    assert "EXTRA is 7, in the file not set" in notice


@pytest.mark.parametrize(
    "setting",
    [
        "import cfg\ncfg.EXTRA = 7\n",
        "import cfg\ndef late():\n    setattr(cfg, 'EXTRA', 7)\nlate()\n",
    ],
)
def test_what_another_module_sets_is_no_news(load: Load, tmp_path: Path, setting: str) -> None:
    """A fresh import has it as well, or the module knows why."""
    load("cfg", "LR = 0.1\n")
    load("other", setting)
    assert changed(tmp_path, load("job", "import cfg, other\ndef f(): return cfg.EXTRA, other")) == {}


@pytest.mark.parametrize(
    "source", ["from base import *\n", "globals()['EXTRA'] = 7\n", "import base as EXTRA\n"]
)
def test_names_that_a_source_may_set_are_not_new(load: Load, tmp_path: Path, source: str) -> None:
    load("base", "EXTRA = 7\n")
    cfg = load("cfg", source)
    cfg.EXTRA = 7  # type: ignore[attr-defined]
    assert changed(tmp_path, load("job", "import cfg\ndef f(): return cfg.EXTRA")) == {}


def test_modules_of_the_project_are_known_among_installed_ones(
    tmp_path_factory: pytest.TempPathFactory, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flit may install a link to a module or a package: site-packages then has what is the project's own."""
    load("one", "def f(): return 1")
    load("pack.two", "")
    packages = tmp_path_factory.mktemp("installed") / "site-packages"
    (packages / "theirs").mkdir(parents=True)
    (packages / "theirs/three.py").touch()
    (packages / "linked_one.py").symlink_to(tmp_path / "one.py")
    (packages / "linked_pack").symlink_to(tmp_path / "pack")
    monkeypatch.syspath_prepend(str(packages))
    for name in ("linked_one", "linked_pack.two", "theirs.three"):
        importlib.import_module(name)
    assert ProjectModules(str(tmp_path)).names() == ["linked_one", "linked_pack.two", "one", "pack.two"]
