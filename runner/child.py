"""Child process: it makes the job's workspace, calls the function and leaves an outcome file.

It may die anywhere, in any way; its parent reports how.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from . import object_names, results, wire
from .accelerator import variables
from .attempt import Job
from .notice import VARIABLE, notice_path
from .outcome import Outcome
from .payload import Payload, read_frame
from .phases import note
from .shell import leave_workspace
from .signing_key import forget_key, set_readable
from .stacks import STACKS_FILE, STACKS_SIGNAL
from .store import MissingObject, SourceUnreachable, Store, StoreUnavailable
from .workspace import Workspace, make_workspace

if TYPE_CHECKING:
    from .project_modules import ProjectModules

OUTCOME_FILE = "outcome"
_LEAVE_SECONDS = 5
_RESERVE = 64 << 10
"""Bytes of disk that are kept for the outcome of an attempt that has filled its disk."""
_HANDLERS = 32
_handler = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
"""Returns the handler of a signal, without the half millisecond that the enumerations of 64 signals take."""
_NOTHING = object()
Made = TypeVar("Made")
_has_returned = False


def run_child(job: Job, store: Store, modules: ProjectModules | None = None) -> SetUp:
    """Run the attempt's user code; every exception becomes an outcome, none reaches the caller.

    `modules`: those that this process has from earlier calls, if it runs several.
    """
    stacks = prepare_process(job)
    set_up = SetUp(job, store, modules)
    set_up.held += stacks
    made = set_up.made(set_up.call)
    outcome = made if isinstance(made, Outcome) else run_function(job, set_up, *made)
    leave_file(job, outcome)
    set_up.may_hang = job.hosts > 1 and outcome.state != "succeeded"
    return set_up


def prepare_process(job: Job) -> list[int]:
    """Let this process say where it is when it dies or hangs, and find packages that its image lacks.

    Returns the descriptor of the file for its stacks, if the job needs one.
    """
    # A segfault then says where, in the log; the C stack, which has no names, would fill its last lines.
    if sys.version_info >= (3, 14):
        faulthandler.enable(c_stack=False)
    else:
        faulthandler.enable()
    spare = os.path.join(os.path.dirname(__file__), wire.SPARE)
    if spare not in sys.path:
        sys.path.append(spare)
    if job.has_rendezvous or job.hang_after is not None:
        stacks = os.open(os.path.join(job.work_dir, STACKS_FILE), os.O_WRONLY | os.O_CREAT)
        faulthandler.register(STACKS_SIGNAL, stacks)
        return [stacks]
    return []


def renew_signals() -> None:
    """Take SIGTERM and SIGINT as a process does in which no function has run yet."""
    global _has_returned  # noqa: PLW0603  signal handlers take no arguments
    _has_returned = False
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_function(job: Job, set_up: SetUp, function: Any, args: Any, kwargs: Any) -> Outcome:
    """Call the function, and return the job's outcome."""
    gc.freeze()  # else the first collection, within user code, looks at all modules
    gc.enable()  # the bootstrap stopped it while modules were loaded
    set_up.note("user_started")
    value, error = _call(function, args, kwargs)
    _end_user_code(set_up.process, error)
    set_up.note("user_finished")
    set_up.raised = error
    if error is not None:
        if job.backend != "local" and (advice := results.writing_advice(error, os.geteuid())):
            error.add_note(advice)
        return results.raised(error, "execute", set_up.modules)
    return results.succeeded(value if job.host == 0 else None, set_up.modules)  # of a slice, host 0's counts


