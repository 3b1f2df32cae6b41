"""The secret of this machine from which the keys of its jobs' outcomes are made."""

from __future__ import annotations

import os
import secrets

_BYTES = 32


def read_secret(path: str, *, make: bool = False) -> bytes | None:
    """The secret in a file that only this user can read; made if `make` and there is none."""
    try:
        with open(path, "rb") as stream:
            found = stream.read()
    except FileNotFoundError:
        return _made(path) if make else None
    return found if len(found) == _BYTES else None


def _made(path: str) -> bytes | None:
    """Whole or not at all; of two processes that make it at once one does."""
    own = f"{path}.{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(_BYTES))
        try:
            os.link(own, path)
        except FileExistsError:
            pass  # another process was first
    finally:
        os.unlink(own)
    return read_secret(path)
