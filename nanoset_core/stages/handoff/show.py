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
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
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
    possible_warnings = [_tokenizer_warning(spec), replaced_order_warning(project, manifest)]
    warnings = [warning for warning in possible_warnings if warning is not None]
    return Summary(counted(manifest), warnings=warnings)


def _tokenizer_warning(spec: ResolvedNanoset) -> str | None:
    """Return a warning if Megatron-LM will not find its index files, because of its tokenizer.

    The names of these files are a hash of settings, including those of Megatron-LM's tokenizer. So
    nanoset.yaml has to have these, too. Other trainers do not hash them.

    Args:
        spec: The settings of the training data.

    Returns:
        The warning; None if the settings are known, or not needed.
    """
    needs_tokenizer_settings = get_preset(spec.preset).hashes_tokenizer
    if spec.tokenizer_identifiers or not needs_tokenizer_settings:
        return None
    # Do not name the folder of the files: it has another name each time that they are written
    # again, and Dagster would report the changed text as a new warning.
    return f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add"
