"""Metadata of nanosets: samples, how often each corpus is read, and how to start training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nanoset_assets.downstream import NAME, ROOT
from nanoset_assets.ui.metadata import ROWS_SHOWN, code, folded, markdown, place, table
from nanoset_assets.ui.previews import first_samples
from nanoset_core.cli.rows import member_rows
from nanoset_core.config import CONFIG_FILE
from nanoset_core.handoff.writers import START
from nanoset_core.loading.opening import BLEND
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.project import Project
from nanoset_core.serialization.text import format_count

Member = Mapping[str, Any]
"""Facts of one corpus in a split: those of MemberCoverage."""


def split_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return the metadata of one split's index mappings, or of its blend."""
    facts, spec = manifest.facts, project.nanoset(name)
    files = facts["cache_files"]
    tokens = facts["samples"] * spec.sequence_length
    metadata: dict[str, Any] = {
        "summary": markdown(_summary(split, facts["samples"], spec.sequence_length, facts["members"]))
    }
    if facts["members"]:
        passes = [member["epochs"] for member in facts["members"]]
        metadata |= {
            "plan": table(member_rows(facts["members"][:ROWS_SHOWN]), len(facts["members"])),
            **_samples(project, manifest, name, split),
            "epochs_least": round(min(passes), 3),
            "epochs_most": round(max(passes), 3),
        }
    return metadata | {
        "samples": facts["samples"],
        "tokens": tokens,
        "dagster/partition_row_count": facts["samples"],
        "cache": place(project, manifest.access.url(manifest.folder.parent.parent.parent / "cache")),
        "cache_files": table([{"file": file} for file in list(files)[:ROWS_SHOWN]], len(files)),
    }


def _summary(split: str, samples: int, length: int, members: Sequence[Member]) -> str:
    if not members:
        return f"**{split} has no share of the data**: a trainer gets no samples of it."
    passes = [member["epochs"] for member in members]
    least, most = f"{min(passes):.2f}", f"{max(passes):.2f}"
    epochs = f"{most} epochs" if least == most else f"{least} to {most} epochs, by corpus"
    unseen = sum(member["tokens_unseen"] or 0 for member in members)
    seen = f"; {format_count(unseen, 'token')} of the split are never seen" if unseen else ""
    return f"**{format_count(samples, 'sample')} of {format_count(length, 'token')}**: {epochs}{seen}."


def _samples(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """The first samples, where this is the last step of the split, and the command that shows others."""
    is_last = not manifest.facts["blended"] or manifest.name.endswith(f"/{BLEND}")
    if not is_last or not manifest.facts["samples"]:
        return {}
    file = project.config.file.name
    option = "" if file == CONFIG_FILE else f" --config {shlex.quote(file)}"
    return {
        "first_samples": first_samples(project, name, split),
        "explain": markdown(code(f"nanoset explain {name} {split} 0{option}")),
    }


def handoff_metadata(project: Project, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the metadata of the files with which a trainer starts."""
    samples = manifest.facts["samples"]
    counts = ", ".join(f"{split} {samples[split]:,}" for split in SPLITS if split in samples)
    return {
        "summary": markdown(f"**Ready to train**: every index file that the trainer looks for is there; {counts}."),
        "start": folded(manifest.path(START).read_text(encoding="utf-8")),
        **{f"{split}_samples": count for split, count in samples.items()},
        NAME: name,
        ROOT: project.config.root if project.config.root_place is not None else str(project.config.root_folder),
    }
