"""A headless Chromium, driven over a pipe with the DevTools protocol: no port, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
# Of a picture of Chromium's.
MOST_HEIGHT = 16384


class Chromium:
    """A browser with one page.

    Parameters
    ----------
    profile
        Directory that it may write.
    """

    def __init__(self, profile: Path) -> None:
        chromium = shutil.which("chromium")
        assert chromium is not None
        # Its descriptor 3 is what it reads commands from, 4 what it answers to.
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        # Bash redirects one after the other, so none of the two may be 3 or 4 now.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        shell = f'exec "$@" 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-'
        # Root, as in CI, has no sandbox.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={profile}", "--hide-scrollbars", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", chromium, *options],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read, write, *high):
            os.close(end)
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=TIMEOUT_S)
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def show(self, page: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a page in a window of a width, with ``prefers-color-scheme``."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of the promise that it gives."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, and release it."""
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def photograph(self, path: Path, *, height: int | None = None) -> None:
        """Write the page as a picture: the whole of it, or as far as a height."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        size["height"] = min(size["height"], height or MOST_HEIGHT)
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1}
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the console shows since the page was loaded: errors, warnings, exceptions."""
        found = []
        for event in self.events:
            if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                found.append(json.dumps(event["params"])[:500])
            elif event.get("method") == "Runtime.consoleAPICalled":
                found.append(json.dumps(event["params"]["args"])[:500])
        return found

    @property
    def requests(self) -> list[str]:
        """What was loaded since, the page included."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            received = os.read(self._from, 2**20)
            assert received, "Chromium has ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        return content
