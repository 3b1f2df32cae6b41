"""Key that signs a job's outcome, held so that user code cannot read it.

The manifest hands it over as an environment variable. Before anything of the user's runs, its bytes are
overwritten in the process's environment block, which /proc/PID/environ shows, and the process is made
undumpable, so that no other process of the same user may read its memory or take its descriptors (ptrace(2),
prctl(2)). The child that will run user code inherits the process's memory: it overwrites its copy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from .processes import c_library
from .wire import input_key

VARIABLE = "KINETIC_OUTCOME_KEY"
_PR_SET_DUMPABLE = 4


def take_key(environ: MutableMapping[str, str], index: int | None = None) -> bytearray:
    """Take the key out of `environ`; of a batch's, only that of input number `index` is left in this process.

    Raises KeyError if there is none, ValueError if it is not hexadecimal.
    """
    if environ is not os.environ:
        key = bytearray.fromhex(environ.pop(VARIABLE))
        return key if index is None else bytearray(input_key(key, index))
    set_readable(readable=False)
    name = VARIABLE.encode()
    if name not in os.environb:  # to ask `os.environ` would make a copy
        raise KeyError(VARIABLE)
    text = os.environb[name]  # the very object that Python made of the environment, not a copy
    key = bytearray(len(text) // 2)
    for at in range(len(key)):
        key[at] = int(text[2 * at : 2 * at + 2], 16)
    _wipe_environment_block(len(text))
    del os.environb[name]
    wipe_bytes(text)
    if index is None:
        return key
    derived = input_key(key, index)
    own = bytearray(derived)
    wipe_bytes(derived)
    forget_key(key)
    return own


def forget_key(key: bytearray) -> None:
    """Overwrite a key in this process: for the child, before user code is loaded."""
    key[:] = bytes(len(key))


def set_readable(*, readable: bool) -> None:
    """Let other processes of this user read this one's memory and environment, or not. Linux only.

    A forked process inherits the setting; an executed one is readable.
    """
    if sys.platform != "linux":
        return
    try:
        failed = c_library().prctl(_PR_SET_DUMPABLE, int(readable), 0, 0, 0)
    except (ImportError, AttributeError, OSError):
        failed = -1
    if failed:
        sys.stderr.write("kinetic: user code can read the memory of its runner: prctl(2) cannot be called\n")


def _wipe_environment_block(length: int) -> None:
    """Overwrite the variable's value where the kernel has put it: removing a variable only unlinks it."""
    try:
        import ctypes
    except ImportError:
        return  # `set_readable` has said so
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    if address := library.getenv(VARIABLE.encode()):
        ctypes.memset(address, ord("0"), length)


def wipe_bytes(secret: bytes) -> None:
    """Overwrite a bytes object that nothing uses any more."""
    if sys.implementation.name != "cpython":
        return
    try:
        import ctypes
    except ImportError:
        return
    ctypes.memset(id(secret) + bytes.__basicsize__ - 1, 0, len(secret))
