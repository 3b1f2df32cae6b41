"""Which of its accelerators a job runs on: each is taken or passed over, once, in the store.

An observer passes over one that has no capacity, and only then makes pods for the next. A pod that starts
takes the one it was made for. Both create the same object, so that one of them comes too late.
"""

from __future__ import annotations

import json
import time

from . import wire
from .job import Job
from .store import Store

STARTED = "started"
PASSED = "passed"


def is_taken(job: Job, store: Store) -> bool:
    """Take the accelerator of this pod, or find that an earlier attempt has; False if it was passed over."""
    assert job.choice is not None  # noqa: S101  a job with one accelerator is not asked
    name = wire.choice_object(job.job_id, job.choice)
    taken = {"decision": STARTED, "at": time.time(), "pod_uid": job.pod_uid}
    if store.create(name, json.dumps(taken).encode()):
        return True
    return bool(json.loads(store.read(name))["decision"] == STARTED)
