"""Chunk of a batch: the inputs that one Indexed Job runs, each as a job of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.backends.kubernetes.names import CHUNK, CONTAINER, GROUP_ID

LARGEST = 10_000
"""Inputs of one chunk at most."""

_PART = re.compile(r"(grp-.+)-p(\d+)")
_CHILD = re.compile(r"(grp-.+)-(\d+)")


@dataclass(frozen=True)
class Chunk:
    """Inputs of a chunk, as Kubernetes writes sets of numbers, and how many of them run at once.

    `fail_fast` lets no input start after one has failed, `cancel_running` also stops running inputs.
    """

    group_id: str
    number: int
    indexes: str
    parallelism: int
    fail_fast: bool = False
    cancel_running: bool = False

    @property
    def size(self) -> int:
        return len(parse_indexes(self.indexes))


def chunk_id(group_id: str, number: int) -> str:
    """Return the id of a chunk, which its Job carries in place of a job id."""
    return f"{group_id}-p{number}"


def chunk_of(job_id: str) -> tuple[str, int] | None:
    """Return batch and number of a chunk's id, None for any other id."""
    found = _PART.fullmatch(job_id)
    return (found[1], int(found[2])) if found else None


def input_of(job_id: str) -> tuple[str, int] | None:
    """Return batch and index of an input's id, None for any other id."""
    found = _CHILD.fullmatch(job_id)
    return (found[1], int(found[2])) if found else None


def chunk_job(manifest: Mapping[str, Any], part: Chunk) -> dict[str, Any]:
    """Build the Job of a chunk from the manifest of a job that stands for all of its inputs."""
    job = dict(manifest["spec"])
    size = part.size
    job |= {"completions": size, "parallelism": min(size, part.parallelism)}
    if not part.cancel_running:
        del job["maxFailedIndexes"]
    labels = {GROUP_ID: part.group_id, CHUNK: str(part.number)}
    template = job["template"]
    container = template["spec"]["containers"][0]
    told = {
        "KINETIC_GROUP_ID": part.group_id,
        "KINETIC_INDEXES": part.indexes,
        "KINETIC_AT_ONCE": str(job["parallelism"]),
    }
    if "activeDeadlineSeconds" in job:
        told["KINETIC_TIMEOUT"] = str(job.pop("activeDeadlineSeconds"))  # of each input, not of all together
    if part.fail_fast:
        told["KINETIC_FAIL_FAST"] = "true"
    container = {**container, "env": [*container["env"], *({"name": k, "value": v} for k, v in told.items())]}
    metadata = template["metadata"]
    job["template"] = {
        "metadata": {**metadata, "labels": {**metadata["labels"], **labels}},
        "spec": {**template["spec"], "containers": [container]},
    }
    facts = manifest["metadata"]
    return {**manifest, "metadata": {**facts, "labels": {**facts["labels"], **labels}}, "spec": job}


def variable(job: Mapping[str, Any], name: str) -> str | None:
    """Return the value of a variable in a Job's pods, None if it is not set."""
    for container in job["spec"]["template"]["spec"]["containers"]:
        for each in container.get("env") or ():
            if container["name"] == CONTAINER and each["name"] == name:
                return str(each["value"]) if "value" in each else None
    return None


def indexes_of(job: Mapping[str, Any]) -> list[int]:
    """List the inputs that a chunk's Job runs: index n of the Job runs the n-th of them."""
    return parse_indexes(variable(job, "KINETIC_INDEXES") or "")


def stops_after_failure(job: Mapping[str, Any]) -> bool:
    """Return whether no input of a chunk may start after one has failed."""
    return variable(job, "KINETIC_FAIL_FAST") == "true"
