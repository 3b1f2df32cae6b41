"""The manifest is plain data from a pure function, and says what Kubernetes must know."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_core._runner import wire
from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.bootstrap import BOOTSTRAP, runner_archive
from kinetic_core.backends.kubernetes.chunks import variable
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.fallbacks import every_manifest, first_of
from kinetic_core.backends.kubernetes.manifest import job_manifest
from kinetic_core.connections import default_connections
from kinetic_core.job import BucketMount, Budget, Fallback, JobSpec, PodOptions
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.kubernetes.manifests import DELIVERY, container, manifest, reference


def test_an_account_that_is_named_is_not_looked_for(tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        target = Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig")))
        backend = GkeBackend(target, "bucket", default_connections())
        assert backend.surroundings("default", "trainer").service_account == "trainer"
        assert cluster.faults.requests == ()
        assert backend.surroundings("default").service_account == "default"
        assert len(cluster.faults.requests) == 1


@pytest.mark.promise("gke: Pure function; Indexed Job with two attempt counts")
def test_is_json_and_repeatable() -> None:
    assert json.dumps(manifest("tpu-v6e-8")) == json.dumps(manifest("tpu-v6e-8"))


@pytest.mark.promise("gke: Node selector, tolerations, resources for CPU, GPU and TPU")
def test_a_spot_gpu_tolerates_both_taints() -> None:
    pod = manifest("gpu-l4:spot")["spec"]["template"]["spec"]
    assert {t["key"] for t in pod["tolerations"]} == {"nvidia.com/gpu", "cloud.google.com/gke-spot"}
    spot = next(t for t in pod["tolerations"] if t["key"].endswith("spot"))
    assert spot["value"] == "true"


@pytest.mark.parametrize(("accelerator", "cores"), [("cpu", "1"), ("cpu:8", "8")])
def test_cpu_jobs_ask_for_cores(accelerator: str, cores: str) -> None:
    assert container(manifest(accelerator))["resources"]["requests"]["cpu"] == cores


def test_limits_are_the_users() -> None:
    job = manifest(memory=1 << 30, timeout=90.4, retries=3)
    assert container(job)["resources"]["limits"]["memory"] == str(1 << 30)
    assert job["spec"]["activeDeadlineSeconds"] == 90
    assert job["spec"]["backoffLimitPerIndex"] == 3
    assert "activeDeadlineSeconds" not in manifest()["spec"]


@pytest.mark.promise("gke: Labels, digest, `/dev/shm`, disk from what ships, grace, replacement policy")
@pytest.mark.promise("gke: Retention and TTLs")
def test_what_is_asked_of_every_pod_and_job() -> None:
    job = manifest(shipped=5, grace=30)
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert job["spec"]["ttlSecondsAfterFinished"] == 7 * 24 * 3600
    assert job["metadata"]["annotations"]["kinetic.dev/spec-digest"] == "d" * 64
    pod = job["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 40
    volumes = {each["name"]: each for each in pod["volumes"]}
    at = {each["mountPath"]: volumes[each["name"]] for each in container(job)["volumeMounts"]}
    assert at["/dev/shm"]["emptyDir"] == {"medium": "Memory"}
    assert at["/kinetic"]["emptyDir"] == {}
    assert container(job)["resources"]["requests"]["ephemeral-storage"] == str((1 << 30) + 2 * 5)
    assert "ephemeral-storage" not in container(job)["resources"]["limits"]


@pytest.mark.promise("gke: Node selector, tolerations, resources for CPU, GPU and TPU")
@pytest.mark.parametrize(
    ("accelerator", "devices"),
    [("tpu-v6e-8", {"google.com/tpu": "8"}), ("gpu-l4-2", {"nvidia.com/gpu": "2"}), ("cpu", {})],
)
def test_devices_are_requested_and_limited(accelerator: str, devices: dict[str, str]) -> None:
    resources = container(manifest(accelerator))["resources"]
    assert resources["limits"] == devices
    assert devices.items() <= resources["requests"].items()


@pytest.mark.promise("gke: Passes *restricted*; HOME and workspace on emptyDir")
def test_home_is_on_a_volume(tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        backend = GkeBackend(
            Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))), "bucket", default_connections()
        )
        around = backend.surroundings("default")
    spec = JobSpec("f", parse_accelerator("cpu"), "gke")
    job = job_manifest(spec, reference(), replace(DELIVERY, surroundings=around))
    (work,) = (each["name"] for each in container(job)["volumeMounts"] if each["mountPath"] == "/kinetic")
    assert variable(job, "HOME") == "/kinetic"
    assert {"name": work, "emptyDir": {}} in job["spec"]["template"]["spec"]["volumes"]


@pytest.mark.promise("gke: Pure function; Indexed Job with two attempt counts")
def test_whose_budget_an_exit_spends() -> None:
    rules = manifest()["spec"]["podFailurePolicy"]["rules"]
    by_code = {
        code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())
    }
    assert by_code[wire.EXIT_NEVER_RETRY] == by_code[wire.EXIT_NO_RUNNER] == "FailIndex"
    assert by_code[wire.EXIT_UNPUBLISHED] == "Ignore"
    assert wire.EXIT_USER_ERROR not in by_code


@pytest.mark.promise("gke: Passes *restricted*; HOME and workspace on emptyDir")
def test_no_privilege_is_asked_for() -> None:
    job = manifest()
    assert job["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert container(job)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_bootstrap_is_short_and_compiles() -> None:
    compile(BOOTSTRAP, "bootstrap", "exec")
    assert len(BOOTSTRAP) < 5900


@pytest.mark.promise("gke: All options of `run`")
@pytest.mark.promise("batches: Reservation in the manifest; refusal")
def test_what_is_asked_for_the_pod() -> None:
    options = PodOptions(
        cpu=2.5,
        disk=1 << 30,
        reservation="ours",
        priority_class="high",
        queue="research",
        service_account="trainer",
        node_selector={"zone": "b"},
        tolerations=({"key": "reserved", "operator": "Exists"},),
        labels={"team": "a"},
        secrets={"TOKEN": "hub/token"},
    )
    job = manifest("gpu-l4-1", pod=options)
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert pod["priorityClassName"] == "high"
    assert pod["serviceAccountName"] == "trainer"
    assert pod["nodeSelector"]["zone"] == "b"
    assert pod["nodeSelector"]["cloud.google.com/reservation-name"] == "ours"
    assert {"key": "reserved", "operator": "Exists"} in pod["tolerations"]
    assert job["spec"]["template"]["metadata"]["labels"]["team"] == "a"
    requests = container(job)["resources"]["requests"]
    assert (requests["cpu"], requests["ephemeral-storage"]) == ("2.5", str(1 << 30))
    (secret,) = (each for each in container(job)["env"] if each["name"] == "TOKEN")
    assert secret["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}


@pytest.mark.promise("batches: DWS flex-start in the manifest; refusal")
@pytest.mark.parametrize("queue", [None, "research"])
def test_flex_start_asks_for_its_nodes(queue: str | None) -> None:
    pod = manifest("gpu-l4-1", pod=PodOptions(flex_start=True, queue=queue))["spec"]["template"]["spec"]
    label = "cloud.google.com/gke-flex-start"
    assert pod["nodeSelector"][label] == "true"
    tolerated = {each["key"] for each in pod["tolerations"]}
    assert label in tolerated
    assert ("cloud.google.com/gke-queued" in tolerated) == (queue is not None)


def test_a_budget_is_told_at_the_price_of_each_choice() -> None:
    fallback = Fallback(parse_accelerator("cpu"), "python:3.11", "image")
    budget = Budget(2.5, "EUR", {"tpu-v6e-8": 21.6, "cpu": 0.04})
    spec = JobSpec("f", parse_accelerator("tpu-v6e-8"), "gke", fallbacks=(fallback,), budget=budget)
    first, second = (first_of(every_manifest(spec, reference(), DELIVERY), number) for number in (0, 1))
    assert variable(first, "KINETIC_BUDGET") == "2.5 21.6 EUR"
    assert variable(second, "KINETIC_BUDGET") == "2.5 0.04 EUR"
    assert variable(manifest(), "KINETIC_BUDGET") is None


def test_who_reads_which_secrets() -> None:
    places = {"A": "tokens/hf", "B": "projects/p/secrets/hf/versions/1"}
    env = {one["name"]: one for one in container(manifest(pod=PodOptions(secrets=places)))["env"]}
    assert env["A"] == {"name": "A", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hf"}}}
    assert "B" not in env


@pytest.mark.attack
def test_no_program_finds_its_cache_on_the_shared_volume() -> None:
    job = manifest(pod=PodOptions(cache_volume="shared"))
    (mount,) = [each for each in container(job)["volumeMounts"] if each["name"] == "cache"]
    told = {each["name"]: each.get("value") or "" for each in container(job)["env"]}
    assert [name for name, value in told.items() if value.startswith(mount["mountPath"])] == [
        "KINETIC_CACHE_DIR"
    ]


@pytest.mark.promise("gke: Labels, digest, `/dev/shm`, disk from what ships, grace, replacement policy")
def test_ours_cannot_be_relabelled() -> None:
    job = manifest(pod=PodOptions(labels={"app": "mine"}))
    assert job["metadata"]["labels"]["app"] == "kinetic"


def test_volumes_have_a_place_any_user_may_write_to() -> None:
    job = manifest(mounts=("/data", "/more"))
    mounts = {each["mountPath"]: each["name"] for each in container(job)["volumeMounts"]}
    volumes = {each["name"]: each for each in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mounts["/data"]]["emptyDir"] == volumes[mounts["/more"]]["emptyDir"] == {}


@pytest.mark.promise("gke: `run_as_root=`, `security_context=`; documented per accelerator")
def test_root_only_if_asked_for() -> None:
    security = manifest()["spec"]["template"]["spec"]["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 1000)
    root = manifest(pod=PodOptions(run_as_root=True))["spec"]["template"]["spec"]["securityContext"]
    assert root["runAsUser"] == 0


@pytest.mark.promise(
    "gke: `run_as_root=`, `security_context=`; documented per accelerator",
    "only the manifest",
)
def test_the_security_context_is_ours_but_for_what_is_asked() -> None:
    asked = PodOptions(security_context={"capabilities": {"add": ["SYS_RESOURCE"]}, "runAsUser": 0})
    (container,) = manifest(pod=asked)["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["SYS_RESOURCE"]},
        "runAsUser": 0,
    }


@pytest.mark.promise("gke: Runner fetched; an image's own of the same protocol respected")
@pytest.mark.parametrize(("protocol", "used"), [(wire.PROTOCOL, True), (wire.PROTOCOL + 1, False)])
def test_an_images_own_runner_of_the_same_protocol_is_used(tmp_path: Path, protocol: int, used: bool) -> None:
    own = tmp_path / "remote_runner.py"
    own.write_text(f"import sys\nKINETIC_PROTOCOL = {protocol}\nprint('from the image')\nsys.exit(7)\n")
    program = BOOTSTRAP.replace("/app/remote_runner.py", str(own))
    environment = {
        "KINETIC_PROTOCOL": str(wire.PROTOCOL),
        "KINETIC_STORE": f"file://{tmp_path}/no-store",
        "KINETIC_RUNNER_SHA256": "0" * 64,
        "KINETIC_RUNNER_BYTES": "1000",
    }
    command = [sys.executable, "-u", "-c", program.replace("range(10)", "range(1)").replace("== 9", "== 0")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 7) is used
    assert ("from the image" in done.stdout) is used
    assert ("is gone: submit again" in done.stderr) is not used


@pytest.mark.promise("data: `fuse=True`: validated manifest; a file resolves to that file")
def test_data_is_copied_mounted_and_cached() -> None:
    job = manifest(
        mounts=("/copied", "/mounted"),
        buckets=(BucketMount("/mounted", "b", "x/y"), BucketMount("/all", "c", "")),
        pod=PodOptions(cache_volume="shared"),
    )
    pod = job["spec"]["template"]
    assert pod["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    paths = {mount["mountPath"]: mount for mount in container(job)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert len(volumes) == len(pod["spec"]["volumes"])
    at = {path: volumes[mount["name"]] for path, mount in paths.items()}
    assert "emptyDir" in at["/copied"]
    attributes = {"bucketName": "b", "mountOptions": "implicit-dirs,only-dir=x/y"}
    csi = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": attributes}
    assert at["/mounted"]["csi"] == csi
    assert at["/all"]["csi"]["volumeAttributes"] == {"bucketName": "c", "mountOptions": "implicit-dirs"}
    assert paths["/mounted"]["readOnly"] is True
    assert at["/kinetic-cache"]["persistentVolumeClaim"] == {"claimName": "shared"}
    environment = {variable["name"]: variable.get("value") for variable in container(job)["env"]}
    assert environment["KINETIC_CACHE_DIR"] == "/kinetic-cache"


def test_without_mounts_a_pod_gets_no_sidecar_and_no_cache() -> None:
    job = manifest(mounts=("/copied",))
    assert "gke-gcsfuse/volumes" not in job["spec"]["template"]["metadata"]["annotations"]
    assert "KINETIC_CACHE_DIR" not in {variable["name"] for variable in container(job)["env"]}


def test_the_archive_has_what_an_image_may_lack(tmp_path: Path) -> None:
    archive = tmp_path / "runner.zip"
    archive.write_bytes(runner_archive(default_connections().settings.cache)[1])
    program = "import sys; sys.path.append(sys.argv[1]); import cloudpickle; print(cloudpickle.__file__)"
    place = f"{archive}/kinetic_runner/{wire.SPARE}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, place], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(place)


def test_a_job_has_the_labels_and_variables_of_keras_kinetic() -> None:
    job = manifest()
    told = {each["name"]: each.get("value") for each in container(job)["env"]}
    job_id = told["KINETIC_JOB_ID"]
    assert (told["JOB_ID"], told["GCS_BUCKET"]) == (job_id, "bucket")
    assert job["metadata"]["labels"]["job-id"] == job_id
    assert job["spec"]["template"]["metadata"]["labels"]["job-id"] == job_id
