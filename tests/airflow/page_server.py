"""Airflow's API server with runs of the page's DAGs: what they would have left is written, nothing runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chromium
from page_names import SILENT_BUCKET

from tests.conftest import needs_program

HERE = Path(__file__).parent
PASSWORDS = {"admin": "one", "guest": "two", "nologs": "three"}
PRICES = """\
currency = "EUR"
[on_demand]
tpu-v6e = 2.5
tpu-v5e = 1.2
gpu-l4 = 0.8
"""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Server:
    """Airflow's API server with runs of each DAG; `runs` has the last ones."""

    airflow: Any
    runs: dict[str, str]
    tokens: dict[str, str]

    @property
    def url(self) -> str:
        return str(self.airflow.api.url)

    def get(self, path: str, user: str | None) -> tuple[int, Any]:
        """The status and the JSON of an answer, or its text if it has another type."""
        headers = {"Authorization": f"Bearer {self.tokens[user]}"} if user else {}
        try:
            with _OPENER.open(
                urllib.request.Request(f"{self.url}{path}", headers=headers), timeout=60
            ) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def jobs(self, dag_id: str, user: str | None, query: str = "") -> tuple[int, Any]:
        return self.get(f"/kinetic/api/dags/{dag_id}/runs/{quote(self.runs[dag_id])}/jobs{query}", user)

    def seed(self, *words: str) -> None:
        """Write more of what runs would leave: see page_seed.py."""
        command = [sys.executable, str(HERE / "page_seed.py"), *words]
        subprocess.run(command, env=self.airflow.environment, check=True, cwd=HERE)

    def page(self, dag_id: str, more: str = "") -> str:
        return f"{self.url}/kinetic/page/?dag={dag_id}&run={quote(self.runs[dag_id], safe='')}{more}"


def _post(url: str, body: Any, token: str = "") -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    with _OPENER.open(request, timeout=150) as answer:
        return json.loads(answer.read())


def connections(cluster: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Id, type and extras of those that jobs name; `cluster` is the address of the cluster of two of them."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "silent",
        "contexts": [{"name": "silent", "context": {"cluster": "silent", "user": "somebody"}}],
        "clusters": [{"name": "silent", "cluster": {"server": cluster}}],
        "users": [{"name": "somebody", "user": {"token": "a token"}}],
    }
    return [
        ("page_theirs", "kinetic", {"backend": "gke", "project": "p", "bucket": "their-bucket"}),
        ("silent_cluster", "kubernetes", {"kube_config": json.dumps(kubeconfig)}),
        (
            "page_silent",
            "kinetic",
            {"backend": "gke", "kubernetes_conn_id": "silent_cluster", "bucket": SILENT_BUCKET},
        ),
    ]


@contextmanager
def browsing(server: Server, home: Path) -> Iterator[chromium.Tab]:
    """A new browser, whose files are in `home`, of somebody who has signed in."""
    needs_program(chromium.program(), "no Chromium (Debian: apt-get install chromium): nobody looked at it")
    with chromium.tab(home) as opened:
        opened.call("Network.setCookie", name="_token", value=server.tokens["admin"], url=server.url)
        yield opened


@contextmanager
def serving(home: Path, dag_ids: Sequence[str], cluster: str = "", storage: str = "") -> Iterator[Server]:
    """One whose files are in `home`, with a run of each of these DAGs.

    `cluster` is the address of a connection's cluster, `storage` that of Cloud Storage, by default ones that
    never answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with _serving(home, dag_ids, storage or silent, cluster or silent) as server:
            yield server


@contextmanager
def _serving(home: Path, dag_ids: Sequence[str], storage: str, cluster: str) -> Iterator[Server]:
    from demo_airflow import DemoAirflow

    (home / "passwords.json").write_text(json.dumps(PASSWORDS))
    (home / "prices.toml").write_text(PRICES)
    settings = {
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,guest:viewer,nologs:viewer",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "CORE__AUTH_MANAGER": "limited_auth.LimitedAuthManager",
        "CORE__MAX_MAP_LENGTH": "5000",
    }
    extra = {f"AIRFLOW__{name}": value for name, value in settings.items()}
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    extra |= {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": path}
    extra |= {"KINETIC_PRICES": str(home / "prices.toml"), "STORAGE_EMULATOR_HOST": storage}
    airflow = DemoAirflow(home, HERE / "page_dags", extra=extra)
    try:
        for command in (["db", "migrate"], ["dags", "reserialize"]):
            done = airflow.start_component(command[0], *command[1:])
            assert done.wait(120) == 0, (airflow.logs / f"{command[0]}.log").read_text()[-2000:]
            del airflow.processes[command[0]]
        airflow.start_component("api-server")
        airflow.until(lambda: "metadatabase" not in airflow.api.unhealthy(), 300, "the API server")
        tokens = {
            name: _post(f"{airflow.api.url}/auth/token", {"username": name, "password": password})[
                "access_token"
            ]
            for name, password in PASSWORDS.items()
        }
        for conn_id, conn_type, given in connections(cluster):
            connection = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(given)}
            _post(f"{airflow.api.url}/api/v2/connections", connection, tokens["admin"])
        runs = []
        for dag_id in dag_ids:
            url = f"{airflow.api.url}/api/v2/dags/{dag_id}/dagRuns"
            runs += [dag_id, _post(url, {"logical_date": None}, tokens["admin"])["dag_run_id"]]
        command = [sys.executable, str(HERE / "page_seed.py"), *runs]
        subprocess.run(command, env=airflow.environment, check=True, cwd=HERE)
        yield Server(airflow, dict(zip(runs[::2], runs[1::2], strict=True)), tokens)
    finally:
        airflow.stop(patience=0)
