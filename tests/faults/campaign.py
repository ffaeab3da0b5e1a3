"""Trials by the thousand, in forks that may crash, hang or run out of memory without ending the campaign.

    PYTHONPATH=tests python -m faults.campaign --trials 3000 [--select PATTERN]

Prints a table; exits with 1 when a trial was bad, and shows the first of each kind with its number, by which
`--select FORMAT --first NUMBER --trials 1` repeats it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

from faults import datasets, outputs, settings, texts
from faults.runner import Limits, in_fork, markdown, scratch_folder
from faults.trial import OUTCOMES, Bench, Format

LIMITS = Limits(extra_bytes=1 << 30, seconds=20.0)
_BATCH = 500


def all_formats(scratch: Path) -> list[Format]:
    """Every kind of file, made in an empty folder."""
    tokenizer = settings.tokenizer_json()
    made = [*datasets.formats(scratch), *texts.formats()]
    return [*made, *outputs.formats(scratch, tokenizer), *settings.formats(tokenizer)]


def run(kind: Format, first: int, trials: int, scratch: Path) -> tuple[Counter[str], dict[str, str]]:
    """Trials [first, first + trials) of a format, in batches of forks; → outcomes, kind of failure → its first."""
    counts, bad = Counter[str](), dict[str, str]()
    number, end = first, first + trials
    while number < end:
        numbers = range(number, min(number + _BATCH, end))
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            done, ending = in_fork(lambda say, at=Path(folder), of=numbers: _batch(kind, of, at, say), LIMITS)
        number += len(done)
        if number < numbers.stop:
            done.append([ending.split(":")[0], ending])
            number += 1
        for offset, (outcome, detail) in enumerate(done):
            counts[outcome] += 1
            if outcome not in OUTCOMES[:3]:
                bad.setdefault(f"{outcome}: {detail[:60]}", f"trial {numbers.start + offset}: {detail}")
    return counts, bad


def _batch(kind: Format, numbers: range, folder: Path, say) -> None:
    bench = Bench(kind, folder)
    for number in numbers:
        outcome, detail = bench.run(number)
        say([outcome, detail if outcome == "bad" else ""])


def table(tallies: dict[str, Counter[str]]) -> str:
    """The figures as Markdown."""
    rows = [*tallies.items(), ("all", sum(tallies.values(), Counter[str]()))]
    cells = [(name, counts.total(), *(counts[outcome] for outcome in OUTCOMES[:3])) for name, counts in rows]
    return markdown(("format", "mutations", *OUTCOMES[:3], "bad"), [(*row, row[1] - sum(row[2:])) for row in cells])


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3000, help="of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--select", default="*", help="formats, such as '.idx' or '*tar*'")
    options = parser.parse_args()
    tallies, failed = {}, False
    with scratch_folder() as folder:
        made = Path(folder) / "made"
        made.mkdir()
        for kind in all_formats(made):
            if fnmatchcase(kind.name, options.select):
                begun, trials = time.monotonic(), max(1, round(options.trials * kind.share))
                tallies[kind.name], bad = run(kind, options.first, trials, Path(folder))
                seconds = time.monotonic() - begun
                lines = [f"{kind.name}: {dict(tallies[kind.name])}, {seconds:.1f} s", *bad.values()]
                print("\n  ".join(lines), file=sys.stderr, flush=True)
                failed |= bool(bad)
    print(table(tallies))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
