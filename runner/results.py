"""Results of user code as outcomes: a value or an exception, encoded for another process."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn
from weakref import WeakSet

from . import codec, wire
from .attempt import Job
from .outcome import Outcome, failed, safe_repr, type_name

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_TEXT = 8 << 10
BY_VALUE: WeakSet[FunctionType] = WeakSet()
"""Functions that the payload brought by value: a reader may not find them by name."""


def succeeded(value: Any, modules: Sequence[str]) -> Outcome:
    """Return the outcome of a value: plain data in the typed codec, any other pickled.

    A value that neither can encode makes a failed outcome with an explanation and the value's repr.
    """
    name = type_name(value)
    try:
        return Outcome("succeeded", "typed", codec.encode(value), result_type=name)
    except codec.NotPlain:
        pass  # pickle may know how
    except BaseException as exc:  # noqa: BLE001  as a rule another thread changes the value
        return _unencoded(value, exc, "encoded", retry=True)
    try:
        aside: dict[str, wire.Part] = {}
        body = _pickled(value, modules, aside)
        return Outcome("succeeded", "pickle", {"body": body, **aside}, result_type=name)
    except BaseException as exc:  # noqa: BLE001  pickling runs the user's own __reduce__ methods
        return _unencoded(value, exc, "pickled", retry=False)


def _unencoded(value: Any, error: BaseException, done: str, *, retry: bool) -> Outcome:
    """Return the outcome of a value on which the encoder has failed."""
    name = type_name(value)
    message = f"the function returned a {name} that cannot be {done}: {_message(error)}"
    out_of_memory = isinstance(error, MemoryError)
    kind = wire.FailureClass.OUT_OF_MEMORY if out_of_memory else wire.FailureClass.USER_ERROR
    phase = "store" if out_of_memory else "result"  # in which a value is at fault, and no machine
    failure = wire.Failure(kind, message, phase, type_name(error), traceback_text(error))
    shown = None if out_of_memory else safe_repr(value)
    return Outcome("failed", "none", {}, failure, result_type=name, result_repr=shown, retry=retry)


def unwritten(outcome: Outcome, error: BaseException) -> Outcome:
    """Return the outcome in place of one that cannot be written: as a rule the attempt's disk is full."""
    what = "the function's result" if outcome.state == "succeeded" else "how the function failed"
    message = f"{what} cannot be written: {_message(error)}"
    if outcome.failure is not None:
        message += f". It was: {outcome.failure.message[:_MOST_TEXT]}"
    full = isinstance(error, OSError) and error.errno in _DISK_FULL
    kind = wire.FailureClass.OUT_OF_DISK if full else wire.FailureClass.USER_ERROR
    if isinstance(error, MemoryError):
        kind = wire.FailureClass.OUT_OF_MEMORY
    failure = wire.Failure(kind, message, "store", type_name(error), traceback_text(error)[-_MOST_TEXT:])
    return Outcome("failed", "none", {}, failure, result_type=outcome.result_type)


def without_disk(error: OSError, job: Job) -> Outcome:
    """Return the outcome of an attempt that cannot begin because its directories cannot be written.

    User code has not run, so this is no failure of its own: another attempt may find room, or another node.
    """
    text = f"{error.filename or job.work_dir} cannot be written: {error.strerror}"
    if error.errno in _DISK_FULL and job.backend == "local":
        text = f"the disk of this machine is full: {text}. Free space there"
    elif error.errno in _DISK_FULL:
        text = f"the disk of the pod is full: {text}. If that goes on, give the job more disk (disk=)"
    return failed(wire.FailureClass.CONTROL_PLANE, text, "start")


class Terminated(SystemExit):
    """SIGTERM as an exception, raised where the function was."""

    def __init__(self) -> None:
        super().__init__(143)


def end_process(error: BaseException | None) -> NoReturn:
    """End this process as the interpreter does after its script, but for exit handlers."""
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        code = 1
        shown = str(error.code) + "\n" if isinstance(error, SystemExit) else traceback_text(error)
        sys.stderr.write(shown)
    flush_streams()
    os._exit(code & 0xFF)


