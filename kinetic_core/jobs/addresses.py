"""Addresses where a person looks at a job: pages of Google's console, or files of this machine.

The forms are those that the console shows in the browser's address bar for a Job of GKE, a query of Logs
Explorer and a folder of Cloud Storage.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from kinetic_core._runner.object_names import outputs_prefix
from kinetic_core.job import JobReference

_CONSOLE = "https://console.cloud.google.com"


def workload(reference: JobReference) -> str:
    """Return the address of the Job's page; "" for a job that is not on a cluster of the GKE API."""
    if reference.cluster is None:
        return ""
    project, zone, cluster = (quote(part, safe="") for part in reference.cluster)
    place = f"{zone}/{cluster}/{quote(reference.namespace)}/{quote(reference.k8s_name)}"
    return f"{_CONSOLE}/kubernetes/job/{place}/details?project={project}"


def logs(reference: JobReference) -> str:
    """Return the address of the log of all attempts in Logs Explorer; "" as for `workload`."""
    if reference.cluster is None:
        return ""
    project, _, cluster = reference.cluster
    query = (
        'resource.type="k8s_container"\n'
        f'resource.labels.cluster_name="{cluster}"\n'
        f'resource.labels.namespace_name="{reference.namespace}"\n'
        f'labels."k8s-pod/kinetic_dev/job-id"="{reference.job_id}"'
    )
    return f"{_CONSOLE}/logs/query;query={quote(query, safe='')}?project={quote(project, safe='')}"


def outputs(reference: JobReference) -> str:
    """Return the address of the job's output directory, in a bucket or on this machine.

    "" for any other address, because a browser would execute some.
    """
    place = reference.output_dir or f"{reference.store_uri}/{outputs_prefix(reference.job_id)}".rstrip("/")
    if place.startswith("gs://"):
        return f"{_CONSOLE}/storage/browser/{quote(place.removeprefix('gs://'))}"
    return Path(place).as_uri() if Path(place).is_absolute() else ""
