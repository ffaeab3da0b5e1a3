"""Measure builds of many small outputs: views of one corpus, and nanosets of some of these views.

    python -m benchmarks.ladder --tokenizer T/tokenizer.json [--eod TOKEN] [--views 100]
        [--nanosets 30] [--rounds 3]

The text is made up, and small: what is measured is what each step of a build costs, whatever its size.
The table compares a build of everything, a build that has nothing to do, and `nanoset status`. Below
it is the cost of a step: that of the first build without that of the second, for each step.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Command, interleaved, options, print_head, print_rows

N_DOCUMENTS = 2_000
WORDS = ("the", "data", "of", "a", "model", "is", "read", "in", "order", "and", "packed")


def main() -> None:
    """Print the table, and the cost of a step."""
    arguments = options(
        __doc__, tokenizer=(str,), eod="<|endoftext|>", views=100, nanosets=30, rounds=3
    )
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "project"
        write_documents(project / "raw" / "web" / "a.jsonl")
        settings = settings_of_ladder(
            Path(arguments.tokenizer).resolve(), arguments.eod, arguments.views, arguments.nanosets
        )
        (project / "nanoset.yaml").write_text(json.dumps(settings), encoding="utf-8")

        costs = interleaved(commands_of(project), arguments.rounds)
    print_head(f"{arguments.views} views, {arguments.nanosets} nanosets")
    print_rows(costs)
    build_costs, idle_costs, _ = costs.values()

    # A corpus has three steps, a view one, and a nanoset four.
    n_steps = 3 + arguments.views + 4 * arguments.nanosets
    cpu = statistics.median(build_costs.cpu) - statistics.median(idle_costs.cpu)
    print(f"\n{cpu / n_steps:.3f} s of CPU time for each of {n_steps} steps")


def write_documents(file: Path) -> None:
    """Write documents of random words, the same ones every time."""
    file.parent.mkdir(parents=True)
    generator = random.Random(1)
    with file.open("w", encoding="utf-8") as lines:
        for number in range(N_DOCUMENTS):
            text = " ".join(generator.choices(WORDS, k=generator.randint(20, 200)))
            lines.write(json.dumps({"id": f"web-{number}", "text": text}) + "\n")


def settings_of_ladder(
    tokenizer: Path, eod: str, n_views: int, n_nanosets: int
) -> dict[str, object]:
    """Return the content of a nanoset.yaml with views that grow, and nanosets of some of them.

    Args:
        tokenizer: The tokenizer.
        eod: Its end-of-document token.
        n_views: How many views there are. Each has more documents than the one before it.
        n_nanosets: How many nanosets there are, at most one for each view.
    """
    views: dict[str, object] = {}
    for number in range(n_views):
        share = (number + 1) / n_views
        views[f"view-{number}"] = {"of": "web", "split": {"keep": [0, share]}}
    nanosets: dict[str, object] = {}
    for number in range(n_nanosets):
        nanosets[f"nanoset-{number}"] = {
            "blend": f"view-{number * n_views // n_nanosets}",
            "sequence_length": 128,
            "split": "1,0,0",
            "samples": {"train": 100 * (number + 1)},
        }
    return {
        "raw": "raw",
        "root": "data",
        "tokenizer": {"path": str(tokenizer), "eod": eod},
        "tokenization": {"append_eod": True, "workers": 1},
        "views": views,
        "nanosets": nanosets,
    }


def commands_of(project: Path) -> dict[str, Command]:
    """Return the commands to measure, in the order in which they have to run."""

    def forget_outputs() -> None:
        for name in ("data", ".dagster"):
            shutil.rmtree(project / name, ignore_errors=True)

    def nanoset(name: str) -> list[str]:
        return [sys.executable, "-m", "nanoset_core.cli", name, "--config", str(project)]

    return {
        "build": Command(nanoset("build"), prints="^Made", prepare=forget_outputs),
        "build, nothing to do": Command(nanoset("build"), prints="nothing was made"),
        "status": Command(nanoset("status"), prints="up to date"),
    }


if __name__ == "__main__":
    main()
