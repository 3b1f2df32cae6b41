"""What a job leaves in its output directory, seen from the handle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.errors import ObjectNotFound, StoreError
from kinetic_core.jobs.outputs import Outputs
from kinetic_core.testing.memory_store import MemoryObjectStore

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu")
def train(name: str) -> str:
    out = Path(os.environ["KINETIC_OUTPUT_DIR"])
    (out / "logs").mkdir()
    (out / "model.bin").write_text(name)
    (out / "logs/a.txt").write_text("line")
    return str(out)


@pytest.mark.promise("data: `handle.outputs()` lists and downloads")
def test_outputs_are_listed_and_downloaded_after_clean_up(tmp_path: Path) -> None:
    handle = train.run_async("one")
    where = handle.result()
    outputs = kinetic_core.attach(handle.job_id).outputs()
    assert [(file.name, file.size) for file in outputs] == [("logs/a.txt", 4), ("model.bin", 3)]
    assert outputs.location == where
    paths = outputs.download(tmp_path / "here")
    assert [path.read_text() for path in paths] == ["line", "one"]
    assert outputs.download(tmp_path / "logs", "logs/*") == [tmp_path / "logs/logs/a.txt"]
    assert outputs.read("model.bin") == b"one"
    with pytest.raises(ObjectNotFound, match=r"no file like '\*.ckpt'"):
        outputs.download(tmp_path, "*.ckpt")


@pytest.mark.promise("data: `KINETIC_OUTPUT_DIR`, unique per job and child")
def test_each_job_and_each_child_has_its_own(tmp_path: Path) -> None:
    first, second = train.run_async("a"), train.run_async("b")
    assert first.result() != second.result()
    asked = kinetic_core.run(accelerator="cpu", output_dir=str(tmp_path / "out"))(train.__wrapped__)
    batch = asked.run_async_map(["x", "y"])
    assert batch.results(cleanup=False) == [str(tmp_path / "out/0"), str(tmp_path / "out/1")]
    read = [job.outputs().read("model.bin") for job in batch.jobs if job is not None]
    assert read == [b"x", b"y"]


def test_a_job_without_outputs_has_none() -> None:
    @kinetic_core.run(accelerator="cpu")
    def nothing() -> None:
        return None

    handle = nothing.run_async()
    handle.result()
    assert list(handle.outputs()) == []


def test_a_name_that_leads_elsewhere_is_not_downloaded(tmp_path: Path) -> None:
    class Forged(MemoryObjectStore):
        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            for info in super().list(prefix):
                yield type(info)("../" + info.name, info.size, info.created)

    store = Forged()
    store.create_if_absent("evil", b"x")
    with pytest.raises(StoreError, match=r"'../evil' cannot be a path"):
        Outputs("gs://b/o", store).download(tmp_path / "in")
    assert not (tmp_path / "evil").exists()
