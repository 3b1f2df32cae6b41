"""Tasks with `warm=`: they share workers, and lose nothing with one."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.observe import found
from kinetic_core.jobs.warm import workers

pytestmark = pytest.mark.airflow


def test_mapped_tasks_share_workers_and_outlive_one(cases: Any) -> None:
    backend = LocalBackend(cases.airflow.home / "kinetic")
    try:
        assert cases.end("warm") == "success"
        counted = cases.values("warm", "count")
        assert [number for number, _ in counted] == [1, 2, 3, 4, 5]
        used = [worker for _, worker in counted if worker]
        assert 1 <= len(set(used)) <= 2, "two tasks at a time"
        assert len(used) > len(set(used)), "a later task runs where an earlier one did"
        for each in cases.instances("warm", "count"):
            number = each["map_index"] + 1
            assert f"counting {number}\n" in cases.api.log(each).replace("\\n", "\n")
        assert cases.value("warm", "survive") == ["alive", 1]
        assert cases.value("warm", "add_up") == [6, 8]
        assert cases.instance("warm", "survive")["try_number"] == 1
    finally:
        for each in list(workers(backend, "default")):
            cancel(backend, found(backend, each.job_id))
