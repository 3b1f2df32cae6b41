"""The payload: everything of a call that is not a project file, as one frame."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO

from kinetic_core._runner import wire
from kinetic_core.errors import InvalidRequest, UnpicklableArgument
from kinetic_core.project.callables import callable_name
from kinetic_core.project.module_variables import Changes
from kinetic_core.project.root import Project
from kinetic_core.project.serialization import Pickled, ProjectModules, Substitute, dumps


@dataclass(frozen=True)
class PackedFunction:
    """A function ready to travel, and where its project's modules are."""

    name: str
    pickle: Pickled
    project: Project
    modules: ProjectModules
    changes: Changes = field(default_factory=Changes)
    """Variables of modules that were set since their import."""

    def changed(self) -> bytes:
        """Return the variables that the job sets, a pickle of pickles by module and name; b"" for none."""
        values = {
            module: {name: _pickled_value(now) for name, (now, _) in changed.items()}
            for module, changed in self.changes.sent.items()
        }
        return pickle.dumps(values) if values else b""


class _ValuePickler(pickle.Pickler):
    """Pickle of a variable's value. Members of enumerations go by name: their own values may be anything."""

    def persistent_id(self, obj: object) -> tuple[str, ...] | None:
        if not isinstance(obj, Enum):
            return None
        kind = type(obj)
        return "member", kind.__module__, kind.__qualname__, obj.name


def _pickled_value(value: object) -> bytes:
    stream = io.BytesIO()
    _ValuePickler(stream, protocol=5).dump(value)
    return stream.getvalue()


def pack_function(
    function: Callable[..., Any], project: Project, modules: ProjectModules, substitute: Substitute
) -> PackedFunction:
    """Pickle the function. Raises UnpicklableArgument, saying why and what to do."""
    name = callable_name(function)
    try:
        pickled = dumps(function, modules, substitute)
    except InvalidRequest:
        raise
    except Exception as exc:
        raise _cannot("function", f"the function {name}", function, exc) from exc
    return PackedFunction(name, pickled, project, modules)


def pack_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], modules: ProjectModules, substitute: Substitute
) -> Pickled:
    """Pickle the arguments together. Raises UnpicklableArgument, naming the one that cannot travel."""
    try:
        return dumps((args, dict(kwargs)), modules, substitute)
    except InvalidRequest:
        raise
    except Exception as exc:
        named = [(f"argument {index}", value) for index, value in enumerate(args)]
        named += [(f"argument {name!r}", value) for name, value in kwargs.items()]
        for where, value in named:
            try:
                dumps(value, modules, substitute)
            except Exception as cause:
                raise _cannot("argument", where, value, cause) from cause
        raise UnpicklableArgument(f"the arguments cannot be pickled together: {exc}") from exc


def payload_frame(
    function: PackedFunction,
    arguments: Pickled | None,
    *,
    inputs: Mapping[str, Any] | None = None,
    tree: str,
    env: Mapping[str, str],
    volumes: Sequence[Mapping[str, Any]],
    output_dir: str,
    spec_digest: str,
    dependencies: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    secrets: Mapping[str, str] | None = None,
    client_package: tuple[str, int] | None = None,
) -> bytes:
    """The bytes of `jobs/{id}/payload-{sha256}.pkl`; its header is read before anything in it is unpickled.

    A batch's has no arguments: `inputs` says where they are, and `output_dir` lacks the input's number.
    `dependencies` of a job with several accelerators are a list, one entry for each. `client_package` is the
    digest and the number of bytes of the stored archive of this package, for images that lack it.
    """
    project = function.project
    header: dict[str, object] = {
        "protocol": wire.PROTOCOL,
        "client": _client(),
        "client_package": client_package,
        "env": dict(env),
        "tree": tree,
        "entry": project.entry,
        "cwd": project.cwd,
        "sys_path": list(project.sys_path),
        "function_name": function.name,
        "modules": function.modules.names(),
        "volumes": [dict(volume) for volume in volumes],
        "output_dir": output_dir,
        "spec_digest": spec_digest,
        "dependencies": dependencies,
        "secrets": dict(secrets or {}),
    }
    if inputs is not None:
        header["inputs"] = dict(inputs)
    parts = {
        "function": function.pickle.body,
        "function_copies": function.pickle.copies,
        "changed": function.changed(),
    }
    if arguments is not None:
        parts |= argument_parts(arguments)
    return wire.encode_frame(header, parts)


def argument_parts(arguments: Pickled, prefix: str = "") -> dict[str, bytes]:
    """The parts of a frame that hold one call's arguments."""
    return {f"{prefix}arguments": arguments.body, f"{prefix}argument_copies": arguments.copies}


@functools.cache
def _client() -> Mapping[str, str]:
    import cloudpickle

    from kinetic_core import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "cloudpickle": cloudpickle.__version__, "kinetic": __version__}


def _cannot(kind: str, where: str, value: Any, cause: BaseException) -> UnpicklableArgument:
    advice = (
        "Make it inside the function, or pass what it is made from"
        if kind == "argument"
        else "Something it refers to (a closure variable or a module-level name) cannot travel: make that "
        "inside the function, or pass it as an argument"
    )
    said = f"{type(cause).__name__}: {str(cause).rstrip('.')}"
    return UnpicklableArgument(f"{where} ({type(value).__name__}) cannot be sent to a job: {said}. {advice}")


_BLOCK_BYTES = 256 << 10
BLOCK_INPUTS = 64
"""Inputs of a block where each job reads a block for its one input."""

Block = tuple[int, int, int, str]
"""First index, offset and size in bytes, SHA-256 in hex. It holds the inputs up to the next block's first."""


class InputBlocks:
    """Writes blocks to a stream. A block is a frame with the arguments of some inputs, in rising order.

    A job reads a whole block, so it is small: `most` inputs, fewer where they fill 256 KiB.
    """

    def __init__(self, stream: BinaryIO, most: int = BLOCK_INPUTS) -> None:
        self._stream, self._total, self._most = stream, hashlib.sha256(), most
        self._parts: dict[str, bytes] = {}
        self._first, self._inputs, self._bytes, self._offset = 0, 0, 0, 0
        self.blocks: list[Block] = []

    def add(self, index: int, arguments: Pickled) -> None:
        """Put in the arguments of the next input."""
        self._first = index if not self._parts else self._first
        self._parts |= argument_parts(arguments, f"{index}/")
        self._inputs += 1
        self._bytes += len(arguments.body) + len(arguments.copies)
        if self._inputs == self._most or self._bytes >= _BLOCK_BYTES:
            self._write()

    def close(self) -> str:
        """Write what is left; the SHA-256, in hex, of all that was written. The stream stays open."""
        if self._parts:
            self._write()
        self._stream.flush()
        return self._total.hexdigest()

    def _write(self) -> None:
        frame = wire.encode_frame({"protocol": wire.PROTOCOL}, self._parts)
        self._stream.write(frame)
        self._total.update(frame)
        self.blocks.append((self._first, self._offset, len(frame), wire.digest(frame)))
        self._offset += len(frame)
        self._parts, self._inputs, self._bytes = {}, 0, 0
