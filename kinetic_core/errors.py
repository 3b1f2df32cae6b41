"""Every error this package raises on purpose, by what the caller can do next.

    KineticError
    ├── InvalidRequest (ValueError)         fix the input; nothing was stored or created
    │   ├── InvalidAccelerator              no such hardware; the message lists the nearest names
    │   ├── InvalidFunction (TypeError)     what was decorated cannot become a job
    │   ├── UnpicklableArgument             names the argument that cannot travel
    │   ├── InvalidProject                  the project directory or one of its files
    │   └── InvalidDependencies             a requirement that no pod can install; names file and line
    ├── ConfigurationError                  fix the settings of this machine, profile or cluster
    │   ├── BackendUnavailable              the asked backend cannot run jobs here
    │   └── OtherCluster                    the job is one of another cluster than the settings name
    │       └── OtherNamespace
    ├── StoreError (OSError)                the object store; the message names the object
    │   ├── ObjectNotFound
    │   ├── MalformedObject                 it was not written by Kinetic, or is damaged
    │   └── StoreFull                       free space, then call again
    ├── ClusterError (RuntimeError)         the Kubernetes API refused a request; `.status` is HTTP's
    │   └── ClusterUnreachable              it gave no answer; trying again may help
    ├── CloudError (RuntimeError)           a Google Cloud API refused a request; `.status` is HTTP's
    │   └── CloudUnreachable                it gave no usable answer; the request may have been done
    ├── ProvisioningError (RuntimeError)    some of what was to be made or removed is not; run it again
    ├── ImageError (RuntimeError)           the image was not built, or its services gave no answer
    ├── JobConflict                         the job id is taken by a different job
    ├── JobNotFound (LookupError)           neither the store nor the backend knows the id
    │   └── BatchNotFound (FileNotFoundError)
    ├── WaitTimeout (TimeoutError)          the caller's patience ended; the job lives on
    │   └── BatchTimeout                    of `results()`; `.partial_results` are the values there are
    ├── JobError (RuntimeError)             the job ended without a value; `.failure` says how
    │   ├── JobFailed                       user error whose exception could not travel
    │   ├── JobOutOfMemory
    │   ├── JobOutOfDisk
    │   ├── JobDeadlineExceeded
    │   ├── JobBudgetExceeded
    │   ├── JobCancelled
    │   ├── JobLost                         the machine or the runner died under the job
    │   └── JobMisconfigured                it could not start: payload, files, environment
    ├── InstanceLost (LookupError)          the pod of an instance of a class is gone, with its state
    ├── UnserializableResult                the function returned; its value cannot travel
    ├── UnloadableResult (ImportError)      the value is there, and this machine lacks its class;
    │                                       a RuntimeError, too
    ├── UnverifiedResult                    the stored outcome fails its signature
    └── ProtocolMismatch                    the other side speaks another version of the wire format

An exception the user's function raised is re-raised as itself, with the remote traceback as a note;
it is none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kinetic_core._runner.wire import Failure


class KineticError(Exception):
    """Base of everything below; catch it to catch any refusal or failure of this package."""

    hint = ""
    """What to run at a terminal next; the command prints it below the message. "" for none."""


class InvalidRequest(KineticError, ValueError):
    """The call itself is wrong. Raised before anything is stored or created."""


class InvalidAccelerator(InvalidRequest):
    """No hardware by that name, count or topology."""


class InvalidFunction(InvalidRequest, TypeError):
    """The decorated object cannot become a job (a cache wrapper, a generator, not callable...)."""


class UnpicklableArgument(InvalidRequest):
    """The function, or one argument of it, cannot be pickled. The message names which and why."""


class InvalidProject(InvalidRequest):
    """The project directory, or a file in it, cannot be shipped."""


class InvalidDependencies(InvalidRequest):
    """A requirement that cannot be installed where jobs run; the message names its file and line."""


class ConfigurationError(KineticError):
    """A setting of this machine, profile, connection or cluster is wrong or missing."""


class BackendUnavailable(ConfigurationError):
    """The backend exists but cannot run jobs from here; the message says what it needs."""


class OtherCluster(ConfigurationError):
    """A stored job of another cluster than the settings name; the message names it."""


class OtherNamespace(OtherCluster):
    """A stored job of another namespace than the settings name; the message names it."""


class StoreError(KineticError, OSError):
    """The object store failed; retrying later may help."""

    is_passing = True
    """Whether the same request may succeed later, with nobody doing anything about it."""


class ObjectNotFound(StoreError):
    """No object of that name."""

    is_passing = False


class StoreRefused(StoreError):
    """This account may not do that in the store, until somebody lets it."""

    is_passing = False


class MalformedObject(StoreError):
    """An object is not what Kinetic writes there: damaged, or somebody else's. The message names it."""

    is_passing = False


