"""A host whose pod belongs to a LeaderWorkerSet, where any end of a container is followed by a new start.

Kubernetes counts nothing for such pods and never calls one completed: the kubelet restarts a container
whatever its exit code, and the set's controller then replaces all pods of the group. So attempts are counted
in the store, the deadline is kept here, and a host whose job is over stays, doing nothing, until its set is
deleted. Host 0 does that, with the service account of its pod, which may do nothing else.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import time
from dataclasses import replace

from . import wire
from .gang import FAILED, INTERRUPTED, Gang
from .job import Job
from .store import Store
from .together import conclude

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_AGAIN_SECONDS = 15.0
_ANSWER_SECONDS = 20
_UNPUBLISHED = "unpublished"
"""A file beside user code's: says to the container's successor in the pod that the store was at fault."""
_OVER = (wire.EXIT_SUCCEEDED, wire.EXIT_NEVER_RETRY)


def numbered(job: Job, store: Store) -> tuple[Job, bool]:
    """The job with its attempt, which is claimed; True if this pod's container has run before.

    An attempt of a host is a pod of it, in the order in which they came.
    """
    claim = json.dumps({"pod_uid": job.pod_uid, "at": time.time()}).encode()
    while not store.create(name := wire.claim_object(job.job_id, job.attempt, job.host), claim):
        if json.loads(store.read(name))["pod_uid"] == job.pod_uid:
            return job, True
        job = replace(job, ignored_count=job.ignored_count + 1)
    return job, False


def after_death(job: Job, store: Store) -> int:
    """For a container that ran before in this pod: say how that ended, if nobody has, and make room for a new
    pod, since the controller is about to replace the whole group. The exit code.
    """
    gang = Gang(job, store)
    blameless = os.path.exists(os.path.join(job.work_dir, _UNPUBLISHED))
    end = gang.bury(INTERRUPTED if blameless else FAILED)
    return wire.EXIT_REGROUP if end is None else conclude(gang, end, store)


def leave(job: Job, code: int, was_told: bool) -> int:
    """The exit code, at once if another pod is to follow; once the job is over, when the set is deleted."""
    if code in _OVER and not was_told:
        _park(job)
    if code == wire.EXIT_UNPUBLISHED:
        os.makedirs(job.work_dir, exist_ok=True)
        with open(os.path.join(job.work_dir, _UNPUBLISHED), "w"):
            pass
    return code


def _park(job: Job) -> None:
    """Never returns; ends with the pod, by a signal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(wire.EXIT_SUCCEEDED))
    if os.getpid() == 1:
        try:
            os.kill(-1, signal.SIGKILL)  # what user code has left behind would go on for as long
        except ProcessLookupError:
            sys.stderr.flush()
    sys.stderr.write("kinetic: the job is over; this pod stays until its set is deleted\n")
    while job.host == 0 and not _delete_set(job):
        time.sleep(_AGAIN_SECONDS)
    while True:
        signal.pause()


def _delete_set(job: Job) -> bool:
    """Delete the set this pod belongs to; False if that is to be tried again."""
    try:
        with open(f"{_ACCOUNT}/token") as token, open(f"{_ACCOUNT}/namespace") as namespace:
            bearer, place = token.read().strip(), namespace.read().strip()
        path = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{place}/leaderworkersets/{job.set_name}"
        status, told = _delete(path, bearer)
    except (OSError, ValueError, http.client.HTTPException) as exc:
        sys.stderr.write(f"kinetic: {job.set_name} is not deleted yet: {exc}\n")
        return isinstance(exc, FileNotFoundError)  # a pod without an account never will
    if status in (401, 403):
        sys.stderr.write(
            f"kinetic: the pod's account may not delete {job.set_name}, so it holds its nodes until somebody "
            f"looks at the job: {told}. docs/guides/multi-host.md has the role\n"
        )
    return status in (200, 202, 401, 403, 404)


def _delete(path: str, bearer: str) -> tuple[int, str]:
    """The API server's status, and what it says."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or 443)
    trusted = ssl.create_default_context(cafile=f"{_ACCOUNT}/ca.crt")
    connection = http.client.HTTPSConnection(host, port, timeout=_ANSWER_SECONDS, context=trusted)
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    try:
        connection.request("DELETE", path, json.dumps({"propagationPolicy": "Background"}), headers)
        answer = connection.getresponse()
        return answer.status, str(json.loads(answer.read()).get("message") or f"HTTP {answer.status}")
    finally:
        connection.close()
