"""Links lead where the console expects them to."""

from __future__ import annotations

from dataclasses import MISSING, fields
from urllib.parse import unquote

from airflow_provider import addresses
from kinetic_core.model.job import JobReference

FIELDS = dict.fromkeys((field.name for field in fields(JobReference) if field.default is MISSING), "")
JOB = {**FIELDS, "job_id": "job-0123456789abcdef", "k8s_name": "kinetic-job-0123456789abcdef"}


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


def test_an_address_that_is_none_is_shown_as_it_is() -> None:
    for text in ("javascript:alert(1)", "somewhere/else", "s3://b/k"):
        assert addresses.outputs(JobReference.from_dict({**JOB, "output_dir": text})) == text
