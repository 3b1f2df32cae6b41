"""A method of an instance that lives in the process of a worker, as the function of a job (ADR 0072)."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kinetic_core.errors import InstanceLost

_LIVING: dict[str, Any] = {}
"""The instances of this process, by their ids: in a pod, those that calls have made here."""


class BoundMethod:
    """A method of an instance elsewhere, as the function of a job: it finds the instance in its process.

    `made_by`: the class, and the arguments of an instance that may be made anew; None if it may not.
    `__wrapped__` is the method, or for the call that makes the instance the class.
    """

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        instance: str,
        name: str,
        method: Callable[..., Any] | None = None,
        made_by: tuple[type, tuple[Any, ...], Mapping[str, Any]] | None = None,
    ) -> None:
        self.instance, self.name, self.made_by = instance, name, made_by
        if method is not None:
            functools.update_wrapper(self, method)
            _, *others = inspect.signature(method).parameters.values()
            self.__signature__ = inspect.Signature(others)

    @property
    def makes_instance(self) -> bool:
        """Return whether the call may make the instance."""
        return self.made_by is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method in the process that has the instance. Raises InstanceLost in any other."""
        if self.name == "__init__":
            assert self.made_by is not None  # noqa: S101  it has the class
            _LIVING[self.instance] = self.made_by[0](*args, **kwargs)
            return None
        if self.instance not in _LIVING:
            if self.made_by is None:
                raise InstanceLost(lost(self.instance, "the process that had it has ended"))
            made, first, named = self.made_by
            sys.stderr.write(f"kinetic: {made.__name__} {self.instance} is made anew, without its state\n")
            _LIVING[self.instance] = made(*first, **named)
        return getattr(_LIVING[self.instance], self.name)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundMethod, (self.instance, self.name, None, self.made_by)


def lost(instance: str, why: str) -> str:
    """Return the message of an instance that is gone."""
    return (
        f"instance {instance} is gone, and its state with it: {why}. The log of its last call may say more. "
        "Make another instance, or let the class do that with recreate=True"
    )
