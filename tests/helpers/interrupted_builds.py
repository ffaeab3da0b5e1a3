"""Builds that signals interrupt after their first shard."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

from helpers.child_processes import (
    ForkedCommand,
    check_interrupted,
    interrupt,
    start_nanoset,
)
from helpers.sample_project import write_corpus

SHARD_MANIFESTS = "data/shards/web/*/manifest.json"
"""The manifests of finished shards, in the folder of a project."""


def has_shards(folder: Path) -> bool:
    """Return whether a build has finished the first shard of the project in a folder."""
    return any(folder.glob(SHARD_MANIFESTS))


def check_build_is_interrupted(
    folder: Path,
    tokenizer_file: Path,
    signals: list[signal.Signals],
    *,
    settings: dict[str, Any] | None = None,
    is_forked: bool = True,
) -> None:
    """Check that signals end a build with its executor's tasks, its exit code and one sentence.

    Args:
        folder: An empty folder for the project.
        tokenizer_file: The file of its tokenizer.
        signals: The signals. A second one arrives while the build reacts to the first.
        settings: Keys of its nanoset.yaml.
        is_forked: Whether its process is forked from another one, which starts faster.
    """
    config = write_corpus(folder, tokenizer_file, settings)
    process: ForkedCommand | subprocess.Popen[str]
    if is_forked:
        process = ForkedCommand("build", "-c", config, output=folder / "output")
    else:
        process = start_nanoset("build", "-c", config)

    stderr = interrupt(process, signals, lambda: has_shards(folder), group=True)

    check_interrupted(process, stderr, signals[0])
    leases = list((folder / "data" / ".in-use").glob("*"))
    assert not leases, "the lease of a build ends with it"
