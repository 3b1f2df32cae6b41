"""The public surface is pinned, cheap to import, and free of side effects."""

from __future__ import annotations

import json
import subprocess
import sys

import kinetic_core

PUBLIC = {
    "BatchError", "BatchHandle", "Client", "Data", "JobHandle", "JobStatus", "KineticError", "RemoteCallable",
    "ResultReference", "Settings", "__version__", "attach", "attach_batch", "build_image", "cls",
    "default_client", "list_jobs", "run",
}  # fmt: skip

PROBE = """
import json, logging, os, sys
before, environment = set(sys.modules), dict(os.environ)
handlers = list(logging.getLogger().handlers)
import kinetic_core
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({
    "modules": len(set(sys.modules) - before),
    "foreign": sorted(loaded & {"airflow", "google", "kubernetes", "click", "rich", "cloudpickle", "numpy"}),
    "environment": environment == dict(os.environ),
    "handlers": handlers == logging.getLogger().handlers,
}))
"""
PROBE_RUN = "import sys; from kinetic_core import run; print(len(sys.modules), *sys.modules)"


def test_the_public_names_are_these() -> None:
    assert set(kinetic_core.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(kinetic_core, name) is not None
    assert set(dir(kinetic_core)) >= PUBLIC


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(kinetic_core, "submit")


def test_importing_is_cheap_and_changes_nothing() -> None:
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    facts = json.loads(probe.stdout)
    assert facts["modules"] <= 250
    assert facts["foreign"] == []
    assert facts["environment"]
    assert facts["handlers"]


def test_decorating_imports_little() -> None:
    """What packs, submits and observes is imported by the first call."""
    probe = subprocess.run([sys.executable, "-c", PROBE_RUN], capture_output=True, text=True, check=True)
    count, *modules = probe.stdout.split()
    assert int(count) <= 140  # 110 with Python 3.11, of which 68 are there before
    rooms = {name.split(".")[1] for name in modules if name.startswith("kinetic_core.")}
    assert not rooms & {"backends", "batches", "cli", "images", "jobs", "project", "store"}
