"""XComs of the provider itself, with Airflow's XCom backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider.records import pulled, push


class Instance(SimpleNamespace):
    """A task instance, with the XComs that it has pushed."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.kept[key, self.map_index] = value

    def xcom_pull(self, task_ids: str, key: str, map_indexes: int) -> Any:
        assert task_ids == self.task_id
        return self.kept.get((key, map_indexes))


def test_what_an_instance_pushed_it_pulls() -> None:
    for map_index in (-1, 3):
        ti = Instance(dag_id="d", run_id="r", task_id="t", map_index=map_index, kept={})
        push(ti, "kinetic_job", {"reference": 1})
        assert pulled(ti, "kinetic_job") == {"reference": 1}
        assert pulled(ti, "another") is None
