"""What a failure tells through `kinetic_core.compat`; on a cluster in test_compat_nightly.py."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.compat.job_status import JobStatus

pytestmark = pytest.mark.usefixtures("local_jobs")
on_cpu = kinetic.run(accelerator="cpu")


class Stubborn:
    """It can travel to a job, and not back."""

    def __repr__(self) -> str:
        return "<a Stubborn of 7>"


class Absent:
    """Its pickle imports a module that only the submitter has."""

    def __reduce__(self) -> Any:
        return __import__, ("only_on_the_submitters_machine",)


@on_cpu
def give_back(*args: Any, **kwargs: Any) -> Any:
    value = Stubborn()
    value.lock = threading.Lock()  # type: ignore[attr-defined]
    return value


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((1, threading.Lock()), {}, r"argument .*\(lock\) cannot be sent"),
        ((), {"rate": threading.Lock()}, r"argument 'rate' \(lock\) cannot be sent"),
    ],
)
def test_an_argument_that_cannot_travel_is_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    before = [job.job_id for job in kinetic.list_jobs()]
    with pytest.raises(ValueError, match=said):
        give_back.run_async(*args, **kwargs)
    assert [job.job_id for job in kinetic.list_jobs()] == before


@pytest.mark.slow
def test_a_value_that_cannot_travel_shows_its_repr() -> None:
    handle = give_back.run_async()
    with pytest.raises(RuntimeError) as caught:
        handle.result(timeout=300)
    assert "<a Stubborn of 7>" in "".join([str(caught.value), *caught.value.__notes__])
    handle.cleanup()


@pytest.mark.slow
def test_a_module_that_the_job_lacks_is_named() -> None:
    handle = give_back.run_async(Absent())
    with pytest.raises(RuntimeError, match="only_on_the_submitters_machine"):
        handle.result(timeout=300)
    handle.cleanup()


@pytest.mark.slow
def test_a_handle_that_nobody_can_read_is_left_out() -> None:
    whole, broken = give_back.run_async(), give_back.run_async()
    name = f"jobs/{broken.job_id}/handle.json"
    content = broken.place.store.read(name)
    broken.place.store.delete(name)
    broken.place.store.create_if_absent(name, b"{broken")
    try:
        listed = [job.job_id for job in kinetic.list_jobs()]
        assert whole.job_id in listed
        assert broken.job_id not in listed
    finally:
        broken.place.store.delete(name)
        broken.place.store.create_if_absent(name, content)
        for handle in (whole, broken):
            handle.cleanup()


@pytest.mark.slow
def test_what_is_removed_of_a_job_is_its_own() -> None:
    """A prefix without its slash would reach jobs whose id begins like this one."""
    handle = give_back.run_async()
    neighbour = f"jobs/{handle.job_id}0/handle.json"
    handle.place.store.create_if_absent(neighbour, b"{}")
    handle.cleanup()
    assert list(handle.place.store.list(f"jobs/{handle.job_id}/")) == []
    assert handle.place.store.read(neighbour) == b"{}"
    handle.place.store.delete(neighbour)
    assert handle.status() is JobStatus.NOT_FOUND
