"""A headless Chromium that tests drive through its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

_SECONDS = 30.0
_WAIT = 120.0
"""How long a page may take, in seconds: an Airflow on two busy processors answers late."""
_INTERRUPTED = "ERR_NETWORK_CHANGED"
"""What Chromium says of a request that it gave up because a network interface came or went, as one does with
each pod of a test cluster: of requests to this machine too."""
_KEYS = {"ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Escape": 27, "/": 191}


def program() -> str | None:
    """The Chromium of this machine, None if it has none."""
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


class Tab:
    """One tab of a browser."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=_SECONDS, suppress_origin=True)
        self._number = 0
        self._url: str | None = None
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv())
            if told.get("id") != self._number:
                self.events.append(told)
                continue
            if "error" in told:
                raise RuntimeError(f"{method}: {told['error']['message']}")
            found: dict[str, Any] = told["result"]
            return found

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, awaited."""
        told = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = _WAIT) -> Any:
        """The first true value of an expression; an untouched page is loaded again after an interruption."""
        give_up = time.monotonic() + seconds
        while not (value := self.ask(expression)):
            if time.monotonic() > give_up:
                raise AssertionError(f"never true within {seconds:g} s: {expression}\n{self._complaints()}")
            if self._url is not None and any(_INTERRUPTED in each for each in self._complaints()):
                self.open(self._url)
            time.sleep(0.05)
        return value

    def open(self, url: str) -> None:
        """Go there."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self._url = url  # until somebody presses or clicks something

    def press(self, key: str) -> None:
        """Press and release a key."""
        self._url = None
        code = _KEYS[key]
        text = {"Enter": "\r", "/": "/"}.get(key, "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """Click on an element as a person does, which the browser allows more than a script."""
        self._url = None
        box = f"document.querySelector({json.dumps(selector)})"
        x, y = self.ask(
            f"(() => {{ const e = {box}; e.scrollIntoView(); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def colours(self, scheme: str) -> None:
        """What the system prefers: "dark" or "light"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width: int, height: int) -> None:
        """How large the window is, in points."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **screen)

    def picture(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(self.seen())

    def seen(self) -> bytes:
        """What is seen, as the bytes of a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def troubles(self) -> list[str]:
        """What the browser complained of, but for requests that the machine's own network interrupted."""
        return [each for each in self._complaints() if _INTERRUPTED not in each]

    def _complaints(self) -> list[str]:
        told = []
        for event in self.events:
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                told.append(str(event["params"]["entry"]["text"]))
            if event["method"] == "Runtime.exceptionThrown":
                told.append(str(event["params"]["exceptionDetails"]))
            failed = event["params"] if event["method"] == "Network.loadingFailed" else {}
            if failed.get("type") == "Document" and not failed["canceled"]:
                told.append(failed["errorText"])  # a page, or one in a frame: the log has none of it
        return told


@contextmanager
def tab(home: Path) -> Iterator[Tab]:
    """A tab of a new browser whose profile is in `home`."""
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    arguments += [f"--user-data-dir={home}", "--window-size=1400,900", "--no-first-run", "about:blank"]
    executable = program()
    assert executable is not None
    process = subprocess.Popen([executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(home / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_SECONDS) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        opened = Tab(pages[0]["webSocketDebuggerUrl"])
        try:
            yield opened
        finally:
            opened.close()
    finally:
        process.terminate()
        process.wait(_SECONDS)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    give_up = time.monotonic() + _SECONDS
    while not (file.exists() and file.read_text().strip()):
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError("Chromium did not start")
        time.sleep(0.05)
    return int(file.read_text().split()[0])
