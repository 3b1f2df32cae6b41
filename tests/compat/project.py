"""A project as users of keras-kinetic have it, whose function tells what a job finds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

TRAIN = '''\
"""Entry of the project: in a package, below `src`."""

import os
import stat
import sys
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import NamedTuple

import compat_helper


class Row(NamedTuple):
    path: str
    size: int


class Paths(list):
    """A list of its own."""


def scale(number):
    return number * compat_helper.FACTOR


def tried(path):
    """Write a file below the directory; whether that worked."""
    try:
        Path(path, "written-by-the-job").write_text("x")
    except OSError:
        return False
    return True


def look(folder, one, nested, own, *, place, variables):
    import compat_package.lazy  # nobody has imported it here

    print("a line of the job", flush=True)
    here = Path.cwd()
    output = os.environ["KINETIC_OUTPUT_DIR"]
    if "://" not in output:
        Path(output, "made.txt").write_text("made")
    threading.Thread(target=time.sleep, args=(3600,), daemon=False, name="lingering").start()
    return {
        "relative": Path("data/words.txt").read_text(),
        "module": look.__module__,
        "helper": compat_helper.name(),
        "scaled": scale(2),
        "lazy": compat_package.lazy.NAME,
        "path": [Path(entry).name for entry in sys.path if entry.startswith(str(here))],
        "files": sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()),
        "empty": (here / "empty").is_dir(),
        "linked": sorted(os.listdir("linked")) + [str((here / "around").resolve().relative_to(here))],
        "own": sorted(os.listdir(own)),
        "mode": stat.S_IMODE((here / "run.sh").stat().st_mode),
        "environment": {name: os.environ.get(name) for name in variables},
        "folder": (type(folder).__name__, sorted(os.listdir(folder))),
        "one": (Path(one).name, Path(one).read_text()),
        "volume": sorted(os.listdir(place)),
        "types": {name: type(value).__name__ for name, value in nested.items()},
        "same": nested["row"].path == nested["paths"][0] == nested["ordered"]["again"],
        "untouched": nested["none"],
        "round": nested["list"][1] is nested["list"] and nested["tuple"][0][1] is nested["tuple"],
        "in_round": nested["list"][0] == nested["tuple"][0][0] == one,
        "factory": nested["grouped"]["never seen"],
        "writable": {name: tried(name) for name in (os.environ["HOME"], ".", "/tmp")},
        "user": os.getuid(),
    }


def row(path, size):
    return Row(path, size)


def nested(data):
    grouped = defaultdict(list)
    grouped["a"].append(data)
    none = {"steps": [1, (2, 3)]}
    itself, pair = [data], ([data],)
    itself.append(itself)
    pair[0].append(pair)
    return {
        "list": itself,
        "tuple": pair,
        "row": Row(data, 3),
        "paths": Paths([data]),
        "ordered": OrderedDict(again=data),
        "grouped": grouped,
        "counted": Counter("aab"),
        "none": none,
    }
'''
HELPER = '''\
"""A module of the project that the entry imports."""

FACTOR = 1


def name():
    return __name__
'''


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def project(root: Path) -> Iterator[ModuleType]:
    """Write it to `root` and work there; the module with the functions."""
    files = {
        "pyproject.toml": "[project]\nname = 'compat-project'\nversion = '0'\ndependencies = ['six']\n",
        ".kineticignore": "# left out\nleft_out.txt\nbig/\n",
        "left_out.txt": "x",
        "big/part": "x",
        ".venv/lib/module.py": "x",
        "node_modules/a.js": "x",
        ".git/config": "x",
        "src/__pycache__/old.pyc": "x",
        "data/words.txt": "one two",
        "own_data/part-0": "x",
        "run.sh": "#!/bin/sh\n",
        "src/compat_package/__init__.py": "",
        "src/compat_package/train.py": TRAIN,
        "src/compat_package/lazy.py": "NAME = 'imported in the job'\n",
        "src/compat_helper.py": HELPER,
    }
    write(root, **files)
    (root / "empty").mkdir()
    (root / "run.sh").chmod(0o755)
    (root / "broken").symlink_to("nowhere")
    (root / "linked").symlink_to("data")
    (root / "around").symlink_to(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.syspath_prepend(str(root / "src"))
        try:
            yield importlib.import_module("compat_package.train")
        finally:
            for name in [
                name for name in sys.modules if name.startswith(("compat_package", "compat_helper"))
            ]:
                del sys.modules[name]
