"""Kubeconfigs as other tools write them: read, never written, and no program is run for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import kinetic_core
from kinetic_core.client import default_client
from kinetic_core.errors import ConfigurationError
from tests.cluster.conftest import KUBECONFIG

pytestmark = pytest.mark.usefixtures("google")

PROGRAM = """
import sys
started = []
sys.addaudithook(lambda name, given: started.append(name) if name in {
    "subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty"} else None)
import kinetic_core
print(kinetic_core.run(accelerator="cpu")(lambda: 7)(), started)
"""


def written(tmp_path: Path, user: dict[str, Any], current: str | None = None) -> Path:
    """The cluster's kubeconfig with another user; the file."""
    content = yaml.safe_load(Path(KUBECONFIG).read_text())
    for each in content["users"]:
        each["user"] = user
    if current is not None:
        content["current-context"] = current
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file


def plugin(command: str) -> dict[str, Any]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command}}


@pytest.mark.promise("gke: The kubeconfig is never written or switched; no subprocess")
def test_gclouds_is_enough_without_its_plugin(tmp_path: Path) -> None:
    """`gcloud container clusters get-credentials` writes one with a program that few pods have."""
    file = written(tmp_path, plugin("gke-gcloud-auth-plugin"))
    before = (file.read_bytes(), file.stat().st_mtime_ns)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KINETIC_KUBECONFIG": str(file)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout.split("\n")[-2] == "7 []"
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


@pytest.mark.promise("gke: The kubeconfig is never written or switched; no subprocess")
def test_another_program_is_named_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "it ran"
    program = tmp_path / "give-me-a-token"
    program.write_text(f"#!/bin/sh\ntouch '{trace}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("KINETIC_KUBECONFIG", str(written(tmp_path, plugin(str(program)))))
    default_client().close()
    with pytest.raises(
        ConfigurationError, match=r"from the program '.*give-me-a-token', and Kinetic runs none"
    ):
        kinetic_core.run(accelerator="cpu")(lambda: 7)()
    assert not trace.exists()
