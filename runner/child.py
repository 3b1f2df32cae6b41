"""The child process: it makes the job's world, calls the function and leaves an outcome file.

It may die anywhere, in any way; its parent tells what became of it.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import pickle
import signal
import sys
from typing import Any

from . import results, wire
from .job import Job
from .notice import VARIABLE, notice_path
from .outcome import Outcome
from .store import MissingObject, Store, StoreUnavailable, open_store
from .times import note
from .world import World, make_world

OUTCOME_FILE = "outcome"
STACKS_FILE = "stacks"
STACKS_SIGNAL = signal.SIGUSR2
"""Makes the child write where all its threads are, whatever they are in, if anybody may ask for it."""
_LEAVE_SECONDS = 5


def run_child(job: Job, store: Store) -> None:
    """Run the attempt's user code; never returns to the caller's flow of control with an exception."""
    faulthandler.enable()  # a segfault then says where, in the log
    sys.path.append(os.path.join(os.path.dirname(__file__), wire.SPARE))

    if job.is_gang or job.hang_after is not None:
        stacks = os.open(os.path.join(job.work_dir, STACKS_FILE), os.O_WRONLY | os.O_CREAT)
        faulthandler.register(STACKS_SIGNAL, stacks)
    phase = "download"
    header: dict[str, Any] = {}
    try:
        header, parts = _payload(job, store)
        phase = "python"
        _check_python(header)
        os.environ.update(header["env"])
        os.environ.setdefault("KERAS_BACKEND", "jax")
        if header.get("secrets"):
            phase = "secrets"
            from .secret_manager import read_secrets

            os.environ.update(read_secrets(header["secrets"]))
        os.environ[VARIABLE] = notice_path(job)
        phase = "dependencies"
        _install(header, job, store)
        phase = "project files"
        world = make_world(job, store, header)
        phase = "unpickle"
        function = _load(parts["function"], parts["function_copies"], world)
        _fill_main(function)
        args, kwargs = _load(parts["arguments"], parts["argument_copies"], world)
        if job.debug_wait is not None:
            phase = "debugger"
            from .debugger import await_debugger

            note(job, "debugger")
            await_debugger(job, store, world.workspace)
    except StoreUnavailable as exc:
        _leave(job, _unavailable(exc, phase))
        return
    except BaseException as exc:  # noqa: BLE001  whatever stops the set-up is the outcome
        _leave(job, results.misconfigured(exc, phase, _advice(exc)))
        return
    gc.enable()  # the bootstrap stopped it while modules were loaded
    note(job, "user_started")
    outcome = _call(job, function, args, kwargs, list(header["modules"]))
    note(job, "user_finished")
    _leave(job, outcome)


def _call(job: Job, function: Any, args: Any, kwargs: Any, modules: list[str]) -> Outcome:
    try:
        value = function(*args, **kwargs)
        if hasattr(value, "cr_frame") and hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(value)
    except BaseException as exc:  # noqa: BLE001  whatever user code raises is the outcome
        return results.raised(exc, "execute", modules)
    return results.succeeded(value if job.host == 0 else None, modules)  # of a slice, host 0's value counts


def _payload(job: Job, store: Store) -> tuple[dict[str, Any], dict[str, bytes]]:
    if job.group_id is not None:
        from .batch import batch_payload

        return batch_payload(job, store)
    frame = store.read(wire.payload_object(job.job_id))
    if wire.digest(frame) != job.payload_sha256:
        raise ValueError("the stored payload is not the one this job was submitted with; nothing was loaded")
    return wire.decode_frame(frame)


class _PayloadUnpickler(pickle.Unpickler):
    def __init__(self, body: bytes, copies: bytes, world: World) -> None:
        super().__init__(io.BytesIO(body))
        self._copies = copies
        self._world = world
        self._loaded: dict[tuple[str, str], Any] | None = None

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "data":
            return self._world.data(pid[1])
        if pid[0] == "result":
            return _result(pid[1], pid[2], pid[3])
        if pid[0] == "shipped":
            return os.path.join(self._world.workspace, pid[1])
        if pid[0] == "named":
            return self._named(pid[1], pid[2])
        raise pickle.UnpicklingError(f"unknown reference {pid[0]!r} in the payload, of a newer version?")

    def _named(self, module: str, qualname: str) -> Any:
        """What the job's own import of a project module finds; the copy where that cannot be imported."""
        try:
            return results.by_name(module, qualname)
        except (Exception, SystemExit) as exc:
            if self._loaded is None:
                self._loaded = _load(self._copies, b"", self._world) if self._copies else {}
            if (module, qualname) not in self._loaded:
                raise exc from None
            return self._loaded[module, qualname]


