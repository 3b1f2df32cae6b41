"""Which cluster a kubeconfig and its contexts lead to, of several."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.errors import ClusterUnreachable, ConfigurationError
from kinetic_core.settings import read_settings
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.cluster.jobs import greet
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")

AT_ONCE = 3


@pytest.mark.promise("gke: Explicit kubeconfig and context")
@pytest.mark.promise("gke: The kubeconfig is never written or switched; no subprocess")
@pytest.mark.parametrize(
    ("current", "without"),
    [("gone", ConfigurationError), ("dead", ClusterUnreachable)],
    ids=lambda each: each,
)
def test_a_named_context_is_used_whatever_the_current_one_is(
    current: str,
    without: type[Exception],
    gke: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the file stays as it is: what `kubectl` uses is not switched."""
    content = yaml.safe_load(Path(gke["KINETIC_KUBECONFIG"]).read_text())
    right = content["current-context"]
    user = next(each["context"]["user"] for each in content["contexts"] if each["name"] == right)
    content["clusters"].append({"name": "dead", "cluster": {"server": "http://127.0.0.1:9"}})
    content["contexts"].append({"name": "dead", "context": {"cluster": "dead", "user": user}})
    kubeconfig = tmp_path / "kubeconfig"
    text = json.dumps({**content, "current-context": current})
    kubeconfig.write_text(text)
    with pytest.raises(without):
        ClusterApi(Target(str(kubeconfig)), patience=0.0).list("Pod", gke["KINETIC_NAMESPACE"])
    monkeypatch.setenv("KINETIC_KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("KINETIC_KUBE_CONTEXT", right)
    assert greet.run_async(current).result(stream_logs=False, timeout=180) == f"hello {current}"
    assert kubeconfig.read_text() == text


@pytest.mark.promise("gke: Two clusters at once from two threads", "the second is the fake cluster")
def test_jobs_of_two_clusters_at_once_do_not_meet(
    gke: dict[str, str], api: ClusterApi, namespace: str, tmp_path: Path
) -> None:
    """From two threads, in namespaces of one name. The pods of the other cluster only pretend to run."""
    both = threading.Barrier(2)

    def run(client: kinetic_core.Client) -> list[kinetic_core.JobHandle]:
        greeting = client.bind(greet)
        handles = []
        for number in range(AT_ONCE):
            both.wait(90)
            handles.append(greeting.run_async(str(number)))
        for handle in handles:
            wait_for(lambda asked=handle: asked.status() is JobStatus.SUCCEEDED, 60)
        return handles

    with FakeCluster(namespaces=("default", namespace)) as cluster:
        elsewhere = str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))
        other = ClusterApi(Target(elsewhere))
        settings = read_settings()
        client_here = kinetic_core.Client(settings)
        client_there = kinetic_core.Client(replace(settings, kubeconfig=elsewhere))
        with ThreadPoolExecutor(2) as threads:
            here, there = threads.map(run, (client_here, client_there))
        for handles, of, not_of in ((here, api, other), (there, other, api)):
            assert all(of.get("Job", namespace, handle.k8s_name) for handle in handles)
            assert not any(not_of.get("Job", namespace, handle.k8s_name) for handle in handles)
        client_there.close()
    assert [handle.result(stream_logs=False) for handle in here] == ["hello 0", "hello 1", "hello 2"]
