"""A real browser without a window, driven over a pair of pipes: no driver, no port, no dependency.

Chromium answers the commands of its DevTools protocol on file descriptors 3 and 4 if it is started
with ``--remote-debugging-pipe``: JSON, each message ended by a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 40.0
_KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    " ": 32,
}


def find() -> str | None:
    """Return the path of a browser: GAPLESS_BROWSER, or the first usual one that is installed."""
    named = os.environ.get("GAPLESS_BROWSER", "")
    if named and named != "required":
        return named if Path(named).exists() else shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser process; ``open`` gives pages."""

    def __init__(self, path: str) -> None:
        self._home = tempfile.TemporaryDirectory(
            prefix="gapless-browser-", ignore_cleanup_errors=True
        )
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The child has its ends as 3 and 4: here they lie above, so that putting one in place does
        # not close the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]
        os.close(to_read)
        os.close(to_write)
        arguments = [
            path,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-sync",
            "--hide-scrollbars",
            "--mute-audio",
            f"--user-data-dir={self._home.name}",
            "about:blank",
        ]
        null = os.open(os.devnull, os.O_RDWR)
        self._pid = os.posix_spawn(
            path,
            arguments,
            {**os.environ, "HOME": self._home.name},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
                (os.POSIX_SPAWN_DUP2, ends[0], 3),
                (os.POSIX_SPAWN_DUP2, ends[1], 4),
            ],
            setpgroup=0,
        )
        for end in (*ends, null):
            os.close(end)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, session: str = ""
    ) -> dict[str, Any]:
        """Send a command and return its result; what happens meanwhile is kept in ``events``."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until_s = monotonic() + PATIENCE_S
        while True:
            answer = self._next(until_s, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, method: str, session: str) -> dict[str, Any]:
        """Wait until the browser tells an event, or return it if it has done so already."""
        until_s = monotonic() + PATIENCE_S
        while True:
            for at, event in enumerate(self.events):
                if event.get("method") == method and event.get("sessionId") == session:
                    return self.events.pop(at)
            self.events.append(self._next(until_s, method))

    def _next(self, until_s: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._read], [], [], max(0.0, until_s - monotonic()))
            assert ready, f"the browser has not answered {what} in {PATIENCE_S:g} s"
            part = os.read(self._read, 1 << 20)
            assert part, f"the browser has ended during {what}"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        first: str = "",
    ) -> Page:
        """Open a file in a new page and wait for its load; the script ``first`` runs first."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call(
            "Target.createTarget", {"url": "about:blank", "browserContextId": context}
        )["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})[
            "sessionId"
        ]
        page = Page(self, session, target, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.media(dark=dark)
        if not scripts:
            page.call("Emulation.setScriptExecutionDisabled", {"value": True})
        if first:
            page.call("Page.addScriptToEvaluateOnNewDocument", {"source": first})
        page.call("Page.navigate", {"url": path.as_uri()})
        self.wait("Page.loadEventFired", session)
        return page

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._home.cleanup()


class Page:
    """One page in the browser."""

    def __init__(self, browser: Browser, session: str, target: str, context: str) -> None:
        self.browser, self.session, self.target, self.context = browser, session, target, context

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command for this page."""
        return self.browser.call(method, parameters, self.session)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        parameters = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", parameters)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Give the page another size; a narrow one is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def media(self, *, dark: bool = False, printed: bool = False) -> None:
        """Say what the reader's system prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call(
            "Emulation.setEmulatedMedia",
            {"media": "print" if printed else "", "features": features},
        )

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and let it go."""
        code = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": _KEYS[key],
        }
        typed = {"text": {"Enter": "\r", " ": " "}[key]} if key in {"Enter", " "} else {}
        modifiers = 8 if shift else 0
        kind = "keyDown" if typed else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", {"type": kind, "modifiers": modifiers, **code, **typed})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", "modifiers": modifiers, **code})

    def point(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a person does."""
        self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', "
            f"behavior: 'instant'}})"
        )
        box = self.box(selector)
        scrolled = self.run("[scrollX, scrollY]")
        at = {
            "x": box["x"] + box["width"] / 2 - scrolled[0],
            "y": box["y"] + box["height"] / 2 - scrolled[1],
        }
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", {"type": kind, **at, "button": "left", "clickCount": 1}
            )

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        until_s = monotonic() + PATIENCE_S
        while not self.run(script):
            assert monotonic() < until_s, f"it never came to be: {script}"

    def complaints(self) -> list[str]:
        """Return what the page has written to the console, and what it has failed in."""
        self.run("1")  # a round trip, so that all that happened before has been told
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] in {
                "Runtime.exceptionThrown",
                "Log.entryAdded",
                "Runtime.consoleAPICalled",
            }:
                found.append(json.dumps(event["params"])[:300])
        return found

    def requests(self) -> list[str]:
        """Return every address that the page has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.browser.events
            if event.get("sessionId") == self.session
            and event["method"] == "Network.requestWillBeSent"
        ]

    def shot(self, path: Path, clip: dict[str, float] | None = None, *, full: bool = False) -> None:
        """Take a picture."""
        parameters: dict[str, Any] = {
            "format": "png",
            "captureBeyondViewport": full or clip is not None,
        }
        if full:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        if clip is not None:
            parameters["clip"] = {**clip, "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", parameters)["data"]))

    def box(self, selector: str) -> dict[str, float]:
        """Return where an element lies on the page."""
        found: dict[str, float] = self.run(
            f"(() => {{ const b = "
            f"document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}; })()"
        )
        return found

    def close(self) -> None:
        """Close the page and forget what it told."""
        self.browser.call("Target.disposeBrowserContext", {"browserContextId": self.context})
        self.browser.events = [
            event for event in self.browser.events if event.get("sessionId") != self.session
        ]
