"""Campaigns of trials: what is built, what happens to it, and what must hold.

    PYTHONPATH=tests python -m campaigns formats|hostile|tokenizers|damage|commands|interruptions
        [--trials N] [--select …]

Prints a table; exits with 1 when a trial was bad, and says how it is repeated.
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

from campaigns.runner import run_kinds

CAMPAIGNS = ("formats", "hostile", "tokenizers", "damage", "commands", "interruptions.kinds")
"""Modules with HEAD and COLUMNS of the table, TRIALS, `kinds` of trials, and perhaps `options` of
their own.
"""


def main() -> int:
    modules = {module.partition(".")[0]: f"campaigns.{module}" for module in CAMPAIGNS}
    name = next(iter(sys.argv[1:]), "")
    if name not in modules:
        sys.exit(__doc__)
    campaign = importlib.import_module(modules[name])
    parser = argparse.ArgumentParser(
        prog=f"campaigns {name}",
        description=campaign.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--trials", type=int, default=campaign.TRIALS, help=f"default: {campaign.TRIALS}"
    )
    parser.add_argument("--select", nargs="+", default=["*"], help="kinds, such as '*tar*'")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first trial of each kind"
    )
    parser.add_argument("--only", type=int, help="so many trials of each kind")
    getattr(campaign, "options", lambda _parser: None)(parser)
    options = parser.parse_args(sys.argv[2:])
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="nanoset-faults-", dir=in_memory))
    folder.chmod(0o755)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    with closing(campaign.kinds(folder, options)) as kinds:  # its servers end whatever happens
        bad = run_kinds(name, kinds, campaign.HEAD, campaign.COLUMNS, options)
    if bad:
        print(f"what is left of bad trials is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
