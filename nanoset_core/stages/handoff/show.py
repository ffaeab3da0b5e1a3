"""Summarise a handoff: its size, and a warning if the trainer will not find its index files."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.handoff.start import START, UNKNOWN_TOKENIZER
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.stage import Summary, counted


def handoff_summary(manifest: Manifest, spec: ResolvedNanoset) -> Summary:
    """Return what `nanoset status` and Dagster show of a handoff, the files that start a trainer.

    Megatron-LM names its index files by a hash that also covers its tokenizer. If nanoset.yaml does
    not describe the tokenizer, the trainer will not find the index files that were built. Then
    there is a warning, which names the file of the handoff with the lines to add.

    Args:
        manifest: The record of the handoff.
        spec: The section of nanoset.yaml on the training data.

    Returns:
        The number and size of the files, and the warning.
    """
    warnings = []
    names_contain_tokenizer = get_preset(spec.preset).hashes_tokenizer
    if names_contain_tokenizer and not spec.tokenizer_identifiers:
        # The warning names a file of the handoff, START.md, but not the version of the handoff.
        # Otherwise Dagster would report it again after each rebuild.
        warnings.append(f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add")
    return Summary(counted(manifest), warnings=warnings)
