"""Stacks of user code that the child writes: of a hang, when its parent asks for them, and of a crash."""

from __future__ import annotations

import os
import re
import signal
import time

from .attempt import Job

STACKS_FILE = "stacks"
STACKS_SIGNAL = signal.SIGUSR2
"""Signal that makes the child write the stacks of all its threads, whatever they execute."""
_STACKS_SECONDS = 0.3
_MOST_STACKS = 1 << 18
"""Characters of stacks: a note of a slice's host holds them."""
_CRASH = b"Fatal Python error: "
_FRAME = re.compile(rb'  File "(.+)", line (?:\d+|\?\?\?) in .+')
"""Frame as faulthandler writes it, in several pieces; a traceback has a comma before `in`."""
_FRAME_BEGIN = b'  File "'
_LONGEST_FRAME = 4000


def stacks(job: Job, child: int) -> str:
    """Return the stacks of user code's threads, without the runner's own frames."""
    try:
        os.kill(child, STACKS_SIGNAL)
        time.sleep(_STACKS_SECONDS)
        with open(os.path.join(job.work_dir, STACKS_FILE), "rb") as stream:
            text = stream.read(_MOST_STACKS)
    except OSError:
        return ""
    frames = _Frames()
    return b"\n".join(line for line in text.splitlines() if not frames.is_ours(line)).decode(errors="replace")


class _Frames:
    """Judge of the lines of stacks, in their order."""

    def __init__(self) -> None:
        here = os.path.dirname(stacks.__code__.co_filename)  # as a zip file's modules are called
        self._here = here.encode("ascii", "backslashreplace")  # as faulthandler writes it
        self._follows_ours = False

    def is_ours(self, line: bytes) -> bool:
        """Return whether a line is a frame of the runner, or of the program text that starts it."""
        frame = _FRAME.fullmatch(line)
        if frame is None:
            return False
        folder, _, name = frame[1].rpartition(b"/")
        self._follows_ours = folder == self._here or (self._follows_ours and name == b"<string>")
        return self._follows_ours


class CrashFilter:
    """Filter of the child's output that leaves out the runner's frames below user code's when it crashes.

    All other bytes pass, at once but for the beginning of a line that may become such a frame. The stack is
    written by the child itself while it dies, between the lines of other processes.
    """

    def __init__(self, *, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self._has_crashed = False
        self._recent = b""
        self._held = b""
        self._is_within_line = False
        self._frames = _Frames()

    def passed(self, chunk: bytes) -> bytes:
        """Return what is to be shown, now that these bytes have come."""
        if self._keeps_all:
            return chunk
        if self._has_crashed:
            return self._without_frames(chunk)
        known = self._recent + chunk
        at = known.find(_CRASH)
        if at < 0:
            self._recent = known[1 - len(_CRASH) :]
            return chunk
        self._has_crashed = self._is_within_line = True
        after = at + len(_CRASH) - len(self._recent)
        return chunk[:after] + self._without_frames(chunk[after:])

    def rest(self) -> bytes:
        """Return the beginning of a line that was held, now that nothing follows."""
        held, self._held = self._held, b""
        self._is_within_line = self._is_within_line or bool(held)
        return held

    def _without_frames(self, chunk: bytes) -> bytes:
        *lines, last = (self._held + chunk).split(b"\n")
        shown = bytearray()
        for line in lines:
            if self._is_within_line or not self._frames.is_ours(line):
                shown += line + b"\n"
            self._is_within_line = False
        may_be_frame = last[: len(_FRAME_BEGIN)] == _FRAME_BEGIN[: len(last)] and len(last) < _LONGEST_FRAME
        if self._is_within_line or not may_be_frame:
            self._held = b""
            self._is_within_line = self._is_within_line or bool(last)
            return bytes(shown + last)
        self._held = last
        return bytes(shown)
