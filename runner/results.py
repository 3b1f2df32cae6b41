"""From what the user's function did to an outcome: its value, or its exception, made to travel."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import codec, wire
from .outcome import Outcome, failed, safe_repr, type_name

_HERE = __file__.rpartition("/")[0]


def succeeded(value: Any, modules: Sequence[str]) -> Outcome:
    """The outcome of a value: plain data in the typed codec, anything else pickled.

    A value that neither can carry makes a failed outcome which says so and shows its repr.
    """
    name = type_name(value)
    try:
        return Outcome("succeeded", "typed", codec.encode(value), result_type=name)
    except codec.NotPlain:
        pass  # pickle may know how
    try:
        return Outcome("succeeded", "pickle", {"body": _pickled(value, modules)}, result_type=name)
    except Exception as exc:  # noqa: BLE001  pickling runs the user's own __reduce__ methods
        message = f"the function returned a {name} that cannot be pickled: {type(exc).__name__}: {exc}"
        failure = wire.Failure(wire.FailureClass.USER_ERROR, message, "result", type_name(exc))
        return Outcome(
            "failed", "none", {}, failure, result_type=name, result_repr=safe_repr(value), retry=False
        )


def raised(error: BaseException, phase: str, modules: Sequence[str]) -> Outcome:
    """The outcome of an exception of user code."""
    if isinstance(error, SystemExit):
        return _exited(error, phase, modules)
    described = wire.Failure(
        wire.FailureClass.USER_ERROR, _message(error), phase, type_name(error), traceback_text(error)
    )
    if isinstance(error, MemoryError):
        described = wire.Failure(
            wire.FailureClass.OUT_OF_MEMORY, _message(error), phase, type_name(error), traceback_text(error)
        )
    how, parts = _exception_parts(error, modules)
    return Outcome("failed", how, parts, described)


def misconfigured(error: BaseException, phase: str, advice: str = "") -> Outcome:
    """The outcome of an attempt that could not start the function; no retry mends it."""
    message = f"{phase} failed: {_message(error)}{advice}"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    whose = wire.FailureClass.OUT_OF_DISK if full else wire.FailureClass.CONFIGURATION
    failure = wire.Failure(whose, message, phase, type_name(error), traceback_text(error))
    return Outcome("failed", "none", {}, failure, retry=False)


def traceback_text(error: BaseException) -> str:
    """The traceback without the runner's own frames."""
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
    return filename == "<string>" or filename.rpartition("/")[0] == _HERE


def _exited(error: SystemExit, phase: str, modules: Sequence[str]) -> Outcome:
    if error.code is None or error.code == 0:
        return succeeded(None, modules)
    code = error.code if isinstance(error.code, int) else 1
    reason = f"the function called sys.exit({error.code!r})"
    return failed(wire.FailureClass.USER_ERROR, reason, phase, exit_code=code)


def _message(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as exc:  # noqa: BLE001  a user's __str__ may raise anything
        return f"{type(error).__name__} (whose str() failed: {type(exc).__name__})"


def _exception_parts(error: BaseException, modules: Sequence[str]) -> tuple[str, dict[str, bytes]]:
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
    """The pickle of an exception; None if it does not come back as one."""
    try:
        body = _pickled(value, modules)
        back = loaded(body, lambda _module, _name, copy: _copied(copy))
    except Exception:  # noqa: BLE001  pickling runs the user's own code, which may do anything
        return None
    return body if isinstance(back, BaseException) else None


def _told(error: BaseException) -> dict[str, object]:
    """An exception of Python's own as plain data: what its constructor takes, and its notes."""
    reduced = error.__reduce__()
    args = reduced[1] if isinstance(reduced, tuple) else error.args
    notes = list(getattr(error, "__notes__", ()))
    return {"name": type(error).__name__, "args": args, "notes": notes}


class _Parts:
    """An exception whose constructor takes something else than `args`: made again without calling it."""

    def __init__(self, kind: type, args: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self._parts = kind, args, attributes

    @classmethod
    def of(cls, error: BaseException, modules: Sequence[str]) -> _Parts:
        """What cannot be pickled is replaced by its repr."""

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


def _pickled(value: Any, modules: Sequence[str]) -> bytes:
    import cloudpickle

    known = frozenset(modules)

    class ResultPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
        """Classes of the project by name with a copy to fall back on: the reader's own class wins."""

        def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
            if not isinstance(obj, type) or obj.__module__ not in known or "<" in obj.__qualname__:
                return None
            return "class", obj.__module__, obj.__qualname__, cloudpickle.dumps(obj)

    stream = io.BytesIO()
    ResultPickler(stream, protocol=5).dump(value)
    return stream.getvalue()


def loaded(body: bytes, resolve: Callable[[str, str, bytes], Any] | None = None) -> Any:
    """The value of a pickled outcome, with project classes as `resolve` (default: local_class) finds them."""
    import pickle

    find = resolve or local_class

    class ResultUnpickler(pickle.Unpickler):
        """Resolves what `ResultPickler` named."""

        def persistent_load(self, pid: Any) -> Any:
            return find(pid[1], pid[2], pid[3])

    return ResultUnpickler(io.BytesIO(body)).load()


def local_class(module: str, qualname: str, fallback: bytes) -> Any:
    """The class of that name where its module can be imported, else the pickled copy of it."""
    try:
        return by_name(module, qualname)
    except (ImportError, AttributeError):
        return _copied(fallback)


def by_name(module: str, qualname: str) -> Any:
    """What that name is, here. Raises ImportError, AttributeError, or what the module's own code raises."""
    from importlib import import_module

    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _copied(fallback: bytes) -> Any:
    import pickle

    return pickle.loads(fallback)


def flush_streams() -> None:
    """Everything printed so far reaches the log, even if the process ends abruptly now."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed by user code: nothing is left to flush
