"""A headless Chromium over the DevTools protocol: enough to look at a page, click in it and
photograph it.
"""

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

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FIND = """(() => {
  const shown = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const found = [...document.querySelectorAll(%s)].filter(e => shown(e) && (%s)(e.innerText.trim()));
  if (!found.length) return null;
  const e = found.reduce((a, b) => a.contains(b) ? b : a);
  e.scrollIntoView({block: "nearest"});
  const r = e.getBoundingClientRect();
  return [r.x + r.width / 2, r.y + r.height / 2];
})()"""


def chromium() -> str | None:
    """The browser's program; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, url: str, *texts: str) -> None:
        """Go to an address, and wait until these texts are on the page."""
        self.call("Page.navigate", url=url)
        for text in texts:
            self.wait_for(text)

    def text(self) -> str:
        """All text that the page shows."""
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
        """Click on the innermost visible element whose text is `text`."""
        test = f"text => text === {json.dumps(text)}"
        script = _FIND % (json.dumps(selector), test)
        place = until(
            lambda: self.evaluate(script),
            seconds,
            lambda: f"nothing to click is called {text!r} on:\n{self.text()}",
        )
        self.click_at(*place)

    def click_until(self, text: str, done: Callable[[], bool], attempts: int = 6) -> None:
        """Click until something has come of it: what still moves, on a busy machine, may be missed."""
        for attempt in range(1, attempts + 1):
            self.click(text)
            try:
                until(done, 15.0, lambda: f"nothing comes of clicking {text!r} on:\n{self.text()}")
            except TimeoutError:
                if attempt == attempts:
                    raise
            else:
                return

    def click_at(self, x: float, y: float) -> None:
        """Press and release the mouse at a point of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int, pixels: int | None = None) -> None:
        """Give the window a size; pixels: width of photographs, where it is another one."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=(pixels or width) / width,
            mobile=False,
        )

    def photograph(self, file: Path) -> None:
        """Save what the window shows as a PNG."""
        file.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )


@contextmanager
def browsing(
    program: str, scratch: Path, width: int = 1400, height: int = 900
) -> Iterator[Browser]:
    """A browser with an empty profile of its own in `scratch`; ended, and seen to be gone, at the
    end.
    """
    profile = scratch / "profile"
    arguments = [
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "--no-first-run",
    ]
    arguments += [
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]
    # the sandbox refuses to run for root
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    with running([program, *arguments, "about:blank"], scratch / "chromium.log") as process:
        address = _page_address(profile / "DevToolsActivePort", process)
        with connect(address, max_size=None, compression=None) as socket:
            browser = Browser(socket)
            browser.resize(width, height)
            yield browser


def _page_address(file: Path, process: subprocess.Popen[bytes]) -> str:
    def lines() -> list[str] | None:
        if process.poll() is not None:
            raise RuntimeError(
                f"chromium ended with {process.returncode}; see "
                f"{file.parent.parent / 'chromium.log'}"
            )
        found = file.read_text().splitlines() if file.exists() else []
        return found if len(found) > 1 else None

    port = until(lines, 30, lambda: "chromium never opened its port")[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
        pages = [target for target in json.load(answer) if target["type"] == "page"]
    return pages[0]["webSocketDebuggerUrl"]
