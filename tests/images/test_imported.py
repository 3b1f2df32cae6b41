"""What a function imports and no requirement names is installed as it is installed here, and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_core.images.discovery import find_dependencies
from kinetic_core.images.frameworks import Installation, choose
from kinetic_core.images.imported import with_imports
from kinetic_core.images.lock_files import environment
from kinetic_core.images.requirements import Dependencies, lines
from kinetic_core.project.import_closure import foreign_imports

PLACES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HOME")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and packages of this machine: `ours_a`, which needs `ours-b`, and `ours-c` from a file."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    packages = tmp_path / "site-packages"
    install(packages, "ours_a", "1.5+cpu", requires="ours-b")
    install(packages, "ours-b", "2.0")
    install(packages, "ours-c", "3.0", url='{"url": "file:///home/me/c"}')
    monkeypatch.syspath_prepend(str(packages))
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    return root


def install(packages: Path, name: str, version: str, *, requires: str = "", url: str = "") -> None:
    module = name.replace("-", "_")
    (packages / module).mkdir(parents=True)
    (packages / module / "__init__.py").write_text("")
    facts = packages / f"{module}-{version}.dist-info"
    facts.mkdir()
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    (facts / "RECORD").write_text(f"{module}/__init__.py,,\n")
    if url:
        (facts / "direct_url.json").write_text(url)


def needed(root: Path, code: str, *requirements: str, function: str = "train") -> Dependencies:
    (root / "train.py").write_text(code)
    found = find_dependencies(list(requirements), root=root, script=root / "train.py", target=environment())
    return with_imports(found, root / "train.py", function, [root])


IMPORTS = """
import sys
import ours_a
import ours_b
import keras

def helper():
    return ours_a.x

def train():
    import json
    return helper()

def other():
    return ours_b, keras
"""


def test_what_the_function_uses_is_installed_as_it_is_here(project: Path) -> None:
    found = needed(project, IMPORTS, "packaging")
    assert lines(found.wanted) == ("ours-a==1.5", "packaging")
    assert found.notices == (
        "installed besides, because no requirement names it: ours-a==1.5 (imported by train.py:3)",
    )


def test_what_a_requirement_brings_is_left_to_it(project: Path) -> None:
    assert lines(needed(project, IMPORTS, "ours_a", function="other").wanted) == ("keras", "ours-a")


def installation(root: Path, code: str, kind: str, *, has_framework: bool = False) -> Installation:
    return choose(needed(root, code, "six"), kind, has_framework=has_framework)


def test_keras_comes_with_its_backend(project: Path) -> None:
    code = "import keras\ndef train():\n    return keras.Model\n"
    assert installation(project, code, "cpu").lines == ("jax", "keras", "six")
    assert installation(project, code, "tpu").lines == ("jax[tpu]", "keras", "six")
    assert installation(project, code, "cpu", has_framework=True).lines == ("six",)
    assert installation(project, "def train():\n    pass\n", "cpu").lines == ("six",)


def test_modules_of_the_project_are_followed_and_never_installed(project: Path) -> None:
    (project / "model.py").write_text("import ours_b\nimport train_utils\n")
    (project / "train_utils.py").write_text("")
    (project / "ours_a").mkdir()
    found = needed(project, "import model, ours_a\ndef train():\n    return model.x, ours_a\n")
    assert lines(found.wanted) == ("ours-b==2.0",)


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import ours_a\nexcept ImportError:\n    ours_a = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ours_a\n",
        "import json as ours_a\n",
        "import nobody_has_this_package as ours_a\n",
        "import kinetic_core as ours_a\n",
    ],
)
def test_what_may_be_missing_is_not_installed(project: Path, code: str) -> None:
    found = needed(project, f"{code}\ndef train():\n    return ours_a\n")
    assert (found.wanted, found.notices) == ((), ())


@pytest.mark.attack
def test_a_private_package_is_never_fetched_from_a_public_index(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import ours_a, ours_c\ndef train():\n    return ours_a, ours_c\n"
    found = needed(project, code)
    assert lines(found.wanted) == ("ours-a==1.5",)
    assert "ours_c (train.py:1): ours-c was not installed from a package index" in found.notices[1]
    monkeypatch.setenv("UV_INDEX", "https://packages.example.com/simple")
    found = needed(project, code)
    assert found.wanted == ()
    assert "ours-a may be from the package index of UV_INDEX" in found.notices[0]
    assert lines(needed(project, "import keras\ndef train():\n    return keras\n").wanted) == ("keras",)
    monkeypatch.delenv("UV_INDEX")
    (project.parent / ".config/pip").mkdir(parents=True)
    (project.parent / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://x.example\n")
    assert needed(project, code).wanted == ()


def test_a_package_that_is_not_here_may_bring_its_own(project: Path) -> None:
    found = needed(project, IMPORTS, "not-installed-here")
    assert lines(found.wanted) == ("not-installed-here",)
    assert "not-installed-here is not installed here, so what it requires is not known" in found.notices[0]


def test_what_an_added_package_brings_is_not_told(project: Path) -> None:
    install(project.parent / "site-packages", "keras", "3.5", requires="ours-b")
    found = needed(project, IMPORTS, "not-installed-here", function="other")
    assert lines(found.wanted) == ("keras==3.5", "not-installed-here")
    assert found.notices == (
        "installed besides, because no requirement names it: keras==3.5 (imported by train.py:5)",
    )


def test_a_file_that_cannot_be_read_imports_nothing(project: Path) -> None:
    (project / "broken.py").write_text("def (")
    assert foreign_imports(str(project / "broken.py"), "train", [str(project)]) == {}
    assert foreign_imports(str(project / "absent.py"), "train", [str(project)]) == {}