class SetUp:
    """Set-up of an attempt: what happens between the fork and the call. `phase` is where it has got to.

    `process` is the id of the process whose outcome counts. `given` are the variables that were set for the
    call, `secrets` the names of those whose values are secret. `raised` is what the set-up or the function
    has raised. `held` are descriptors of the call, for a process that runs several to close. `may_hang` is
    whether exit handlers may wait for ever: those of distributed libraries do for hosts that will not come.
    """

    def __init__(self, job: Job, store: Store, modules: ProjectModules | None = None) -> None:
        """Begin. `modules`: those that this process has from earlier calls, if it runs several."""
        self._job, self._store, self.process = job, store, os.getpid()
        self._earlier = modules
        self.given: dict[str, str] = {}
        self.secrets: list[str] = []
        self.raised: BaseException | None = None
        self.held: list[int] = []
        self.may_hang = False
        self.phase = "download"
        self.modules: list[str] = []
        self.client: dict[str, str] = {}
        self.times: dict[str, float] | None = None

    def note(self, phase: str) -> None:
        """Note that a phase begins now: in `times`, if the process has no working directory of its own."""
        if self.times is None:
            note(self._job, phase)
        else:
            self.times[phase] = time.time()

    def made(self, part: Callable[[], Made]) -> Made | Outcome:
        """Return what a part of the set-up makes, or, if it fails, the outcome of that."""
        try:
            return part()
        except StoreUnavailable as exc:
            self.raised = exc
            _end_user_code(self.process, exc)
            return _unavailable(exc, self.phase)
        except BaseException as exc:  # noqa: BLE001  whatever stops the set-up is the outcome
            self.raised = exc
            _end_user_code(self.process, exc)
            phase = "data" if isinstance(exc, SourceUnreachable) else self.phase
            return results.misconfigured(exc, phase, _advice(exc, self))

    def call(self) -> tuple[Any, Any, Any]:
        """Return the function and its arguments, ready to be called."""
        payload, function, workspace = self.load(*_payload(self._job, self._store))
        args, kwargs = payload.load_arguments()
        payload.set_variables()
        if self._job.debug_wait is not None:
            self.phase = "debugger"
            from .debugger import await_debugger

            note(self._job, "debugger")
            await_debugger(self._job, self._store, workspace.workspace)
        if (left := leave_workspace(self._job.job_id, self._job.work_dir)) is not None:
            self.held.append(left)
        return function, args, kwargs

    def load(self, header: dict[str, Any], parts: dict[str, bytes]) -> tuple[Payload, Any, Workspace]:
        """Make all that the function needs but its arguments; return the payload, and the function in it."""
        self.modules, self.client = list(header["modules"]), header["client"]
        self._set_environment(header)
        self.phase = "dependencies"
        _install(header, self._job, self._store, self._earlier)
        for key in (self._job.outcome_key, self._job.lock_key):
            forget_key(key)  # before anything of the user's is loaded into this process
        set_readable(readable=True)
        self.phase = "project files"
        if self._earlier is not None:
            self._earlier.leave_paths()
        workspace = make_workspace(self._job, self._store, header)
        self.phase = "unpickle"
        package = header.get("client_package")
        places = workspace.workspace, workspace.data, self._job.store_uri
        payload = Payload(parts, header["modules"], *places, package)
        spawned = os.path.join(self._job.work_dir, "spawned")
        if self._earlier is not None:
            return *self._earlier.load(payload, workspace.workspace, header, parts, spawned), workspace
        payload.install(spawned)
        return payload, payload.load_function(), workspace

    def take_input(self, job: Job, payload: Payload, parts: Mapping[str, bytes]) -> tuple[Any, Any]:
        """Return the arguments of an input, in a process of its own that has inherited all else."""
        self._job, self.phase, self.times = job, "unpickle", {}
        self.process = os.getpid()
        os.environ[VARIABLE] = notice_path(job)
        payload.take_arguments(parts)
        args, kwargs = payload.load_arguments()
        payload.set_variables()
        return args, kwargs

    def _set_environment(self, header: dict[str, Any]) -> None:
        """Set the variables of the call, the job and its secrets."""
        self.phase = "python"
        _check_python(header)
        defaults = {"KERAS_BACKEND": "jax", **variables(self._job)}
        self.given = {
            **{name: os.environ.get(name, value) for name, value in defaults.items()},
            **header["env"],
        }
        os.environ.update(self.given)
        if header.get("secrets"):
            self.phase = "secrets"
            from .secret_manager import read_secrets

            secrets = read_secrets(header["secrets"])
            self.secrets = list(secrets)
            os.environ.update(secrets)
        os.environ[VARIABLE] = notice_path(self._job)