class StoreFull(StoreError):
    """No space left in the store. What was being written is not there; nothing else changed."""

    is_passing = False


class ClusterError(KineticError, RuntimeError):
    """The Kubernetes API server refused a request. `status` is HTTP's, None if there was no answer."""

    status: int | None

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (429, 500, 502, 503, 504)


class ClusterUnreachable(ClusterError):
    """The API server gave no answer. What was asked of it may have been done all the same."""

    @property
    def is_passing(self) -> bool:
        return True


class CloudError(KineticError, RuntimeError):
    """A Google Cloud API refused a request, or an operation of it failed."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP's; 0 if there was no answer."""
        self.reason = reason
        """Google's word for it, such as `SERVICE_DISABLED` or `FAILED_PRECONDITION`; may be ""."""

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (429, 500, 502, 503, 504)


class CloudUnreachable(CloudError):
    """No usable answer: busy, broken or lost. What was asked may have been done all the same."""

    @property
    def is_passing(self) -> bool:
        return True


class ProvisioningError(KineticError, RuntimeError):
    """Some steps of a plan are not done. The message says which, and why the first one is not."""


class ImageError(KineticError, RuntimeError):
    """The container image could not be built, or Cloud Build or the registry gave no answer."""


class ImageBuilding(ImageError):
    """The image is being built, and takes longer than the caller wanted to wait. The build goes on.

    `build`: plain data by which any process can wait for it (`kinetic_core.images.cloud_build.Following`).
    `is_own`: this call has started it.
    """

    build: dict[str, str]
    is_own: bool

    def __init__(self, message: str, build: dict[str, str], *, is_own: bool = False) -> None:
        super().__init__(message)
        self.build, self.is_own = build, is_own


class JobConflict(KineticError):
    """The job id exists with another spec digest: two different calls asked for one id."""


class JobNotFound(KineticError, LookupError):
    """Neither the object store nor the backend knows this job id."""

    hint = "`kinetic jobs list` lists the jobs that are there; --profile and --backend look elsewhere"


class BatchNotFound(JobNotFound, FileNotFoundError):
    """No batch of that id is stored."""

    hint = "`kinetic batch list` lists the batches that are there; --profile and --backend look elsewhere"


class WaitTimeout(KineticError, TimeoutError):
    """`timeout=` of a waiting call passed. The job goes on and its handle stays valid."""


class BatchTimeout(WaitTimeout):
    """`timeout=` of a batch's `results()` passed. The batch goes on, and can be asked again.

    `partial_results` is a list in the order of the inputs, with None where there is no value, or none yet;
    `exceptions` maps an input's index to what was raised for it.
    """

    partial_results: list[Any]
    exceptions: dict[int, BaseException]

    def __init__(
        self,
        message: str,
        partial_results: Sequence[Any] = (),
        exceptions: Mapping[int, BaseException] | None = None,
    ) -> None:
        super().__init__(message)
        self.partial_results = list(partial_results)
        self.exceptions = dict(exceptions or {})


class JobError(KineticError, RuntimeError):
    """The job ended without a value.

    `failure` is what is known: class, message, exit code, signal, phase, last log lines.
    """

    failure: Failure | None

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class JobFailed(JobError):
    """The user's function failed and its own exception could not be rebuilt here."""


class JobOutOfMemory(JobError):
    """The job was killed for memory."""


class JobOutOfDisk(JobError):
    """The job ran out of disk."""


class JobDeadlineExceeded(JobError):
    """The job ran past its `timeout`."""


class JobBudgetExceeded(JobError):
    """The job has cost its `budget`."""


class JobCancelled(JobError):
    """Somebody cancelled the job."""


class JobLost(JobError):
    """The machine, node or runner died under the job and its restarts are used up."""


class JobMisconfigured(JobError):
    """The job could not start its function: missing object, bad archive, import error."""


class UnserializableResult(JobError):
    """The function returned, but neither the typed codec nor pickle can carry its value."""


class InstanceLost(KineticError, LookupError):
    """An instance of a class that `cls` has decorated is gone, and its state with it."""


class UnloadableResult(KineticError, ImportError, RuntimeError):
    """A value's class cannot be imported here. The value stays where it is, and loads where its class is."""


class UnverifiedResult(KineticError):
    """The stored outcome does not carry a valid signature; nothing of it was decoded."""


class ProtocolMismatch(KineticError):
    """Client and runner speak different versions of the wire format."""
