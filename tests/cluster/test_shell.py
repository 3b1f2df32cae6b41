"""Shells in real pods: through the API server, for a job that runs and in a pod of their own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.provision.namespaces import RULES
from tests.cluster.jobs import delete, evict, pods
from tests.cluster.roles import USER, given_role
from tests.conftest import wait_for
from tests.person import KINETIC, Person

pytestmark = pytest.mark.usefixtures("gke")
OWN = ["shell", "-a", "cpu", "-o", "cpu=0.1", "-o", "memory=160Mi"]
DEVELOPER = {**USER, "name": "developer"}
EXEC = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi", infrastructure_retries=0)
def sleeps() -> None:
    print("awake", flush=True)
    time.sleep(600)


@pytest.fixture
def job() -> Iterator[kinetic_core.JobHandle]:
    """A job whose function runs."""
    handle = sleeps.run_async()
    wait_for(lambda: "awake" in (handle.logs() or ""), 60)
    yield handle
    handle.cancel()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a module, which is the current directory."""
    (tmp_path / "neighbour.py").write_text("ANSWER = 42\n")
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KINETIC, *words], input=text, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.attack
def test_a_person_types_in_a_pod_of_their_own(project: Path) -> None:
    with Person(KINETIC, *OWN) as person:
        person.awaits("workspace")
        person.types("pwd; stty size; python3 -c 'import neighbour; print(neighbour.ANSWER * 2)'; tty\n")
        told = person.awaits("/dev/pts/")
        assert all(part in told for part in ("/kinetic/workspace", "30 100", "84"))
        person.types("env | grep -c OUTCOME_KEY; cat /proc/1/environ /proc/1/mem; echo $((6 * 7000))\n")
        told = person.awaits("42000")
        assert "\r0\r\n" in told or "\n0\r\n" in told
        assert told.count("Permission denied") == 2
        # not one long sleep: Python does not hear of a signal that comes just before it begins
        person.types(
            "python3 -c 'import time; print(8 * 9000, flush=True); [time.sleep(0.1) for _ in range(6000)]'\n"
        )
        person.awaits("72000")
        person.types("\x03")
        person.awaits("KeyboardInterrupt")
        person.types("exit 7\n")
        assert person.ends() == 7
    (handle,) = (each for each in kinetic_core.list_jobs() if each.func_name == "shell")
    assert handle.status() is JobStatus.SUCCEEDED


def test_much_goes_through_pipes_unchanged(project: Path) -> None:
    content = os.urandom(2 << 20).hex()
    done = run(*OWN, "--", "sh", "-c", "cat; echo told >&2; exit 3", text=content)
    assert done.stdout == content
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, "told")


def test_a_client_that_is_killed_leaves_nothing_in_a_pod(job: kinetic_core.JobHandle) -> None:
    with Person(KINETIC, "shell", job.job_id) as person:
        person.awaits("workspace")
        person.types("echo $$-is-the-shell; exec sleep 5432\n")
        person.awaits("-is-the-shell\r\n")
    looks = [
        "shell",
        job.job_id,
        "--",
        "sh",
        "-c",
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 5'432",
    ]
    wait_for(lambda: run(*looks).stdout == "0\n")
    assert job.status() is JobStatus.RUNNING


@pytest.mark.parametrize("end", [evict, delete])
def test_a_pod_that_goes_under_a_person_is_told(
    api: ClusterApi, job: kinetic_core.JobHandle, end: Callable[..., None]
) -> None:
    with Person(KINETIC, "shell", job.job_id) as person:
        person.awaits("workspace")
        (pod,) = pods(api, job)
        end(api, pod)
        assert person.ends() == 255
    assert f"{job.job_id}" in person.seen.rpartition("error: ")[2]


@pytest.mark.attack
def test_without_the_right_to_run_programs_names_the_rule(
    api: ClusterApi, namespace: str, gke: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role of `kinetic up` has it not; nothing is submitted without it."""
    role = {"metadata": {"name": "shell-user"}, "rules": RULES}
    monkeypatch.setenv("KINETIC_KUBECONFIG", gke["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    with given_role(api, namespace, role, DEVELOPER):
        before = len(api.list("Job", namespace)["items"])
        done = run(*OWN)
        assert (done.returncode, done.stdout) == (2, "")
        assert "resources: [pods/exec], verbs: [get, create]" in done.stderr
        assert len(api.list("Job", namespace)["items"]) == before
        api.patch("Role", namespace, "shell-user", {"rules": [*RULES, EXEC]})
        done = run(*OWN, "--", "sh", "-c", "exit 5")
        assert done.returncode == 5, done.stderr
