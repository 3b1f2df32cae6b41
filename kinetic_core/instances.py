"""`cls`: classes whose instances live in a warm pod, where their methods are called (ADR 0072).

An instance has a worker of its own, with one process for all calls. The first call makes the instance there,
and each later call is a job that calls one method of it.
"""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from kinetic_core.bound_method import BoundMethod
from kinetic_core.decorator import RemoteCallable
from kinetic_core.errors import InvalidFunction, InvalidRequest
from kinetic_core.job import in_job
from kinetic_core.options import NOT_GIVEN, RunKeywords, RunOptions

if TYPE_CHECKING:
    from kinetic_core.accelerators.grammar import Accelerator
    from kinetic_core.connections import Connections

_IDLE = "10m"


class Instance:
    """An instance of a class that lives in a warm pod. Its methods are called there, as jobs.

    `instance.method(...)` waits for the value; `instance.method.run_async(...)` returns the job's handle once
    the instance is free for the call: it runs one at a time.
    """

    def __init__(self, remote: RemoteClass, instance_id: str, made_by: Any) -> None:
        self._remote, self._made_by = remote, made_by
        self.instance_id = instance_id

    def __getattr__(self, name: str) -> RemoteCallable[..., Any]:
        method = inspect.getattr_static(self._remote.__wrapped__, name, None)
        if name.startswith("__") or not inspect.isfunction(method):
            of = self._remote.__wrapped__.__name__
            raise AttributeError(
                f"{of} has no method {name!r}; of an instance elsewhere only methods can be used"
            )
        return self._remote.bound(BoundMethod(self.instance_id, name, method, self._made_by))

    def __repr__(self) -> str:
        return f"<{self._remote.__wrapped__.__name__} {self.instance_id} in a warm pod>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled: pass its instance_id on, and attach to it with the class"
        )


class RemoteClass:
    """A decorated class. Calling it makes an instance in a warm pod; in a job, the instance is made in place.

    `__wrapped__` is the class itself, for a test to use.
    """

    def __init__(
        self, kind: type, options: RunOptions, connections: Connections | None, *, recreate: bool
    ) -> None:
        self._options, self._connections, self._recreate = options, connections, recreate
        functools.update_wrapper(self, kind, updated=())
        self.__wrapped__ = kind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make an instance in a new worker, and return it. Raises what the class raises.

        A worker that gets no call for the time in `warm=` ends, and the instance with it.
        """
        kind = self.__wrapped__
        if in_job():
            return kind(*args, **kwargs)
        instance = secrets.token_hex(6)
        makes = BoundMethod(instance, "__init__", None, (kind, (), {}))
        functools.update_wrapper(makes, kind, updated=())
        makes.__signature__ = inspect.signature(kind)
        self.bound(makes)(*args, **kwargs)
        return Instance(self, instance, (kind, args, kwargs) if self._recreate else None)

    def attach(self, instance_id: str) -> Any:
        """Return the instance with this id, which another process of the same user and machine has made.

        It is not asked for before a method is called. Methods never make it anew: only who has made it knows
        with what.
        """
        return Instance(self, instance_id, None)

    def bound(self, method: BoundMethod) -> RemoteCallable[..., Any]:
        """Return a method to call, by the client of this class."""
        return RemoteCallable(method, self._options, self._connections)

    def __repr__(self) -> str:
        return f"<kinetic class {self.__wrapped__.__qualname__} on {self._options.accelerator}>"


def cls(
    accelerator: str | Accelerator | Sequence[str | Accelerator] = NOT_GIVEN,
    /,
    *others: object,
    recreate: bool = False,
    **options: Unpack[RunKeywords],
) -> Callable[[type], RemoteClass]:
    """Decorate a class so that its instances live in a warm pod, and their methods are called there.

    Takes the options of `run`. warm: for how long an instance waits for a call before it ends, "10m" by
    default. recreate: make an instance that is gone anew, with the arguments it had and without its state,
    which the log says. Otherwise a call of a method of such an instance raises InstanceLost.

    Raises InvalidRequest for options that do not go together.
    """
    return class_decorator((accelerator, *others), options, None, recreate=recreate)


def class_decorator(
    given: tuple[Any, ...], options: RunKeywords, connections: Connections | None, *, recreate: bool
) -> Callable[[type], RemoteClass]:
    """Return the decorator for classes; `connections` are those of its client."""
    if options.get("reuse", "process") != "process":
        raise InvalidRequest('an instance lives in one process: leave reuse= out, or give reuse="process"')
    asked: dict[str, Any] = {"warm": _IDLE, **options, "reuse": "process"}
    checked = RunOptions.checked(*given, **asked)

    def decorate(kind: type) -> RemoteClass:
        if not isinstance(kind, type):
            raise InvalidFunction(f"cls decorates a class, not {kind!r}; decorate a function with run")
        return RemoteClass(kind, checked, connections, recreate=recreate)

    return decorate
