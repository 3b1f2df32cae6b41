"""Every option, on every backend: it has its effect, or is refused or called idle by its name.

The rows are those of the table; an option without a case here fails.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from airflow_provider.options import REFUSED, RENAMED, refuse_options, run_options
from kinetic_core.backends.kubernetes.fallbacks import every_manifest, first_of
from kinetic_core.backends.kubernetes.set_objects import leader_worker_set
from kinetic_core.batches.indexed import can_share, submit_batch
from kinetic_core.connections import Connections
from kinetic_core.errors import BackendUnavailable, InvalidRequest
from kinetic_core.job import PodOptions
from kinetic_core.jobs.bundle import pack
from kinetic_core.jobs.prepare import Call, prepare
from kinetic_core.options import OPTIONS, RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.testing import stays_pending
from tests.batches.places import PLAN, Place
from tests.kubernetes.manifests import DELIVERY


@dataclass(frozen=True)
class Case:
    """An option's value, what goes with it, and what a cluster's Job then says.

    `shown` is a part of the Job's JSON; None: the option names a place or an image, or goes with the payload.
    `in_pod` is that of its pods, which a Job that inputs share and a LeaderWorkerSet have in place of it.
    `local`: `runs`, or the word for what this machine does with the option.
    """

    value: Any
    shown: str | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    local: str = "runs"
    in_pod: str = ""


HERE = Path(__file__).parent
GPU = {"accelerator": "gpu-l4", "container_image": "python:3.11"}
CASES: Mapping[str, Case] = {
    "accelerator": Case("cpu:2", '"cpu": "2"'),
    "container_image": Case("example.org/image:1", '"image": "example.org/image:1"', local="not used"),
    "base_image_repo": Case("europe-docker.pkg.dev/p/base"),
    "zone": Case("us-central1-a"),
    "project": Case("another-project"),
    "capture_env_vars": Case(["MATRIX_WORD"]),
    "cluster": Case("another"),
    "backend": Case("local"),
    "namespace": Case("research", '"namespace": "research"'),
    "volumes": Case({}),
    "spot": Case(True, '"cloud.google.com/gke-spot": "true"', GPU),
    "output_dir": Case("gs://bucket/out", local="refused"),
    "requirements": Case(["six"], local="not installed"),
    "memory": Case("64Mi", '"memory": "67108864"', local="enforced or refused"),
    "timeout": Case(500, '"activeDeadlineSeconds": 500', in_pod='"KINETIC_TIMEOUT", "value": "500"'),
    "capacity_timeout": Case(
        77, '"kinetic.dev/capacity-timeout": "77"', {**GPU, "accelerator": ["gpu-l4", "gpu-a100"]}
    ),
    "budget": Case(2.5, "KINETIC_BUDGET"),
    "infrastructure_retries": Case(3, '"KINETIC_INFRASTRUCTURE_RETRIES", "value": "3"'),
    "cpu": Case(0.1, '"cpu": "0.1"'),
    "disk": Case("3Gi", '"ephemeral-storage": "3221225472"', local="no effect"),
    "reservation": Case("weekly", '"weekly"', GPU, local="no effect"),
    "flex_start": Case(True, '"cloud.google.com/gke-flex-start": "true"', GPU, local="no effect"),
    "priority_class": Case("urgent", '"priorityClassName": "urgent"', local="no effect"),
    "service_account": Case("trainer", '"serviceAccountName": "trainer"', local="no effect"),
    "node_selector": Case({"disk": "ssd"}, '"disk": "ssd"', local="no effect"),
    "tolerations": Case([{"key": "night"}], '"key": "night"', local="no effect"),
    "labels": Case({"team": "vision"}, '"team": "vision"'),
    "secrets": Case({"TOKEN": "hub/token"}, '"secretKeyRef"', local="refused"),
    "run_as_root": Case(True, '"runAsUser": 0', local="no effect"),
    "cache_volume": Case("cache", '"claimName": "cache"', local="no effect"),
    "lease": Case(20, '"KINETIC_LEASE_SECONDS", "value": "20'),
    "hang_after": Case(30, '"KINETIC_HANG_SECONDS", "value": "30'),
    "security_context": Case({"privileged": True}, '"privileged": true', local="no effect"),
    "debug": Case(True, "KINETIC_DEBUG_WAIT_TIMEOUT", local="a person"),
    "retries": Case(2, '"backoffLimitPerIndex": 2', in_pod='"KINETIC_RETRIES", "value": "2"'),
    "warm": Case("10m", local="one call at a time"),
    "reuse": Case("process", None, {"warm": "10m"}, local="one call at a time"),
    "queue": Case("research", '"kueue.x-k8s.io/queue-name": "research"', local="no effect"),
}

NO_MAP = ["debug", "warm", "reuse"]
"""Options of single calls; `warm=` is one in a map that does not say how many workers it runs on, and
`reuse=` in any."""
OWN_JOBS = ["capacity_timeout", "lease"]
"""Options with which each input of a map has a Job of its own."""
IDLE = [name for name, case in CASES.items() if case.local == "no effect"]


def word(_number: int = 0) -> str:
    return os.environ.get("MATRIX_WORD", "")


def test_every_option_has_a_case() -> None:
    assert CASES.keys() == OPTIONS.rows.keys()


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[on_demand]\n"cpu" = 1.0\n"gpu-l4" = 2.0\n"tpu-v5p-8" = 9.0\n')
    monkeypatch.setenv("KINETIC_PRICES", str(prices))
    monkeypatch.setenv("MATRIX_WORD", "seen")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, lambda _pod: stays_pending())
    place.fake.objects.create("Namespace", "", {"metadata": {"name": CASES["namespace"].value}})
    yield place
    place.close()


def says(job: Mapping[str, Any], shown: str | None) -> bool:
    """Whether a Job says an option."""
    return str(shown) in json.dumps(job).replace('"name": "KINETIC_', '"KINETIC_')


def asked_of_cluster(name: str) -> tuple[RunOptions, RunOptions]:
    """The options of a case, and the same without those of a pod: the cluster has no queue to look for."""
    case = CASES[name]
    asked: dict[str, Any] = {"accelerator": "cpu", "container_image": "python:3.11", **case.beside}
    options = RunOptions.checked(**{**asked, name: case.value})
    return options, replace(options, pod=PodOptions())


def connections_of(cluster: Place) -> Connections:
    return Connections(replace(read_settings(), package_root=str(HERE)))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.shown])
def test_a_clusters_job_says_the_option(name: str, cluster: Place) -> None:
    options, podless = asked_of_cluster(name)
    call = prepare(Call(word), podless, connections_of(cluster), backend=cluster.backend)
    spec = replace(call.spec, pod=options.pod)
    assert says(first_of(every_manifest(spec, call.reference, DELIVERY), 0), CASES[name].shown)


SLICE = {"accelerator": "tpu-v5p-8", "backend": "pathways"}


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.shown and name != "capacity_timeout"]
)
def test_a_set_of_hosts_says_the_option_or_refuses_it(name: str, cluster: Place) -> None:
    """On backend `pathways`, whose pods are of a LeaderWorkerSet; capacity is the Job's own concern."""
    case = CASES[name]
    asked = {"container_image": "python:3.11", **case.beside, name: case.value, **SLICE}
    if name == "lease":
        with pytest.raises(InvalidRequest, match=r"^lease="):
            RunOptions.checked(**asked)
        return
    options = RunOptions.checked(**asked)
    podless = replace(options, pod=PodOptions())
    call = prepare(Call(word), podless, connections_of(cluster), backend=cluster.backend)
    spec = replace(call.spec, pod=options.pod, backend="pathways")
    job = first_of(every_manifest(spec, replace(call.reference, backend="pathways"), DELIVERY), 0)
    shown = {"accelerator": "tpu-v5p-slice"}.get(name) or case.in_pod or case.shown
    assert says(leader_worker_set(job, "uid"), shown)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.shown and name not in NO_MAP])
