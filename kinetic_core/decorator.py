"""`run`: the decorator."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.errors import InvalidFunction
from kinetic_core.job import in_job
from kinetic_core.options import MAP_OPTIONS, NOT_GIVEN, OPTIONS, MapKeywords, RunKeywords, RunOptions

if TYPE_CHECKING:
    from kinetic_core.batches.handle import BatchHandle
    from kinetic_core.connections import Connections
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.terminal import Progress

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Q = ParamSpec("Q")


class RemoteCallable(Generic[P, R]):
    """A decorated function. Calling it runs it as a job and returns the job's value.

    Pickled, it is the undecorated function, so that what contains it can be unpickled in a job, where
    calling it runs the body in place. `__wrapped__` is the undecorated function, for a test to call.
    """

    __wrapped__: Callable[P, R]

    def __init__(
        self, function: Callable[P, R], options: RunOptions, connections: Connections | None = None
    ) -> None:
        """Bind the function to a client; without `connections`, each call uses the default client."""
        self._function = function
        self._options = options
        self._connections = connections
        functools.update_wrapper(self, function)
        if not hasattr(self, "__name__"):  # a partial, or an object with __call__
            from kinetic_core.project.callables import callable_name

            self.__name__ = callable_name(function)

    @property
    def options(self) -> RunOptions:
        """The validated options of `run`."""
        return self._options

    @property
    def function(self) -> Callable[P, R]:
        """What was decorated."""
        return self._function

    def with_options(self, options: RunOptions) -> RemoteCallable[P, R]:
        """The same function, run in another way."""
        return type(self)(self._function, options, self._connections)

    def with_connections(self, connections: Connections) -> RemoteCallable[P, R]:
        """The same function, run by the client that has these connections."""
        return type(self)(self._function, self._options, connections)

    @property
    def _client(self) -> Connections:
        from kinetic_core.connections import default_connections

        return self._connections or default_connections()

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it as a job, print what it prints, return its value or raise what it raised.

        Meanwhile stderr shows what the call does or waits for: a live line at a terminal, else plain lines.
        In a job, the body runs in place: a job that waits for another would hold its own machine idle.

        With `debug=True` a debugger can attach meanwhile, see `JobHandle.debug_attach`. Whether there is a
        terminal, a free port and the permission is known before anything is uploaded.
        """
        if in_job():
            return self._function(*args, **kwargs)
        from kinetic_core.jobs.collect import TrimmedTraceback
        from kinetic_core.jobs.debug import debug_door
        from kinetic_core.terminal import Progress

        with (
            TrimmedTraceback(),
            Progress(retries=self._options.retries) as progress,
            debug_door(self._function, self._options, self._client, progress.observe) as door,
        ):
            handle = self.start(args, kwargs, progress)
            try:
                with door(handle):
                    value: R = handle.shown_result(progress)
            except KeyboardInterrupt:
                progress.leave(handle)
                raise
        return value

    def run_async(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Start it as a job and return its handle; waits only for packaging and upload."""
        from kinetic_core.terminal import Progress

        with Progress() as progress:
            return self.start(args, kwargs, progress)

    @MAP_OPTIONS.describes
    def run_async_map(self, inputs: Iterable[Any], **options: Unpack[MapKeywords]) -> BatchHandle:
        """Start one job per input and return at once.

        Everything is stored when this returns, and goes on without this process. Only where each input needs
        a Job of its own on a cluster, a client has to be there: see `kinetic_core.batches.submit.run_map`.
        The function and its project are packed once. `BatchHandle.submission_failures` says which inputs
        could not be submitted. The reference has [a page of the options](options.md).
        """
        from kinetic_core.batches.submit import run_map

        return run_map(self._function, self._options, self._client, inputs, **options)

    def dry_run(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The Kubernetes Job this call would create, as plain data. Nothing is uploaded or created."""
        from kinetic_core.jobs.dry_run import dry_run
        from kinetic_core.jobs.submit import Call

        return dry_run(Call(self._function, args, kwargs), self._options, self._client)

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress) -> JobHandle:
        """Start it as a job, as `run_async` does, and show in `progress` how it is packed and uploaded."""
        from kinetic_core.jobs.cost import hourly_cost
        from kinetic_core.jobs.handle import JobHandle
        from kinetic_core.jobs.submit import Call, prepare, submit

        call = Call(self._function, args, kwargs)
        prepared = prepare(call, self._options, self._client, progress=progress.say)
        handle = JobHandle.of(submit(prepared), prepared.backend.connections)
        progress.submitted(handle, hourly_cost(handle.accelerator, self._client.settings))
        return handle

    @overload
    def __get__(self, instance: None, owner: type) -> RemoteCallable[P, R]: ...
    @overload
    def __get__(
        self: RemoteCallable[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> RemoteCallable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> RemoteCallable[Any, Any]:
        """On an instance: the same job with the instance as first argument."""
        above = isinstance(self._function, staticmethod | classmethod)
        if not above and (instance is None or not hasattr(self._function, "__get__")):
            return self
        return type(self)(self._function.__get__(instance, owner), self._options, self._connections)

    def __reduce__(self) -> tuple[Any, ...]:
        # itemgetter(0)((f,)) is f: a reduction the standard library alone can undo.
        return operator.itemgetter(0), ((self._function,),)

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", repr(self._function))
        return f"<kinetic job function {name} on {self._options.accelerator}>"


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
    """Decorate a function so that calling it runs it on a TPU, a GPU or the machine `backend` names.

    The options are the rows of `kinetic_core.options.RunKeywords`; the reference has
    [a page of them](options.md). The first ones may be given by position. Options of pods have no effect with
    backend `local`, which says so; `secrets` is refused there.

    Everything is checked here, when the decoration is evaluated. Raises InvalidRequest or one of its kinds,
    and TypeError for an unknown option or a value of the wrong type.
    """
    if callable(accelerator):
        raise InvalidFunction(
            'run needs its options: write @run(accelerator="tpu-v5e-1") (or any other), not a bare @run'
        )
    return decorator_for(RunOptions.checked(accelerator, *others, **options), None)


def decorator_for(options: RunOptions, connections: Connections | None, stacklevel: int = 3) -> Decorator:
    """Return the decorator for options that were checked; `connections` are those of its client."""
    if options.debug and options.accelerator.spot:
        warnings.warn(
            "debug=True with spot=True: the pod may be taken away in mid-debugging", stacklevel=stacklevel
        )

    def decorate(function: Callable[P, R], /) -> RemoteCallable[P, R]:
        from kinetic_core.project.callables import check_callable

        check_callable(function)
        return RemoteCallable(function, options, connections)

    return decorate
