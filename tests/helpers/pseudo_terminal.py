"""Run a command in a pseudo-terminal, and see what was on its screen at which time."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = 80
ROWS = 24
_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])")


@dataclass
class Screen:
    """What a command printed in a pseudo-terminal."""

    code: int = 0
    """Its exit code."""
    chunks: list[tuple[float, str]] = field(default_factory=list)
    """What was printed, with the second of each, from the start of the command."""
    seconds: float = 0.0
    """How long the command ran."""

    @property
    def text(self) -> str:
        """All that was printed, with control characters."""
        return "".join(text for _, text in self.chunks)

    @property
    def longest_gap(self) -> float:
        """The most seconds without a byte, including the start and the end."""
        times = [0.0]
        times += [second for second, _ in self.chunks]
        times.append(self.seconds)
        return max(after - before for before, after in itertools.pairwise(times))

    def frames(self) -> list[list[str]]:
        """Return the lines on the screen after each chunk, also those above its upper edge."""
        grid = _Grid()
        frames = []
        for _, text in self.chunks:
            grid.write(text)
            frames.append([line.rstrip() for line in grid.lines])
        return frames


@dataclass
class _Grid:
    """The lines of a screen, and its cursor."""

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    column: int = 0

    def write(self, text: str) -> None:
        """Write text that contains control characters at the cursor."""
        position = 0
        for control in _CONTROL.finditer(text):
            self._put(text[position : control.start()])
            position = control.end()
            parameter, command, plain = control.groups()
            self._obey(plain or command, parameter)
        self._put(text[position:])

    def _obey(self, command: str, parameter: str | None) -> None:
        """Carry out the controls that are used here: ends of lines, cursor up, and erasing."""
        if command == "\r":
            self.column = 0
        elif command == "\n":
            self._next_row()
        elif command == "A":
            self.row = max(self.row - int(parameter or 1), 0)
        elif command == "K" and parameter == "2":
            self.lines[self.row] = ""
        elif command == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]

    def _put(self, text: str) -> None:
        """Write text at the cursor, with a new line after the last column."""
        for character in text:
            if self.column == COLUMNS:
                self._next_row()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _next_row(self) -> None:
        """Move the cursor down, into a new line if it is in the last one."""
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")


def run_in_terminal(
    command: Sequence[str],
    cwd: Path | None = None,
    on_change: Callable[[Screen], object] = lambda _: None,
    **environment: str,
) -> Screen:
    """Run a command to its end in a pseudo-terminal of 80 columns.

    Args:
        command: The words of the command.
        cwd: Its current folder.
        on_change: Called with the screen whenever the command has printed something.
        environment: Further environment variables.
    """
    our_end, their_end = pty.openpty()
    fcntl.ioctl(their_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    variables = dict(os.environ)
    # These would take precedence over the size of the terminal.
    variables.pop("COLUMNS", None)
    variables.pop("LINES", None)
    variables |= {"TERM": "xterm"} | environment
    screen = Screen()
    started = time.monotonic()
    with subprocess.Popen(
        command, stdin=their_end, stdout=their_end, stderr=their_end, env=variables, cwd=cwd
    ) as process:
        os.close(their_end)
        pending = b""
        while True:
            try:
                pending += os.read(our_end, 1 << 16)
            except OSError:  # the command has ended
                break
            complete = pending.decode(errors="ignore")  # a character may be cut in two
            pending = pending[len(complete.encode()) :]
            screen.chunks.append((time.monotonic() - started, complete))
            on_change(screen)
        screen.code = process.wait()
    screen.seconds = time.monotonic() - started
    os.close(our_end)
    return screen
