"""The few questions the demo and the tests ask Airflow's public REST API."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

_PATIENCE = 150.0
"""Seconds for an answer: with SQLite one writer waits for another, and a machine may be busy."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AirflowApi:
    """A client of the Airflow at `url`, as the administrator. Answers are the API's own JSON."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = ""

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request, for instance `call("GET", "/dags")`. Raises urllib's HTTPError.

        One that finds the SQLite of Airflow locked, and so has done nothing, is made again, three times.
        """
        if not self.token:
            self.token = self._request("GET", f"{self.url}/auth/token", None)["access_token"]
        for pause in (0.5, 1.0, 2.0):
            try:
                return self._request(method, f"{self.url}/api/v2{path}", body)
            except urllib.error.HTTPError as error:
                if error.code != 500:
                    raise
            time.sleep(pause)
        return self._request(method, f"{self.url}/api/v2{path}", body)

    def find(self, path: str) -> Any:
        """GET, None for what is not there."""
        try:
            return self.call("GET", path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def unhealthy(self) -> list[str]:
        """The components that do not report to be healthy; all of them while nothing answers."""
        names = ["metadatabase", "scheduler", "dag_processor", "triggerer"]
        try:
            health = self._request("GET", f"{self.url}/api/v2/monitor/health", None)
        except OSError:
            return names
        return [name for name in names if (health.get(name) or {}).get("status") != "healthy"]

    def run(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run of a DAG; its id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of a run: queued, running, success or failed."""
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run in the order they were queued, mapped ones by index."""
        answer = self.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances?limit=100")
        found: list[dict[str, Any]] = answer["task_instances"]
        first: dict[str, str] = {}
        for each in found:
            when = each["start_date"] or "~"
            first[each["task_id"]] = min(when, first.get(each["task_id"], when))
        return sorted(found, key=lambda each: (first[each["task_id"]], each["task_id"], each["map_index"]))

    def xcom(self, instance: Mapping[str, Any], key: str = "return_value") -> Any:
        """A value that a task instance pushed, None if it pushed none."""
        entry = self.find(f"{_path(instance)}/xcomEntries/{key}?map_index={instance['map_index']}")
        return entry["value"] if entry else None

    def log(self, instance: Mapping[str, Any], attempt: int | None = None) -> str:
        """The text of a task instance's log."""
        number = attempt or instance["try_number"] or 1
        answer = self.find(f"{_path(instance)}/logs/{number}?map_index={instance['map_index']}")
        lines = answer["content"] if answer else []
        return "\n".join(line if isinstance(line, str) else _text(line) for line in lines)

    def links(self, instance: Mapping[str, Any]) -> dict[str, str | None]:
        """The links of a task instance by the names of their buttons."""
        return dict(self.call("GET", f"{_path(instance)}/links")["extra_links"])

    def log_url(self, instance: Mapping[str, Any]) -> str:
        """Where a person reads the log of a task instance."""
        mapped = f"/mapped/{instance['map_index']}" if instance["map_index"] >= 0 else ""
        run = f"{self.url}/dags/{instance['dag_id']}/runs/{quote(instance['dag_run_id'], safe=':')}"
        return f"{run}/tasks/{instance['task_id']}{mapped}"

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  our own localhost URL
        with _OPENER.open(request, timeout=_PATIENCE) as response:
            text = response.read()
        return json.loads(text) if text else None


def _text(line: Mapping[str, Any]) -> str:
    """A structured log line, with the errors that belong to it."""
    errors = line.get("error_detail") or []
    return "\n".join([str(line.get("event", "")), *(f"{e['exc_type']}: {e['exc_value']}" for e in errors)])


def _path(instance: Mapping[str, Any]) -> str:
    run = f"/dags/{instance['dag_id']}/dagRuns/{quote(instance['dag_run_id'], safe=':')}"
    return f"{run}/taskInstances/{instance['task_id']}"
