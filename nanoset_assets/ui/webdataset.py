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
    """Decide the order of a webdataset's contexts, and return what the UI shows of the plan.

    Args:
        run: The run of the asset `shuffle_plan` for one webdataset.

    Returns:
        Name → value, as Dagster's UI shows them; see `plan_metadata`.

    Raises:
        NanosetError: The plan could not be made.
    """
    manifest = run.make()
    _, plan = current_plan(run.project, run.key.subject)
    return plan_metadata(plan, manifest.facts["quality"])


def plan_metadata(plan: ShufflePlan, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the UI shows of a plan: how well its order mixes, what becomes of each source.

    A plan says which contexts (samples of fixed length) are written to which tar of a webdataset.

    Args:
        plan: The plan.
        quality: The JSON values of its `ShuffleQuality`. `even` says whether sources are spread
            over the order as evenly as chance makes them.

    Returns:
        Name → value: a summary in a sentence, tables of quality and sources, and counts.
    """
    is_even = quality["even"]
    n_tokens_read = plan.contexts * plan.sequence_length  # padding included
    return {
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
        **_resource_metadata(plan),
    }


def _resource_metadata(plan: ShufflePlan) -> dict[str, int]:
    """Return how large the tars of a plan will be, and how much memory it takes to write them.

    Args:
        plan: The plan: which contexts (samples of fixed length) are in which tar.

    Returns:
        Such as `{"tar_bytes": 1200000, "memory_bytes_per_worker": 34000000}`. If the tars are
        compressed, their size is an estimate, and its name is `tar_bytes_about`.
    """
    tar_bytes, is_exact = output_bytes(plan)
    tar_bytes_name = "tar_bytes" if is_exact else "tar_bytes_about"
    # Of the ways to write tars, `mmap` needs the least memory.
    smallest_engine = choose_engine(plan, available_memory=0, engine="mmap")
    return {tar_bytes_name: tar_bytes, "memory_bytes_per_worker": smallest_engine.memory_bytes}


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

    Several runs can write different groups at the same time.

    Args:
        run: The run of the asset `tars` for one partition, the number of the group.

    Returns:
        The whole materialisation, since a group has no manifest from which it could be made.

    Raises:
        NanosetError: The tars could not be written.
    """
    project = run.project
    webdataset = run.key.subject
    plan_manifest, _ = current_plan(project, webdataset)

    # Look up which tars an interrupted run has completed: they are not written again.
    folder = project.outputs.place(webdataset_recipe(webdataset, plan_manifest.digest))
    names_before = kept_names(project, folder)

    group = int(run.key.part or 0)  # the partition of the asset
    tars = write_group(project, webdataset, group)  # all of the group, also those that existed
    new_tars = [tar for tar in tars if f"{tar.stem}.tar" not in names_before]

    # A group has no manifest or digest of its own. Its bytes follow from the plan: use those of it.
    run.finish(plan_manifest)
    return dg.MaterializeResult(
        metadata=tars_metadata(tars, new_tars, run.seconds),
        data_version=dg.DataVersion(plan_manifest.digest),
    )


def tars_metadata(
    tars: Sequence[TarFacts], new_tars: Sequence[TarFacts], seconds: float
) -> dict[str, Any]:
    """Return what the UI shows of one group of tars.

    Args:
        tars: All tars of the group.
        new_tars: The tars that this run has written; the others existed already.
        seconds: How long this run took.

    Returns:
        Name → value: a summary in a sentence, a table of the tars, and counts.
    """
    n_contexts = sum(tar.sequences for tar in tars)
    metadata: dict[str, Any] = {
        "summary": markdown(_tars_summary(tars, n_new=len(new_tars))),
        "tars": table([_tar_row(tar) for tar in tars], len(tars)),
        "dagster/partition_row_count": n_contexts,
        "shards": len(tars),
        "sequences": n_contexts,
        "tokens": sum(tar.tokens for tar in tars),
        "size_bytes": sum(tar.size_bytes for tar in tars),
        "seconds": round(seconds, 3),
    }
    # Without new tars there is no speed: a plot over time would show a jump.
    if new_tars:
        new_tokens = sum(tar.tokens for tar in new_tars)
        metadata["tokens_per_second"] = per_second(new_tokens, seconds)
    return metadata


def _tars_summary(tars: Sequence[TarFacts], *, n_new: int) -> str:
    """Return the size of a group of tars in a sentence.

    Args:
        tars: All tars of the group.
        n_new: How many of them this run has written.

    Returns:
        Such as "**2 tars, 1,000 contexts**, 4.20 MB; 1 written now."
    """
    n_tars = format_count(len(tars), "tar")
    contexts = format_count(sum(tar.sequences for tar in tars), "context")
    size = format_bytes(sum(tar.size_bytes for tar in tars))
    return f"**{n_tars}, {contexts}**, {size}; {n_new:,} written now."


def _tar_row(tar: TarFacts) -> dict[str, str]:
    """Return the row of a tar in the table of its group, with the start of its checksum.

    Args:
        tar: What is known of the tar: its name, size, checksum and counts.
    """
    return {
        "tar": f"{tar.stem}.tar",
        "sequences": f"{tar.sequences:,}",
        "size": format_bytes(tar.size_bytes),
        "sha256": f"{tar.sha256[:16]}…",
    }


def webdataset_page(run: AssetRun) -> dict[str, Any]:
    """Write the lists of tars that complete a webdataset, and return what the UI shows of it.

    Args:
        run: The run of the asset `manifest` for one webdataset.

    Returns:
        Name → value, as Dagster's UI shows them; see `webdataset_metadata`.

    Raises:
        NanosetError: A tar is missing, or the lists could not be written.
    """
    return webdataset_metadata(run.project, run.make())


def webdataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of a complete webdataset: its sources, and how it is read.

    A source is a corpus or view whose tokens are cut into contexts, the samples of the tars.

    Args:
        project: Its folder: the path of the tars is shown relative to it.
        manifest: Manifest of the webdataset, the record of its files and counts.

    Returns:
        Name → value: a summary in a sentence, how to open the tars, a table of the sources, and
        counts.
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
    """Return the size of a webdataset in a sentence.

    Args:
        facts: Counts of the webdataset; `shards_written` are its tars.

    Returns:
        Such as "**5,000 contexts of 2,048 tokens in 4 tars**, 10,240,000 tokens, 20.5 MB."
    """
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
        source: Counts of a corpus or view of which the webdataset is made.
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
        project: Its folder: the path of the tars is shown relative to it.
        manifest: Manifest of the webdataset, the record of its files and counts.
    """
    n_tars = manifest.facts["shards"]
    tar_names = _tar_name_range(n_tars)  # shard-{00000000..00000041}.tar
    folder = manifest.url()
    if is_remote(folder):
        # The library webdataset does not read buckets, but what a command prints.
        command = f"pipe:aws s3 cp {folder}/{tar_names} -"
        return _program_texts(manifest_path=f"{folder}/{MANIFEST_NAME}", tars=command)
    shown_folder = place(project, folder).path  # relative to the project's folder
    lines = [f"In {code(shown_folder or folder)}:"]
    lines += _program_texts(manifest_path=MANIFEST_NAME, tars=tar_names)
    return lines


def _tar_name_range(n_tars: int) -> str:
    """Return the names of all tars as a range, such as shard-{00000000..00000041}.tar.

    The library webdataset expands the range in braces.

    Args:
        n_tars: How many tars there are, at least one.
    """
    first_number = shard_stem(0).removeprefix("shard-")  # "00000000"
    last_number = shard_stem(n_tars - 1).removeprefix("shard-")  # "00000041" of 42 tars
    return f"shard-{{{first_number}..{last_number}}}.tar"


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
