"""A real browser over the DevTools protocol, by a pair of pipes: the standard library is all that it needs."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

TIMEOUT: Final = 60.0
"""Seconds that any one answer may take."""

# The browser must stay on this machine: what it would ask its maker for fails and fills the log.
_FLAGS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-dev-shm-usage",
)
_COMPLAINTS: Final = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"}


class BrowserError(RuntimeError):
    """The browser ended, did not answer, or refused a command."""


class Browser:
    """A headless browser with a fresh profile. One page at a time; not thread-safe."""

    def __init__(self, executable: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()  # it refuses to start as root otherwise
        command = [executable, *_FLAGS, *sandbox, f"--user-data-dir={self._profile.name}", "about:blank"]
        theirs_in, ours_out = map(_high, os.pipe())
        ours_in, theirs_out = map(_high, os.pipe())

        def wire() -> None:  # the protocol's fixed numbers: 3 to read, 4 to write
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the browser
        self._process = subprocess.Popen(command, preexec_fn=wire, close_fds=False, stderr=self._log, stdout=self._log)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer, self._number, self._session, self._target = b"", 0, "", ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._in)
        os.close(self._out)
        self._log.close()
        self._profile.cleanup()

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """A new page with the file in it, loaded; events of the one before are forgotten."""
        if self._target:
            self.call("Target.closeTarget", targetId=self._target)
        self.events, self._session = [], ""
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # as on a telephone; the picture has none either
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read_message(time.monotonic() + TIMEOUT)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, *, scale: float = 1.0) -> bytes:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": scale}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def complaints(self) -> list[dict[str, Any]]:
        """What the console holds: messages, exceptions, refused loads; and dialogs."""
        self.evaluate("0")  # what was said before the answer is in by then
        return [event for event in self.events if event["method"] in _COMPLAINTS]

    def requested(self) -> list[str]:
        """Addresses that the page asked for."""
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = self._read_message(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read_message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace")[-2000:]
                raise BrowserError(f"the browser {'ended' if ready else 'did not answer'}; its last words:\n{said}")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


def _high(descriptor: int) -> int:
    """The same pipe under a number that is not 3 or 4."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
