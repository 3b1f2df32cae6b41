"""Threads for the blocking work of a triggerer's triggers: requests to clusters, stores and services.

The default threads of an event loop also resolve the names of hosts for every other trigger. Slow clusters
would stall those, so the work of this provider has threads of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 64
"""Number of threads at most; each is started when no other one is free."""
_pool = ThreadPoolExecutor(THREADS, "kinetic-trigger")


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of a blocking call, made with the caller's context variables, as its log needs."""
    call = partial(copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool, call)


def start_apart(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start work that belongs to no trigger: what it logs is not shown in the log of the caller's task."""
    return asyncio.get_running_loop().create_task(work, context=Context())
