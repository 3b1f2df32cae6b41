"""`run`, whose functions return handles of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack

from kinetic_core import decorator
from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.compat.collections import BatchHandle
from kinetic_core.compat.jobs import JobHandle, handle_there
from kinetic_core.options import MAP_OPTIONS, NOT_GIVEN, OPTIONS, MapKeywords, RunKeywords
from kinetic_core.terminal import Progress

P = ParamSpec("P")
R = TypeVar("R")


class RemoteCallable(decorator.RemoteCallable[P, R]):
    """A decorated function, as `kinetic_core.RemoteCallable`, with handles of this package."""

    @MAP_OPTIONS.describes
    def run_async_map(self, inputs: Iterable[Any], **options: Unpack[MapKeywords]) -> BatchHandle:
        """Start one job per input and return at once, as `kinetic_core.RemoteCallable.run_async_map`.

        `cancel_running_on_fail` without `fail_fast` has no effect, as in keras-kinetic.
        """
        if not options.get("fail_fast"):
            options.pop("cancel_running_on_fail", None)
        return BatchHandle.of(super().run_async_map(inputs, **options))

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress) -> JobHandle:
        return handle_there(super()._submit(args, kwargs, progress))


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
