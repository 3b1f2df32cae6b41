"""What a kinetic task promises in a DAG, seen through Airflow's own API."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_core.backends.local.backend import LocalBackend
from tests.cluster.machine import NODES, relabelled

pytestmark = pytest.mark.airflow


@pytest.mark.promise("airflow: `@task.kinetic` and `KineticOperator`, local")
@pytest.mark.promise("airflow: `multiple_outputs`")
def test_every_shape_of_call(cases: Any) -> None:
    assert cases.end("shapes") == "success"
    assert cases.values("shapes", "add") == [11, 12, 13]
    assert cases.values("shapes", "pairwise") == [3, 7]
    assert cases.values("shapes", "partly") == [101, 102]
    assert cases.value("shapes", "one") == 15
    assert cases.value("shapes", "total") == 11 + 12 + 13 + 15
    assert cases.values("shapes", "split", "half") == [25]
    assert cases.values("shapes", "split", "text") == ["number 51"]
    assert cases.value("shapes", "halves") == 25


def test_templates_and_context_reach_the_function(cases: Any) -> None:
    assert cases.end("shapes") == "success"
    assert cases.value("shapes", "tell") == ["shapes", cases.runs["shapes"], {}]


@pytest.mark.promise("airflow: Everything overridable per task, by templates too")
def test_every_option_may_be_a_template_or_a_tasks_output(cases: Any) -> None:
    assert cases.end("templated") == "failed"
    log = cases.log("templated", "look")
    assert "AIRFLOW__METRICS__STATSD_ON is True (attempt 2" in log
    (told,) = cases.values("templated", "look", "kinetic_job")
    assert log.count(f"attempt 2 of {told['reference']['job_id']}") == 1, "its second attempt has a title"
    backend = LocalBackend(cases.airflow.home / "kinetic")
    found = backend.get(told["reference"]["namespace"], told["reference"]["job_id"])
    assert found is not None
    assert found[0]["metadata"]["labels"]["dag"] == "templated"
    assert found[0]["spec"]["activeDeadlineSeconds"] == 600
    filled_in = cases.instance("templated", "look")["rendered_fields"]
    assert filled_in["timeout"] in (600, "600")
    given = {"accelerator", "backend", "timeout", "job_retries", "labels", "capture_env_vars"}
    assert filled_in.keys() == {"op_args", "op_kwargs", *given}


@pytest.mark.promise("airflow: `@task.kinetic` and `KineticOperator`, local")
def test_the_operator_maps_over_the_accelerator(cases: Any) -> None:
    assert cases.end("classic") == "success"
    assert cases.values("classic", "describe") == ["cpu", "gpu-l4-1"]


@pytest.mark.promise("airflow: Held for seconds however long the job runs")
@pytest.mark.promise("airflow: Live while deferred")
@pytest.mark.promise("airflow: The local path has its own answer")
def test_a_long_job_needs_no_worker_and_shows_its_lines(cases: Any) -> None:
    assert cases.end("waiting") == "success"
    assert cases.value("waiting", "count") == "counted"
    log = cases.log("waiting", "count")
    lines = [line for line in log.splitlines() if line.endswith("of the job")]
    assert lines == [f"line {number} of the job" for number in range(30)]
    live = "line 20 of the job"  # the last ones may be shown by the worker that follows the trigger
    signs = ("Pausing task as DEFERRED", "no worker is held", live, "Trigger fired event")
    places = [log.index(sign) for sign in signs]
    assert places == sorted(places)


@pytest.mark.promise("airflow: What is finished before deferral never defers")
def test_a_try_that_finds_its_job_ended_never_defers(cases: Any) -> None:
    assert cases.end("ended") == "success"
    assert cases.instance("ended", "count")["try_number"] == 2
    assert cases.value("ended", "count") == "counted"
    assert "after its job has ended" in cases.log("ended", "count", 1)
    log = cases.log("ended", "count", 2)
    assert "adopted a job" in log
    assert "DEFERRED" not in log


@pytest.mark.promise("airflow: workload, logs, outputs")
def test_links_lead_to_what_a_job_left(cases: Any) -> None:
    assert cases.end("waiting") == "success"
    links = cases.links("waiting", "count")
    assert links["Job"].startswith("file:///")  # this machine's jobs have no page


@pytest.mark.promise("airflow: … and on `gke`", "decorator")
@pytest.mark.promise("airflow: Waiting for capacity is deferred")
@pytest.mark.promise("airflow: A waiting task's log says why, at each change")
@pytest.mark.promise("airflow: … and never floods")
@pytest.mark.usefixtures("cluster")
def test_a_fan_out_over_pods(cases: Any) -> None:
    assert cases.end("on_cluster") == "success"
    values = cases.values("on_cluster", "where")
    assert [number for number, _ in values] == [1, 2, 3]
    assert all(node.startswith("kinetic-job-") for _, node in values)
    assert cases.value("on_cluster", "count_nodes") == 3
    assert cases.value("on_cluster", "whatever_is_free") == "cpu"
    moved = cases.log("on_cluster", "whatever_is_free")
    reason = "is PENDING (Unschedulable)"
    assert moved.index(reason) < moved.index("; trying cpu")
    assert "Pausing task as DEFERRED" in moved
    assert 1 <= moved.count(reason) <= 2  # the worker says it, and the trigger that takes over
    for number, instance in enumerate(cases.instances("on_cluster", "where"), start=1):
        assert cases.api.log(instance).count(f"line {number} of the pod") == 1


def test_a_name_of_two_machines_is_the_clusters(cases: Any, cluster: Any) -> None:
    """Its pool is of the two hosts that keras-kinetic means; without one, the name is one host."""
    with relabelled(cluster, NODES, "tpu-v6e-8-4t"):
        assert cases.end("named_by_pool") == "success"
    assert cases.value("named_by_pool", "hosts") == ["tpu-v6e-8-4t", 2]
    (told,) = cases.values("named_by_pool", "hosts", "kinetic_job")
    assert told["reference"]["accelerator"] == "tpu-v6e-8-4t"


@pytest.mark.promise("airflow: … and on `gke`")
@pytest.mark.usefixtures("cluster")
def test_the_operator_runs_a_pod(cases: Any) -> None:
    assert cases.end("on_cluster") == "success"
    word, node = cases.value("on_cluster", "operated")
    assert (word, node[:12]) == ("operated", "kinetic-job-")
    links = cases.links("on_cluster", "operated")
    bucket = cases.airflow.environment["KINETIC_BUCKET"]
    assert links["Job"].startswith(f"https://console.cloud.google.com/storage/browser/{bucket}/")


@pytest.mark.promise("airflow: References resolved pod-to-pod")
@pytest.mark.usefixtures("cluster")
def test_what_xcom_cannot_carry_goes_from_pod_to_pod(cases: Any) -> None:
    assert cases.end("on_cluster") == "success"
    packed = cases.value("on_cluster", "pack")
    assert packed["__kinetic_result__"] == 1
    assert cases.value("on_cluster", "unpack") == ["Box", 7]


@pytest.mark.promise("airflow: Outputs published as Assets with URIs", "`gs://`")
@pytest.mark.promise("page: with metadata (job, digest, size), consumer DAG started")
@pytest.mark.usefixtures("cluster")
def test_outputs_of_a_pod_become_an_asset_of_the_bucket(cases: Any) -> None:
    assert cases.end("on_cluster") == "success"
    events = cases.api.call("GET", "/assets/events?source_dag_id=on_cluster")["asset_events"]
    (event,) = events
    bucket = cases.airflow.environment["KINETIC_BUCKET"]
    assert event["extra"]["uri"].startswith(f"gs://{bucket}/")
    assert (event["extra"]["files"], event["source_task_id"]) == (1, "pack")
    assert event["uri"] == event["extra"]["uri"]


def test_without_deferral_the_outcome_is_the_same(cases: Any) -> None:
    assert cases.end("waiting") == "success"
    assert cases.value("waiting", "inline") == "counted"
    log = cases.log("waiting", "inline")
    assert [line for line in log.splitlines() if line.endswith("of the job")] == [
        f"line {number} of the job" for number in range(10)
    ]
    assert "Pausing task as DEFERRED" not in log


@pytest.mark.promise("airflow: Airflow's retries start only after the previous attempt is known dead")
def test_airflow_retries_a_failure_and_logs_its_evidence(cases: Any) -> None:
    assert cases.end("failing") == "failed"
    instance = cases.instance("failing", "builtin")
    assert (instance["state"], instance["try_number"]) == ("failed", 2)
    assert cases.jobs("failing", "builtin") == ["FAILED", "FAILED"]
    for attempt in (1, 2):
        log = cases.log("failing", "builtin", attempt)
        assert log.index("about to fail") < log.index("ValueError: no luck")
        assert 'raise ValueError("no luck")' in log


def test_an_exception_that_airflow_cannot_rebuild_fails_the_task(cases: Any) -> None:
    assert cases.end("failing") == "failed"
    assert cases.instance("failing", "own")["state"] == "failed"
    log = cases.log("failing", "own")
    assert "OwnError: not known to Airflow" in log
    assert "unusual_prefix" not in log  # what Airflow calls the module of a DAG's file


@pytest.mark.promise("airflow: Mapped failures name their index")
def test_a_failure_of_a_mapped_task_names_its_instance(cases: Any) -> None:
    assert cases.end("failing") == "failed"
    instances = cases.instances("failing", "share")
    assert [each["state"] for each in instances] == ["success", "failed", "success"]
    log = cases.api.log(instances[1])
    evidence, error = "share[1] (number=1): job-", "AirflowException: share[1] (number=1): "
    assert log.index(evidence) < log.index(error)


@pytest.mark.promise("airflow: Failure evidence before the exception: class, code, last lines, remedy")
def test_a_job_that_dies_leaves_its_evidence_before_the_verdict(cases: Any) -> None:
    assert cases.end("failing") == "failed"
    log = cases.log("failing", "dies")
    told = ("exit code 3)", "the last lines of its log:\nlast words", "AirflowException: ")
    places = [log.index(each) for each in told]
    assert places == sorted(places)


@pytest.mark.promise("airflow: `multiple_outputs`")
def test_what_can_never_work_is_not_retried(cases: Any) -> None:
    assert cases.end("failing") == "failed"
    instance = cases.instance("failing", "unpicklable")
    assert (instance["state"], instance["try_number"]) == ("failed", 1)
    assert "this one stays" in cases.log("failing", "unpicklable")
    assert cases.jobs("failing", "unpicklable") == []
    assert "multiple_outputs needs the values here" in cases.log("failing", "boxes")
    assert "expand() over its result needs the values here" in cases.log("failing", "crowd")


@pytest.mark.promise("airflow: Plain results, references for the rest")
def test_what_xcom_cannot_carry_goes_from_job_to_job(cases: Any) -> None:
    assert cases.end("references") == "success"
    for packed in [*cases.values("references", "pack"), cases.value("references", "scramble")]:
        assert packed["__kinetic_result__"] == 1
    assert cases.value("references", "unpack") == ["Box", [1, 2, 3], "hidden"]
