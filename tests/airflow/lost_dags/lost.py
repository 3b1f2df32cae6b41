"""Tasks whose jobs print until a test has seen enough, while parts of the cluster are not there."""

from __future__ import annotations

import itertools
import os
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task

SIGNS = Path(__file__).with_name("sign").read_text()
"""What the URLs of the objects begin with that the test makes then."""


@task.kinetic(
    accelerator="cpu", cpu=0.1, memory="256Mi", timeout=600, retries=1, retry_delay=timedelta(seconds=1)
)
def talk(sign: str) -> list[int]:
    """The number of the attempt, and of its lines."""
    counts = (os.environ[f"KINETIC_{kind}_COUNT"] for kind in ("FAILED", "IGNORED"))
    attempt = sum(int(told or 0) for told in counts)
    for number in itertools.count(1):
        print(f"line {number - 1} of attempt {attempt}", flush=True)
        time.sleep(1)
        try:
            urllib.request.urlopen(sign, timeout=5).close()
        except OSError as error:  # nobody may answer just now
            if isinstance(error, urllib.error.HTTPError) and error.code != 404:
                raise
        else:
            break
    return [attempt, number]


@dag(schedule=None, catchup=False)
def node_lost():
    """Its pod runs on nodes that the test can lose."""
    tolerations = [{"key": "google.com/tpu", "operator": "Exists"}]
    on_pair = talk.override(node_selector={"kinetic.test/pair": "1"}, tolerations=tolerations)
    on_pair(f"{SIGNS}-node")


@dag(schedule=None, catchup=False)
def server_away():
    """One job ends while there is no API server, the other goes on."""
    talk.override(task_id="ends")(f"{SIGNS}-ends")
    talk.override(task_id="goes_on")(f"{SIGNS}-goes-on")


@dag(schedule=None, catchup=False)
def resumed():
    """There is no API server when its worker comes to collect, and the try is the only one."""
    talk.override(retries=0)(f"{SIGNS}-resumed")


node_lost()
server_away()
resumed()