def _install(header: dict[str, Any], job: Job, store: Store) -> None:
    """What the image lacks, if anything: each of several accelerators has an image of its own."""
    wanted = header.get("dependencies")
    if isinstance(wanted, list):
        wanted = wanted[job.choice or 0]
    if not wanted:
        return
    from .dependencies import install

    note(job, "installing")
    install(wanted, job.work_dir, store, wire.lock_object(job.job_id))
    note(job, "installed")


def _load(body: bytes, copies: bytes, world: World) -> Any:
    return _PayloadUnpickler(body, copies, world).load()


def _fill_main(function: Any) -> None:
    """Give the main script's functions and classes back to `__main__`, where pickle looks for them."""
    while hasattr(function, "func"):
        function = function.func
    function = getattr(function, "__func__", function)
    names = getattr(function, "__globals__", {})
    if names.get("__name__") == "__main__":
        kept = {name: value for name, value in names.items() if not name.startswith("__")}
        kept.setdefault(function.__name__, function)
        sys.modules["__main__"].__dict__.update(kept)


def _result(store_uri: str, name: str, sha256: str) -> Any:
    """The value of another job's outcome; its digest is in the verified payload."""
    frame = open_store(store_uri).read(name)
    if wire.digest(frame) != sha256:
        raise ValueError(f"{store_uri}/{name} changed since it was referred to; nothing was loaded")
    header, parts = wire.decode_frame(frame)
    if header["codec"] == "typed":
        from . import codec

        return codec.decode(parts)
    return results.loaded(parts["body"])


def _unavailable(error: StoreUnavailable, phase: str) -> Outcome:
    failure = wire.Failure(wire.FailureClass.CONTROL_PLANE, f"{phase} failed: {error}", phase)
    return Outcome("failed", "none", {}, failure)


def _check_python(header: dict[str, Any]) -> None:
    """Refuse another Python: the function is bytecode, which another version runs wrongly, or dies of."""
    here = ".".join(map(str, sys.version_info[:2]))
    there = ".".join(str(header["client"]["python"]).split(".")[:2])
    if here != there:
        raise ValueError(
            f"the job was submitted from Python {there}, and its image has {here}. Use an image with Python "
            f"{there}, or submit from {here}"
        )


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f". {error.name!r} is neither in the shipped project nor installed where the job runs"
    if isinstance(error, MissingObject):
        return ". Submit again: what is missing is then stored again"
    return ""


def _leave(job: Job, outcome: Outcome) -> None:
    """Write the outcome file whole or not at all."""
    path = os.path.join(job.work_dir, OUTCOME_FILE)
    with open(path + ".part", "wb") as stream:
        stream.write(outcome.to_frame({}))
    os.rename(path + ".part", path)
    results.flush_streams()
    if job.hosts > 1 and outcome.state != "succeeded":
        # Distributed libraries wait in their exit handlers for hosts that will not come.
        signal.alarm(_LEAVE_SECONDS)


def wind_down() -> int:
    """Run exit handlers; threads that user code left behind are named, never waited for."""
    import atexit

    threading = sys.modules.get("threading")
    if threading is not None:
        main_thread = threading.main_thread()
        left = [t.name for t in threading.enumerate() if t is not main_thread and not t.daemon]
        if left:
            sys.stderr.write(f"kinetic: these threads still ran at the end: {', '.join(left)}\n")
    atexit._run_exitfuncs()
    results.flush_streams()
    return 0
