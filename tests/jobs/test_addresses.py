"""Links lead where the console expects them to."""

from __future__ import annotations

from dataclasses import MISSING, fields
from urllib.parse import unquote

import pytest

from kinetic_core.job import JobReference
from kinetic_core.jobs import addresses

FIELDS = dict.fromkeys((field.name for field in fields(JobReference) if field.default is MISSING), "")
JOB = {**FIELDS, "job_id": "job-0123456789abcdef", "k8s_name": "kinetic-job-0123456789abcdef"}


@pytest.mark.promise("airflow: workload, logs, outputs")
def test_a_job_of_a_gke_cluster() -> None:
    place = {"project": "p", "zone": "us-central1-a", "cluster_name": "c", "namespace": "research"}
    reference = JobReference.from_dict({**JOB, **place, "store_uri": "gs://b/prefix"})
    assert addresses.workload(reference) == (
        "https://console.cloud.google.com/kubernetes/job/us-central1-a/c/research/"
        "kinetic-job-0123456789abcdef/details?project=p"
    )
    query = unquote(addresses.logs(reference))
    assert 'resource.labels.namespace_name="research"' in query
    assert '"job-0123456789abcdef"' in query
    assert addresses.outputs(reference) == (
        "https://console.cloud.google.com/storage/browser/b/prefix/outputs/job-0123456789abcdef"
    )


def test_a_job_of_this_machine_has_no_page_but_a_directory() -> None:
    reference = JobReference.from_dict({**JOB, "output_dir": "/data/with space", "store_uri": "file:///s"})
    assert addresses.workload(reference) == addresses.logs(reference) == ""
    assert addresses.outputs(reference) == "file:///data/with%20space"


@pytest.mark.attack
def test_outputs_elsewhere_are_no_link() -> None:
    for text in ("javascript:alert(1)", "data:text/html,x", "somewhere/else", "//evil.example", "s3://b/k"):
        shown = addresses.outputs(JobReference.from_dict({**JOB, "output_dir": text}))
        assert shown == "" or shown.startswith("file:///")
