"""The API server's side of a WebSocket, frame by frame."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import Callable

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
BINARY, CLOSE, PING, PONG = 0x82, 0x88, 0x89, 0x8A
Speak = Callable[[socket.socket], None]


def frame(content: bytes, kind: int = BINARY) -> bytes:
    size = bytes([len(content)]) if len(content) < 126 else b"\x7e" + len(content).to_bytes(2, "big")
    return bytes([kind]) + size + content


def unmasked(connection: socket.socket) -> tuple[int, bytes]:
    """Read one frame of the client's: its kind and content."""
    kind, size = _read(connection, 2)
    length = size & 0x7F
    if length == 126:
        length = int.from_bytes(_read(connection, 2), "big")
    mask = _read(connection, 4)
    content = _read(connection, length)
    return kind, bytes(byte ^ mask[index % 4] for index, byte in enumerate(content))


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError
        found += piece
    return found


def upgraded(request: bytes, protocol: bytes) -> bytes:
    key = re.search(rb"(?i)sec-websocket-key: (\S+)", request)
    assert key
    assert protocol in request
    accept = base64.b64encode(hashlib.sha1(key[1] + _GUID).digest())
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
    lines += [b"Sec-WebSocket-Protocol: " + protocol, b"Sec-WebSocket-Accept: " + accept]
    return b"\r\n".join([*lines, b"", b""])


def refusing(status: str, body: str) -> Speak:
    def speak(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())

    return speak
