"""Builds that are killed, starved, raced and misled: after each, the same digests as of an undisturbed one.

    PYTHONPATH=tests python -m faults.interruptions --kills 200 [--select PATTERN] [--storage local|s3|both]

Prints a table; exits with 1 when a trial was bad, whose project is kept. Kinds of faults, and how many trials of
each: see `kinds`. A trial is repeated by `--select NAME --first NUMBER --only 1`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path

from faults.interruptions.kinds import Sizes, kinds
from faults.interruptions.processes import import_everything
from faults.interruptions.trials import Kind, Tally, table
from faults.runner import MEMORY, seeded

from nanoset_core.storage import s3_requests


def run(kind: Kind, first: int, trials: int) -> Tally:
    """Trials [first, first + trials) of a kind."""
    tally, begun = Tally(kind), time.monotonic()
    for number in range(first, first + trials):
        given = kind.run(seeded(kind.name, number), number)
        if isinstance(given, str):
            tally.skipped = given
            break
        tally.add(number, given)
    tally.seconds = time.monotonic() - begun
    return tally


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults.interruptions", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="random moments of kill -9, over all kinds of builds")
    parser.add_argument("--others", type=int, default=20, help="trials of each other kind of fault")
    parser.add_argument("--select", default="*", help="kinds, such as 'kill*' or '*, S3, *'")
    parser.add_argument("--storage", choices=("local", "s3", "both"), default="both")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial of each kind")
    parser.add_argument("--only", type=int, default=None, help="so many trials of each kind")
    parser.add_argument("--seed", type=int, default=7, help="of which requests fail; another for trials side by side")
    parser.add_argument("--no-command", action="store_true", help="leave out builds by the `nanoset` command")
    parser.add_argument("--no-patience", action="store_true", help="send requests again at once")
    return parser.parse_args()


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="nanoset-faults-", dir=MEMORY))
    folder.chmod(0o755)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    import_everything()
    if options.no_patience:
        s3_requests.FIRST_WAIT_SECONDS = 0.005
    tallies = []
    sizes = Sizes(options.kills, options.others, not options.no_command)
    with kinds(folder, sizes, options.storage, options.seed) as chosen:
        for kind in chosen:
            if not fnmatchcase(kind.name, options.select):
                continue
            tally = run(kind, options.first, kind.trials if options.only is None else options.only)
            tallies.append(tally)
            print(f"{kind.name}: {_summary(tally)}", file=sys.stderr, flush=True)
    print(table(tallies))
    if any(tally.wrong for tally in tallies):
        print(f"the projects of bad trials are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _summary(tally: Tally) -> str:
    if tally.skipped:
        return f"skipped: {tally.skipped}"
    lines = [f"{tally.trials} trials, {tally.faults} faults, {dict(tally.ends)}, {tally.seconds:.1f} s"]
    if tally.details:
        lines.append(f"  {dict(tally.details)}")
    lines += [f"  said {times} times: {text}" for text, times in tally.said.most_common()]
    lines += [f"  BAD trial {number}: {'; '.join(wrong[:5])[:3000]}" for number, wrong in tally.wrong.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
