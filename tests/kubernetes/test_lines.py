"""Which line of a batch counts: said once, in a cluster."""

from __future__ import annotations

import secrets

import pytest

from kinetic_core.backends.kubernetes.names import QUEUE_DIGEST_NAME
from kinetic_core.backends.kubernetes.queue import BatchQueues
from kinetic_core.errors import JobConflict
from tests.conftest import wait_for
from tests.kubernetes.contract import SUCCEEDS, Make


def test_the_first_line_counts_for_all_who_submit_the_same(world: Make) -> None:
    here, group_id = world(SUCCEEDS), f"grp-{secrets.token_hex(4)}"
    lines = BatchQueues(here.api)
    assert lines.find(here.namespace, group_id) is None
    assert lines.keep(here.namespace, group_id, "a" * 64, "same") == "a" * 64
    assert lines.keep(here.namespace, group_id, "b" * 64, "same") == "a" * 64
    assert lines.find(here.namespace, group_id) == "a" * 64
    with pytest.raises(JobConflict):
        lines.keep(here.namespace, group_id, "b" * 64, "other")
    job = here.api.get("Job", here.namespace, QUEUE_DIGEST_NAME.format(group_id))
    assert job is not None
    assert (
        here.api.list("Pod", here.namespace, {"labelSelector": f"job-name={job['metadata']['name']}"})[
            "items"
        ]
        == []
    )
    lines.remove(here.namespace, group_id)
    lines.remove(here.namespace, group_id)
    wait_for(lambda: lines.find(here.namespace, group_id) is None)


def test_kubernetes_takes_it_for_a_job_that_is_complete(world: Make) -> None:
    here, group_id = world(SUCCEEDS), f"grp-{secrets.token_hex(4)}"
    BatchQueues(here.api).keep(here.namespace, group_id, "a" * 64, "same")
    assert "Complete" in here.ended(QUEUE_DIGEST_NAME.format(group_id))
