"""A part of a batch: the inputs that one Indexed Job runs, each as a job of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_core._runner.indexes import parse_indexes
from kinetic_core.cluster.names import CONTAINER, GROUP_ID, PART

LARGEST = 10_000
"""Inputs of one part."""

_PART = re.compile(r"(grp-.+)-p(\d+)")
_CHILD = re.compile(r"(grp-.+)-(\d+)")


@dataclass(frozen=True)
class Part:
    """Which inputs of a batch, as Kubernetes writes sets of numbers, and how many of them run at once.

    `fail_fast` lets no input start after one has failed, `cancel_running` also stops those that run.
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


def part_id(group_id: str, number: int) -> str:
    """What stands in the place of a job id on the Job of a part."""
    return f"{group_id}-p{number}"


def part_of(job_id: str) -> tuple[str, int] | None:
    """Batch and number, if that stands for a part."""
    found = _PART.fullmatch(job_id)
    return (found[1], int(found[2])) if found else None


def child_of(job_id: str) -> tuple[str, int] | None:
    """Batch and index, if that is the id of a batch's input."""
    found = _CHILD.fullmatch(job_id)
    return (found[1], int(found[2])) if found else None


def part_job(manifest: Mapping[str, Any], part: Part) -> dict[str, Any]:
    """The Job of a part, from the manifest of a job that is like all of its inputs."""
    job = dict(manifest["spec"])
    size = part.size
    job |= {"completions": size, "parallelism": min(size, part.parallelism)}
    if not part.cancel_running:
        del job["maxFailedIndexes"]
    labels = {GROUP_ID: part.group_id, PART: str(part.number)}
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
    """What a Job tells its pods in a variable."""
    for container in job["spec"]["template"]["spec"]["containers"]:
        for each in container.get("env") or ():
            if container["name"] == CONTAINER and each["name"] == name:
                return str(each["value"]) if "value" in each else None
    return None


def indexes_of(job: Mapping[str, Any]) -> list[int]:
    """The inputs a part's Job runs: its own index n is the n-th of them."""
    return parse_indexes(variable(job, "KINETIC_INDEXES") or "")