def test_a_clusters_map_says_the_option(name: str, cluster: Place) -> None:
    """In the Job that inputs share; of those that cannot share one, each is submitted as a call is."""
    options, podless = asked_of_cluster(name)
    calls: list[Any] = [((number,), {}) for number in range(2)]
    packed = pack(word, podless, connections_of(cluster), calls=calls, backend=cluster.backend)
    packed = replace(packed, spec=replace(packed.spec, pod=options.pod))
    assert can_share(packed) == (name not in OWN_JOBS)
    if can_share(packed):
        submit_batch(packed, [0, 1], PLAN)
        (job,) = cluster.jobs_of(options.namespace or "default")
        assert says(job, CASES[name].in_pod or CASES[name].shown)


@pytest.mark.parametrize("name", NO_MAP)
def test_a_map_refuses_by_name(name: str, local_jobs: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name}="):
        kinetic_core.run(accelerator="cpu", **{name: CASES[name].value})(word).run_async_map([1])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.local == "runs"])
def test_this_machine_runs_a_call_and_a_map(name: str, local_jobs: Path) -> None:
    case = CASES[name]
    beside = {} if "accelerator" in case.beside else case.beside
    asked: dict[str, Any] = {"accelerator": "cpu", "backend": "local", **beside, name: case.value}
    function = kinetic_core.run(**asked)(word)
    expected = "seen" if name == "capture_env_vars" else ""
    call, batch = function.run_async(), function.run_async_map([1])
    jobs = [call, *batch.jobs]
    told = [Path(local_jobs, "local/cluster", each.namespace, f"{each.job_id}.json") for each in jobs]
    records = [json.loads(path.read_text())["job"] for path in told]
    if case.shown is not None and "accelerator" not in case.beside:  # this machine is no other hardware
        assert all(says(job, case.shown) for job in records)
    assert call.result(60) == expected
    assert batch.results(timeout=60) == [expected]


