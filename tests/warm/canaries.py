"""Traces that a call leaves in its process and around it, and how a later call would see them.

`CANARIES` maps a name to two functions. The first leaves the trace; what it returns is given to the second,
which says whether it sees the trace.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import codecs
import colorsys
import contextlib
import copyreg
import ctypes
import decimal
import fcntl
import gc
import json
import locale
import logging
import mimetypes
import multiprocessing
import os
import pathlib
import random
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import types
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Leave = Callable[[], Any]
IsSeen = Callable[[Any], bool]
CANARIES: dict[str, tuple[Leave, IsSeen]] = {}
kept: list[Any] = []
"""What must not be collected as garbage."""


def canary(name: str, is_seen: IsSeen) -> Callable[[Leave], Leave]:
    def add(leave: Leave) -> Leave:
        CANARIES[name] = leave, is_seen
        return leave

    return add


def leave_all() -> dict[str, Any]:
    """Leave every trace; return what the functions that look for them need."""
    return {name: leave() for name, (leave, _) in CANARIES.items()}


def seen(left: dict[str, Any]) -> list[str]:
    """Return the names of the traces that this process sees."""
    return [name for name, (_, is_seen) in CANARIES.items() if is_seen(left[name])]


def same(value: Any) -> IsSeen:
    """Whether a function of no arguments returns what was left."""
    return lambda left: value() == left


def always(look: Callable[[], Any]) -> IsSeen:
    return lambda _: bool(look())


# The process


@canary("environment variable", always(lambda: "CANARY" in os.environ))
def _() -> None:
    os.environ["CANARY"] = "1"


@canary("environment of C", always(lambda: ctypes.CDLL(None).getenv(b"CANARY_OF_C")))
def _() -> None:
    os.putenv("CANARY_OF_C", "1")


@canary("program path", always(lambda: "/canary" in os.environ["PATH"]))
def _() -> None:
    os.environ["PATH"] += ":/canary"


@canary("time zone", always(lambda: "CAN" in time.tzname))
def _() -> None:
    os.environ["TZ"] = "CAN+7"
    time.tzset()


@canary("file of the working directory", lambda left: Path(left).exists() or Path("canary").exists())
def _() -> str:
    Path("canary").touch()
    return str(Path("canary").absolute())


@canary("output directory", lambda left: os.environ["KINETIC_OUTPUT_DIR"] == left)
def _() -> str:
    return os.environ["KINETIC_OUTPUT_DIR"]


@canary("process", lambda left: os.getpid() == left)
def _() -> int:
    return os.getpid()


@canary("session", lambda left: os.getsid(0) == left)
def _() -> int:
    return os.getsid(0)


@canary("umask", always(lambda: _umask() == 0o077))
def _() -> None:
    os.umask(0o077)


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@canary("niceness", same(lambda: os.nice(0)))
def _() -> int:
    return os.nice(1)


@canary("processors", lambda left: left is not None and os.sched_getaffinity(0) == left)
def _() -> set[int] | None:
    """None where there is one processor only."""
    every = os.sched_getaffinity(0)
    if len(every) == 1:
        return None
    os.sched_setaffinity(0, {min(every)})
    return {min(every)}


@canary("limit of open files", same(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
def _() -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (333, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return 333


@canary("limit of core files", same(lambda: resource.getrlimit(resource.RLIMIT_CORE)))
def _() -> tuple[int, int]:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 4321) if _may(4321) else (0, 0))
    return resource.getrlimit(resource.RLIMIT_CORE)


def _may(size: int) -> bool:
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return limit == resource.RLIM_INFINITY or limit > size


@canary("name of the process", always(lambda: Path("/proc/self/comm").read_text() == "canary\n"))
def _() -> None:
    Path("/proc/self/comm").write_text("canary")


@canary("order to be killed", same(lambda: Path("/proc/self/oom_score_adj").read_text()))
def _() -> str:
    Path("/proc/self/oom_score_adj").write_text("777")
    return Path("/proc/self/oom_score_adj").read_text()


# Signals


@canary("signal handler", always(lambda: callable(signal.getsignal(signal.SIGUSR1))))
def _() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)


@canary("ignored signal", always(lambda: signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN))
def _() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@canary("blocked signal", always(lambda: signal.SIGWINCH in signal.pthread_sigmask(signal.SIG_BLOCK, ())))
def _() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})


@canary("alarm", always(lambda: signal.getitimer(signal.ITIMER_REAL)[0]))
def _() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(3600)


@canary("timer of the processor", always(lambda: signal.getitimer(signal.ITIMER_VIRTUAL)[0]))
def _() -> None:
    signal.signal(signal.SIGVTALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_VIRTUAL, 3600)


# Threads, processes, files


@canary("thread", always(lambda: "canary" in {each.name for each in threading.enumerate()}))
def _() -> None:
    threading.Thread(target=time.sleep, args=(3600,), name="canary", daemon=True).start()


@canary(
    "timer thread", always(lambda: any(isinstance(each, threading.Timer) for each in threading.enumerate()))
)
def _() -> None:
    timer = threading.Timer(3600, print)
    timer.daemon = True
    timer.start()


@canary("size of stacks", always(lambda: threading.stack_size() == 1 << 20))
def _() -> None:
    threading.stack_size(1 << 20)


@canary("process that goes on", lambda left: Path(f"/proc/{left}").exists())
def _() -> int:
    return subprocess.Popen(["sleep", "3600"]).pid


@canary("process of a session of its own", lambda left: Path(f"/proc/{left}").exists())
def _() -> int:
    return subprocess.Popen(["sleep", "3600"], start_new_session=True).pid


@canary("orphan", lambda left: Path(f"/proc/{left}").exists())
def _() -> int:
    program = "setsid sleep 3600 >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["sh", "-c", program], stdout=subprocess.PIPE, check=True).stdout)


@canary("start of processes", always(lambda: multiprocessing.get_start_method(allow_none=True) == "spawn"))
def _() -> None:
    multiprocessing.set_start_method("spawn", force=True)


@canary("open port", lambda left: _answers(socket.AF_INET, ("127.0.0.1", left)))
def _() -> int:
    server = socket.create_server(("127.0.0.1", 0))
    kept.append(server)
    return int(server.getsockname()[1])


@canary("abstract socket", lambda left: _answers(socket.AF_UNIX, left))
def _() -> str:
    name = f"\0canary-{secrets.token_hex(8)}"
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    kept.append(server)
    return name


def _answers(family: int, address: Any) -> bool:
    with socket.socket(family) as made:
        return made.connect_ex(address) == 0


@canary("descriptor", lambda left: left in _open_files())
def _() -> str:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.set_inheritable(write, True)
    return str(Path(f"/proc/self/fd/{read}").readlink())


def _open_files() -> set[str]:
    found = list(Path("/proc/self/fd").iterdir())
    return {str(each.readlink()) for each in found if each.is_symlink()}  # one is that of the directory


@canary("lock of a file", lambda left: not _takes(left))
def _() -> str:
    descriptor, name = tempfile.mkstemp(prefix="canary-")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return name


def _takes(name: str) -> bool:
    """Whether the file can be locked; it is removed then."""
    with Path(name).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        Path(name).unlink()
        return True


# The interpreter


@canary("module", always(lambda: "canary_module" in sys.modules))
def _() -> None:
    sys.modules["canary_module"] = types.ModuleType("canary_module")


@canary("module of the standard library", always(lambda: "this_canary" in vars(json)))
def _() -> None:
    json.this_canary = 1  # type: ignore[attr-defined]


@canary("changed function", always(lambda: colorsys.rgb_to_hls(0, 0, 0) == "canary"))
def _() -> None:
    colorsys.rgb_to_hls = lambda *_: "canary"  # type: ignore[assignment,return-value]


@canary("attribute of a class", always(lambda: hasattr(pathlib.PurePath, "canary")))
def _() -> None:
    pathlib.PurePath.canary = 1  # type: ignore[attr-defined]


@canary("built-in name", always(lambda: hasattr(builtins, "canary")))
def _() -> None:
    builtins.canary = 1  # type: ignore[attr-defined]


@canary("global variable", always(lambda: "left" in kept))
def _() -> None:
    kept.append("left")


@canary("search path", always(lambda: "/canary" in sys.path))
def _() -> None:
    sys.path.insert(0, "/canary")


@canary("finder of modules", always(lambda: any(isinstance(each, _Finder) for each in sys.meta_path)))
def _() -> None:
    sys.meta_path.append(_Finder())  # type: ignore[arg-type]


class _Finder:
    def find_spec(self, *_: Any) -> None:
        """Find nothing."""


@canary("arguments", always(lambda: "canary" in sys.argv))
def _() -> None:
    sys.argv.append("canary")


@canary("limit of recursion", always(lambda: sys.getrecursionlimit() == 4321))
def _() -> None:
    sys.setrecursionlimit(4321)


@canary("switches between threads", always(lambda: sys.getswitchinterval() > 0.5))
def _() -> None:
    sys.setswitchinterval(0.75)


@canary("longest number in digits", always(lambda: sys.get_int_max_str_digits() == 4321))
def _() -> None:
    sys.set_int_max_str_digits(4321)


@canary("hook of exceptions", always(lambda: sys.excepthook is not sys.__excepthook__))
def _() -> None:
    sys.excepthook = lambda *_: None


@canary("hook of audits", always(lambda: _is_audited()))
def _() -> None:
    sys.addaudithook(lambda event, told: told[0].append(1) if event == "kinetic.canary" else None)


def _is_audited() -> bool:
    told: list[int] = []
    sys.audit("kinetic.canary", told)
    return bool(told)


@canary("profiler", always(lambda: threading.getprofile() is not None))
def _() -> None:
    threading.setprofile(lambda *_: None)


@canary("traced memory", always(tracemalloc.is_tracing))
def _() -> None:
    tracemalloc.start()


@canary("function at exit", lambda left: _functions_at_exit() > left)
def _() -> int:
    before = _functions_at_exit()
    for _number in range(100):
        atexit.register(int)
    return before + 50


def _functions_at_exit() -> int:
    return int(vars(atexit)["_ncallbacks"]())


@canary("garbage collector", always(lambda: gc.get_threshold()[0] == 4321))
def _() -> None:
    gc.set_threshold(4321)


@canary("callback of the collector", always(lambda: len(gc.callbacks) >= 5))
def _() -> None:
    gc.callbacks.extend([_quiet] * 5)


def _quiet(*_: Any) -> None:
    """Do nothing."""


@canary(
    "frozen objects", always(lambda: len([each for each in gc.get_objects() if isinstance(each, _Marker)]))
)
def _() -> None:
    kept.append(_Marker())


class _Marker:
    def __init__(self) -> None:
        self.me = self


# The standard library


@canary("random numbers", lambda left: random.random() in left)
def _() -> list[float]:
    first = random.random()  # that of a process that was forked with the same state
    random.seed(4321)
    following = random.random()
    random.seed(4321)
    return [first, following]


@canary("locale", always(lambda: locale.setlocale(locale.LC_NUMERIC) == "C.UTF-8"))
def _() -> None:
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")


@canary("decimal digits", always(lambda: decimal.getcontext().prec == 4321))
def _() -> None:
    decimal.getcontext().prec = 4321


@canary(
    "handler of logs",
    always(lambda: any(isinstance(each, _Handler) for each in logging.getLogger().handlers)),
)
def _() -> None:
    logging.getLogger().addHandler(_Handler())


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Write nothing."""


