"""Attempts of pods, by the claims in the store, where Kubernetes' counts do not tell them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core._runner.claims import Claim, read_claim
from kinetic_core._runner.notes import LONGEST_NOTE
from kinetic_core.backends.kubernetes.chunks import variable
from kinetic_core.backends.kubernetes.names import JOB_ID, OUTCOME_KEY, SUSPENDED, WORKER
from kinetic_core.backends.kubernetes.objects import Job, Pod
from kinetic_core.backends.kubernetes.pods import with_attempt
from kinetic_core.errors import ObjectNotFound
from kinetic_core.store.protocol import ObjectStore

_ASK_SECONDS = 1.0
_REMEMBERED = 10_000
_MOST_CLAIMS = 1000
"""Claims of a host that are read: more are somebody else's, who wants readers to read forever."""


def stored_claims(
    store: ObjectStore, job_id: str, key: bytes, host: int = 0, first: int = 0
) -> Iterator[Claim]:
    """Yield the claims of a host from a number on; one that no runner of the job has written has no pod."""
    for number in range(first, _MOST_CLAIMS):
        name = object_names.claim(job_id, number, host)
        try:
            content = store.read_range(name, 0, LONGEST_NOTE)
        except ObjectNotFound:
            return
        yield read_claim(content, name, key, number)


class ClaimedAttempts:
    """Claims of jobs in one store. A claim never changes, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._claims: dict[str, Claim] = {}
        """Claims of pods that have begun, by UID."""
        self._asked: dict[tuple[str, int], tuple[float, list[Claim]]] = {}
        """Time (monotonic) at which a host's claims were read, and the claims."""

    def numbered(self, job: Mapping[str, Any], pods: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return a Job's pods with the counts of their attempts.

        Kubernetes' own counts are right unless the Job was suspended, two pods share a number, or a worker
        may have run attempts of it.
        """
        numbers = {(Pod(pod).attempt, Pod(pod).host) for pod in pods}
        counted = SUSPENDED not in Job(job).conditions and WORKER not in (job["metadata"].get("labels") or {})
        if not pods or (len(numbers) == len(pods) and counted):
            return pods
        return [self._numbered(job, pod) for pod in pods]

    def claim(self, job: Mapping[str, Any], pod: Mapping[str, Any], host: int) -> Claim | None:
        """Return a pod's claim; None if the pod has not begun."""
        uid = pod["metadata"]["uid"]
        if uid not in self._claims:
            if len(self._claims) >= _REMEMBERED:
                self._claims.clear()
            self._claims |= {each.pod_uid: each for each in self.claims(job, host) if each.pod_uid}
        return self._claims.get(uid)

    def claims(self, job: Mapping[str, Any], host: int) -> Sequence[Claim]:
        """Return all claims of a host, in order; the store is asked at most once a second."""
        job_id = job["metadata"]["labels"][JOB_ID]
        key = bytes.fromhex(variable(job, OUTCOME_KEY) or "")
        asked, known = self._asked.get((job_id, host), (float("-inf"), []))
        if time.monotonic() - asked < _ASK_SECONDS:
            return known
        found = [*known, *stored_claims(self._store, job_id, key, host, len(known))]
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked[job_id, host] = time.monotonic(), found
        return found

    def _numbered(self, job: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
        host = Pod(pod).host
        if (claim := self.claim(job, pod, host)) is not None:
            return with_attempt(pod, claim.number, claim.spent_failures)
        known = self.claims(job, host)
        failures = max((each.spent_failures for each in known), default=0)
        return with_attempt(pod, max(len(known), Pod(pod).attempt), failures)
