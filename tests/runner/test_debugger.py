"""The runner's part in debugging: debugpy is installed, and all hosts of a slice wait for host 0."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.debugger import install
from tests.conftest import wait_for
from tests.debugger import Debugger
from tests.runner.attempts import JOB, Attempts


@pytest.fixture
def only_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place that uv and pip may install from; the tests' own uv is found."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
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


def test_hosts_begin_when_host_0_has_its_debugger(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)

    def touch(folder: str) -> None:
        import os
        from pathlib import Path

        Path(folder, f"began-{os.environ['KINETIC_HOST_INDEX']}").touch()

    attempts.submit(touch, str(tmp_path))
    hosts = [
        attempts.start(
            KINETIC_DEBUG_WAIT_TIMEOUT="600",
            KINETIC_HOST_COUNT="2",
            KINETIC_HOST_INDEX=str(host),
            KINETIC_POD_UID=f"uid-{host}",
            KINETIC_WORK_DIR=str(tmp_path / f"work-{host}"),
        )
        for host in range(2)
    ]
    place = object_names.debugger(JOB, "uid-0")
    wait_for(lambda: attempts.store.find(place) is not None)
    noted = tmp_path / "work-1" / "times"
    wait_for(lambda: noted.exists() and "debugger" in noted.read_text())
    assert not list(tmp_path.glob("began-*"))
    with Debugger(json.loads(attempts.store.read(place))["port"]) as debugger:
        debugger.attach({"localRoot": "/", "remoteRoot": "/"}, {})
        assert [host.wait(timeout=60) for host in hosts] == [wire.EXIT_SUCCEEDED] * 2
    assert {path.name for path in tmp_path.glob("began-*")} == {"began-0", "began-1"}
