"""The option `accelerator`: one name, or several in the order in which they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kinetic_core.errors import InvalidAccelerator, InvalidRequest
from kinetic_core.model.accelerators import Accelerator, parse_accelerator

_MOST = 8


def accelerator_choices(
    asked: str | Accelerator | Sequence[str | Accelerator], spot: bool
) -> tuple[Accelerator, ...]:
    """What was asked for, the first choice first; `spot` goes for all of them.

    Raises InvalidAccelerator, InvalidRequest or TypeError.
    """
    if not isinstance(spot, bool):
        raise TypeError(f"spot={spot!r} must be True or False")
    if not isinstance(asked, list | tuple):
        return (_choice(asked, spot),)
    choices = tuple(_choice(one, spot) for one in asked)
    if not choices:
        raise InvalidAccelerator("accelerator=[] names nothing: give at least one, such as 'tpu-v6e-8'")
    if len(choices) > _MOST:
        raise InvalidRequest(f"accelerator= names {len(choices)} choices; {_MOST} are the most")
    for number, one in enumerate(choices):
        if one in choices[:number]:
            raise InvalidAccelerator(f"accelerator={list(map(str, choices))} names {str(one)!r} twice")
        if one.hosts > 1 and len(choices) > 1:
            raise InvalidRequest(
                f"accelerator={list(map(str, choices))}: {one.describe()}. Each of several choices must be "
                "one host; ask for this slice alone"
            )
    return choices


def _choice(asked: object, spot: bool) -> Accelerator:
    if not isinstance(asked, str | Accelerator):
        raise TypeError(
            f"accelerator={asked!r} must be a name such as 'tpu-v6e-8' or 'cpu', or a list of such names"
        )
    parsed = parse_accelerator(asked) if isinstance(asked, str) else asked
    return replace(parsed, spot=True) if spot and parsed.kind != "cpu" else parsed
