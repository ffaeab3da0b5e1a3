"""The pages of a webdataset: `shuffle_plan`, `tars` and `manifest`.

A *context* is a sample of fixed length. The *plan* decides the order of the contexts and the tar
that each is in, and a *group* is the tars that one run writes. A *source* is a corpus or view that
the webdataset is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import (
    ROWS_SHOWN,
    code,
    facts_of,
    kept_names,
    markdown,
    per_second,
    place,
    table,
)
from nanoset_core.formats.tars.samples import MANIFEST_NAME
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.webdataset.make import current_plan, write_group
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.plan_rows import quality_rows, source_rows
from nanoset_core.stages.webdataset.recipes import webdataset_recipe
from nanoset_core.stages.webdataset.sizing import choose_engine
from nanoset_core.stages.webdataset.tars import TarFacts, output_bytes, shard_stem
from nanoset_core.storage.location import is_remote


def plan_page(run: AssetRun) -> dict[str, Any]:
    """Make a shuffle plan, and return its metadata."""
    manifest = run.make()
    _, plan = current_plan(run.project, run.key.subject)
    return plan_metadata(plan, manifest.facts["quality"])


def plan_metadata(plan: ShufflePlan, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the UI shows of a plan: how well its order mixes, what becomes of each source.

    A plan says which contexts (samples of fixed length) are written to which tar of a webdataset.

    Args:
        plan: The plan.
        quality: The JSON values of its `ShuffleQuality`.
    """
    tar_bytes, is_exact = output_bytes(plan)  # an estimate if the tars are compressed
    tar_bytes_name = "tar_bytes" if is_exact else "tar_bytes_about"
    # Of the ways to write tars, `mmap` needs the least memory.
    smallest_engine = choose_engine(plan, available_memory=0, engine="mmap")
    is_even = quality["even"]
    n_tokens_read = plan.contexts * plan.sequence_length  # padding included
    metadata: dict[str, Any] = {
        "summary": markdown(_plan_summary(plan, is_even=is_even)),
        "quality": table(quality_rows(quality)),
        "sources": table(source_rows(plan, ROWS_SHOWN), len(plan.table.sources)),
        "evenly_shuffled": is_even,
        "contexts": plan.contexts,
        "shards": plan.shards,
        "contexts_in_a_shard": plan.shard_size,
        "contexts_left_out": plan.contexts_left_out,
        "tokens": plan.tokens,
        "tokens_dropped": plan.tokens_dropped,
        "pad_tokens": plan.pad_tokens,
        "pad_share": round(plan.pad_tokens / n_tokens_read, 6),
        tar_bytes_name: tar_bytes,
        "memory_bytes_per_worker": smallest_engine.memory_bytes,
    }
    return metadata


def _plan_summary(plan: ShufflePlan, *, is_even: bool) -> str:
    """Return the size of a plan in a sentence, with a warning if the plan mixes sources badly.

    Args:
        plan: The plan: which contexts (samples of fixed length) are in which tar.
        is_even: Whether sources are spread over the order as evenly as chance makes them.
    """
    contexts = format_count(plan.contexts, "context")
    tars = format_count(plan.shards, "tar")
    tokens = format_count(plan.tokens, "token")
    sources = format_count(len(plan.table.sources), "source")
    length = plan.sequence_length
    summary = f"**{contexts} of {length:,} tokens in {tars}**, {tokens} of {sources}; "
    summary += f"{plan.tokens_dropped:,} dropped, {plan.pad_tokens:,} padded."
    if not is_even:
        summary += " **The order is not even**: see `quality`."
    return summary


def tars_page(run: AssetRun) -> dg.MaterializeResult[Any]:
    """Write one group of tars of a webdataset, and return what Dagster shows about it.

    Several runs can write different groups.

    Args:
        run: The run that writes the group.
    """
    # Tars that an interrupted run has completed are not written again.
    project = run.project
    name = run.key.subject
    plan, _ = current_plan(project, name)
    folder = project.outputs.place(webdataset_recipe(name, plan.digest))
    existing_names = kept_names(project, folder)

    group = int(run.key.part or 0)  # the partition of the asset
    tars = write_group(project, name, group)  # all tars of the group, also those that existed
    run.finish(plan)  # a group has no manifest; the plan determines all bytes
    new_tars = [tar for tar in tars if f"{tar.stem}.tar" not in existing_names]
    return dg.MaterializeResult(
        metadata=tars_metadata(tars, new_tars, run.seconds),
        data_version=dg.DataVersion(plan.digest),
    )


