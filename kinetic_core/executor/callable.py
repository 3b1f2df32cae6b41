"""`RemoteCallable`: a function that runs elsewhere when it is called."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from kinetic_core.executor.debugged import debug_door
from kinetic_core.executor.progress import Progress
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.submission import Call, prepare, submit

if TYPE_CHECKING:
    from kinetic_core.batch.handle import BatchHandle

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

    def __init__(self, function: Callable[P, R], options: RunOptions) -> None:
        self._function = function
        self._options = options
        functools.update_wrapper(self, function)

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
        return RemoteCallable(self._function, options)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it as a job, print what it prints, return its value or raise what it raised.

        With `debug=True` a debugger can attach meanwhile, see `JobHandle.debug_attach`. Whether there is a
        terminal, a free port and the permission is known before anything is uploaded.
        """
        with (
            Progress() as progress,
            debug_door(self._function, self._options, progress.status) as door,
        ):
            handle = self._submit(args, kwargs, progress)
            try:
                with door(handle):
                    value: R = handle.result(stream_logs=True, on_status_change=progress.status)
            except KeyboardInterrupt:
                progress.leave(handle)
                raise
        return value

    def run_async(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Start it as a job and return its handle; waits only for packaging and upload."""
        with Progress() as progress:
            return self._submit(args, kwargs, progress)

    def run_async_map(
        self,
        inputs: Iterable[Any],
        *,
        input_mode: str = "auto",
        max_concurrent: int | None = 64,
        retries: int = 0,
        fail_fast: bool = False,
        cancel_running_on_fail: bool = False,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        project: str | None = None,
        cluster: str | None = None,
        group_id: str | None = None,
        skip_done: bool = False,
    ) -> BatchHandle:
        """Start one job per input; `kinetic_core.batch.fan_out.run_map` explains the options."""
        from kinetic_core.batch.fan_out import run_map

        return run_map(
            self._function,
            self._options,
            inputs,
            input_mode=input_mode,
            max_concurrent=max_concurrent,
            retries=retries,
            fail_fast=fail_fast,
            cancel_running_on_fail=cancel_running_on_fail,
            name=name,
            tags=tags,
            project=project,
            cluster=cluster,
            group_id=group_id,
            skip_done=skip_done,
        )

    def dry_run(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The Kubernetes Job this call would create, as plain data. Nothing is uploaded or created."""
        from kinetic_core.lifecycle.dry_run import dry_run

        return dry_run(Call(self._function, args, kwargs), self._options)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress) -> JobHandle:
        call = Call(self._function, args, kwargs)
        prepared = prepare(call, self._options, progress=progress.say)
        handle = JobHandle.of(submit(prepared))
        progress.say(f"submitted {handle.job_id}")
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
        return RemoteCallable(self._function.__get__(instance, owner), self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        # itemgetter(0)((f,)) is f: a reduction the standard library alone can undo.
        return operator.itemgetter(0), ((self._function,),)

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", repr(self._function))
        return f"<kinetic job function {name} on {self._options.accelerator}>"
