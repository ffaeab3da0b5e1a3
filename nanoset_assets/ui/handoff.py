"""The page of `handoff`: how a trainer is started on a nanoset, and what its first step reads."""

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
    """Write the files of a trainer, and return their metadata."""
    return handoff_metadata(run.project, run.make(), run.key.subject)


def handoff_metadata(project: Project, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return what the UI shows of a handoff, the files with which a trainer is started.

    Args:
        project: The project.
        manifest: Manifest of the handoff.
        name: Its nanoset.
    """
    samples = manifest.facts["samples"]  # split → number of samples
    counts = [f"{split} {samples[split]:,}" for split in SPLITS if split in samples]
    ready = f"**Ready to train**: all index files are built. Samples: {', '.join(counts)}."
    sample_counts = {f"{split}_samples": count for split, count in samples.items()}
    return {
        "summary": markdown(ready, *_warning_texts(project, manifest)),
        "start": folded(manifest.path(START).read_text(encoding="utf-8")),
        **sample_counts,
        "first_step": first_step(project, manifest),
        **reader_metadata(project, name),
    }


def _warning_texts(project: Project, manifest: Manifest) -> list[str]:
    """Return the problem that each warning of a handoff names.

    A warning has the form `problem: what to do`. The page shows all of it under `start`.
    """
    texts: list[str] = []
    for warning in TRAINER_FILES.show(project, manifest).warnings:
        problem = warning.partition(":")[0]
        texts.append(f"{bold_text(problem)}: see `start`.")
    return texts
