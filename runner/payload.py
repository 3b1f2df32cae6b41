"""Payload: its pickles, and the modules of the functions in them.

A function that is shipped by value needs a module all the same: pickle, and with it every process pool, names
a function by its module. So everything shipped by value lives in the namespace of its module, one for all
of it, and the module can be imported: in the job's process and in those that its process pools spawn.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from . import object_names, results, wire
from .client_package import ClientPackage
from .store import ObjectTooLarge, Store, open_store, read_at_most

_MAKERS = ("_make_function", "_make_skeleton_class", "_make_skeleton_enum")
_OF_THE_FUNCTION = ("function", "function_copies", "changed")
"""Parts of a payload that are equal for all calls of a function, as long as nothing of it has changed."""
_MAIN = "kinetic_main"
"""Name of the module that a spawned process runs in place of the main script."""
_PROGRAM = """\
import sys as _sys
_sys.path.insert(0, {folder!r})
from {package} import payload as _payload
_sys.path.remove({folder!r})
globals().update(_payload.restored({state!r}))
"""


def read_frame(store: Store, name: str, sha256: str, size: int | None) -> bytes:
    """Read the stored payload with this digest, and no more than its number of bytes, if that is known.

    Raises ValueError if another payload is stored, MissingObject.
    """
    another = "the stored payload is not the one this job was submitted with"
    try:
        frame = store.read(name) if size is None else read_at_most(store, name, size)
    except ObjectTooLarge as exc:
        raise ValueError(f"{another}: {exc}; nothing was loaded") from exc
    if wire.digest(frame) != sha256:
        raise ValueError(f"{another}; nothing was loaded")
    return frame


class ShippedModules:
    """Modules whose functions and classes a payload ships by value; `__main__` is one of them.

    As an entry of `sys.meta_path`: importing one runs its file, if this image has a file that runs, in the
    namespace of the shipped functions, which keep their values. Packages are treated alike.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._modules: dict[str, ModuleType] = {}
        self._made: list[Any] = []

    @property
    def shipped(self) -> list[str]:
        """Return the names of the modules other than `__main__` of which something was loaded by value."""
        return [name for name in self._modules if name != "__main__"]

    def add(self, module: ModuleType) -> None:
        """Let functions and classes of this name live in that module."""
        self._modules[module.__name__] = module

    def maker(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of cloudpickle that makes functions or classes, to use the module's namespace."""

        def made(*args: Any) -> Any:
            if isinstance(args[0], type(made.__code__)):
                args = (args[0], self._namespace(args[1]), *args[2:])
            self._made.append(make(*args))
            if isinstance(self._made[-1], FunctionType):
                results.BY_VALUE.add(self._made[-1])
            return self._made[-1]

        return made

    def publish(self) -> bool:
        """Name new functions and classes in their modules; return whether a module has changed."""
        by_name: dict[tuple[str, str], list[Any]] = {}
        for each in self._made:
            by_name.setdefault((each.__module__, each.__qualname__), []).append(each)
        self._made = []
        changed = False
        for (module, name), those in by_name.items():
            if module in self._modules and name.isidentifier():
                namespace = vars(self._modules[module])
                if name not in namespace or (len(those) == 1 and _is_copy(those[0], namespace[name])):
                    namespace[name] = those[-1]
                    changed = True
        return changed

    def _namespace(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("__name__")
        if name not in self._modules:
            if name not in self._names:
                return given
            self._modules[name] = sys.modules.get(name) or ModuleType(name)
        own = vars(self._modules[name])
        for key, value in given.items():
            own.setdefault(key, value)
        return own

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a spec, as `importlib.abc.MetaPathFinder` does."""
        is_package = any(each.startswith(f"{name}.") for each in self._modules)
        if name not in self._modules and not is_package:
            return None
        module = self._modules.setdefault(name, ModuleType(name))
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                spec.loader = _loader(module, spec.loader)
                return spec
        return ModuleSpec(name, _loader(module, None), is_package=is_package)


class _Loader:
    """Loader, as `importlib.abc.Loader`, that runs a module's file below its shipped names."""

    def __init__(self, module: ModuleType, real: Any) -> None:
        self._module, self._real = module, real

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        namespace = vars(module)
        shipped = {name: value for name, value in namespace.items() if not _is_dunder(name)}
        if self._real is not None:
            try:
                self._real.exec_module(module)
            except (Exception, SystemExit) as exc:  # noqa: BLE001  it is the user's code
                text = f"{module.__name__} cannot be imported here ({type(exc).__name__}: {exc})"
                sys.stderr.write(f"kinetic: {text}: it has what came before, and what was shipped by value\n")
        namespace.update(shipped)


def _loader(module: ModuleType, real: Any) -> Any:
    """Return the loader, untyped: importing `importlib.abc` for its types would delay user code."""
    return _Loader(module, real)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_copy(made: Any, known: Any) -> bool:
    """Return whether a function is another copy of one from another pickle."""
    return isinstance(made, FunctionType) and (
        made is not known and isinstance(known, FunctionType) and made.__code__ == known.__code__
    )


class _Unpickler(pickle.Unpickler):
    def __init__(self, body: bytes, copies: bytes, payload: Payload) -> None:
        super().__init__(io.BytesIO(body))
        self._copies, self._payload = copies, payload
        self._loaded: dict[tuple[str, str], Any] | None = None

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name in _MAKERS and module.startswith("cloudpickle"):
            return self._payload.modules.maker(found)
        return found

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "data":
            return self._payload.data(pid[1])
        if pid[0] == "result":
            return _result(self._payload.store_uri, *pid[1:])
        if pid[0] == "shipped":
            return os.path.join(self._payload.workspace, pid[1]).rstrip(os.sep)
        if pid[0] == "named":
            return self._named(pid[1], pid[2])
        if pid[0] == "member":
            return results.by_name(pid[1], pid[2])[pid[3]]
        raise pickle.UnpicklingError(f"unknown reference {pid[0]!r} in the payload, of a newer version?")

    def _named(self, module: str, qualname: str) -> Any:
        """Return what an import of a project module in the job finds; the copy if the import fails."""
        try:
            return results.by_name(module, qualname)
        except (Exception, SystemExit) as exc:
            if self._loaded is None:
                copies = self._copies
                self._loaded = _Unpickler(copies, b"", self._payload).load() if copies else {}
            if (module, qualname) not in self._loaded:
                raise exc from None
            return self._loaded[module, qualname]


def _set(namespace: dict[str, Any], key: str, value: Any) -> None:
    """Set a variable of a module. Other modules may have imported the list, set or dict that it is."""
    known = namespace.get(key)
    if type(value) is list and type(known) is list:
        known[:] = value
    elif isinstance(known, dict | set) and type(known) is type(value):
        known.clear()
        known.update(value)
    else:
        namespace[key] = value


class Payload:
    """Function and arguments of a payload.

    `find_data` returns the path of a data directory. `modules` are the names of the project's. Values of
    other jobs are read from this job's store, `store_uri`. `client_package` is the digest and the size
    (bytes) of the archive of `kinetic_core`, if this image may lack it.
    """

    def __init__(
        self,
        parts: Mapping[str, bytes],
        modules: Sequence[str],
        workspace: str,
        find_data: Callable[[Any], str],
        store_uri: str,
        client_package: Sequence[Any] | None = None,
    ) -> None:
        self.modules = ShippedModules(modules)
        self.workspace, self.store_uri = workspace, store_uri
        self.client_folder = os.path.join(os.path.dirname(workspace), "client")
        """Where this package is unpacked if the image lacks it."""
        self._parts, self._names, self._find_data = parts, modules, find_data
        self._client_package = client_package
        self._paths: dict[str, str] = {}
        self._needed = list(_OF_THE_FUNCTION)
        self._has_variables = False
        self._main: ModuleType | None = None

    def data(self, source: Any) -> str:
        """Return the path of a data directory, noted for spawned processes."""
        path = self._find_data(source)
        self._paths[repr(source)] = path
        return path

    def install(self, folder: str) -> None:
        """Install the `__main__` that the function knew, for this process and for spawned ones.

        Files for spawned processes are written to `folder`, and only once such a process starts.
        """
        if self._main is None:
            self._main = ModuleType("__main__")
            self._main.__spec__ = _MainSpec(lambda: self._write(folder))
            self._main.__dict__["__builtins__"] = __builtins__
            self.modules.add(self._main)
        self.find_modules()
        sys.path.append(folder)
        sys.modules["__main__"] = self._main

    def find_modules(self) -> None:
        """Let this process import what was shipped by value, and `kinetic_core` if its image lacks it."""
        sys.meta_path.insert(0, self.modules)
        if self._client_package is not None:
            sha256, size = self._client_package
            sys.meta_path.append(ClientPackage(sha256, size, self.store_uri, self.client_folder))

    def remove(self, folder: str) -> None:
        """Undo `install` in this process, but for `kinetic_core`, which stays."""
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self.modules]
        if self._client_package is not None:
            sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, ClientPackage)]
        sys.path[:] = [each for each in sys.path if each != folder]

    def digest_of_function(self) -> str:
        """Return what is equal for two calls of the same function, if nothing of it has changed between."""
        parts = [wire.digest(bytes(self._parts.get(name, b""))) for name in _OF_THE_FUNCTION]
        return wire.digest(repr([parts, list(self._names)]).encode())

    def load_function(self) -> Any:
        function = self._load("function", "function_copies")
        self.modules.publish()
        return function

    def renew(self, parts: Mapping[str, bytes], other: Payload) -> None:
        """Take from the payload of another call of the same function all that is the call's own.

        Variables of modules that were set for an earlier call stay as they are now.
        """
        self._parts, self._find_data, self._paths = parts, other._find_data, {}
        self._needed = list(_OF_THE_FUNCTION)
        self._has_variables = True

    def take_arguments(self, parts: Mapping[str, bytes]) -> None:
        """Add the parts with the arguments, of a payload that came without any."""
        self._parts = {**self._parts, **parts}

    def load_arguments(self) -> Any:
        arguments = self._load("arguments", "argument_copies")
        if self.modules.publish():
            self._needed += ["arguments", "argument_copies"]
        return arguments

    def set_variables(self) -> None:
        """Give variables of the project's modules the values that they had where the job was submitted.

        Raises ImportError for a value that cannot be loaded here.
        """
        if self._has_variables:
            return
        changed = self._parts.get("changed")
        for name, values in pickle.loads(changed).items() if changed else ():
            try:
                namespace = vars(importlib.import_module(name))
            except (Exception, SystemExit) as exc:  # noqa: BLE001  it is the user's code
                sys.stderr.write(f"kinetic: {name} cannot be imported here ({type(exc).__name__}: {exc})\n")
                continue
            for key, pickled in values.items():
                try:
                    value = _Unpickler(pickled, b"", self).load()
                except (Exception, SystemExit) as exc:
                    raise ImportError(
                        f"{name}.{key} was set where the job was submitted, and its value cannot be loaded "
                        f"here ({type(exc).__name__}: {exc}). Pass what the function needs of it as arguments"
                    ) from exc
                _set(namespace, key, value)

    def _load(self, body: str, copies: str) -> Any:
        return _Unpickler(self._parts[body], self._parts[copies], self).load()

    def _write(self, folder: str) -> None:
        """Write the module that spawned processes run, and the state it loads; once."""
        program, state = os.path.join(folder, f"{_MAIN}.py"), os.path.join(folder, "state")
        if os.path.exists(program):
            return
        kept = {
            "parts": {name: bytes(self._parts[name]) for name in self._needed},
            "modules": list(self._names),
            "workspace": self.workspace,
            "store_uri": self.store_uri,
            "client_package": self._client_package,
            "paths": self._paths,
            "folder": folder,
        }
        root = os.path.dirname(__file__)
        assert __package__ is not None  # noqa: S101  this module is one of a package
        for _ in __package__.split("."):
            root = os.path.dirname(root)
        text = _PROGRAM.format(folder=root, package=__package__, state=state)
        os.makedirs(folder, exist_ok=True)
        for path, content in ((state, pickle.dumps(kept)), (program, text.encode())):
            part = f"{path}.{os.getpid()}"
            with open(part, "wb") as stream:
                stream.write(content)
            os.rename(part, path)


