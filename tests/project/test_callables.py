"""Names, source files and kinds of what people decorate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.errors import InvalidFunction
from kinetic_core.project.callables import callable_name, check_arguments, check_callable, source_file


def plain(x: int) -> int:
    return x


class Callable_:
    def __call__(self, x: int) -> int:
        return x

    def method(self) -> None: ...


class Slotted(Callable_):
    __slots__ = ()


def listed(function: Callable[[], Iterator[int]]) -> Callable[[], list[int]]:
    @functools.wraps(function)
    def wrapper() -> list[int]:
        return list(function())

    return wrapper


@listed
def numbers() -> Iterator[int]:
    yield 1


HERE = Path(__file__)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, "plain"),
        (lambda: 1, "lambda"),
        (functools.partial(functools.partial(plain), 1), "plain"),
        (Callable_(), "__call__"),
        (Slotted().method, "method"),
        (numbers, "numbers"),
    ],
    ids=["function", "lambda", "partial", "callable", "method", "decorated"],
)
def test_name_and_source(function: Any, name: str) -> None:
    check_callable(function)
    assert callable_name(function) == name
    assert source_file(function) == HERE


def test_builtins_have_no_project() -> None:
    check_callable(functools.partial(pow, 2))
    assert source_file(functools.partial(pow, 2)) is None


async def asynchronous_generator() -> Any:
    yield 1


@pytest.mark.parametrize("function", [asynchronous_generator, functools.partial(numbers.__wrapped__)])  # type: ignore[attr-defined]
def test_generators_are_refused_however_wrapped(function: Any) -> None:
    with pytest.raises(InvalidFunction, match="is a generator"):
        check_callable(function)


def test_a_generator_behind_a_decorator_that_ends_it_is_fine() -> None:
    check_callable(numbers)


def test_arguments_are_checked_like_a_call() -> None:
    check_arguments(plain, (1,), {})
    check_arguments(print, (1, 2), {"sep": ""})
    with pytest.raises(TypeError, match=r"plain\(\): got an unexpected keyword argument 'y'"):
        check_arguments(plain, (1,), {"y": 2})
