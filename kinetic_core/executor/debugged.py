"""A blocking call with `debug=True`: what it needs on this machine is had before anything is submitted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from kinetic_core.configuration import read_settings
from kinetic_core.errors import InvalidRequest
from kinetic_core.model.states import JobStatus

if TYPE_CHECKING:
    from kinetic_core.lifecycle.handle import JobHandle
    from kinetic_core.lifecycle.options import RunOptions

Door = Callable[["JobHandle"], AbstractContextManager[object]]
"""Opens a job to a debugger for as long as the context lasts."""


@contextmanager
def debug_door(
    function: Callable[..., Any], options: RunOptions, on_status: Callable[[JobStatus], None]
) -> Iterator[Door]:
    """How the job of a call is opened to a debugger: for calls without `debug=True`, not at all.

    Holds the local port from now on. Raises InvalidRequest without a terminal, or if the port is taken;
    ConfigurationError where ports may not be forwarded.
    """
    if not options.debug:
        yield lambda _handle: nullcontext()
        return
    from kinetic_core.lifecycle.backends import backend_name, open_backend
    from kinetic_core.lifecycle.debugging import HasEnded, attach
    from kinetic_core.lifecycle.forwarding import listening
    from kinetic_core.lifecycle.handle import LISTENING_SECONDS, SCHEDULING_SECONDS
    from kinetic_core.packaging.callables import source_file
    from kinetic_core.packaging.project import locate_project

    settings = options.settings(read_settings())
    if not (settings.debug_without_tty or (sys.stdin is not None and sys.stdin.isatty())):
        raise InvalidRequest(
            "debug=True: the call waits for a person with a debugger, and stdin is no terminal. Start it "
            "with run_async() and attach with debug_attach() or 'kinetic jobs debug', or set "
            "KINETIC_NO_TTY_DEBUG=1"
        )
    root = locate_project(source_file(function), package_root=settings.package_root).root
    with listening(settings.debug_port) as listener:
        name = backend_name(options.backend, options.accelerator.hosts, settings)
        open_backend(name, settings).ports.check(settings.namespace)

        def door(handle: JobHandle) -> AbstractContextManager[object]:
            try:
                return attach(handle, listener, str(root), SCHEDULING_SECONDS, LISTENING_SECONDS, on_status)
            except HasEnded:
                return nullcontext()  # its result says how

        yield door
