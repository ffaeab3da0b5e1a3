"""What the UI shows of a nanoset: how many samples, of what, how often each corpus is read, and how to start on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.ui.metadata import ROWS_SHOWN, code, markdown, table
from nanoset_assets.ui.previews import first_samples
from nanoset_core.handoff.writers import START
from nanoset_core.loading.opening import BLEND
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.project import Project
from nanoset_core.serialization.text import format_count

Member = Mapping[str, Any]
"""Facts of one corpus in a split: those of MemberCoverage."""


def split_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Of one split's index mappings, or of its blend."""
    facts, spec = manifest.facts, project.nanoset(name)
    files = facts["cache_files"]
    tokens = facts["samples"] * spec.sequence_length
    metadata: dict[str, Any] = {"summary": markdown(_summary(split, facts["samples"], tokens, facts["members"]))}
    if facts["members"]:
        passes = [member["epochs"] for member in facts["members"]]
        limited = any(member["max_epochs"] is not None for member in facts["members"][:ROWS_SHOWN])
        metadata |= {
            "plan": table([_row(member, limited) for member in facts["members"][:ROWS_SHOWN]], len(facts["members"])),
            **_samples(project, manifest, name, split),
            "epochs_least": round(min(passes), 3),
            "epochs_most": round(max(passes), 3),
        }
    return metadata | {
        "samples": facts["samples"],
        "tokens": tokens,
        "dagster/row_count": facts["samples"],
        "cache": dg.MetadataValue.path(manifest.access.url(manifest.folder.parent.parent.parent / "cache")),
        "cache_files": table([{"file": file} for file in list(files)[:ROWS_SHOWN]], len(files)),
    }


def _summary(split: str, samples: int, tokens: int, members: Sequence[Member]) -> str:
    if not members:
        return f"**{split} has no share of the data**: a trainer gets no samples of it."
    passes = [member["epochs"] for member in members]
    least, most = f"{min(passes):.2f}", f"{max(passes):.2f}"
    epochs = f"{most} epochs" if least == most else f"{least} to {most} epochs, by corpus"
    unseen = sum(member["tokens_unseen"] or 0 for member in members)
    seen = f"; {format_count(unseen, 'token')} of the split are never seen" if unseen else ""
    return f"**{format_count(samples, 'sample')}, {format_count(tokens, 'token')}**: {epochs}{seen}."


def _row(member: Member, limited: bool) -> dict[str, str]:
    """What is read of a corpus; no limit where no corpus has one."""
    limit, unseen = member["max_epochs"], member["tokens_unseen"]
    return {
        "corpus": member["corpus"],
        "asked": f"{member['weight']:.2%}",
        "given": f"{member['share']:.2%}",
        "samples": f"{member['samples_given']:,}",
        "surplus": f"{member['surplus']:,}",
        "epochs": f"{member['epochs']:.2f}",
        **({"limit": "none" if limit is None else f"{limit:g}"} if limited else {}),
        "epoch's tokens": f"{member['tokens']:,}",
        "never seen": "by chance" if unseen is None else f"{unseen:,}",
    }


def _samples(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """The first samples, once nothing more is to be made of them, and how to ask for others."""
    is_last = not manifest.facts["blended"] or manifest.name.endswith(f"/{BLEND}")
    if not is_last or not manifest.facts["samples"]:
        return {}
    return {
        "first_samples": first_samples(project, name, split),
        "explain": markdown(code(f"nanoset explain {name} {split} 0 --config {project.config.file}")),
    }


def handoff_metadata(manifest: Manifest) -> dict[str, Any]:
    """Of the files with which a trainer starts."""
    samples = manifest.facts["samples"]
    counts = ", ".join(f"{split} {samples[split]:,}" for split in SPLITS if split in samples)
    return {
        "summary": markdown(f"**Ready to train**: every index file that the trainer looks for is there; {counts}."),
        "start": dg.MetadataValue.md(manifest.path(START).read_text(encoding="utf-8")),
        **{f"{split}_samples": count for split, count in samples.items()},
    }
