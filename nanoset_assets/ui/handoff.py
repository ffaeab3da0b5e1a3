"""The page of `handoff`: how a trainer is started on a nanoset, and what its first step reads.

A nanoset is a data mixture for training. Its handoff is the folder of files with which a trainer
is started on it: arguments, settings, and START.md, which explains how. The page shows START.md,
warnings, and the samples of the first training step.
"""

from __future__ import annotations

from typing import Any

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.mappings import reader_metadata
from nanoset_assets.ui.metadata import folded, markdown
from nanoset_assets.ui.previews import first_step
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.start import START


def handoff_page(run: AssetRun) -> dict[str, Any]:
    """Write the files with which a trainer is started, and return what Dagster's UI shows of them.

    The data platform ends where training begins: with a folder, called the handoff, that has the
    arguments and settings of a trainer such as Megatron-LM, for one mixture of training data.
    START.md in this folder says how to start.

    Args:
        run: Executes the Dagster asset `handoff` for one mixture, whose name is `run.key.subject`.
            `run.make()` writes the folder, and returns its manifest: the record of its files and
            counts.

    Returns:
        What the page of the asset shows: heading → value. See `handoff_metadata`.

    Raises:
        NanosetError: The files could not be written.
    """
    return handoff_metadata(run.project, run.make(), run.key.subject)


def handoff_metadata(project: Project, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return what Dagster's UI shows when everything is ready for a trainer to start.

    For example:

        summary          "**Ready to train**: all index files are built. Samples: train 1,000, …"
        start            the text of START.md, which says how to start the trainer
        train_samples    1000
        valid_samples    20
        first_step       a table of what the trainer will read in its first step, as text
        nanoset          "pretrain"; by this name, a program can find the data

    Args:
        project: Gives access to the samples, the tokenizer and the settings.
        manifest: The record of the handoff: the folder of files with which the trainer is started.
        name: Name of the mixture of training data, such as "pretrain".

    Returns:
        Heading → value, as in the example.
    """
    n_samples_by_split = manifest.facts["samples"]  # such as {"train": 1000, "valid": 20}
    counts: list[str] = []
    for split in SPLITS:
        if split in n_samples_by_split:
            counts.append(f"{split} {n_samples_by_split[split]:,}")
    ready = f"**Ready to train**: all index files are built. Samples: {', '.join(counts)}."
    return {
        "summary": markdown(ready),
        "start": folded(manifest.path(START).read_text(encoding="utf-8")),
        **{f"{split}_samples": count for split, count in n_samples_by_split.items()},
        "first_step": first_step(project, manifest),
        **reader_metadata(project, name),
    }
