"""One pod of a batch runs its own input, verified, under its own name and key, unless it is told not to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.attempt import BadEnvironment, take_job
from kinetic_core.errors import JobCancelled, JobDeadlineExceeded, JobMisconfigured
from kinetic_core.jobs.collect import Outcome, read_outcome
from kinetic_core.project.payload import InputBlocks
from kinetic_core.project.serialization import Pickled
from tests.conftest import wait_for
from tests.runner.attempts import JOB, KEY, Attempts

GROUP = "grp-a"


class Batch(Attempts):
    """Attempts of input 7, the second of two that a Job runs."""

    def pack(self, function: Any, **inputs: Any) -> Batch:
        """Store a payload and the inputs 0 to 99, each its own number."""
        with (self.folder / "inputs").open("wb") as stream:
            blocks = InputBlocks(stream)
            for index in range(100):
                blocks.add(index, Pickled(cloudpickle.dumps(((index,), {})), b""))
            blocks.close()
        self.store.create_if_absent("inputs", self.folder / "inputs")
        table = {"object": "inputs", "blocks": blocks.blocks, **inputs}
        self.submit(function, inputs=table, output_dir=f"{self.folder}/out-")
        frame = self.store.read(object_names.payload(JOB, self.payload_sha256))
        header, parts = wire.decode_frame(frame)
        for name in ("arguments", "argument_copies"):
            del parts[name]
        payload = wire.encode_frame(header, parts)
        self.payload_sha256, self.payload_bytes = wire.digest(payload), len(payload)
        self.store.create_if_absent(object_names.batch_payload(GROUP, self.payload_sha256), payload)
        return self

    def environment(self, **changes: str) -> dict[str, str]:
        told = {"KINETIC_GROUP_ID": GROUP, "KINETIC_INDEXES": "3,7", "JOB_COMPLETION_INDEX": "1"}
        told["KINETIC_JOB_ID"] = f"{GROUP}-p0"
        return super().environment(**told, **changes)

    def child(self) -> Outcome:
        frame = self.store.read(object_names.result(f"{GROUP}-7"))
        return read_outcome(frame, wire.input_key(KEY, 7), job_id=f"{GROUP}-7")


def place(number: int) -> tuple[int, str, str]:
    import os

    return number, os.environ["KINETIC_JOB_ID"], os.environ["KINETIC_OUTPUT_DIR"]


def fail(number: int) -> None:
    raise ValueError(number)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def test_it_runs_its_own_input(batch: Batch) -> None:
    assert batch.pack(place).run() == wire.EXIT_SUCCEEDED
    assert batch.child().value_or_raise() == (7, f"{GROUP}-7", f"{batch.folder}/out-7")


@pytest.mark.attack
def test_a_payload_of_a_batch_that_was_changed_is_not_loaded(batch: Batch) -> None:
    name = object_names.batch_payload(GROUP, batch.pack(place).payload_sha256)
    other = batch.store.read(name).replace(b"function_name", b"function_Name")
    batch.store.delete(name)
    batch.store.create_if_absent(name, other)
    assert batch.run() == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobMisconfigured, match="not the one this job was submitted with"):
        batch.child().value_or_raise()


@pytest.mark.attack
def test_inputs_are_in_blocks_of_which_each_is_verified(batch: Batch) -> None:
    batch.pack(place)
    header, _ = wire.decode_frame(batch.store.read(object_names.batch_payload(GROUP, batch.payload_sha256)))
    blocks: Any = header["inputs"]
    assert [block[0] for block in blocks["blocks"]] == [0, 64]
    whole = bytearray(batch.store.read("inputs"))
    whole[200] ^= 1
    batch.store.delete("inputs")
    batch.store.create_if_absent("inputs", bytes(whole))
    assert batch.run() == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobMisconfigured, match="stored inputs are not those"):
        batch.child().value_or_raise()


@pytest.mark.promise("batches: Cancel one index")
def test_one_that_was_cancelled_does_not_start(batch: Batch) -> None:
    batch.pack(place).store.create_if_absent(object_names.cancel(f"{GROUP}-7"), b"{}")
    assert batch.run(KINETIC_FAIL_FAST="true") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobCancelled):
        batch.child().value_or_raise()
    assert batch.store.find(object_names.stop(GROUP)) is None


def test_none_of_a_cancelled_job_of_the_batch_starts(batch: Batch) -> None:
    """Its pod was told to end before its Python could hear it. Another Job of the same input runs it."""
    batch.pack(place).store.create_if_absent(object_names.chunk_cancel(GROUP, "key of the first Job"), b"")
    assert batch.run(KINETIC_KEY_ID="key of the first Job") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobCancelled):
        batch.child().value_or_raise()
    batch.store.delete(object_names.result(f"{GROUP}-7"))
    assert batch.run(KINETIC_KEY_ID="key of the second Job") == wire.EXIT_SUCCEEDED


def test_a_failure_stops_the_others_if_asked_for(batch: Batch) -> None:
    batch.pack(fail).retries = 1
    assert batch.run(KINETIC_FAIL_FAST="true") == wire.EXIT_USER_ERROR
    assert batch.store.find(object_names.stop(GROUP)) is None, "it has a retry left"
    batch.failed = 1
    assert batch.run() == wire.EXIT_USER_ERROR
    assert batch.store.find(object_names.stop(GROUP)) is None, "nobody asked for it"
    batch.store.delete(object_names.result(f"{GROUP}-7"))
    batch.failed, batch.ignored = 1, 1
    assert batch.run(KINETIC_FAIL_FAST="true") == wire.EXIT_USER_ERROR
    assert batch.store.find(object_names.stop(GROUP)) is not None


@pytest.mark.attack
@pytest.mark.promise("batches: `fail_fast` through the marker")
def test_after_anothers_failure_nothing_starts(batch: Batch) -> None:
    batch.pack(place).store.create_if_absent(object_names.stop(GROUP), b"")
    assert batch.run(KINETIC_FAIL_FAST="true") == wire.EXIT_NEVER_RETRY
    header, _ = wire.decode_frame(batch.store.read(object_names.result(f"{GROUP}-7")))
    assert header["state"] == wire.DROPPED
    assert batch.store.find(object_names.claim(f"{GROUP}-7", 0)) is None


@pytest.mark.attack
def test_stopped_by_its_owner_it_is_over_and_not_interrupted(batch: Batch) -> None:
    marker = batch.folder / "began"

    def wait(number: int) -> None:
        import time

        marker.touch()
        time.sleep(600)

    process = batch.pack(wait).start()
    wait_for(marker.exists)
    batch.store.create_if_absent(object_names.cancel(f"{GROUP}-7"), b"{}")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(90) == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobCancelled):
        batch.child().value_or_raise()


def test_an_index_that_the_job_does_not_have_is_refused(batch: Batch) -> None:
    environment = {**batch.pack(place).environment(), "JOB_COMPLETION_INDEX": "2"}
    with pytest.raises(BadEnvironment, match="wrongly"):
        take_job(environment)


def test_an_input_that_takes_too_long_is_ended(batch: Batch) -> None:
    def wait(number: int) -> None:
        import time

        time.sleep(600)

    batch.pack(wait)
    assert batch.run(KINETIC_TIMEOUT="1") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobDeadlineExceeded, match="1 s after it first started"):
        batch.child().value_or_raise()


def test_its_time_counts_from_its_first_attempt(batch: Batch) -> None:
    def wait(number: int) -> None:
        import time

        time.sleep(600)

    claim = object_names.claim(f"{GROUP}-7", 0)
    batch.pack(wait).store.create_if_absent(claim, b"{}")
    os.utime(batch.store.root / claim, (5, 5))
    batch.ignored = 1
    assert batch.run(KINETIC_TIMEOUT="600") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobDeadlineExceeded):
        batch.child().value_or_raise()


@pytest.mark.parametrize("minutes", [-60, 60])
def test_a_wrong_clock_of_a_node_takes_no_time_away(batch: Batch, minutes: int) -> None:
    """What its clock said is in its claim; when that was stored, the store knows."""
    claimed = f'{{"pod_uid": "first", "at": {time.time() + 60 * minutes}}}'.encode()
    batch.pack(abs).store.create_if_absent(object_names.claim(f"{GROUP}-7", 0), claimed)
    batch.ignored = 1
    assert batch.run(KINETIC_TIMEOUT="600") == wire.EXIT_SUCCEEDED
