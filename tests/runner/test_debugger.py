"""debugpy where the image has none: installed, or said why not."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kinetic_core._runner.debugger import install


@pytest.fixture
def only_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place that uv and pip may install from."""
    index = tmp_path / "index"
    index.mkdir()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(index)), ("OFFLINE", "1")):
        monkeypatch.setenv(f"UV_{name}", value)
        monkeypatch.setenv(f"PIP_{name}", value)
    return index


def test_it_is_installed_beside_everything_else(tmp_path: Path, only_index: Path) -> None:
    about = "debugpy-1.0.dist-info"
    with zipfile.ZipFile(only_index / "debugpy-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("debugpy/__init__.py", "answer = 42\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: debugpy\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    install(str(tmp_path / "debugger"))
    assert (tmp_path / "debugger/debugpy/__init__.py").read_text() == "answer = 42\n"


def test_what_is_to_be_done_is_said_where_it_cannot_be(tmp_path: Path, only_index: Path) -> None:
    with pytest.raises(ValueError, match=r"debug=True needs debugpy.*(?s:.)*Name debugpy in the project's"):
        install(str(tmp_path / "debugger"))
