"""Summarise a handoff: its size, and a warning if the trainer will not find its index files."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.handoff.start import START, UNKNOWN_TOKENIZER
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.stage import Summary, counted


def handoff_summary(manifest: Manifest, spec: ResolvedNanoset) -> Summary:
    """Return the summary of a handoff, which Dagster and `nanoset status` show.

    It contains a warning if the names of index files depend on the tokenizer of the trainer, and
    the nanoset does not name that tokenizer: the trainer may then not find these files.

    Args:
        manifest: The manifest of the handoff.
        spec: The section of nanoset.yaml on the nanoset.
    """
    warnings = []
    if get_preset(spec.preset).hashes_tokenizer and not spec.tokenizer_identifiers:
        # The text does not contain the version, so that Dagster does not report the same warning
        # again after each rebuild.
        warnings.append(f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add")
    return Summary(counted(manifest), warnings=warnings)
