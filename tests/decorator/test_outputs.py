"""What a job leaves in its output directory, seen from the handle."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kinetic_core
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.submit import submit_clientless
from kinetic_core.connections import default_connections
from kinetic_core.errors import ObjectNotFound, StoreError
from kinetic_core.jobs.bundle import pack
from kinetic_core.jobs.outputs import BatchOutputs, Outputs, count_batch_outputs
from kinetic_core.options import RunOptions
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


@pytest.mark.parametrize("group_id", ["grp-own", "grp-asked"])
def test_outputs_of_a_batch_are_counted_together(tmp_path: Path, group_id: str) -> None:
    place = str(tmp_path / "out") if group_id == "grp-asked" else None
    options = RunOptions.checked("cpu", output_dir=place)
    packed = pack(train.__wrapped__, options, default_connections())
    plan = Plan(group_id, False, "args", 8, False, False, "a", {})
    whole = submit_clientless(packed, [("one",), ("three",)], plan)
    kinetic_core.attach_batch(group_id).wait(timeout=60)
    folder = Path(place or f"{unquote(urlsplit(whole.store_uri).path)}/outputs")
    start = "" if place else f"{group_id}-"
    for other in (f"{start}7/of-no-input", f"{group_id}x-1/of-another", f"{start}x/of-nobody"):
        (folder / other).parent.mkdir()
        (folder / other).write_text("not counted")
    found = count_batch_outputs(packed.backend.connections, whole, 2)
    assert found == BatchOutputs(f"{whole.output_dir}*", files=4, size=3 + 5 + 4 + 4)
    assert whole.output_dir == f"{folder}/{start}"
    many = count_batch_outputs(packed.backend.connections, whole, 2, most=3)
    assert many == BatchOutputs(found.location, None, None)


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
