"""What doctor says of node pools, quotas of the region, versions and images, each with its own fix."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from google.auth.credentials import AnonymousCredentials

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.cli.accelerators import pools_with
from kinetic_core.connections import Connections, default_connections
from kinetic_core.diagnostics.checks import Check, Finding, perform
from kinetic_core.diagnostics.cluster_checks import skew_finding
from kinetic_core.diagnostics.google_checks import google_checks, pools_finding, quota_finding
from kinetic_core.diagnostics.image_checks import (
    bundled_finding,
    image_check,
    prebuilt_finding,
    private_finding,
)
from kinetic_core.errors import CloudUnreachable, ConfigurationError
from kinetic_core.google_cloud import GoogleService
from kinetic_core.images.base_images import base_tag
from kinetic_core.images.bundled import Workshop
from kinetic_core.images.cloud_build import CloudBuild
from kinetic_core.images.registry import GoogleApi, Repository
from kinetic_core.provision.pools import NodePool
from kinetic_core.provision.specification import Wanted, wanted_pool
from kinetic_core.settings import Account, Settings
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.google_project import FakeGoogle, FakeProject
from tests.serving import Answering, serving

WANTED = Wanted("my-project", "us-central1-a", "training")
SETTINGS = Settings(project="my-project", zone="us-central1-a", cluster="training")
REPOSITORY = Repository("my-project", "us", "kn-training")


def pool(accelerator: str, status: str = "RUNNING", scales: bool = True, why: str = "") -> dict[str, Any]:
    """As GKE describes one that `kinetic pool add` makes."""
    made = NodePool(WANTED, wanted_pool(accelerator)).body()
    scaling = made["autoscaling"] if scales else {}
    return {**made, "autoscaling": scaling, "status": status, "statusMessage": why}


PLAIN = {"name": "default-pool", "status": "RUNNING", "config": {"machineType": "e2-standard-4"}}
SCALING_PLAIN = {**PLAIN, "autoscaling": {"enabled": True, "maxNodeCount": 3}}


@pytest.mark.parametrize(
    ("asked", "pools", "outcome", "fix"),
    [
        (None, [], "ok", ""),
        ("gpu-l4-1", [SCALING_PLAIN, pool("gpu-l4")], "ok", ""),
        ("cpu", [SCALING_PLAIN], "ok", ""),
        ("cpu", [pool("gpu-l4"), pool("tpu-v5e-4")], "fail", "gcloud container node-pools create"),
        ("gpu-l4-4", [pool("gpu-l4")], "fail", "kinetic pool add --accelerator gpu-l4-4"),
        ("tpu-v6e-8", [pool("tpu-v5e-4")], "fail", "kinetic pool add --accelerator tpu-v6e-8"),
        ("tpu-v5e-4", [pool("tpu-v5e-4", scales=False)], "warn", "kinetic pool update"),
        ("tpu-v5e-4", [pool("tpu-v5e-4", "ERROR", why="GCE_STOCKOUT")], "fail", "kinetic pool remove"),
        (
            "gpu-l4-1",
            [pool("tpu-v5e-4", "ERROR", why="GCE_STOCKOUT"), pool("gpu-l4")],
            "warn",
            "what GKE says",
        ),
        ("tpu-v6e-8", [pool("tpu-v6e-8-4t")], "ok", ""),
        (None, [pool("gpu-l4", "RUNNING_WITH_ERROR", why="GCE_STOCKOUT")], "warn", "what GKE says"),
    ],
)
def test_pools_as_gke_describes_them(
    asked: str | None, pools: list[dict[str, Any]], outcome: str, fix: str
) -> None:
    accelerator = parse_accelerator(asked) if asked else None
    found = pools_finding({"nodePools": pools}, accelerator)
    assert (found.outcome, fix in found.fix, bool(found.fix)) == (outcome, True, outcome != "ok"), found
    if any("ERROR" in one["status"] for one in pools):
        assert "GCE_STOCKOUT" in found.found


@pytest.mark.parametrize(
    "says", [{"autopilot": {"enabled": True}}, {"autoscaling": {"enableNodeAutoprovisioning": True}}]
)
def test_a_cluster_that_makes_pools_needs_none(says: dict[str, Any]) -> None:
    found = pools_finding({**says, "nodePools": []}, parse_accelerator("gpu-l4"))
    assert (found.outcome, found.found) == ("ok", "none; the cluster makes others when jobs need them")


def test_pools_that_have_an_accelerator() -> None:
    cluster = {"nodePools": [PLAIN, pool("gpu-l4"), pool("tpu-v5e-4")]}
    assert pools_with(cluster, parse_accelerator("gpu-l4-1")) == ["gpu-l4-1"]
    assert pools_with(cluster, parse_accelerator("tpu-v5e-4")) == ["tpu-v5e-4"]
    assert pools_with(cluster, parse_accelerator("tpu-v5e-8")) == []
    two_hosts = {"nodePools": [pool("tpu-v6e-8-4t")]}
    assert pools_with(two_hosts, parse_accelerator("tpu-v6e-8")) == []
    one_host = {"nodePools": [pool("tpu-v6e-8")]}
    assert pools_with(one_host, parse_accelerator("tpu-v6e-8-4t")) == []
    autopilot = {**cluster, "autopilot": {"enabled": True}}
    assert pools_with(autopilot, parse_accelerator("tpu-v5e-8")) == ["(made when asked for)"]


def quota(asked: str | None, project: FakeProject) -> Finding:
    compute = GoogleService("compute", default_connections(), project.ask)
    return quota_finding(compute, project.name, "us-central1-a", parse_accelerator(asked) if asked else None)


def apis_of(project: FakeProject) -> Finding:
    """What is found of the APIs that are enabled in a project."""

    class Services(Answering):
        def do_GET(self) -> None:
            self.answer(*project.ask("GET", f"https://serviceusage.googleapis.com{self.path}"))

    with serving(Services) as place:
        settings = replace(
            SETTINGS,
            api_endpoint_overrides={"serviceusage": f"http://{place}/"},
            google_account=Account("theirs", "1", AnonymousCredentials()),
        )
        target = Target(project="my-project", zone="us-central1-a", cluster="training")
        check, *_ = google_checks(Connections(settings), target, None)
        return check.look()


def test_apis_on_every_page_of_the_list_are_enabled() -> None:
    project = FakeProject()
    needed = {f"{name}.googleapis.com" for name in ("artifactregistry", "cloudbuild", "container", "storage")}
    project.enabled = {*needed, *(f"a{number}.googleapis.com" for number in range(250))}
    assert apis_of(project).outcome == "ok", apis_of(project)
    project.enabled.remove("storage.googleapis.com")
    found = apis_of(project)
    assert (found.outcome, found.found) == ("fail", "not enabled in my-project: storage.googleapis.com")
    project.faults.answer("pageToken", 403)
    assert "scripted fault" in apis_of(project).found


@pytest.mark.promise("command: `doctor`: parallel, from credentials to version skew")
@pytest.mark.parametrize(
    ("asked", "limit", "usage", "outcome"),
    [
        ("gpu-l4-4", 4, 0, "ok"),
        ("gpu-l4-4", 3, 0, "fail"),
        ("gpu-l4-4", 8, 5, "warn"),
        ("gpu-l4-4:spot", 3, 0, "skip"),
        ("gpu-a100-1", 0, 0, "skip"),
        ("tpu-v6e-8", 0, 0, "skip"),
        ("cpu", 0, 0, "skip"),
        (None, 0, 0, "skip"),
    ],
)
def test_quotas_of_the_region(asked: str | None, limit: float, usage: float, outcome: str) -> None:
    project = FakeProject()
    project.enabled.add("compute.googleapis.com")
    project.quotas, project.used = {"NVIDIA_L4_GPUS": limit}, {"NVIDIA_L4_GPUS": usage}
    found = quota(asked, project)
    assert found.outcome == outcome, found
    if outcome != "skip":
        assert f"NVIDIA_L4_GPUS in us-central1: {usage} of {limit} in use" in found.found
    assert ("iam-admin/quotas?project=my-project" in found.fix) is (outcome in ("fail", "warn"))


def test_quotas_of_tpus_count_the_chips_of_the_slice() -> None:
    project = FakeProject()
    project.enabled.add("compute.googleapis.com")
    project.quotas = {"TPU_LITE_PODSLICE_V5": 16, "PREEMPTIBLE_TPU_LITE_PODSLICE_V5": 8}
    assert quota("tpu-v5e-16", project).outcome == "ok"
    found = quota("tpu-v5e-16:spot", project)
    assert (found.outcome, "PREEMPTIBLE_TPU_LITE_PODSLICE_V5" in found.found) == ("fail", True)


def test_unreadable_quotas_say_nothing_a_silent_service_does() -> None:
    project = FakeProject()
    found = quota("gpu-l4", project)
    assert (found.outcome, "compute is disabled" in found.found) == ("skip", True)
    project.faults.answer("/regions/", 503)
    with pytest.raises(CloudUnreachable):
        quota("gpu-l4", project)


def test_nothing_of_google_is_asked_for_a_kubeconfig() -> None:
    checks = list(
        google_checks(Connections(SETTINGS), Target("kubeconfig", "kind"), parse_accelerator("gpu-l4"))
    )
    reports = perform(checks, 10)
    assert [(each.name, each.finding.outcome) for each in reports] == [
        ("node pools", "skip"),
        ("regional quota", "skip"),
    ]
    assert all("kubeconfig (kind)" in each.finding.found for each in reports)


@pytest.mark.promise("command: `doctor`: parallel, from credentials to version skew")
@pytest.mark.parametrize(
    ("server", "client", "outcome"),
    [("1.33", "36.0.0", "ok"), ("1.40", "37.1.0", "ok"), ("1.41", "37.1.0", "warn")],
)
def test_a_client_that_is_too_old_for_the_server(server: str, client: str, outcome: str) -> None:
    found = skew_finding(server, client)
    assert (found.outcome, found.fix) == (outcome, "pip install --upgrade kubernetes" * (outcome == "warn"))


def workshop(registry: Callable[..., tuple[int, Any]], bucket: bool = True) -> Workshop:
    def absent(_operation: str, _name: str) -> None:
        if not bucket:
            raise ConfigurationError("there is no such bucket")

    store = MemoryObjectStore("gs://my-project-kn-training-builds", absent)
    builds = CloudBuild(GoogleApi("cloudbuild", default_connections()), "my-project", "us-central1", store)
    return Workshop(
        REPOSITORY, builds, GoogleApi("artifactregistry", default_connections(), registry), store, "a"
    )


@pytest.fixture
def project() -> FakeProject:
    """One that may keep images, and has a repository for them."""
    made = FakeProject()
    made.enabled.add("artifactregistry.googleapis.com")
    made.resources[REPOSITORY.path] = {"name": REPOSITORY.path}
    return made


def test_where_images_are_built(project: FakeProject) -> None:
    found = bundled_finding(Connections(SETTINGS), lambda: workshop(project.ask))
    assert (found.outcome, REPOSITORY.address in found.found) == ("ok", True)
    found = bundled_finding(Connections(SETTINGS), lambda: workshop(project.ask, bucket=False))
    assert (found.outcome, "my-project-kn-training-builds" in found.found) == ("fail", True)
    assert "`kinetic up` makes" in found.fix
    project.resources.clear()
    found = bundled_finding(Connections(SETTINGS), lambda: workshop(project.ask))
    assert (found.outcome, f"there is no repository {REPOSITORY.address}" in found.found) == ("fail", True)
    assert "`kinetic up` makes" in found.fix
    found = bundled_finding(Connections(Settings()), lambda: workshop(project.ask))
    assert (found.outcome, "KINETIC_CONTAINER_IMAGE" in found.fix) == ("warn", True)


def test_base_images_of_another_python() -> None:
    google = FakeGoogle()
    google.tags = {"0.1.0-py3.9": "sha256:ab"}
    found = prebuilt_finding(Connections(SETTINGS), "tpu", lambda: workshop(google.ask))
    assert (found.outcome, "it has 0.1.0-py3.9" in found.found) == ("fail", True)
    assert "kinetic build-image --category tpu with Python 3." in found.fix
    google.tags[base_tag()] = "sha256:cd"
    found = prebuilt_finding(Connections(SETTINGS), "tpu", lambda: workshop(google.ask), lambda *_: {})
    assert (found.outcome, "base-tpu@sha256:cd" in found.found) == ("ok", True)
    other = {"dev.kinetic.protocol": "0"}
    found = prebuilt_finding(Connections(SETTINGS), "tpu", lambda: workshop(google.ask), lambda *_: other)
    assert (found.outcome, "wire protocol 0" in found.found) == ("fail", True)
    found = prebuilt_finding(Connections(Settings()), "tpu", lambda: workshop(google.ask))
    assert (found.outcome, "KINETIC_BASE_IMAGE_REPO" in found.fix) == ("fail", True)


@pytest.mark.parametrize("reference", ["1", f"sha256:{64 * 'a'}"])
def test_an_image_of_ones_own(reference: str, project: FakeProject) -> None:
    part = "versions" if ":" in reference else "tags"
    project.resources[f"{REPOSITORY.path}/packages/mine/own/{part}/{reference}"] = {}
    api = GoogleApi("artifactregistry", default_connections(), project.ask)
    assert private_finding("named", REPOSITORY, "mine/own", reference, api) == Finding("ok", "named")
    found = private_finding("named", REPOSITORY, "other", reference, api)
    assert (found.outcome, "push the image" in found.fix) == ("fail", True)


def image(named: str) -> Check:
    return image_check(Connections(Settings(container_image=named)), "cpu")


def test_a_registry_that_answers_nodes_alone_stops_no_job() -> None:
    (report,) = perform([image("127.0.0.1:1/mine:1")], 10)
    assert (report.finding.outcome, report.finding.fix) == ("skip", "")
    assert "known to the nodes" in report.finding.found
    silence = image("python:3.12").silence
    assert silence is not None
    assert silence.outcome == "skip"
    assert image("us-docker.pkg.dev/p/r/mine:1").silence is None
    (report,) = perform([image("no image@")], 10)
    assert (report.finding.outcome, "REGISTRY/NAME:TAG" in report.finding.fix) == ("fail", True)


class _Registry(Answering):
    """One that has an image for two platforms, whose parts are somewhere else; `python` is what it sets."""

    python: ClassVar[str] = ""

    def do_GET(self) -> None:
        if "blobs" in self.path:
            return self.answer(307, headers={"Location": "/elsewhere"})
        answers: dict[str, Any] = {
            "/v2/python/manifests/3": {"manifests": [{"digest": "sha256:a"}, {"digest": "sha256:b"}]},
            "/v2/python/manifests/sha256:a": {"config": {"digest": "sha256:c"}},
            "/elsewhere": {"config": {"Env": ["PATH=/bin", f"PYTHON_VERSION={self.python}"]}},
        }
        found = self.path in answers
        headers = {"Docker-Content-Digest": "sha256:d"}
        return self.answer(200 if found else 404, answers.get(self.path, {}), headers)

    do_HEAD = do_GET


@pytest.fixture
def registry() -> Iterator[str]:
    with serving(_Registry) as place:
        yield place


def test_an_image_with_another_python(registry: str) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    for _Registry.python, outcome in ((f"{here}.1", "ok"), ("", "ok"), ("2.7.18", "warn")):
        (report,) = perform([image(f"{registry}/python:3")], 10)
        assert report.finding.outcome == outcome, report
    assert f"says that it has Python 2.7.18, and this is {here}" in report.finding.found
    assert f"an image with Python {here}" in report.finding.fix
    (report,) = perform([image(f"{registry}/python:4")], 10)
    assert (report.finding.outcome, "push the image" in report.finding.fix) == ("fail", True)
