"""How `doctor` checks: all at once, what needs something waits for it, nothing longer than the limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kinetic_core.errors import (
    CloudError,
    CloudUnreachable,
    ClusterError,
    ClusterUnreachable,
    ConfigurationError,
    ImageError,
    JobError,
    KineticError,
    StoreError,
    StoreFull,
    WaitTimeout,
)

_ELSE = "docs/troubleshooting.md has every error by its name"
_REMEDIES: tuple[tuple[type[KineticError], str], ...] = (
    (
        ConfigurationError,
        "correct the setting it names (see `kinetic config`), or: gcloud auth application-default login",
    ),
    (
        ClusterUnreachable,
        "see whether the cluster runs and this machine gets to it: address, VPN, proxy, authorised networks",
    ),
    (ClusterError, "let this account do it: bind the role of docs/guides/clusters.md to it"),
    (CloudUnreachable, "see whether this machine gets to Google Cloud (proxy, firewall), then try again"),
    (CloudError, "let this account do it, and see that project and zone are right (`kinetic config`)"),
    (StoreFull, "free space, or set KINETIC_LOCAL_STORE"),
    (
        StoreError,
        "see that the store may be written to: roles/storage.objectUser on a bucket, your own directory here",
    ),
    (ImageError, "look at the build's log, or name a ready image in KINETIC_CONTAINER_IMAGE"),
    (WaitTimeout, "kinetic jobs list shows the job, kinetic jobs explain why it takes so long"),
    (JobError, "kinetic jobs list shows the job, kinetic jobs logs and explain what happened to it"),
)


def remedy(error: KineticError) -> str:
    """A sentence, never empty."""
    if isinstance(error, ClusterError) and error.status is not None and error.is_passing:
        return "try again: the API server is there, and busy"
    return next((told for kind, told in _REMEDIES if isinstance(error, kind)), _ELSE)


Outcome = Literal["ok", "warn", "fail", "skip"]
LIMIT_SECONDS = 4.0


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    outcome: Outcome
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Check:
    """One thing to look at. `needs` names a check without whose success this one means nothing.

    An error of ours that `look` raises is a failure; so is no answer, unless `silence` says what it means.
    """

    name: str
    look: Callable[[], Finding]
    needs: str = ""
    silence: Finding | None = None


@dataclass(frozen=True)
class Report:
    """A check and what it found, after `seconds`."""

    name: str
    finding: Finding
    seconds: float


def perform(checks: Sequence[Check], limit: float = LIMIT_SECONDS) -> list[Report]:
    """The reports, in the order of the checks.

    One that has not ended after `limit` seconds has failed, or is skipped where it waits for what it needs.
    """
    started = time.monotonic()
    running = {check.name: _Running() for check in checks}
    for check in checks:
        # Daemons: nobody waits for the answer of a server that gives none.
        threading.Thread(target=_perform, args=(check, running), daemon=True).start()
    reports = []
    for check in checks:
        one = running[check.name]
        one.ended.wait(max(0.0, started + limit - time.monotonic()))
        finding = one.finding or _unfinished(check, running, limit)
        reports.append(Report(check.name, finding, (one.at or time.monotonic()) - started))
    return reports


class _Running:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.finding: Finding | None = None
        self.at: float | None = None

    @property
    def is_well(self) -> bool:
        """Whether it has ended, so that what needs it means something."""
        return self.finding is not None and self.finding.outcome in ("ok", "warn")


def _perform(check: Check, running: dict[str, _Running]) -> None:
    one = running[check.name]
    one.finding = _finding(check, running)
    one.at = time.monotonic()
    one.ended.set()


def _unfinished(check: Check, running: dict[str, _Running], limit: float) -> Finding:
    if (needed := running.get(check.needs)) and not needed.is_well:
        return _skipped(check)
    if check.silence is not None:
        return check.silence
    fix = "see whether this machine gets to it (network, VPN, proxy), and whether it is up"
    return Finding("fail", f"no answer within {limit:g} s", fix)


def _skipped(check: Check) -> Finding:
    return Finding("skip", f"needs: {check.needs}")


def _finding(check: Check, running: dict[str, _Running]) -> Finding:
    if needed := running.get(check.needs):
        needed.ended.wait()
        if not needed.is_well:
            return _skipped(check)
    try:
        return check.look()
    except KineticError as exc:
        return Finding("fail", str(exc), remedy(exc))
    except Exception as exc:  # noqa: BLE001  a check that breaks is a finding, not the end of all others
        return Finding("fail", f"the check itself failed: {_with_causes(exc)}", "report it")


def _with_causes(error: BaseException) -> str:
    """Return an error of a check's own and what it was raised from, which is the part that explains it."""
    causes = [repr(error)]
    while (cause := error.__cause__) is not None:
        causes.append(repr(cause))
        error = cause
    return ", because of ".join(causes)
