"""Choice of a job's accelerator: each is taken or passed over, once, in the store.

An observer passes over an accelerator without capacity, and only then makes pods for the next. A pod that
starts takes the one it was made for. Both create the same object, so that one of them comes too late. The
object is signed with the job's key, and names that key: a later Job of the same call may have another.
"""

from __future__ import annotations

import time

from . import object_names
from .attempt import Job
from .notes import encode_note, read_note
from .store import Store

STARTED = "started"
PASSED = "passed"


def is_taken(job: Job, store: Store) -> bool:
    """Take the accelerator of this pod, unless an earlier attempt has; return False if it was passed over.

    Raises ForgedNote for an object that the job has not signed: as the job may have moved on, the attempt
    does not run.
    """
    assert job.choice is not None  # noqa: S101  a job with one accelerator is not asked
    name = object_names.choice(job.job_id, job.choice)
    taken = {"decision": STARTED, "at": time.time(), "pod_uid": job.pod_uid, "key_id": job.key_id}
    if store.create_if_absent(name, encode_note(job.outcome_key, name, taken)):
        return True
    return bool(read_note(job, store, name)["decision"] == STARTED)
