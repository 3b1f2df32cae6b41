"""A debugger as VS Code is one: a client of the Debug Adapter Protocol.

https://microsoft.github.io/debug-adapter-protocol/specification
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_SECONDS = 20.0

Message = dict[str, Any]


class Debugger:
    """Connected to a port of this machine's loopback."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _SECONDS)
        self._stream = self._socket.makefile("rb")
        self._sent = 0
        self._events: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def attach(self, mapping: dict[str, str], breakpoints: dict[Path, list[int]]) -> None:
        """Attach with a path mapping of launch.json, and breakpoints by local file; what waited goes on."""
        self.ask("initialize", adapterID="debugpy", pathFormat="path", clientID="test")
        attach = self._send("attach", {"pathMappings": [mapping], "justMyCode": True})
        self.event("initialized")
        for file, lines in breakpoints.items():
            asked = [{"line": line} for line in lines]
            told = self.ask("setBreakpoints", source={"path": str(file)}, breakpoints=asked)
            assert all(each["verified"] for each in told["breakpoints"]), told
        self.ask("configurationDone")
        self._answer(attach)

    def stop(self) -> tuple[int, Message]:
        """Wait for a stop; the thread, and its innermost frame."""
        thread = self.event("stopped")["threadId"]
        frame: Message = self.ask("stackTrace", threadId=thread)["stackFrames"][0]
        return thread, frame

    def local_variables(self, frame: Message) -> dict[str, str]:
        """Names to the texts that a debugger shows."""
        scopes = self.ask("scopes", frameId=frame["id"])["scopes"]
        shown = self.ask("variables", variablesReference=scopes[0]["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in shown}

    def ask(self, command: str, **arguments: Any) -> Message:
        """A request's answer; it must succeed."""
        return self._answer(self._send(command, arguments))

    def event(self, name: str) -> Message:
        """The body of the next event of that name."""
        while True:
            for event in self._events:
                if event["event"] == name:
                    self._events.remove(event)
                    body: Message = event.get("body", {})
                    return body
            self._events.append(self._read("event"))

    def _answer(self, number: int) -> Message:
        while True:
            message = self._read("response")
            if message["request_seq"] == number:
                assert message["success"], message
                body: Message = message.get("body", {})
                return body

    def _send(self, command: str, arguments: Message) -> int:
        self._sent += 1
        request = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        content = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        return self._sent

    def _read(self, kind: str) -> Message:
        """The next message of that type; events that come before a response are kept."""
        while True:
            length = 0
            while line := self._stream.readline().strip():
                length = int(line.partition(b":")[2])
            assert length, "the debugger has closed the connection"
            message: Message = json.loads(self._stream.read(length))
            if message["type"] == kind:
                return message
            if message["type"] == "event":
                self._events.append(message)