def tars_metadata(
    tars: Sequence[TarFacts], new_tars: Sequence[TarFacts], seconds: float
) -> dict[str, Any]:
    """Return the metadata of one group of tars.

    Args:
        tars: All tars of the group.
        new_tars: The tars that this run has written.
        seconds: How long this run took.
    """
    n_sequences = sum(tar.sequences for tar in tars)
    size = sum(tar.size_bytes for tar in tars)
    contexts = format_count(n_sequences, "context")
    n_tars = format_count(len(tars), "tar")
    summary = f"**{n_tars}, {contexts}**, {format_bytes(size)}; {len(new_tars):,} written now."
    metadata: dict[str, Any] = {
        "summary": markdown(summary),
        "tars": table([_tar_row(tar) for tar in tars], len(tars)),
        "dagster/partition_row_count": n_sequences,
        "shards": len(tars),
        "sequences": n_sequences,
        "tokens": sum(tar.tokens for tar in tars),
        "size_bytes": size,
        "seconds": round(seconds, 3),
    }
    # Without new tars there is no speed: a plot over time would show a jump.
    if new_tars:
        new_tokens = sum(tar.tokens for tar in new_tars)
        metadata["tokens_per_second"] = per_second(new_tokens, seconds)
    return metadata


def _tar_row(tar: TarFacts) -> dict[str, str]:
    """Return the row of a tar in the table of its group."""
    return {
        "tar": f"{tar.stem}.tar",
        "sequences": f"{tar.sequences:,}",
        "size": format_bytes(tar.size_bytes),
        "sha256": f"{tar.sha256[:16]}…",
    }


def webdataset_page(run: AssetRun) -> dict[str, Any]:
    """Write the lists of a webdataset's tars, and return its metadata."""
    return webdataset_metadata(run.project, run.make())


def webdataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of a complete webdataset: its sources, and how it is read.

    A source is a corpus or view whose tokens are cut into contexts, the samples of the tars.
    """
    rows = [_source_row(source) for source in manifest.facts["sources"]]
    return {
        "summary": markdown(_webdataset_summary(manifest.facts)),
        "read_it": markdown(*_reader_texts(project, manifest)),
        "sources": table(rows, len(rows)),
        "dagster/row_count": manifest.facts["sequences"],
        **facts_of(
            manifest,
            "shards",
            "sequences",
            "sequence_length",
            "tokens",
            "pad_tokens",
            "tokens_dropped",
            "contexts_left_out",
        ),
    }


def _webdataset_summary(facts: Mapping[str, Any]) -> str:
    """Return the size of a webdataset in a sentence."""
    n_bytes = sum(shard["size_bytes"] for shard in facts["shards_written"])
    contexts = format_count(facts["sequences"], "context")
    tars = format_count(facts["shards"], "tar")
    tokens = format_count(facts["tokens"], "token")
    length = facts["sequence_length"]
    size = format_bytes(n_bytes)
    return f"**{contexts} of {length:,} tokens in {tars}**, {tokens}, {size}."


def _source_row(source: Mapping[str, Any]) -> dict[str, str]:
    """Return a row with what a source contributes, and what does not fill a context.

    Args:
        source: Facts of the source.
    """
    return {
        "corpus": source["name"],
        "tokens": f"{source['tokens']:,}",
        "contexts": f"{source['contexts']:,}",
        "dropped": f"{source['tokens_dropped']:,}",
        "padded": f"{source['pad_tokens']:,}",
    }


def _reader_texts(project: Project, manifest: Manifest) -> list[str]:
    """Return how OpenLM and the library webdataset open the tars, as lines of Markdown.

    Args:
        manifest: Manifest of the webdataset.
    """
    tars = _tar_name_range(manifest.facts["shards"])
    folder = manifest.url()
    if is_remote(folder):
        # The library reads a bucket through the output of a command.
        return _program_texts(f"{folder}/{MANIFEST_NAME}", f"pipe:aws s3 cp {folder}/{tars} -")
    shown_folder = place(project, folder).path  # relative to the project's folder
    return [f"In {code(shown_folder or folder)}:", *_program_texts(MANIFEST_NAME, tars)]


def _tar_name_range(n_tars: int) -> str:
    """Return the names of all tars as a range, such as shard-{00000000..00000041}.tar.

    The library webdataset expands the range in braces.
    """
    first_number = shard_stem(0).removeprefix("shard-")
    last_number = shard_stem(n_tars - 1).removeprefix("shard-")
    number_range = "{" + f"{first_number}..{last_number}" + "}"
    return f"shard-{number_range}.tar"


def _program_texts(manifest_path: str, tars: str) -> list[str]:
    """Return the option of OpenLM and the call of the library webdataset, as lines of Markdown.

    Args:
        manifest_path: Path or address of the list of the tars.
        tars: Names of the tars, or the command that reads them.
    """
    return [
        f"OpenLM: {code(f'--dataset-manifest {manifest_path}')}",
        f"webdataset: {code(f'webdataset.WebDataset({tars!r})')}",
    ]
