"""Summarise a handoff: its size, and a warning if the trainer will not find its index files."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.handoff.start import START, UNKNOWN_TOKENIZER
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.stage import Summary, counted


def handoff_summary(manifest: Manifest, spec: ResolvedNanoset) -> Summary:
    """Return what `nanoset status` and Dagster show of a handoff, the files that start a trainer.

    Args:
        manifest: The record of the files.
        spec: The section of nanoset.yaml on the training data.

    Returns:
        The number and size of the files; and a warning if the trainer will not find the index files
        that were built for it.
    """
    warnings: list[str] = []
    # Megatron-LM looks for index files whose names are a hash, also of the settings of its
    # tokenizer. Other trainers do not.
    needs_tokenizer_settings = get_preset(spec.preset).hashes_tokenizer
    if needs_tokenizer_settings and not spec.tokenizer_identifiers:
        # The text names no folder, so that it stays the same if the files are written again.
        # Dagster would report another text as a new warning.
        warnings.append(f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add")
    return Summary(counted(manifest), warnings=warnings)
