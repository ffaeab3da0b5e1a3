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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS, ROWS = 80, 24
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
        times = [0.0, *(second for second, _ in self.chunks), self.seconds]
        return max(after - before for before, after in itertools.pairwise(times))

    def frames(self) -> list[list[str]]:
        """The screen after each chunk, as lines; those above a cursor that moved down are kept."""
        lines = [""]
        row, column = 0, 0
        frames = []
        for _, text in self.chunks:
            position = 0
            for control in _CONTROL.finditer(text):
                row, column = _put(lines, row, column, text[position : control.start()])
                position = control.end()
                parameter, command, plain = control.groups()
                if plain == "\r":
                    column = 0
                elif plain == "\n":
                    row += 1
                    if row == len(lines):
                        lines.append("")
                elif command == "A":
                    row = max(row - int(parameter or 1), 0)
                elif command == "K":
                    lines[row] = "" if parameter == "2" else lines[row][:column]
            row, column = _put(lines, row, column, text[position:])
            frames.append([line.rstrip() for line in lines])
        return frames


def _put(lines: list[str], row: int, column: int, text: str) -> tuple[int, int]:
    """Write text at the cursor, wrapping at the last column; return where the cursor is afterwards."""
    for character in text:
        if column == COLUMNS:
            row, column = row + 1, 0
            if row == len(lines):
                lines.append("")
        line = lines[row].ljust(column)
        lines[row] = line[:column] + character + line[column + 1 :]
        column += 1
    return row, column


def run_in_terminal(command: Sequence[str], cwd: Path | None = None, **environment: str) -> Screen:
    """Run a command to its end in a pseudo-terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    variables = inherited | {"TERM": "xterm"} | environment
    screen = Screen()
    started = time.monotonic()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables, cwd=cwd
    ) as process:
        os.close(theirs)
        pending = b""
        while True:
            try:
                pending += os.read(ours, 1 << 16)
            except OSError:  # the command has ended
                break
            complete = pending.decode(errors="ignore")  # a character may be cut in two
            pending = pending[len(complete.encode()) :]
            screen.chunks.append((time.monotonic() - started, complete))
        screen.code = process.wait()
    screen.seconds = time.monotonic() - started
    os.close(ours)
    return screen
