"""A headless Chromium over the DevTools protocol: enough to read, click and photograph a page."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from helpers.daemons import running, until

PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 30
EFFECT_SECONDS = 15.0
"""How long to wait for the effect of a click before the next attempt."""
FIND_ELEMENT = """(() => {
  const isShown = element => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  };
  const elements = [...document.querySelectorAll(%(selector)s)].filter(
    element => isShown(element) && element.innerText.trim() === %(text)s);
  if (!elements.length) return null;
  const innermost = elements.reduce((outer, inner) => outer.contains(inner) ? inner : outer);
  innermost.scrollIntoView({block: "nearest"});
  const box = innermost.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""
"""JavaScript: the center of the innermost visible element with a text, or null."""


def chromium() -> str | None:
    """Return the program of the browser, or None if it is not installed."""
    for name in PROGRAM_NAMES:
        program = shutil.which(name)
        if program is not None:
            return program
    return None


class Browser:
    """A browser with one page."""

    def __init__(self, socket: ClientConnection) -> None:
        """Control the page to which a socket is connected."""
        self._socket = socket
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its answer."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            # Events, which have no number, arrive between the answers.
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, url: str, *texts: str) -> None:
        """Go to an address, and wait until the page shows some texts."""
        self.call("Page.navigate", url=url)
        for text in texts:
            self.wait_for(text)

    def text(self) -> str:
        """Return all text that the page shows."""
        return self.evaluate("document.body ? document.body.innerText : ''") or ""

    def wait_for(self, text: str, seconds: float = 90.0) -> None:
        """Wait until the page shows a text."""
        until(
            lambda: text in self.text(),
            seconds,
            lambda: f"the page never showed {text!r}, but:\n{self.text()}",
        )

    def click(
        self,
        text: str,
        selector: str = "button, a, [role=button], [role=tab]",
        seconds: float = 45.0,
    ) -> None:
        """Click on the innermost visible element with a text, once there is one.

        Args:
            text: All of the element's text.
            selector: A CSS selector of the elements to look at.
            seconds: How long to wait for the element.
        """
        script = FIND_ELEMENT % {"selector": json.dumps(selector), "text": json.dumps(text)}
        x, y = until(
            lambda: self.evaluate(script),
            seconds,
            lambda: f"nothing to click is called {text!r} on:\n{self.text()}",
        )
        self.click_at(x, y)

    def click_until(self, text: str, is_done: Callable[[], bool], attempts: int = 6) -> None:
        """Click on an element until the click has an effect.

        On a busy machine, a click on an element that still moves may miss it.

        Args:
            text: All of the element's text.
            is_done: Returns whether there was an effect.
            attempts: How often to click at most.
        """
        for attempt in range(1, attempts + 1):
            self.click(text)
            try:
                until(
                    is_done,
                    EFFECT_SECONDS,
                    lambda: f"clicking {text!r} has no effect on:\n{self.text()}",
                )
            except TimeoutError:
                if attempt == attempts:
                    raise
            else:
                return

    def click_at(self, x: float, y: float) -> None:
        """Press and release the mouse at a point of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int, photograph_width: int | None = None) -> None:
        """Change the size of the window.

        Args:
            width: Its width in pixels.
            height: Its height in pixels.
            photograph_width: The width of photographs, if it is not that of the window.
        """
        if photograph_width is None:
            photograph_width = width
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=photograph_width / width,
            mobile=False,
        )

    def photograph(self, file: Path) -> None:
        """Save what the window shows as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browsing(
    program: str, scratch: Path, width: int = 1400, height: int = 900
) -> Iterator[Browser]:
    """Run a browser with an empty profile until the block ends.

    Args:
        program: The program of the browser.
        scratch: A folder for its profile and its log.
        width: The width of its window in pixels.
        height: The height of its window in pixels.
    """
    profile = scratch / "profile"
    command = [
        program,
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "--no-first-run",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # the sandbox refuses to run as root
    command.append("about:blank")

    with running(command, scratch / "chromium.log") as process:
        address = _page_address(profile / "DevToolsActivePort", process)
        with connect(address, max_size=None, compression=None) as socket:
            browser = Browser(socket)
            browser.resize(width, height)
            yield browser


def _page_address(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address by which a browser's page is controlled, once the browser answers.

    Args:
        port_file: The file in which the browser writes its port.
        process: The browser.
    """

    def port_lines() -> list[str] | None:
        """Return the lines of the file, or None if it is not complete."""
        if process.poll() is not None:
            log = port_file.parent.parent / "chromium.log"
            raise RuntimeError(f"chromium ended with {process.returncode}; see {log}")
        if not port_file.exists():
            return None
        lines = port_file.read_text().splitlines()
        return lines if len(lines) > 1 else None

    lines = until(port_lines, START_SECONDS, lambda: "chromium never opened its port")
    assert lines is not None
    url = f"http://127.0.0.1:{lines[0]}/json/list"
    with urllib.request.urlopen(url, timeout=10) as answer:
        pages = [target for target in json.load(answer) if target["type"] == "page"]
    address: str = pages[0]["webSocketDebuggerUrl"]
    return address
