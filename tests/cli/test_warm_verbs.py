"""`kinetic warm`: what is said of workers, and how they are stopped."""

from __future__ import annotations

import pytest

import kinetic_core
from kinetic_core import JobStatus
from tests.cli.published import PUBLISHED, misfits
from tests.conftest import Kinetic, wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


def test_workers_are_listed_and_stopped(kinetic: Kinetic) -> None:
    kinetic("warm", "stop", "--all")
    assert kinetic("warm", "list").out == "no workers\n"
    call = kinetic_core.run(accelerator="cpu", warm="1m")(len).run_async("four")
    assert call.result() == 4
    wait_for(lambda: kinetic("warm", "list", "--json").json["workers"][0]["is_idle"])
    told = kinetic("warm", "list", "--json").json
    assert misfits(told, PUBLISHED["warm.list/1"]) == []
    (worker,) = told["workers"]
    assert (worker["job_id"], worker["calls"], worker["idle_seconds"]) == (call.worker, 1, 60.0)
    assert f"{call.worker}  idle" in kinetic("warm", "list").out
    assert "idle" in kinetic("jobs", "explain", call.worker).out
    assert kinetic("warm", "stop").code == 2
    assert "is no worker that runs here" in kinetic("warm", "stop", call.job_id).err
    stopped = kinetic("warm", "stop", "--all", "--json").json
    assert (stopped["job_ids"], misfits(stopped, PUBLISHED["warm.stop/1"])) == ([call.worker], [])
    assert kinetic_core.attach(call.worker).status() is JobStatus.CANCELLED