def raised(error: BaseException, phase: str, modules: Sequence[str]) -> Outcome:
    """Return the outcome of an exception of user code."""
    if isinstance(error, SystemExit):
        return _exited(error, phase, modules)
    described = wire.Failure(
        wire.FailureClass.USER_ERROR, _message(error), phase, type_name(error), traceback_text(error)
    )
    if isinstance(error, MemoryError):
        described = wire.Failure(
            wire.FailureClass.OUT_OF_MEMORY, _message(error), phase, type_name(error), traceback_text(error)
        )
    try:
        how, parts = _exception_parts(error, modules)
    except BaseException:  # noqa: BLE001  its attributes are user code, or another thread changes them
        how, parts = "none", {}
    return Outcome("failed", how, parts, described)


def writing_advice(error: BaseException, user: int) -> str | None:
    """Return what to do about a path that the user of a pod may not use; None for any other exception."""
    if user == 0 or type(error) is not PermissionError or not isinstance(error.filename, str):
        return None
    return (
        f"kinetic: the pod runs as user {user}, who writes to its home, the working directory, /tmp and the "
        f"paths of volumes=, and not to {error.filename}. run_as_root=True runs the function as root"
    )


def misconfigured(error: BaseException, phase: str, advice: str = "") -> Outcome:
    """Return the outcome of an attempt that could not start the function, which no retry mends."""
    message = f"{phase} failed: {_message(error)}{advice}"
    full = isinstance(error, OSError) and error.errno in _DISK_FULL
    whose = wire.FailureClass.OUT_OF_DISK if full else wire.FailureClass.CONFIGURATION
    failure = wire.Failure(whose, message, phase, type_name(error), traceback_text(error))
    return Outcome("failed", "none", {}, failure, retry=False)


def traceback_text(error: BaseException) -> str:
    """Return the traceback without the runner's own frames."""
    import traceback

    described = traceback.TracebackException.from_exception(error)
    pending = [described]
    while pending:
        part = pending.pop()
        frames = [frame for frame in part.stack if not _is_ours(frame.filename)]
        part.stack = traceback.StackSummary.from_list(frames)
        pending += [other for other in (part.__cause__, part.__context__) if other is not None]
    return "".join(described.format())


def _is_ours(filename: str) -> bool:
    here = _is_ours.__code__.co_filename  # not `__file__`: what a zip file's modules are called differs
    return filename == "<string>" or filename.rpartition("/")[0] == here.rpartition("/")[0]


def _exited(error: SystemExit, phase: str, modules: Sequence[str]) -> Outcome:
    if error.code is None or error.code == 0:
        return succeeded(None, modules)
    code = error.code if isinstance(error.code, int) else 1
    reason = f"the function called sys.exit({error.code!r})"
    if isinstance(error, Terminated):
        reason = "the function was ended by SIGTERM"
    return failed(wire.FailureClass.USER_ERROR, reason, phase, exit_code=code)


