"""A real Airflow laid out as the official image has it: what its jobs get, and what they never do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cases

pytestmark = [pytest.mark.airflow, pytest.mark.attack]

DAG = """
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task
from shared_tools import double


@dag(schedule=None, catchup=False)
def bundled():
    @task.kinetic(accelerator="cpu", backend="local", retries=2, retry_delay=timedelta(seconds=1))
    def look(number: int):
        import os
        from common.late import late
        from of_plugins import helped
        from of_config import configured

        workspace = Path(__file__).parents[2]
        files = sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*") if path.is_file())
        return {
            "value": double(number) + late() + helped() + configured(),
            "data": (Path(__file__).parent / "data.txt").read_text(),
            "relative": Path("dags/team_a/data.txt").read_text(),
            "files": [file for file in files if "__pycache__" not in file],
        }

    look(1)


bundled()
"""
FILES = {
    "requirements.txt": "apache-airflow",
    "webserver_config.py": "SECRET_KEY = 'only the webserver has it'",
    "simple_auth_manager_passwords.json.generated": "{}",
    "dags/team_a/bundled.py": DAG,
    "dags/team_a/data.txt": "of team a",
    "dags/shared_tools.py": "def double(n): return 2 * n",
    "dags/common/late.py": "def late(): return 10",
    "dags/team_b/secret.py": "",
    "dags/team_b/data.txt": "of team b",
    "plugins/of_plugins.py": "def helped(): return 100",
    "plugins/other_plugin.py": "",
    "config/of_config.py": "def configured(): return 1000",
    "config/keys.json": "{}",
}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("official").resolve()
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    airflow = DemoAirflow(home, home / "dags", extra={"XDG_CACHE_HOME": str(home / "cache")})
    try:
        airflow.start()
        yield Cases(airflow)
    finally:
        airflow.stop(patience=0)


def test_a_job_has_its_part_of_the_bundle_only(official: Cases) -> None:
    home: Path = official.airflow.home
    assert (home / "airflow.cfg").is_file()
    assert any((home / "logs").iterdir())
    assert official.end("bundled") == "success", official.log("bundled", "look")
    found: dict[str, Any] = official.value("bundled", "look")
    assert (found["value"], found["data"], found["relative"]) == (1112, "of team a", "of team a")
    assert found["files"] == [
        "config/of_config.py",
        "dags/common/late.py",
        "dags/shared_tools.py",
        "dags/team_a/bundled.py",
        "dags/team_a/data.txt",
        "plugins/of_plugins.py",
    ]
    stored = b"".join(path.read_bytes() for path in (home / "kinetic").rglob("*") if path.is_file())
    for secret in (b"fernet_key", b"only the webserver has it", b"of team b"):
        assert secret not in stored, json.dumps(found)
