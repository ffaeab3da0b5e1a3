"""Run a campaign: many trials of one kind of fault, each with a rule that must hold.

    PYTHONPATH=tests python -m campaigns formats|hostile|tokenizers|damage|commands|interruptions|turns
        [--trials N] [--select PATTERN ...]

Prints a table of results. If a trial was bad, the exit code is 1, and the command that repeats this
trial is printed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import ModuleType

from campaigns.runner import run_kinds

CAMPAIGN_MODULES = {
    "formats": "campaigns.formats",
    "hostile": "campaigns.hostile",
    "tokenizers": "campaigns.tokenizers",
    "damage": "campaigns.damage",
    "commands": "campaigns.commands",
    "interruptions": "campaigns.interruptions.kinds",
    "turns": "campaigns.turns",
}
"""Name of each campaign → the module that defines it.

Such a module has HEAD and COLUMNS, which are the headings of its table; TRIALS, the default number
of trials; `kinds`, a generator of kinds of trials; and perhaps `options`, a function that adds
options to the command line.
"""


def main() -> int:
    """Run the campaign that the command line names, and return the exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in CAMPAIGN_MODULES:
        sys.exit(__doc__)
    campaign = importlib.import_module(CAMPAIGN_MODULES[name])
    options = _parse_options(name, campaign)

    # A file system in memory is faster, and spares the disk.
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="nanoset-faults-", dir=shared_memory))
    # Some trials run as a user who does not own the folder.
    folder.chmod(0o755)
    # What trials cache must not reach the caches of the person who runs them.
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    if options.cache is not None:
        shutil.copytree(options.cache, folder / "cache")

    # `closing` ends the servers that `kinds` has started, even if a trial raises an error.
    with closing(campaign.kinds(folder, options)) as kinds:
        n_bad = run_kinds(name, kinds, campaign.HEAD, campaign.COLUMNS, options)

    if n_bad > 0:
        print(f"files of bad trials are kept in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _parse_options(name: str, campaign: ModuleType) -> argparse.Namespace:
    """Return the options of a campaign: those of every campaign, and its own."""
    parser = argparse.ArgumentParser(
        prog=f"campaigns {name}",
        description=campaign.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=campaign.TRIALS,
        help=f"number of trials (default: {campaign.TRIALS})",
    )
    parser.add_argument(
        "--select",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="run only kinds of trials whose names match, such as '*tar*'",
    )
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first trial of each kind"
    )
    parser.add_argument(
        "--only", type=int, help="run this many trials of each kind, whatever --trials says"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="start with a copy of this cache, so that known tokenizers are not examined again",
    )
    if hasattr(campaign, "options"):
        campaign.options(parser)
    return parser.parse_args(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
