"""What an ordinary task does with jobs through the hook. Needs Airflow's packages, not a running Airflow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import pytest

from kinetic_core import JobHandle, JobStatus, ResultReference
from kinetic_core.errors import InvalidRequest, JobCancelled, JobNotFound, WaitTimeout

if TYPE_CHECKING:
    from airflow_provider.hooks.kinetic import KineticHook

pytestmark = pytest.mark.airflow


class Model:
    """No plain value."""


def train(rate: float, text: str = "trained") -> dict[str, float]:
    print(text)
    return {"loss": rate}


def fail() -> None:
    raise ValueError("no such shard")


def make() -> Model:
    return Model()


def sleep() -> None:
    time.sleep(600)


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KineticHook:
    """A hook whose connection alone says that jobs run here."""
    from airflow_provider.hooks.kinetic import KineticHook

    extra = {"backend": "local", "namespace": "lab"}
    conn_id = f"lab_{token_hex(4)}"  # hooks of one connection share a client
    text = json.dumps({"conn_type": "kinetic", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    return KineticHook(conn_id)


def test_a_job_from_submission_to_result(hook: KineticHook) -> None:
    job = hook.submit(train, [0.5], {"text": "hello"}, accelerator="cpu")
    assert isinstance(job, JobHandle)
    assert (job.backend, job.namespace) == ("local", "lab")
    assert hook.result(job.job_id, timeout=60) == {"loss": 0.5}
    assert hook.status(job.job_id) is JobStatus.SUCCEEDED
    assert hook.logs(job.job_id) == job.logs() == "hello\n"


def test_a_value_that_is_no_plain_data_is_not_unpickled(hook: KineticHook) -> None:
    found = hook.result(hook.submit(make, accelerator="cpu").job_id, timeout=60)
    assert isinstance(found, ResultReference)
    assert type(found.load(trust_store=True)).__name__ == "Model"


def test_a_failure_of_the_function_is_raised(hook: KineticHook) -> None:
    job_id = hook.submit(fail, accelerator="cpu").job_id
    with pytest.raises(ValueError, match="no such shard"):
        hook.result(job_id, timeout=60)
    failure = hook.observe(job_id).failure
    assert failure is not None
    assert failure.failure_class == "user error"


def test_a_job_is_waited_for_and_cancelled(hook: KineticHook) -> None:
    job_id = hook.submit(sleep, accelerator="cpu").job_id
    with pytest.raises(WaitTimeout):
        hook.result(job_id, timeout=0.1)
    assert not hook.status(job_id).is_terminal
    hook.cancel(job_id)
    assert hook.status(job_id) is JobStatus.CANCELLED
    with pytest.raises(JobCancelled):
        hook.result(job_id)


def test_what_cannot_work_is_refused(hook: KineticHook) -> None:
    with pytest.raises(InvalidRequest):
        hook.submit(train, [0.5], accelerator="tpu-v9-8")
    for ask in (hook.status, hook.logs, hook.result, hook.cancel):
        with pytest.raises(JobNotFound, match="job-0000000000000000"):
            ask("job-0000000000000000")


def test_without_a_connection_the_environment_decides(
    hook: KineticHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    mine = type(hook)(None)
    assert mine.submit(train, [0.5], accelerator="cpu").namespace == "default"
