"""The example DAGs do what they say: all of them in one Airflow at once, their jobs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, Cases

pytestmark = pytest.mark.airflow
CONFIGURED: dict[str, dict[str, Any]] = {
    "training_sweep": {"epochs": 5},
    "tpu_fine_tuning": {"rehearse": 25},
    "batch_inference": {"shards": 3},
    "mixed_accelerators": {},
    "model_handover": {},
    "staged_pipeline": {},
}
"""Every example but the demo's own two, and the parameters it is started with."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("examples").resolve()
    extra = {"KINETIC_BACKEND": "local", "XDG_CACHE_HOME": str(home / "cache")}
    airflow = DemoAirflow(home, HERE.parent.parent / "example_dags", extra=extra)
    try:
        airflow.start()
        running = Cases(airflow)
        for dag_id, parameters in CONFIGURED.items():
            running.runs[dag_id] = airflow.run(dag_id, parameters)
        yield running
    finally:
        airflow.stop(patience=0)


@pytest.mark.promise("airflow: Sweep, fine-tune, inference, accelerators, references, groups with teardown")
@pytest.mark.promise("command: `example_dags/` run in a real Airflow")
def test_every_example_is_tested(examples: Cases) -> None:
    known = {each["dag_id"] for each in examples.api.call("GET", "/dags")["dags"]}
    assert known == {*CONFIGURED, "fan_out", "failures"}


def test_the_sweep_finds_the_best_combination(examples: Cases) -> None:
    assert examples.end("training_sweep") == "success"
    trials = examples.values("training_sweep", "train")
    assert [(trial["rate"], trial["momentum"]) for trial in trials] == [
        (0.03, 0.0),
        (0.03, 0.9),
        (0.3, 0.0),
        (0.3, 0.9),
    ]
    assert examples.value("training_sweep", "choose") == min(trials, key=lambda trial: trial["loss"])


@pytest.mark.promise("airflow: Sweep, fine-tune, inference, accelerators, references, groups with teardown")
@pytest.mark.promise("command: `example_dags/` run in a real Airflow")
def test_fine_tuning_goes_on_from_its_checkpoint(examples: Cases) -> None:
    assert examples.end("tpu_fine_tuning") == "success"
    assert examples.value("tpu_fine_tuning", "report") == (
        "weight 3.000 after 60 steps, the last attempt from 20"
    )
    assert examples.instance("tpu_fine_tuning", "tune")["try_number"] == 1


@pytest.mark.promise("scale: `example_dags/batch_inference.py` promises what is true")
def test_inference_is_reduced_from_references(examples: Cases) -> None:
    assert examples.end("batch_inference") == "success"
    assert len(examples.instances("batch_inference", "score")) == 1
    reduced = examples.value("batch_inference", "reduce")
    assert reduced["records"] == 3000
    assert 0.49 < reduced["mean"] < 0.51


@pytest.mark.promise("airflow: Sweep, fine-tune, inference, accelerators, references, groups with teardown")
def test_each_instance_has_an_accelerator_of_its_own(examples: Cases) -> None:
    assert examples.end("mixed_accelerators") == "success"
    results = examples.values("mixed_accelerators", "on_each")
    assert [(each["machine"], each["size"]) for each in results] == [
        ("cpu", 60),
        ("gpu-l4-1", 80),
        ("tpu-v5e-4", 100),
    ]


def test_a_model_reaches_the_tasks_that_use_it(examples: Cases) -> None:
    assert examples.end("model_handover") == "success"
    assert examples.value("model_handover", "judge") == "Finnish"
    assert examples.value("model_handover", "describe").startswith("a ")


@pytest.mark.promise(
    "airflow: Sweep, fine-tune, inference, accelerators, references, groups with teardown",
    "and the others of this file",
)
def test_groups_share_a_temporary_scratch_directory(examples: Cases) -> None:
    assert examples.end("staged_pipeline") == "success"
    assert examples.value("staged_pipeline", "compare") == ["all", "and", "gold", "is", "that", "well"]
    assert not Path(examples.value("staged_pipeline", "make_scratch")).exists()
