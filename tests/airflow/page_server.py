"""Airflow's API server with runs of the page's DAGs: what they would have left is written, nothing runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

HERE = Path(__file__).parent
PASSWORDS = {"admin": "one", "guest": "two"}
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
        """The status and the JSON of an answer."""
        headers = {"Authorization": f"Bearer {self.tokens[user]}"} if user else {}
        try:
            with _OPENER.open(
                urllib.request.Request(f"{self.url}{path}", headers=headers), timeout=60
            ) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def jobs(self, dag_id: str, user: str | None, query: str = "") -> tuple[int, Any]:
        return self.get(f"/kinetic/api/dags/{dag_id}/runs/{quote(self.runs[dag_id])}/jobs{query}", user)

    def page(self, dag_id: str, more: str = "") -> str:
        return f"{self.url}/kinetic/page/?dag={dag_id}&run={quote(self.runs[dag_id], safe='')}{more}"


def _post(url: str, body: Any, token: str = "") -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    with _OPENER.open(request, timeout=150) as answer:
        return json.loads(answer.read())


@contextmanager
def serving(home: Path) -> Iterator[Server]:
    """One whose files are in `home`."""
    from demo_airflow import DemoAirflow

    (home / "passwords.json").write_text(json.dumps(PASSWORDS))
    settings = {
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,guest:viewer",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "CORE__AUTH_MANAGER": "limited_auth.LimitedAuthManager",
    }
    extra = {f"AIRFLOW__{name}": value for name, value in settings.items()}
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    extra |= {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": path}
    airflow = DemoAirflow(home, HERE / "page_dags", extra=extra)
    try:
        for command in (["db", "migrate"], ["dags", "reserialize"]):
            done = airflow.start_component(command[0], *command[1:])
            assert done.wait(120) == 0, (airflow.logs / f"{command[0]}.log").read_text()[-2000:]
            del airflow.processes[command[0]]
        airflow.start_component("api-server")
        airflow.until(lambda: "metadatabase" not in airflow.api.unhealthy(), 120, "the API server")
        tokens = {
            name: _post(f"{airflow.api.url}/auth/token", {"username": name, "password": password})[
                "access_token"
            ]
            for name, password in PASSWORDS.items()
        }
        theirs = {"backend": "gke", "project": "p", "bucket": "their-bucket"}
        connection = {"connection_id": "page_theirs", "conn_type": "kinetic", "extra": json.dumps(theirs)}
        _post(f"{airflow.api.url}/api/v2/connections", connection, tokens["admin"])
        runs = []
        for dag_id in ("sweep", "secret", "secret"):
            url = f"{airflow.api.url}/api/v2/dags/{dag_id}/dagRuns"
            runs += [dag_id, _post(url, {"logical_date": None}, tokens["admin"])["dag_run_id"]]
        command = [sys.executable, str(HERE / "page_seed.py"), *runs]
        subprocess.run(command, env=airflow.environment, check=True, cwd=HERE)
        yield Server(airflow, dict(zip(runs[::2], runs[1::2], strict=True)), tokens)
    finally:
        airflow.stop()
