"""Two clients work in one process, and in threads, without knowing of each other (ADR 0056)."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import Client, JobHandle, JobStatus, Settings, default_client
from kinetic_core.backends.base import open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target, blank_configuration
from kinetic_core.errors import ConfigurationError, InvalidRequest, JobNotFound, StoreRefused
from kinetic_core.jobs.console import Console
from kinetic_core.jobs.handle import followed_log
from kinetic_core.jobs.shell import open_first_shell
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.batches.places import watch_that_is_refused

AT_ONCE = 4
SECRET = "nobody-may-see-this"


@kinetic_core.run(accelerator="cpu")
def square(x: int) -> int:
    return x * x


@kinetic_core.run(accelerator="cpu")
def until_told(folder: str) -> None:
    import time

    while not Path(folder, "go").exists():
        time.sleep(0.01)


def of_machine(folder: Path) -> Client:
    project = str(Path(__file__).parent)
    return Client(backend="local", local_store=folder, package_root=project)


class Answering(BaseHTTPRequestHandler):
    """An API server without objects, which notes who asks about which namespace."""

    def do_GET(self) -> None:
        namespace = self.path.partition("/namespaces/")[2].partition("/")[0]
        self.server.asked.append((namespace, self.headers["Authorization"]))  # type: ignore[attr-defined]
        body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as made:
        made.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def of_account(server: Any, namespace: str) -> Client:
    held = blank_configuration()
    held.host = f"http://127.0.0.1:{server.server_address[1]}"
    names = ("authorization", "BearerToken")  # the client's older versions read the first
    held.api_key = dict.fromkeys(names, f"{SECRET}-{namespace}")
    held.api_key_prefix = dict.fromkeys(names, "Bearer")
    return Client(backend="gke", bucket="b", namespace=namespace, kubernetes_configuration=held)


def test_two_clients_run_jobs_at_once(tmp_path: Path) -> None:
    clients = [of_machine(tmp_path / name) for name in ("one", "other")]
    both = threading.Barrier(2)

    def run(client: Client) -> list[JobHandle]:
        function = client.bind(square)
        both.wait(90)
        return [function.run_async(number) for number in range(AT_ONCE)]

    with ThreadPoolExecutor(2) as threads:
        handles = list(threads.map(run, clients))
        results = [[handle.result(stream_logs=False) for handle in some] for some in handles]
    assert results == [[0, 1, 4, 9]] * 2
    for client, own, others in zip(clients, handles, reversed(handles), strict=True):
        assert {job.job_id for job in client.list_jobs()} == {job.job_id for job in own}
        assert client.attach(own[0].job_id).status() is JobStatus.SUCCEEDED
        with pytest.raises(JobNotFound):
            client.attach(others[0].job_id)
        client.close()


def test_two_clients_see_two_clusters(tmp_path: Path) -> None:
    with FakeCluster() as one, FakeCluster() as other:
        clients = []
        for number, cluster in enumerate((one, other)):
            kubeconfig = cluster.write_kubeconfig(tmp_path / str(number))
            api = ClusterApi(Target(str(kubeconfig)))
            api.create("ServiceAccount", "default", {"metadata": {"name": "kinetic" if number else "x"}})
            clients.append(Client(backend="gke", bucket="b", kubeconfig=kubeconfig))
        backends = [open_backend("gke", client.connections) for client in clients]
        both = threading.Barrier(2)

        def ask(backend: Any) -> set[str]:
            both.wait(90)
            return {backend.surroundings("default").service_account for _ in range(20)}

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(ask, backends)) == [{"default"}, {"kinetic"}]
        for client in clients:
            client.close()


def test_two_accounts_of_one_cluster_keep_their_tokens(server: Any) -> None:
    clients = [of_account(server, namespace) for namespace in ("mine", "yours")]
    both = threading.Barrier(2)

    def ask(client: Client) -> None:
        backend = open_backend("gke", client.connections)
        both.wait(90)
        for _ in range(20):
            assert backend.all(client.settings.namespace) == {}

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, clients))
    assert set(server.asked) == {(name, f"Bearer {SECRET}-{name}") for name in ("mine", "yours")}
    assert len(server.asked) == 40
    assert not any(SECRET in repr(each) or SECRET in repr(each.settings) for each in clients)


def test_what_a_client_is_told_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_NAMESPACE", "of-the-environment")
    monkeypatch.setenv("KINETIC_BUCKET", "b")
    client = Client(namespace="told", project="p", kubeconfig="/mine")
    assert (client.settings.namespace, client.settings.bucket) == ("told", "b")
    assert client.settings.kubeconfig == "/mine"
    assert default_client().settings.namespace == "of-the-environment"
    monkeypatch.setenv("KINETIC_NAMESPACE", "another")
    assert default_client().settings.namespace == "another"
    assert client.settings.namespace == "told"


def test_what_makes_no_client_is_named() -> None:
    with pytest.raises(TypeError, match="no setting 'clustr'"):
        Client(clustr="c")
    with pytest.raises(InvalidRequest, match="settings and namespace"):
        Client(Settings(), namespace="n")
    with pytest.raises(ConfigurationError, match="'nowhere' of Client"):
        Client(backend="nowhere")


def test_a_handle_travels_without_its_client(tmp_path: Path) -> None:
    client = of_machine(tmp_path)
    handle = client.run(accelerator="cpu")(square.__wrapped__).run_async(3)
    assert handle.result(stream_logs=False, cleanup=False) == 9
    for travelled in (
        pickle.loads(pickle.dumps(handle)),
        client.handle(json.loads(json.dumps(handle.to_dict()))),
    ):
        assert travelled == handle
        assert travelled.result(stream_logs=False, cleanup=False) == 9
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(client)
    handle.cleanup()


def test_a_closed_client_is_used_no_more(tmp_path: Path) -> None:
    client, other = of_machine(tmp_path / "one"), of_machine(tmp_path / "other")
    handle = client.bind(until_told).run_async(str(tmp_path))
    with ThreadPoolExecutor(1) as threads:
        waits = threading.Event()
        waiting = threads.submit(handle.result, 60, on_status_change=lambda _status: waits.set())
        assert waits.wait(90)
        client.close()
        (tmp_path / "go").touch()
        with pytest.raises(InvalidRequest, match="closed"):
            waiting.result(60)
    with pytest.raises(InvalidRequest, match="this client is closed"):
        client.connections.get("anything", dict)
    assert other.bind(square)(2) == 4
    assert of_machine(tmp_path / "one").handle(handle.to_dict()).result(60, stream_logs=False) is None


def test_who_follows_a_log_hears_of_a_closed_client(tmp_path: Path) -> None:
    client = of_machine(tmp_path)
    handle = client.bind(until_told).run_async(str(tmp_path))
    place = handle.place
    with ThreadPoolExecutor(1) as threads:
        follows = threading.Event()
        following = threads.submit(lambda: list(followed_log(place, handle, follows.set)))  # type: ignore[arg-type]
        assert follows.wait(30)
        client.close()
        (tmp_path / "go").touch()
        with pytest.raises(InvalidRequest, match="was closed"):
            following.result(60)


def test_who_waits_for_a_shell_hears_of_refusals(tmp_path: Path) -> None:
    client = of_machine(tmp_path)
    handle = client.bind(square).run_async(3)
    watch_that_is_refused(open_backend("local", client.connections))
    with pytest.raises(StoreRefused, match="not permitted"):
        open_first_shell(handle, [], lambda _seen: None, Console())


def test_who_waits_for_a_debugger_hears_of_refusals(tmp_path: Path) -> None:
    client = of_machine(tmp_path)
    handle = client.bind(kinetic_core.run(accelerator="cpu", debug=True)(abs)).run_async(-3)
    watch_that_is_refused(open_backend("local", client.connections))
    with pytest.raises(StoreRefused, match="not permitted"):
        handle.debug_attach(0, scheduling_timeout=60)
    handle.cancel()


def test_who_waits_for_a_batch_hears_of_refusals(tmp_path: Path) -> None:
    client = of_machine(tmp_path)
    refusing = watch_that_is_refused(open_backend("local", client.connections))
    batch = client.bind(square).run_async_map([3])
    with pytest.raises(StoreRefused, match="not permitted"):
        batch.wait(timeout=90)
    refusing.is_permitted = True
    assert batch.results(timeout=90) == [9]


def test_the_default_client_opens_again_after_closing() -> None:
    client = default_client()
    made = client.connections.get("test", object)
    client.close()
    assert default_client().connections.get("test", object) is not made
    default_client().close()
