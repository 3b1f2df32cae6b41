"""Names and life cycle of keras-kinetic, for programs that move: `import kinetic_core.compat as kinetic`.

What it does is done by `kinetic_core`. Only names and the life of a job are those of keras-kinetic: a job
that was cancelled or collected is `NOT_FOUND`, `cleanup()` ends what runs, `list_jobs()` has what Kubernetes
still has.
The modules have the names that keras-kinetic documents for import, however little some of them hold.
[The guide](../migration/keras-kinetic.md) has every difference that remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from kinetic_core import __version__ as __version__
from kinetic_core import decorator
from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.compat import collections, credentials, data, debug, job_status, jobs
from kinetic_core.compat.collections import BatchError, BatchHandle, attach_batch
from kinetic_core.compat.data import Data
from kinetic_core.compat.jobs import JobHandle, attach, handle_there, list_jobs
from kinetic_core.options import MAP_OPTIONS, NOT_GIVEN, OPTIONS, MapKeywords, RunKeywords
from kinetic_core.terminal import Progress

__all__ = [
    "BatchError",
    "BatchHandle",
    "Data",
    "JobHandle",
    "RemoteCallable",
    "__version__",
    "attach",
    "attach_batch",
    "collections",
    "credentials",
    "data",
    "debug",
    "job_status",
    "jobs",
    "list_jobs",
    "run",
]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class RemoteCallable(decorator.RemoteCallable[P, R]):
    """A decorated function, as `kinetic_core.RemoteCallable`, with handles of this package."""

    def run_async(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Start it as a job and return its handle; waits only for packaging and upload."""
        with Progress() as progress:
            return self.start(args, kwargs, progress)

    @MAP_OPTIONS.describes
    def run_async_map(self, inputs: Iterable[Any], **options: Unpack[MapKeywords]) -> BatchHandle:
        """Start one job per input and return at once, as `kinetic_core.RemoteCallable.run_async_map`.

        `cancel_running_on_fail` without `fail_fast` has no effect, as in keras-kinetic.
        """
        if not options.get("fail_fast"):
            options.pop("cancel_running_on_fail", None)
        return BatchHandle.of(super().run_async_map(inputs, **options))

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress) -> JobHandle:
        """Start it as a job, as `run_async` does, and show its submission in `progress`."""
        return handle_there(super().start(args, kwargs, progress))

    @overload
    def __get__(self, instance: None, owner: type) -> RemoteCallable[P, R]: ...
    @overload
    def __get__(
        self: RemoteCallable[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> RemoteCallable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> RemoteCallable[Any, Any]:
        """On an instance: the same job with the instance as first argument."""
        return cast("RemoteCallable[Any, Any]", super().__get__(instance, owner or type(instance)))


class Decorator(Protocol):
    """What `run(...)` returns: it keeps the signature of what it decorates."""

    def __call__(self, function: Callable[P, R], /) -> RemoteCallable[P, R]: ...


@OPTIONS.describes
def run(
    accelerator: str | Accelerator | Sequence[str | Accelerator] = NOT_GIVEN,
    /,
    *others: object,
    **options: Unpack[RunKeywords],
) -> Decorator:
    """Decorate a function so that calling it runs it as a job, as `kinetic_core.run`."""
    native = decorator.run(accelerator, *others, **options)

    def decorate(function: Callable[P, R], /) -> RemoteCallable[P, R]:
        decorated = native(function)
        return RemoteCallable(decorated.function, decorated.options)

    return decorate