def stop(_number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM: end the function by SystemExit, so that its `finally` blocks run.

    Raises nothing once the function has returned, to keep its value. User code may set its own handler.
    """
    if not _has_returned and (frame is None or frame.f_code is not _call.__code__):
        raise results.Terminated


def _call(function: Any, args: Any, kwargs: Any) -> tuple[Any, BaseException | None]:
    """Return the function's value or exception; a signal handler's exception after that is ignored."""
    global _has_returned  # noqa: PLW0603  signal handlers take no arguments
    value = coroutine = _NOTHING
    try:
        value = function(*args, **kwargs)
        kind = type(value)
        if hasattr(kind, "cr_frame") and hasattr(kind, "__await__"):
            import asyncio

            coroutine, value = value, _NOTHING
            value = asyncio.run(coroutine)
    except BaseException as exc:  # noqa: BLE001  whatever user code raises is the outcome
        _has_returned = True
        return (value, None) if value is not _NOTHING else (None, exc)
    _has_returned = True
    return value, None


def _end_user_code(own: int, error: BaseException | None) -> None:
    """Stop signal handlers and timers of user code from disturbing what follows.

    A process that user code has forked, and that returns here, ends as it would with its script: `own` is the
    id of the process whose outcome counts.
    """
    if os.getpid() != own:
        results.end_process(error)
    for _ in range(_HANDLERS):
        try:
            _silence_signals()
        except BaseException as exc:  # noqa: BLE001  a handler of user code, just before it was replaced
            sys.stderr.write(f"kinetic: a signal handler raised {exc!r} after the function had returned\n")
        else:
            return


def _silence_signals() -> None:
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    for number in range(1, signal.NSIG):
        if callable(_handler(number)):
            harmless = number in (signal.SIGCHLD, signal.SIGALRM)  # ignored children could not be waited for
            signal.signal(number, signal.SIG_DFL if harmless else signal.SIG_IGN)


def reserve(job: Job) -> Outcome | None:
    """Make the working directory, and reserve the room on its disk that `leave_file` may need.

    For the runner, before the child: a child without that room could not say so. Returns the failure, if any.
    """
    try:
        os.makedirs(job.work_dir, exist_ok=True)
        with open(os.path.join(job.work_dir, OUTCOME_FILE + ".reserve"), "wb") as stream:
            stream.write(bytes(_RESERVE))
    except OSError as exc:
        return results.without_disk(exc, job)
    return None


def _payload(job: Job, store: Store) -> tuple[dict[str, Any], dict[str, bytes]]:
    if job.group_id is not None:
        from .batch import batch_payload

        return batch_payload(job, store)
    name = object_names.payload(job.job_id, job.payload_sha256)
    return wire.decode_frame(read_frame(store, name, job.payload_sha256, job.payload_bytes))


def _install(header: dict[str, Any], job: Job, store: Store, earlier: ProjectModules | None) -> None:
    """Install the packages that the image lacks; each of several accelerators has an image of its own.

    A process that runs several calls installs them once.
    """
    wanted = header.get("dependencies")
    if isinstance(wanted, list):
        wanted = wanted[job.choice or 0]
    if not wanted:
        return
    from .dependencies import enter, install

    if earlier is not None and earlier.installed == wanted:
        enter(earlier.folder)
        return
    folder = job.work_dir if earlier is None else earlier.folder
    note(job, "installing")
    install(wanted, job, store, folder)
    note(job, "installed")
    if earlier is not None:
        earlier.installed = wanted


def _unavailable(error: StoreUnavailable, phase: str) -> Outcome:
    failure = wire.Failure(wire.FailureClass.CONTROL_PLANE, f"{phase} failed: {error}", phase)
    return Outcome("failed", "none", {}, failure)


def _check_python(header: dict[str, Any]) -> None:
    """Refuse another Python: the function is bytecode, which another version misinterprets or crashes on."""
    here = ".".join(map(str, sys.version_info[:2]))
    there = ".".join(str(header["client"]["python"]).split(".")[:2])
    if here != there:
        raise ValueError(
            f"the job was submitted from Python {there}, and its image has {here}. Use an image with Python "
            f"{there}, or submit from {here}"
        )


def _advice(error: BaseException, set_up: SetUp) -> str:
    if isinstance(error, MissingObject):
        return ". Submit again: what is missing is then stored again"
    advice = ""
    if isinstance(error, ModuleNotFoundError):
        advice = f". {error.name!r} is neither in the shipped project nor installed where the job runs"
    return advice + (_other_cloudpickle(set_up.client) if set_up.phase == "unpickle" else "")


def _other_cloudpickle(client: dict[str, str]) -> str:
    import cloudpickle

    here, there = cloudpickle.__version__, client.get("cloudpickle", "")
    if there in ("", here):
        return ""
    return (
        f". The job was submitted with cloudpickle {there}, and its image has {here}: use the same version, "
        "or an image without cloudpickle"
    )


def leave_file(job: Job, outcome: Outcome) -> None:
    """Write the outcome file whole or not at all."""
    path = os.path.join(job.work_dir, OUTCOME_FILE)
    try:
        with open(path + ".part", "wb") as stream:
            outcome.write(stream)
    except BaseException as exc:  # noqa: BLE001  whatever it is, it is told
        is_small = isinstance(exc, OSError) and sum(map(len, outcome.parts.values())) < _RESERVE // 2
        frame = outcome.unsigned() if is_small else b""
        if not 0 < len(frame) <= _RESERVE:
            frame = results.unwritten(outcome, exc).unsigned()
        os.rename(path + ".reserve", path + ".part")
        with open(path + ".part", "r+b") as stream:  # in the room that it has
            stream.write(frame)
            stream.truncate()
    os.rename(path + ".part", path)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is lost any more
    results.flush_streams()


def wind_down(*, may_hang: bool = False) -> int:
    """Run exit handlers; threads that user code left behind are named, never waited for.

    If the handlers `may_hang`, the kernel ends the process after a few seconds.
    """
    import atexit

    if may_hang:
        signal.alarm(_LEAVE_SECONDS)
    threading = sys.modules.get("threading")
    if threading is not None:
        main_thread = threading.main_thread()
        left = [t.name for t in threading.enumerate() if t is not main_thread and not t.daemon]
        left = [name for name in left if not name.startswith("kinetic-cleanup-")]  # ours, of a batch within
        if left:
            sys.stderr.write(f"kinetic: these threads still ran at the end: {', '.join(left)}\n")
    atexit._run_exitfuncs()
    results.flush_streams()
    return 0
