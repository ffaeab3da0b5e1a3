"""Metadata of what trainers read: samples of nanosets, the order and tars of webdatasets, and how to start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.downstream import NAME, ROOT
from nanoset_assets.ui.metadata import ROWS_SHOWN, code, folded, markdown, per_second, place, table
from nanoset_assets.ui.previews import first_samples, first_step
from nanoset_core.cli.terminal import (
    corpus_rows,
    corpus_total_row,
    corpus_totals,
    member_rows,
    mixture_rows,
    quality_rows,
    source_rows,
)
from nanoset_core.formats.tars.samples import MANIFEST_NAME
from nanoset_core.loading.opening import BLEND, LACKING
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.handoff.start import START
from nanoset_core.stages.held_out.stage import SHARED
from nanoset_core.stages.mappings.facts import CORPORA, MIXTURE, samples_read, unused_samples
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sizing import choose_engine
from nanoset_core.stages.webdataset.tars import TarFacts, output_bytes, shard_stem
from nanoset_core.storage.location import is_remote
from nanoset_core.untrusted import markdown_text, shell_word

Member = Mapping[str, Any]
"""Facts of one corpus in a split: those of MemberCoverage."""


def split_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return the metadata of one split's index mappings, or of its blend."""
    facts = manifest.facts
    length = project.nanoset(name).sequence_length
    files = facts["cache_files"]
    members = facts["members"]
    samples = samples_read(facts)

    metadata: dict[str, Any] = {"summary": markdown(_summary(split, manifest, length))}
    if members:
        epochs = [member["epochs"] for member in members]
        if MIXTURE in facts:
            metadata["mixture"] = table(mixture_rows(facts[MIXTURE]), len(facts[MIXTURE]))
        metadata["plan"] = table(member_rows(members[:ROWS_SHOWN]), len(members))
        metadata |= _corpora(facts)
        metadata |= _samples(project, manifest, name, split)
        metadata["epochs_least"] = round(min(epochs, default=0), 3)
        metadata["epochs_most"] = round(max(epochs, default=0), 3)
    return {
        **metadata,
        "samples": samples,
        "unused_samples": unused_samples(facts),
        "tokens": samples * length,
        "dagster/partition_row_count": samples,
        "cache": place(project, manifest.access.url(manifest.folder.parent.parent.parent / "cache")),
        "cache_files": table(({"file": file} for file in files), len(files)),
    }


