"""Processes of the local backend: started from argument lists, ended as a group, told apart from others."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from kinetic_core._runner.processes import DETACHED, end_below, fork_quietly, statuses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

_LOOK_SECONDS = 0.02
_PUBLISH_SECONDS = 3.0
_DYING_SECONDS = 5.0


def command_of(container: Mapping[str, Any]) -> list[str]:
    """The container's command, with the image (an interpreter's path here) for its `python3`."""
    command: list[str] = list(container["command"])
    return [container["image"], *command[1:]] if command[0] == "python3" else command


def environment_of(
    container: Mapping[str, Any], metadata: Mapping[str, Any], mounts: Mapping[str, str]
) -> dict[str, str]:
    """The container's environment on top of this process's, downward API resolved from `metadata`."""
    environment = dict(os.environ)
    environment.pop(DETACHED, None)
    for variable in container["env"]:
        value = variable.get("value")
        if value is None:
            value = _field(variable["valueFrom"]["fieldRef"]["fieldPath"], metadata)
        environment[variable["name"]] = value
    return {**environment, **mounts}


def _field(path: str, metadata: Mapping[str, Any]) -> str:
    name = path.removeprefix("metadata.")
    if name.startswith("annotations['"):
        return str(metadata["annotations"].get(name[len("annotations['") : -2], ""))
    return str(metadata[name])


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: str,
    folder: str,
    enter: Callable[[], None] | None,
    keep: Sequence[int],
) -> int:
    """Start a command as leader of its own session and group; its process id.

    Output goes to the file `log`. The descriptors in `keep`, which hold the job's locks, stay open in
    it, so that the locks are held while it lives even if this process dies. `enter` runs in the child.
    """
    os.makedirs(os.path.dirname(log), exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    child, mask = fork_quietly()
    if child:
        os.close(output)
        os.close(nothing)
        return child
    try:
        os.setsid()
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.chdir(folder)
        if enter is not None:
            enter()
        os.execve(command[0], list(command), dict(environment))  # noqa: S606  an argument list, no shell
    except OSError as exc:
        os.write(2, f"kinetic: cannot start {command[0]}: {exc}\n".encode())
    finally:
        os._exit(127)


def wait(child: int) -> int:
    """Wait for it; exit code, 128 + n for signal n."""
    return _code(os.waitpid(child, 0)[1])


def stop(child: int, grace: float) -> int:
    """SIGTERM, then after `grace` seconds and the time to publish SIGKILL for its group; its exit code."""
    try:
        os.kill(child, signal.SIGTERM)
        return _wait_or_kill(child, grace)
    except (ProcessLookupError, ChildProcessError):
        return 128 + signal.SIGTERM  # it had ended just before, and its status was collected


def _wait_or_kill(child: int, grace: float) -> int:
    deadline = time.monotonic() + grace + _PUBLISH_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _code(status)
        if time.monotonic() > deadline:
            kill_tree(child)
            return wait(child)
        time.sleep(_LOOK_SECONDS)


def kill_tree(leader: int) -> None:
    """SIGKILL for a process, all that descends from it and its group; returns when none of it is alive.

    Where there is no /proc (macOS) what has left the group is not found.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.kill(leader, signal.SIGSTOP)  # so that it starts nothing and takes no child's death for a fault
        end_below(leader, is_local=True)
    kill_group(leader)


def kill_marked(folder: str) -> None:
    """SIGKILL for every process that was started to work in that folder of a job, or below it.

    Told by its environment: whatever such a process started and left to process 1. Nothing without /proc.
    """
    mark = b"KINETIC_WORK_DIR=" + os.fsencode(folder) + b"/"
    deadline = time.monotonic() + _DYING_SECONDS
    while (marked := _with_environment(mark)) and time.monotonic() < deadline:
        for pid in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS / 4)


def _with_environment(text: bytes) -> list[int]:
    """The living processes of this user whose environment has a variable that begins so."""
    found = []
    for pid, fields in statuses().items():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as stream:
            if fields[0] != "Z" and (b"\0" + stream.read()).find(b"\0" + text) >= 0:
                found.append(pid)
    return found


def kill_group(leader: int) -> None:
    """SIGKILL for whatever is left of a process group; returns when none of it is alive."""
    deadline = time.monotonic() + _DYING_SECONDS
    try:
        os.killpg(leader, signal.SIGKILL)
        while _has_living_member(leader) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS / 4)
            os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return  # nothing is left (macOS says EPERM for zombies)


def _has_living_member(leader: int) -> bool:
    """Whether a process of the group is more than a zombie; False where the system does not say."""
    return any(fields[2] == str(leader) and fields[0] != "Z" for fields in statuses().values())


def identity(pid: int) -> dict[str, Any]:
    """What tells this process from a later one with the same number: when it started, where known."""
    return {"pid": pid, "started": _start_time(pid)}


def is_same(known: Mapping[str, Any]) -> bool:
    """Whether the process that `identity` described is still there."""
    try:
        os.kill(known["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return bool(known["started"] == _start_time(known["pid"]))


def _start_time(pid: int) -> str:
    """Clock ticks since boot, the 22nd field of proc_pid_stat(5), with the boot's id; "" elsewhere."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            ticks = stream.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return f"{stream.read().strip()}-{ticks}"
    except OSError:
        return ""


def random_uid() -> str:
    """A pod's uid."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def made(folder: str) -> str:
    """The folder, which exists now."""
    os.makedirs(folder, exist_ok=True)
    return folder


def remove_tree(folder: str) -> None:
    """Remove a directory and everything in it; links are removed, not followed."""
    for base, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(base, name))
        for name in folders:
            path = os.path.join(base, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                os.rmdir(path)
    if os.path.isdir(folder):
        os.rmdir(folder)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
