"""Programs beside a job's function in its pod: through the API server's exec subresource, without kubectl."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic_core._runner import shell
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import CONTAINER, OUTCOME_KEY
from kinetic_core.backends.kubernetes.streams import has_more, open_stream
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError

_PROTOCOL = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
"""Channels; the first byte of a message is the number of its channel."""
_RULE = '{apiGroups: [""], resources: [pods/exec], verbs: [get, create]}'
_SILENCE = 30.0
"""Seconds without an answer to a ping after which the connection counts as broken."""
_PIECE = 1 << 15
_LOADER = (
    "import os, sys\n"
    "size, text = int(sys.argv.pop(1)), b''\n"
    "while len(text) < size:\n"
    "    text += os.read(0, size - len(text)) or sys.exit(1)\n"
    "exec(text)\n"
)
"""Program that reads another from stdin, so that no proxy on the way finds the request too long."""


class PodProcess:
    """Program in a pod's container, with its streams. Not for several threads at once."""

    def __init__(
        self,
        target: Target,
        connections: Connections,
        namespace: str,
        pod: str,
        command: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start it. Raises ClusterError if the server refuses, ClusterUnreachable if it does not answer."""
        self.exit_code: int | None = None
        self._name, self._clock, self._unsent = f"pod {pod}", clock, bytearray()
        streams = [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("container", CONTAINER)]
        self._websocket = open_stream(
            target,
            connections,
            f"/api/v1/namespaces/{namespace}/pods/{pod}/exec",
            [*streams, *(("command", word) for word in command)],
            _PROTOCOL,
            _not_permitted(namespace),
        )
        self.source = self.sink = int(self._websocket.fileno())
        self._heard_at = clock()

    @property
    def unsent(self) -> int:
        """Return how many bytes wait to be sent."""
        return len(self._unsent)

    def send(self, data: bytes) -> None:
        """Send to the program's stdin, as far as the connection takes it now."""
        from websocket import ABNF

        for start in range(0, len(data), _PIECE):
            content = bytes([_STDIN]) + data[start : start + _PIECE]
            self._unsent += ABNF.create_frame(content, ABNF.OPCODE_BINARY).format()
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the connection takes it now. Raises ClusterUnreachable."""
        sock = self._websocket.sock
        if sock is None:  # closed
            return
        try:
            patience = sock.gettimeout()
            sock.settimeout(0)
            try:
                while self._unsent:
                    del self._unsent[: sock.send(self._unsent)]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            finally:
                sock.settimeout(patience)
        except OSError as exc:
            raise self._broken(exc) from exc

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Return what has arrived, in pairs of descriptor (1: stdout, 2: stderr) and bytes; None at the end.

        The program has ended then, with `exit_code`. Raises ClusterError if it could not be started,
        ClusterUnreachable if the connection breaks.
        """
        from websocket import ABNF, WebSocketException

        arrived: list[tuple[int, bytes]] = []
        try:
            while True:
                kind, content = self._websocket.recv_data(control_frame=True)
                self._heard_at = self._clock()
                if kind == ABNF.OPCODE_CLOSE:
                    if self.exit_code is None:
                        raise ClusterUnreachable(f"{self._name}: the connection was closed")
                    return arrived or None
                if kind == ABNF.OPCODE_BINARY and len(content) > 1:
                    if content[0] == _STATUS:
                        self.exit_code = self._code(json.loads(content[1:]))
                    elif content[0] in (_STDOUT, _STDERR):
                        arrived.append((content[0], content[1:]))
                if not has_more(self._websocket):
                    return arrived
        except (WebSocketException, OSError, ValueError) as exc:
            if self.exit_code is not None:
                return arrived or None
            raise self._broken(exc) from exc

    def tick(self, *, reads: bool) -> None:
        """Keep the connection alive; called every few seconds. `reads`: what arrives is being received.

        Raises ClusterUnreachable if the other side has been silent for too long.
        """
        from websocket import ABNF

        now = self._clock()
        if not reads:
            self._heard_at = now
        if now - self._heard_at > _SILENCE:
            raise ClusterUnreachable(f"{self._name}: no answer for {now - self._heard_at:.0f} s")
        self._unsent += ABNF.create_frame("", ABNF.OPCODE_PING).format()
        self.flush()

    def close(self) -> None:
        """Close the connection at once, which ends the program."""
        self._websocket.shutdown()

    def _broken(self, exc: Exception) -> ClusterUnreachable:
        return ClusterUnreachable(f"{self._name}: the connection broke: {exc}")

    def _code(self, status: Mapping[str, Any]) -> int:
        """Return the exit code in a status. Raises ClusterError if there is none."""
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        raise ClusterError(f"{self._name}: {status.get('message') or status}")


class PodShells:
    """Programs beside the functions of a cluster's jobs."""

    def __init__(self, target: Target, connections: Connections) -> None:
        self._target, self._connections = target, connections

    def check(self, namespace: str) -> None:
        """Raise ConfigurationError, naming the rule to add, unless this user may run programs in pods."""
        if not ClusterApi(self._target, self._connections).may("get", "", "pods/exec", namespace):
            raise _not_permitted(namespace)

    def start(self, namespace: str, pod: str, request: str) -> PodProcess:
        """Start the program of `_runner.shell` in a pod. Raises ClusterError, ConfigurationError.

        The container's variables have the key that signs outcomes: the program never has it.
        """
        text = Path(shell.__file__).read_bytes()
        loader = ["env", "-u", OUTCOME_KEY, "python3", "-I", "-S", "-c", _LOADER]
        command = [*loader, str(len(text)), request]
        process = PodProcess(self._target, self._connections, namespace, pod, command)
        process.send(text)
        return process


def _not_permitted(namespace: str) -> ConfigurationError:
    return ConfigurationError(
        f"a shell runs in a pod, and pods/exec is not permitted in namespace {namespace}. Add to the role: "
        f"{_RULE}"
    )