def _corpora(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a split reads of each corpus and of all; nothing for an output of an earlier version."""
    corpora = facts.get(CORPORA)
    if not corpora:
        return {}
    rows = corpus_rows(corpora[:ROWS_SHOWN])
    if len(corpora) > 1:
        total = corpus_total_row(corpora)
        values = {name: total.get(name, "") for name in rows[0]}
        rows.append({name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()})
    totals = corpus_totals(corpora)
    return {
        "by_corpus": table(rows, len(corpora)),
        "unique_tokens": totals["unique_tokens"],
        "repeated_tokens": totals["repeated_tokens"],
    }


def held_out_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of what was found of documents that are held out: counts, and the first of them."""
    counts = {name: manifest.facts[name] for name in ("held_out", "shared", "copies")}
    looked = "" if project.nanoset(manifest.name.partition("/")[0]).held_out else " Copies were not looked for."
    summary = (
        f"**Of {format_count(counts['held_out'], 'document')} that are held out, train reads {counts['shared']:,}, and "
        f"copies of {counts['copies']:,}.**{looked}"
    )
    rows = [{name: "" if value is None else value for name, value in row.items()} for row in manifest.facts["first"]]
    found = {"in_train": table(rows)} if rows else {}
    return {"summary": markdown(summary), **found, "table": dg.MetadataValue.path(manifest.url(SHARED)), **counts}


def _summary(split: str, manifest: Manifest, length: int) -> str:
    facts = manifest.facts
    members = facts["members"]
    if LACKING in facts:
        return f"**{split}: {markdown_text(facts[LACKING])}.**"
    if not members:
        return f"**{split} has no share of the data**: a trainer gets no samples of it."

    # Epochs of the corpora; outputs of earlier versions tell those of their views and packs alone.
    epochs = [corpus["epochs"] for corpus in facts.get(CORPORA, members)]
    least = f"{min(epochs):.2f}"
    most = f"{max(epochs):.2f}"
    epochs_text = f"{most} epochs" if least == most else f"{least} to {most} epochs, by corpus"
    if any(member.get("before") for member in members):
        epochs_text += ", earlier phases included"

    notes = []
    if CORPORA in facts:
        totals = corpus_totals(facts[CORPORA])
        notes.append(f"{totals['unique_tokens']:,} unique tokens, {totals['repeated_tokens']:,} repeated")
    unused = sum(member["tokens_unseen"] or 0 for member in members)
    if unused:
        notes.append(f"{format_count(unused, 'token')} of the split are unused")
    samples = format_count(samples_read(facts), "sample")
    return f"**{samples} of {format_count(length, 'token')}**: {'; '.join([epochs_text, *notes])}."


def _samples(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """The first samples, where this is the last step of the split, and the command that shows others."""
    is_last = not manifest.facts["blended"] or manifest.name.endswith(f"/{BLEND}")
    if not is_last or not manifest.facts["samples"]:
        return {}
    file = project.config.file.name
    option = "" if file == CONFIG_FILE else f" --config {shell_word(file)}"
    return {
        "first_samples": first_samples(project, name, split),
        "explain": markdown(code(f"nanoset explain {name} {split} 0{option}")),
    }


def handoff_metadata(project: Project, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the metadata of the files with which a trainer starts."""
    samples = manifest.facts["samples"]
    counts = ", ".join(f"{split} {samples[split]:,}" for split in SPLITS if split in samples)
    warned = (said.partition(":")[0] for said in TRAINER_FILES.show(project, manifest).warnings)
    return {
        "summary": markdown(
            f"**Ready to train**: every index file is there; samples built: {counts}.",
            *(f"**{markdown_text(said)}**: see `start`." for said in warned),
        ),
        "start": folded(manifest.path(START).read_text(encoding="utf-8")),
        **{f"{split}_samples": count for split, count in samples.items()},
        "first_step": first_step(project, manifest),
        **reader_metadata(project, name),
    }


def reader_metadata(project: Project, name: str) -> dict[str, str]:
    """Return by what `load_materialized` finds the nanoset of a handoff."""
    config = project.config
    return {NAME: name, ROOT: config.root if config.root_place is not None else str(config.root_folder)}


def plan_metadata(plan: ShufflePlan, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a plan: how well its order mixes, and what becomes of each source."""
    size, exact = output_bytes(plan)
    least = choose_engine(plan, available_memory=0, engine="mmap")
    return {
        "summary": markdown(_plan_summary(plan, quality["even"])),
        "quality": table(quality_rows(quality)),
        "sources": table(source_rows(plan, ROWS_SHOWN), len(plan.table.sources)),
        "evenly_shuffled": quality["even"],
        "contexts": plan.contexts,
        "shards": plan.shards,
        "contexts_in_a_shard": plan.shard_size,
        "contexts_left_out": plan.contexts_left_out,
        "tokens": plan.tokens,
        "tokens_dropped": plan.tokens_dropped,
        "pad_tokens": plan.pad_tokens,
        "pad_share": round(plan.pad_tokens / (plan.contexts * plan.sequence_length), 6),
        "tar_bytes" if exact else "tar_bytes_about": size,
        "memory_bytes_per_worker": least.memory_bytes,
    }


def _plan_summary(plan: ShufflePlan, even: bool) -> str:
    mixed = "" if even else " **The order is not even**: see `quality`."
    return (
        f"**{format_count(plan.contexts, 'context')} of {plan.sequence_length:,} tokens in "
        f"{format_count(plan.shards, 'tar')}**, {format_count(plan.tokens, 'token')} of "
        f"{format_count(len(plan.table.sources), 'source')}; "
        f"{plan.tokens_dropped:,} dropped, {plan.pad_tokens:,} padded.{mixed}"
    )


def tars_metadata(shards: Sequence[TarFacts], made: Sequence[TarFacts], seconds: float) -> dict[str, Any]:
    """Return the metadata of one group of tars, `made` of which were written in these seconds."""
    sequences, size = sum(shard.sequences for shard in shards), sum(shard.size_bytes for shard in shards)
    rows = [
        {
            "tar": f"{shard.stem}.tar",
            "sequences": f"{shard.sequences:,}",
            "size": format_bytes(shard.size_bytes),
            "sha256": f"{shard.sha256[:16]}…",
        }
        for shard in shards
    ]
    metadata: dict[str, Any] = {
        "summary": markdown(
            f"**{format_count(len(shards), 'tar')}, {format_count(sequences, 'context')}**, {format_bytes(size)}; "
            f"{len(made):,} written now."
        ),
        "tars": table(rows, len(shards)),
        "dagster/partition_row_count": sequences,
        "shards": len(shards),
        "sequences": sequences,
        "tokens": sum(shard.tokens for shard in shards),
        "size_bytes": size,
        "seconds": round(seconds, 3),
    }
    if made:
        metadata["tokens_per_second"] = per_second(sum(shard.tokens for shard in made), seconds)
    return metadata


def webdataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a complete webdataset: its sources and how it is read."""
    facts = manifest.facts
    names = ("shards", "sequences", "sequence_length", "tokens", "pad_tokens", "tokens_dropped", "contexts_left_out")
    size = sum(shard["size_bytes"] for shard in facts["shards_written"])
    counts = {"tokens": "tokens", "contexts": "contexts", "dropped": "tokens_dropped", "padded": "pad_tokens"}
    sources = [
        {"corpus": source["name"], **{heading: f"{source[name]:,}" for heading, name in counts.items()}}
        for source in facts["sources"]
    ]
    return {
        "summary": markdown(
            f"**{format_count(facts['sequences'], 'context')} of {facts['sequence_length']:,} tokens in "
            f"{format_count(facts['shards'], 'tar')}**, {format_count(facts['tokens'], 'token')}, {format_bytes(size)}."
        ),
        "read_it": markdown(*_readers(project, manifest)),
        "sources": table(sources, len(sources)),
        "dagster/row_count": facts["sequences"],
        **{name: facts[name] for name in names},
    }


def _readers(project: Project, manifest: Manifest) -> Iterator[str]:
    last = shard_stem(manifest.facts["shards"] - 1)
    braces = f"{{{shard_stem(0).removeprefix('shard-')}..{last.removeprefix('shard-')}}}"
    folder, tars = manifest.url(), f"shard-{braces}.tar"
    if is_remote(folder):
        lists, url = f"{folder}/{MANIFEST_NAME}", f"pipe:aws s3 cp {folder}/{tars} -"
    else:
        yield f"In {code(place(project, folder).path or folder)}:"
        lists, url = MANIFEST_NAME, tars
    yield f"OpenLM: {code(f'--dataset-manifest {lists}')}"
    yield f"webdataset: {code(f'webdataset.WebDataset({url!r})')}"
