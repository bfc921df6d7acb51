"""Drive a headless Chromium over the DevTools protocol through two pipes, without a library."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
PATIENCE_S = 30.0


class Browser:
    """A browser tab. `requests` and `messages` hold all requests, and all warnings and errors, of the page."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads commands from 3 and answers on 4. 8 and 9 are intermediate, since a pipe may already be 3 or 4.
        wire = f'exec 8<&{to_browser} 9>&{from_browser} 3<&8 4>&9; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", wire, str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._pending = b""
        self._calls = 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self._calls += 1
        message: dict[str, object] = {"id": self._calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page, and clear the recorded requests and messages."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests.clear()
        self.messages.clear()
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._next()

    def set(self, selector: str, value: object, event: str) -> None:
        """Set the value of an input or a select, and send its event."""
        self.eval(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            f" it.value = {json.dumps(value)}; it.dispatchEvent(new Event({json.dumps(event)})); }})()"
        )
        self.settle()

    def eval(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; wait if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE_S
        while not (value := self.eval(expression)):
            assert time.monotonic() < until, f"{expression} never became true; messages: {self.messages}"
            self.eval("new Promise(requestAnimationFrame)")
        return value

    def settle(self) -> None:
        """Wait until a scheduled redraw is done."""
        self.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Send mouse events at a share of an element's width and height."""
        box = self.eval(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            " it.scrollIntoView({block: 'center'}); const {left, top, width, height} = it.getBoundingClientRect();"
            " return [left, top, width, height]; })()"
        )
        point = {"x": box[0] + x * box[2], "y": box[1] + y * box[3], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **point)
        self.settle()

    def press(self, key: str, shift: bool = False) -> None:
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "windowsVirtualKeyCode": KEY_CODES.get(key, 0), "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)
        self.settle()

    def screenshot(self, selector: str) -> bytes:
        """Return a PNG of an element."""
        box = self.eval(
            f"(() => {{ const {{x, y, width, height}} = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return {x: x + scrollX, y: y + scrollY, width, height, scale: 1}; })()"
        )
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=box)["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"chromium has not answered for {PATIENCE_S:g} s, or has exited")
            self._pending += part
        line, self._pending = self._pending.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.messages.append(str(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.messages.append(params["entry"]["text"])