class _MainSpec(ModuleSpec):
    """Spec of `__main__`, whose name `multiprocessing` reads when it spawns a process."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        super().__init__(_MAIN, None)

    @property
    def name(self) -> str:
        self._prepare()
        return _MAIN

    @name.setter
    def name(self, _: str) -> None: ...


def restored(state: str) -> dict[str, Any]:
    """Return the contents of `__main__`, for a process that the job has spawned."""
    with open(state, "rb") as stream:
        kept = pickle.load(stream)  # the job wrote it, for its own processes
    paths = kept["paths"]
    payload = Payload(
        kept["parts"],
        kept["modules"],
        kept["workspace"],
        lambda source: paths[repr(source)],
        kept["store_uri"],
        kept["client_package"],
    )
    main = ModuleType("__main__")
    payload.modules.add(main)
    payload.find_modules()
    payload.load_function()
    if "arguments" in kept["parts"]:
        payload.load_arguments()
    payload.set_variables()
    return {name: value for name, value in vars(main).items() if not _is_dunder(name)}


def _result(own_uri: str, store_uri: str, name: str, sha256: str) -> Any:
    """Return the value of another job's outcome; its digest is in the verified payload.

    Raises UnpicklingError for one in another store than this job's, because others write there.
    """
    if store_uri != own_uri:
        raise pickle.UnpicklingError(
            f"{name} lies in {store_uri}, and this job reads {own_uri}: nothing of it was loaded"
        )
    store = open_store(store_uri)
    if (span := object_names.span_of(name)) is not None:
        reader = wire.FrameReader(head_sha256=sha256)
        reader.write(store.read_range(span[0], span[1], span[2] - span[1]))
    else:
        reader = store.download(name, lambda: wire.FrameReader(head_sha256=sha256))
    header, parts = reader.close()
    del reader
    if header["codec"] == "typed":
        from . import codec

        return codec.decode(parts)
    return results.loaded(parts["body"], parts=parts)
