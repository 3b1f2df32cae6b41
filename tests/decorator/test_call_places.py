"""What a job finds and leaves: data, volumes, outputs, the store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.errors import InvalidRequest
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")

on_cpu = kinetic_core.run(accelerator="cpu")


def test_data_becomes_a_path(tmp_path: Path) -> None:
    (tmp_path / "set" / "empty").mkdir(parents=True)
    (tmp_path / "set" / "a.txt").write_text("A")
    (tmp_path / "one.bin").write_bytes(b"1")

    @on_cpu
    def read(folder: str, deep: dict[str, list[str]]) -> Any:
        return (
            sorted(path.name for path in Path(folder).iterdir()),
            Path(deep["x"][0]).read_bytes(),
            Path(deep["x"][0]).name,
            folder,
        )

    data = kinetic_core.Data(str(tmp_path / "one.bin"))
    names, content, name, folder = read(kinetic_core.Data(str(tmp_path / "set")), {"x": [data]})
    assert (names, content, name) == (["a.txt", "empty"], b"1", "one.bin")
    assert not folder.startswith(str(tmp_path / "set"))


def test_a_volume_stays_what_it_is_while_a_job_uses_it(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").touch()
    mount = str(tmp_path / "mounted")

    def listing(begun: str, go: str) -> list[str]:
        Path(begun).touch()
        while not Path(go).exists():
            time.sleep(0.01)
        return [entry.name for entry in Path(mount).iterdir()]

    def job(data: str) -> kinetic_core.JobHandle:
        volumes = {mount: kinetic_core.Data(str(tmp_path / data))}
        function = kinetic_core.run(accelerator="cpu", volumes=volumes)(listing)
        return function.run_async(str(tmp_path / f"{data}-begun"), str(tmp_path / "go"))

    first = job("first")
    wait_for((tmp_path / "first-begun").exists)
    second = job("second")
    try:
        wait_for(lambda: "other data is at" in (second.logs() or ""))
        assert not (tmp_path / "second-begun").exists()
    finally:
        (tmp_path / "go").touch()  # else the jobs keep every slot of this machine
    assert first.result() == ["first.txt"]
    assert second.result() == ["second.txt"]


def test_outputs_go_where_the_caller_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def work() -> None:
        Path(os.environ["KINETIC_OUTPUT_DIR"], "model").write_text("weights")

    kinetic_core.run(accelerator="cpu", output_dir="./outs")(work)()
    assert (tmp_path / "outs" / "model").read_text() == "weights"
    with pytest.raises(InvalidRequest, match=r"output_dir='gs://b/x' is no directory of this machine"):
        kinetic_core.run(accelerator="cpu", output_dir="gs://b/x")(work)()
    with pytest.raises(InvalidRequest, match=r"output_dir='.*caf\\udce9' cannot be encoded as UTF-8"):
        kinetic_core.run(accelerator="cpu", output_dir=os.fsdecode(b"caf\xe9"))(work)()


def test_the_store_is_no_part_of_a_project_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path))
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def names():\n    import os\n    return sorted(os.listdir())", namespace)
    names = on_cpu(namespace["names"])
    assert names() == ["here.txt"]
    handle = names.run_async()
    assert handle.result(cleanup=False) == ["here.txt"]
    (record,) = (tmp_path / "kinetic" / "cluster").rglob("job-*.json")
    for private in (tmp_path / "kinetic", record):  # the record holds the key of the outcome
        assert private.stat().st_mode & 0o077 == 0


def test_volumes_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("V")
    mount = tmp_path / "made" / "mount" / "here"

    @kinetic_core.run(accelerator="cpu", volumes={str(mount): kinetic_core.Data(str(tmp_path / "v.txt"))})
    def read() -> str:
        return (mount / "v.txt").read_text()

    assert [read(), read()] == ["V", "V"]
    wait_for(lambda: not (tmp_path / "made").exists())  # the machine's own directories stay as they were
    mount.parent.mkdir(parents=True)
    (mount.parent / "own").touch()
    assert read() == "V"
    wait_for(lambda: not mount.is_symlink())
    assert (mount.parent / "own").exists()
    (mount.parent / "own").unlink()
    assert read() == "V"
    wait_for(lambda: not mount.is_symlink())
    assert mount.parent.exists()  # another made it, empty or not
