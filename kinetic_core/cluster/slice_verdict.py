"""What the several pods of a slice say together: which host is missing, and whose end tells the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.wire import Failure
from kinetic_core.cluster.pods import (
    attempt_of,
    cannot_start,
    container_state,
    evicted_for_own_use,
    host_of,
    out_of_memory,
    terminated,
    why_waiting,
)

Object = Mapping[str, Any]

_FOLLOWED = (wire.EXIT_SUCCEEDED, wire.EXIT_REGROUP, wire.EXIT_INTERRUPTED, 137)
"""Exit codes of a host that ended because another did: 137 is what is left of one killed after its grace."""


def missing_host(job: Object, pods: Sequence[Object]) -> tuple[str, str, Failure | None] | None:
    """Reason and sentence for the first host that does not run while others do, so that all wait for it.

    With a failure if it can never start. `pods` come oldest first. None for a job of one host.
    """
    hosts = int((job.get("spec") or {}).get("completions") or 1)
    newest = {host_of(pod): pod for pod in pods}
    for host in range(hosts if hosts > 1 else 0):
        pod, who = newest.get(host), f"host {host} of {hosts}"
        if pod is None:
            return "WaitingForHosts", f"{who} has no pod yet; the others wait for it", None
        if "running" in container_state(pod) or (terminated(pod) or {}).get("exitCode") == 0:
            continue
        reason, message = why_waiting(pod)
        return reason, f"{who}: {message}; the others wait for it", cannot_start(pod)
    return None


def telling_pod(pods: Sequence[Object]) -> Object | None:
    """The pod whose end says the most about a failed job; the newest, of equals. `pods` come oldest first."""
    return max(reversed(pods), key=_weight, default=None)


def _weight(pod: Object) -> tuple[int, int]:
    code = (terminated(pod) or {}).get("exitCode")
    if evicted_for_own_use([pod]) or out_of_memory(pod):
        return attempt_of(pod), 2
    return attempt_of(pod), int(code is not None and code not in _FOLLOWED)
