"""The page of `handoff`: how a trainer is started on a nanoset, and what its first step reads.

A nanoset is a data mixture for training. Its handoff is the folder of files with which a trainer
is started on it: arguments, settings, and START.md, which explains how. The page shows START.md,
warnings, and the samples of the first training step.
"""

from __future__ import annotations

from typing import Any

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.mappings import reader_metadata
from nanoset_assets.ui.metadata import bold_text, folded, markdown
from nanoset_assets.ui.previews import first_step
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.handoff.start import START


def handoff_page(run: AssetRun) -> dict[str, Any]:
    """Write the files with which a trainer is started, and return what the UI shows of them.

    Args:
        run: The run of the asset `handoff` for one nanoset, a data mixture for training.

    Returns:
        Name → value, as Dagster's UI shows them; see `handoff_metadata`.

    Raises:
        NanosetError: The files could not be written.
    """
    return handoff_metadata(run.project, run.make(), run.key.subject)


def handoff_metadata(project: Project, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return what the UI shows of a handoff, the files with which a trainer is started.

    Args:
        project: Its outputs and settings are read.
        manifest: Manifest of the handoff, the record of its files and counts.
        name: Name of the nanoset, the data mixture on which the trainer is started.

    Returns:
        Name → value: a summary, the text of START.md, the number of samples of each split, the
        samples of the first step, and what `load_materialized` needs to find the nanoset.
    """
    n_samples_by_split = manifest.facts["samples"]  # such as {"train": 1000, "valid": 20}
    counts: list[str] = []
    for split in SPLITS:
        if split in n_samples_by_split:
            counts.append(f"{split} {n_samples_by_split[split]:,}")
    ready = f"**Ready to train**: all index files are built. Samples: {', '.join(counts)}."
    return {
        "summary": markdown(ready, *_warning_texts(project, manifest)),
        "start": folded(manifest.path(START).read_text(encoding="utf-8")),
        **{f"{split}_samples": count for split, count in n_samples_by_split.items()},
        "first_step": first_step(project, manifest),
        **reader_metadata(project, name),
    }


def _warning_texts(project: Project, manifest: Manifest) -> list[str]:
    """Return the first half of each warning of a handoff, as lines of Markdown.

    A warning has the form `problem: what to do`. The summary names the problem, and refers to the
    item `start` of the page, which explains what to do.

    Args:
        project: Its settings are compared with the handoff.
        manifest: Manifest of the handoff, the record of its files and counts.
    """
    texts: list[str] = []
    for warning in TRAINER_FILES.show(project, manifest).warnings:
        problem = warning.partition(":")[0]
        texts.append(f"{bold_text(problem)}: see `start`.")
    return texts
