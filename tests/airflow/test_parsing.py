"""Parsing a DAG is cheap and safe: nothing of a cloud is imported, no file or network is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

DEFINE = """
import json, sys
from airflow.sdk import DAG, task
{before}
imported = set(sys.modules)
touched = []

def watch(event, arguments):
    # Reading what is installed is importing, whoever does it; our tables of shapes are.
    installed = event == "open" and str(arguments[0]).endswith((".py", ".pyc", ".so", "_shapes.json"))
    if event.split(".")[0] in ("socket", "subprocess", "os", "shutil", "tempfile", "open") and not installed:
        touched.append([event, str(arguments[:1])])

sys.addaudithook(watch)
with DAG("parsed", schedule=None):
    {body}
touched = [each for each in touched if each[0] not in ("os.listdir", "os.scandir")]  # imports look around
print(json.dumps({{"modules": sorted(set(sys.modules) - imported), "touched": touched}}))
"""
KINETIC = """
    @task.kinetic(accelerator="tpu-v6e-8", timeout=60, memory="1Gi", capture_env_vars=["WANDB_*"])
    def train(x):
        return x
    train.partial().expand(x=[1, 2, 3])
"""
MISTAKE = """
from airflow.sdk import DAG, task
with DAG("mistaken", schedule=None):
    @task.kinetic({options})
    def train(x):
        return x
    train(1)
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "parsed.py").write_text(program)
    return subprocess.run(
        [sys.executable, "parsed.py"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.promise("airflow: Parsing 50 `@task.kinetic` ≤ 1.2 × of 50 `@task`")
def test_parsing_imports_no_cloud_and_touches_nothing(tmp_path: Path) -> None:
    warm_up = "import croniter; task.kinetic"  # Airflow's own doings, and finding the entry point
    done = run(DEFINE.format(before=warm_up, body=KINETIC), tmp_path)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["touched"] == []
    everything = run(DEFINE.format(before="", body=KINETIC), tmp_path)
    modules = json.loads(everything.stdout.splitlines()[-1])["modules"]
    tops = {module.partition(".")[0] for module in modules}
    assert not tops & {"google", "kubernetes", "kubernetes_asyncio", "cloudpickle", "pathspec", "numpy"}
    assert "airflow_provider.triggers.kinetic" not in modules
    assert "kinetic_core.project.snapshot" not in modules


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('accelerator="tpu-v9-8"', "tpu-v9-8"),
        ('accelerator="cpu", memory="lots"', "memory"),
        ('accelerator="cpu", timeout=0', "timeout"),
        ('accelerator="cpu", capture_env_vars="A"', "capture_env_vars"),
        ('accelerator="cpu", debug=True', "nobody sits at an Airflow worker"),
    ],
)
def test_a_mistake_is_an_import_error_that_names_the_option(
    options: str, message: str, tmp_path: Path
) -> None:
    done = run(MISTAKE.format(options=options), tmp_path)
    assert done.returncode == 1
    assert message in done.stderr.strip().splitlines()[-1]


def test_a_generator_is_refused_where_it_is_written(tmp_path: Path) -> None:
    done = run(MISTAKE.format(options='accelerator="cpu"').replace("return x", "yield x"), tmp_path)
    assert done.returncode == 1
    assert "generator" in done.stderr
