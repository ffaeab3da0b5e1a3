"""What people are shown of a handoff: its size, and whether the trainer will find its index files."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.handoff.start import START, UNKNOWN_TOKENIZER
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.stage import Summary, counted


def handoff_summary(manifest: Manifest, spec: NanosetSpec) -> Summary:
    """Return the size of a handoff, with a warning if its nanoset does not name the trainer's
    tokenizer.
    """
    warnings = []
    if get_preset(spec.preset).hashes_tokenizer and not spec.tokenizer_identifiers:
        # Without the path of this version, so that a warning that was seen stays known after a
        # rebuild.
        warnings.append(f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add")
    return Summary(counted(manifest), warnings=warnings)
