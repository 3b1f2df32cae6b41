"""Host whose pod belongs to a LeaderWorkerSet, where every end of a container is followed by a new start.

Kubernetes counts nothing for such pods and never calls one completed: the kubelet restarts a container
whatever its exit code, and the set's controller then replaces all pods of the group. So attempts are counted
in the store, the deadline is kept here, and a host whose job is over stays, doing nothing, until its set is
deleted. Host 0 deletes the set, with the service account of its pod, which may do nothing else.
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

from . import object_names, wire
from .attempt import Job
from .claims import Claim
from .notes import read_note
from .rendezvous import FAILED, INTERRUPTED, Rendezvous
from .slice import conclude
from .store import Store

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_AGAIN_SECONDS = 15.0
_ANSWER_SECONDS = 20
_UNPUBLISHED = "unpublished"
"""File that tells the container's successor in the pod that the store was at fault."""
_OVER = (wire.EXIT_SUCCEEDED, wire.EXIT_NEVER_RETRY)


def numbered(job: Job, store: Store) -> tuple[Job, bool]:
    """Claim the job's attempt; return the job with it, and True if this pod's container has run before.

    An attempt of a host is a pod of it, in the order in which they came. Raises ForgedNote.
    """
    while True:
        name = object_names.claim(job.job_id, job.attempt, job.host)
        if store.create_if_absent(name, Claim(job.attempt, job.pod_uid).content(job)):
            return job, False
        if read_note(job, store, name)["pod_uid"] == job.pod_uid:
            return job, True
        job = replace(job, ignored_count=job.ignored_count + 1)


def after_death(job: Job, store: Store) -> int:
    """Record how an earlier container of this pod ended, unless another host has; return the exit code.

    The controller is about to replace the whole group with new pods.
    """
    rendezvous = Rendezvous(job, store)
    blameless = os.path.exists(os.path.join(job.work_dir, _UNPUBLISHED))
    end = rendezvous.bury(INTERRUPTED if blameless else FAILED)
    return wire.EXIT_REGROUP if end is None else conclude(rendezvous, end, store)


def leave(job: Job, code: int, was_told: bool) -> int:
    """Return the exit code, at once if another pod follows; once the job is over, when the set is deleted."""
    if code in _OVER and not was_told:
        _park(job)
    if code == wire.EXIT_UNPUBLISHED:
        os.makedirs(job.work_dir, exist_ok=True)
        with open(os.path.join(job.work_dir, _UNPUBLISHED), "w"):
            pass
    return code


def _park(job: Job) -> None:
    """Wait without returning, until a signal ends the pod."""
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
    """Delete the set this pod belongs to; return False if the request must be repeated."""
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
    """Send a DELETE request; return the API server's status and text."""
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