@canary("level of a logger", always(lambda: logging.getLogger("canary").level == logging.CRITICAL))
def _() -> None:
    logging.getLogger("canary").setLevel(logging.CRITICAL)


@canary("disabled logs", always(lambda: logging.root.manager.disable == 5))
def _() -> None:
    logging.disable(5)


@canary("filter of warnings", always(lambda: any(each[2] is _Warning for each in warnings.filters)))
def _() -> None:
    warnings.simplefilter("error", _Warning)


class _Warning(UserWarning):
    """Warning of a canary."""


@canary("temporary directory", always(lambda: tempfile.tempdir == "/canary"))
def _() -> None:
    tempfile.tempdir = "/canary"


@canary("errors of codecs", always(lambda: _has_codec_error()))
def _() -> None:
    codecs.register_error("canary", codecs.ignore_errors)


def _has_codec_error() -> bool:
    with contextlib.suppress(LookupError):
        return bool(codecs.lookup_error("canary"))
    return False


@canary(
    "registered pickling",
    always(lambda: complex in copyreg.dispatch_table and copyreg.dispatch_table[complex] is _reduce),
)
def _() -> None:
    copyreg.pickle(complex, _reduce)


def _reduce(value: complex) -> tuple[type[complex], tuple[float, float]]:
    return complex, (value.real, value.imag)


@canary("types of files", always(lambda: mimetypes.guess_type("a.canary")[0] == "x/canary"))
def _() -> None:
    mimetypes.add_type("x/canary", ".canary")


@canary("time limit of sockets", always(lambda: socket.getdefaulttimeout() == 4321))
def _() -> None:
    socket.setdefaulttimeout(4321)


@canary("opener of URLs", always(lambda: vars(urllib.request)["_opener"]))
def _() -> None:
    urllib.request.install_opener(urllib.request.build_opener())


@canary("event loop", always(lambda: type(_policy_of_event_loops()).__name__ == "_Policy"))
def _() -> None:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # since Python 3.14

        class _Policy(asyncio.DefaultEventLoopPolicy):
            """Policy of a canary."""

        asyncio.set_event_loop_policy(_Policy())


def _policy_of_event_loops() -> object:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return asyncio.get_event_loop_policy()


# Last: what would keep the others from being left


@canary("working directory", always(lambda: str(Path.cwd()) == "/"))
def _() -> None:
    os.chdir("/")


@canary("output", always(lambda: isinstance(sys.stdout, _Output)))
def _() -> None:
    sys.stdout = _Output()


class _Output:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Write nothing."""