def _message(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException as exc:  # noqa: BLE001  a user's __str__ may raise anything
        return f"{type(error).__name__} (whose str() failed: {type(exc).__name__})"


def _exception_parts(error: BaseException, modules: Sequence[str]) -> tuple[str, Mapping[str, wire.Part]]:
    kind = type(error)
    extra = {key: value for key, value in vars(error).items() if key != "__notes__"}
    if kind.__module__ == "builtins" and not extra and not isinstance(error, BaseExceptionGroup):
        try:
            return "typed", codec.encode(_told(error))
        except codec.NotPlain:
            pass  # its arguments are objects; pickle may know how
    body = _travelling(error, modules) or _travelling(_Parts.of(error, modules), modules)
    return ("pickle", {"body": body}) if body else ("none", {})


def _travelling(value: Any, modules: Sequence[str]) -> bytes | None:
    """Pickle an exception; return None if it does not come back as an exception."""
    try:
        body = _pickled(value, modules)
        back = loaded(body, lambda _module, _name, copy: _copied(copy))
    except Exception:  # noqa: BLE001  pickling runs the user's own code, which may do anything
        return None
    return body if isinstance(back, BaseException) else None


def _told(error: BaseException) -> dict[str, object]:
    """Return a built-in exception as plain data: the arguments of its constructor, and its notes."""
    reduced = error.__reduce__()
    args = reduced[1] if isinstance(reduced, tuple) else error.args
    notes = list(getattr(error, "__notes__", ()))
    return {"name": type(error).__name__, "args": args, "notes": notes}


class _Parts:
    """Parts of an exception whose constructor takes other arguments than `args`, to rebuild it."""

    def __init__(self, kind: type, args: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self._parts = kind, args, attributes

    @classmethod
    def of(cls, error: BaseException, modules: Sequence[str]) -> _Parts:
        """Take an exception apart; a part that cannot be pickled is replaced by its repr."""

        def portable(value: Any) -> Any:
            try:
                _pickled(value, modules)
            except Exception:  # noqa: BLE001  pickling runs the user's own __reduce__ methods
                return safe_repr(value)
            return value

        attributes = {name: portable(value) for name, value in vars(error).items()}
        return cls(type(error), tuple(map(portable, error.args)), attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        kind, args, attributes = self._parts
        return kind.__new__, (kind, *args), attributes


def _pickled(value: Any, modules: Sequence[str], aside: dict[str, wire.Part] | None = None) -> bytes:
    """Pickle a value, with large bytes and arrays put `aside`, as parts, without copying them."""
    import cloudpickle

    known = frozenset(modules)
    named: dict[int, str] = {}

    def put_aside(buffer: Any) -> bool:
        """Return whether the pickler keeps the buffer: a small one, or one that is not contiguous."""
        try:
            content = buffer.raw()
        except BufferError:
            return True
        if aside is None or len(content) < codec.LARGE:
            return True
        aside[f"{'frozen' if content.readonly else 'array'}-{len(aside)}"] = content
        return False

    class ResultPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
        """Pickler of project classes by name, with a copy as fallback: the reader's own class wins."""

        def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
            if type(obj) in (bytes, str) and aside is not None and len(obj) >= codec.LARGE:
                if id(obj) not in named:
                    named[id(obj)] = f"{'blob' if type(obj) is bytes else 'text'}-{len(aside)}"
                    aside[named[id(obj)]] = obj
                return type(obj).__name__, named[id(obj)]
            if not isinstance(obj, type) or obj.__module__ not in known or "<" in obj.__qualname__:
                return None
            return "class", obj.__module__, obj.__qualname__, _pickled_class(obj, known)

    stream = io.BytesIO()
    ResultPickler(stream, protocol=5, buffer_callback=put_aside).dump(value)
    return stream.getvalue()


def _pickled_class(kind: type, modules: Collection[str]) -> bytes:
    """Pickle a class by value."""
    import cloudpickle
    from cloudpickle import cloudpickle as internals

    class CopyPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
        """Pickler that ships a class which came by value by value again, with the functions beside it.

        cloudpickle itself would name objects of their module, which a reader may lack.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and obj in internals._DYNAMIC_CLASS_TRACKER_BY_CLASS:
                return internals._dynamic_class_reduce(obj)
            if isinstance(obj, FunctionType) and obj.__module__ in modules and obj in BY_VALUE:
                return self._dynamic_function_reduce(obj)
            return super().reducer_override(obj)

    stream = io.BytesIO()
    CopyPickler(stream, protocol=5).dump(kind)
    return stream.getvalue()


def loaded(
    body: wire.Buffer,
    resolve: Callable[[str, str, bytes], Any] | None = None,
    parts: Mapping[str, wire.Part] | None = None,
) -> Any:
    """Load the value of a pickled outcome, its project classes found by `resolve` (default: local_class).

    `parts` hold the buffers that were put aside.
    """
    import pickle

    find, aside = resolve or local_class, parts or {}
    buffers = [aside[name] for name in aside if name.startswith(("array-", "frozen-"))]

    class ResultUnpickler(pickle.Unpickler):
        """Unpickler that resolves the names of `ResultPickler`."""

        def persistent_load(self, pid: Any) -> Any:
            if pid[0] in ("bytes", "str"):
                return aside[pid[1]]
            return find(pid[1], pid[2], pid[3])

        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError) as exc:
                raise ImportError(f"{module}.{name}: {exc}") from exc

    return ResultUnpickler(io.BytesIO(body), buffers=buffers).load()


def local_class(module: str, qualname: str, fallback: bytes) -> Any:
    """Return the class of that name if its module can be imported, else the pickled copy of it."""
    try:
        return by_name(module, qualname)
    except (ImportError, AttributeError):
        return _copied(fallback)


def by_name(module: str, qualname: str) -> Any:
    """Import the object of that name. Raises ImportError, AttributeError, or the module's own errors."""
    from importlib import import_module

    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _copied(fallback: bytes) -> Any:
    import pickle

    return pickle.loads(fallback)


def flush_streams() -> None:
    """Flush stdout and stderr, so that the log is complete even if the process ends abruptly now."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed by user code: nothing is left to flush
