"""Summarise a handoff: its size, and warnings.

There is a warning if the trainer will not find its index files, or if the phases of a run were
planned again.
"""

from __future__ import annotations

from nanoset_core.loading.layout import HANDOFF
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.handoff.replaced import replaced_order_warning
from nanoset_core.stages.handoff.start import START, UNKNOWN_TOKENIZER
from nanoset_core.stages.stage import Summary, counted


def handoff_summary(project: Project, manifest: Manifest) -> Summary:
    """Return what `nanoset status` and Dagster show of a handoff, the files that start a trainer.

    Args:
        project: Has the section of nanoset.yaml on the training data, and earlier handoffs.
        manifest: The record of the files.

    Returns:
        The number and size of the files; and a warning if the trainer will not find the index files
        that were built for it, or if a run that has begun with an earlier handoff must keep it.
    """
    spec = project.nanoset(manifest.name.removesuffix(f"/{HANDOFF}"))
    warnings: list[str] = []
    # Megatron-LM looks for index files whose names are a hash, also of the settings of its
    # tokenizer. Other trainers do not.
    needs_tokenizer_settings = get_preset(spec.preset).hashes_tokenizer
    if needs_tokenizer_settings and not spec.tokenizer_identifiers:
        # The text names no folder, so that it stays the same if the files are written again.
        # Dagster would report another text as a new warning.
        warnings.append(f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add")
    order_warning = replaced_order_warning(project, manifest)
    if order_warning is not None:
        warnings.append(order_warning)
    return Summary(counted(manifest), warnings=warnings)
