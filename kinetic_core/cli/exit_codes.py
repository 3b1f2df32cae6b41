"""Exit codes: what a script needs to tell apart, and which error is which."""

from __future__ import annotations

from enum import IntEnum

from kinetic_core.errors import (
    BackendUnavailable,
    CloudError,
    ClusterError,
    ConfigurationError,
    ImageError,
    InstanceLost,
    InvalidRequest,
    JobConflict,
    JobError,
    JobNotFound,
    KineticError,
    ProtocolMismatch,
    ProvisioningError,
    StoreError,
    UnloadableResult,
    UnverifiedResult,
    WaitTimeout,
)


class Exit(IntEnum):
    """The exit codes of every verb."""

    OK = 0
    JOB_FAILED = 1
    USER_ERROR = 2
    CLOUD_ERROR = 3
    TIMEOUT = 4
    FINDINGS = 5
    INTERNAL = 70
    FULL_OUTPUT = 74
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    SHELL_LOST = 255

    @property
    def meaning(self) -> str:
        """One line for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "done",
    Exit.JOB_FAILED: "a job, or one of a batch, ended without a value",
    Exit.USER_ERROR: "the command, a setting, a file or an id is wrong; nothing was created",
    Exit.CLOUD_ERROR: "store, cluster or Google Cloud refused or did not answer, or no image was built",
    Exit.TIMEOUT: "`--timeout` passed; the job goes on",
    Exit.FINDINGS: "`doctor` found something that keeps jobs from running",
    Exit.INTERNAL: "a mistake of this program; the traceback is on stderr",
    Exit.FULL_OUTPUT: "what was to be said could not be written, as on a full disk",
    Exit.INTERRUPTED: "Ctrl-C; what was submitted goes on, and how to stop it is said",
    Exit.CLOSED_PIPE: "whoever read the output went away, as `head` does",
    Exit.SHELL_LOST: "`shell` lost its pod or the connection; else it ends with the code of its command",
}

_ORDER: tuple[tuple[type[KineticError], Exit], ...] = (
    (JobError, Exit.JOB_FAILED),
    (WaitTimeout, Exit.TIMEOUT),
    (StoreError, Exit.CLOUD_ERROR),
    (ClusterError, Exit.CLOUD_ERROR),
    (CloudError, Exit.CLOUD_ERROR),
    (ProvisioningError, Exit.CLOUD_ERROR),
    (ImageError, Exit.CLOUD_ERROR),
    (InvalidRequest, Exit.USER_ERROR),
    (BackendUnavailable, Exit.USER_ERROR),
    (ConfigurationError, Exit.USER_ERROR),
    (JobNotFound, Exit.USER_ERROR),
    (JobConflict, Exit.USER_ERROR),
    (InstanceLost, Exit.USER_ERROR),
    (ProtocolMismatch, Exit.USER_ERROR),
    (UnverifiedResult, Exit.USER_ERROR),
    (UnloadableResult, Exit.USER_ERROR),
)


def exit_code(error: KineticError) -> Exit:
    """The code of an error of ours; a job's failure where nothing else fits (a batch's is one)."""
    return next((code for kind, code in _ORDER if isinstance(error, kind)), Exit.JOB_FAILED)