def test_this_machine_says_what_has_no_effect(local_jobs: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = [*IDLE, "requirements"]
    asked: dict[str, Any] = {name: CASES[name].value for name in named if name != "flex_start"}
    with caplog.at_level(logging.WARNING):
        assert kinetic_core.run(accelerator="cpu", backend="local", **asked)(word)() == ""
        flexible = kinetic_core.run(accelerator="gpu-l4", backend="local", flex_start=True)
        flexible(word).dry_run()
    assert all(f"{name}=" in caplog.text for name in named), caplog.text


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.local == "refused"])
def test_this_machine_refuses_by_name(name: str, local_jobs: Path) -> None:
    asked: dict[str, Any] = {"accelerator": "cpu", "backend": "local", name: CASES[name].value}
    with pytest.raises(InvalidRequest, match=f"^{name}="):
        kinetic_core.run(**asked)(word).run_async()
    with pytest.raises(InvalidRequest, match=f"^{name}="):
        kinetic_core.run(**asked)(word).run_async_map([1])


def test_memory_is_enforced_or_refused_by_name(local_jobs: Path) -> None:
    function = kinetic_core.run(accelerator="cpu", backend="local", memory="64Mi")(word)
    try:
        assert function() == ""
    except BackendUnavailable as error:
        assert str(error).startswith("memory=")  # noqa: PT017  where cgroups are not ours


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_task_takes_the_option_or_refuses_it(name: str) -> None:
    case = CASES[name]
    asked: dict[str, Any] = {"accelerator": "cpu", **case.beside, name: case.value}
    if name in REFUSED:
        with pytest.raises(InvalidRequest, match=f"^{name}="):
            refuse_options({name: case.value})
        return
    renamed = {RENAMED.get(option, option): value for option, value in asked.items()}
    assert run_options(renamed) == RunOptions.checked(**asked)
