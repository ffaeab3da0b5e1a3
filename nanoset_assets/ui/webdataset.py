"""The pages of a webdataset: `shuffle_plan`, `tars` and `manifest`.

A *context* is a sample of fixed length. The *plan* decides the order of the contexts and the tar
that each is in, and a *group* is the tars that one run writes. A *source* is a corpus or view that
the webdataset is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import (
    ROWS_SHOWN,
    code,
    facts_of,
    markdown,
    per_second,
    place,
    table,
)
from nanoset_core.formats.tars.samples import MANIFEST_NAME
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset.make import current_plan, write_group
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.plan_rows import quality_rows, source_rows
from nanoset_core.stages.webdataset.sizing import choose_engine
from nanoset_core.stages.webdataset.tars import TarFacts, output_bytes, shard_stem
from nanoset_core.storage.location import is_remote
from nanoset_core.wording import format_bytes, format_count


def plan_page(run: AssetRun) -> dict[str, Any]:
    """Decide which training sample is written to which tar, and return what the UI shows of it.

    Args:
        run: Executes a Dagster asset for one shuffled dataset in tar files, whose name is
            `run.key.subject`. `run.make()` makes the plan, and returns its manifest: the record of
            its files and counts.

    Returns:
        What the page of the asset shows: heading → value. See `plan_metadata`.

    Raises:
        NanosetError: The plan could not be made.
    """
    manifest = run.make()  # writes the plan to files
    _manifest, plan = current_plan(run.project, run.key.subject)  # reads it from the files
    return plan_metadata(plan, quality=manifest.facts["quality"])


def plan_metadata(plan: ShufflePlan, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Dagster's UI shows of a plan: which training sample is written to which tar file.

    It is shown before any tar is written, so that the user can still change the settings.

    Args:
        plan: The plan.
        quality: Measures of how well the samples are mixed. `even` says whether the datasets are
            spread over the order as evenly as chance makes them.

    Returns:
        Heading → value: texts, tables and counts.
    """
    is_even = quality["even"]
    n_tokens_read = plan.contexts * plan.sequence_length  # padding included
    return {
        "summary": markdown(_plan_summary(plan, is_even=is_even)),
        "quality": table(quality_rows(quality)),
        "sources": table(source_rows(plan, ROWS_SHOWN), len(plan.table.sources)),  # the datasets
        "evenly_shuffled": is_even,
        "contexts": plan.contexts,  # training samples, which all have the same length
        "shards": plan.shards,  # tar files
        "contexts_in_a_shard": plan.shard_size,
        "contexts_left_out": plan.contexts_left_out,
        "tokens": plan.tokens,
        "tokens_dropped": plan.tokens_dropped,
        "pad_tokens": plan.pad_tokens,
        "pad_share": round(plan.pad_tokens / n_tokens_read, 6),
        **_resource_metadata(plan),  # disk space and memory
    }


def _resource_metadata(plan: ShufflePlan) -> dict[str, int]:
    """Return how much disk space the tars of a shuffled dataset will need, and how much memory.

    Args:
        plan: Says which training sample is written to which tar.

    Returns:
        Such as `{"tar_bytes": 1200000, "memory_bytes_per_worker": 34000000}`. If the tars will be
        compressed, their size is an estimate, and its name is `tar_bytes_about`.
    """
    tar_bytes, is_exact = output_bytes(plan)
    tar_bytes_name = "tar_bytes" if is_exact else "tar_bytes_about"
    # There are several ways (engines) to write tars. Return what the one named `mmap` needs, which
    # is least. It is named here, so the memory of this machine, by which an engine would be chosen,
    # does not matter: the tars may be written on another one.
    engine = choose_engine(plan, available_memory=0, engine="mmap")
    return {tar_bytes_name: tar_bytes, "memory_bytes_per_worker": engine.memory_bytes}


def _plan_summary(plan: ShufflePlan, *, is_even: bool) -> str:
    """Say in a sentence what a shuffled dataset will contain; warn if it is not well mixed.

    For example:

        **600 contexts of 2,048 tokens in 4 tars**, 1,200,000 tokens of 2 sources; 500 dropped,
        28,800 padded.

    A context is a training sample of fixed length, a source one of the datasets that are mixed.
    Tokens at the end of a source that do not fill a context are dropped, or the context is padded.

    Args:
        plan: Says which context is written to which tar.
        is_even: Whether the sources are spread over the order as evenly as chance makes them.
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
    """Write some of the tar files of a shuffled dataset, and return what Dagster shows of them.

    A plan says which documents each tar file gets. It is made before. The tars are divided into
    groups, which different machines can write at the same time. For 8 tars in two groups:

        group    tars                                           folder
        0        shard-00000000.tar to shard-00000003.tar       the same for all groups; its name is
        1        shard-00000004.tar to shard-00000007.tar       a hash that follows from the plan

    If an earlier run was interrupted, the tars that it has completed are in this folder, and are
    not written again.

    Each kind of output has such a function, its *page*, which makes an output and returns what is
    shown of it. Usually Dagster's result is made from that and from the manifest of the output,
    which lists its files and has a digest. A group of tars has no manifest. It gets the digest of
    the plan, which determines every byte of the tars.

    Args:
        run: Executes the Dagster asset `tars` for one group, whose number is `run.key.part`.

    Returns:
        The complete result of the asset, and not only what is shown.

    Raises:
        NanosetError: The tars could not be written.
    """
    project = run.project
    webdataset = run.key.subject  # its name
    group_number = int(run.key.required_part)
    plan_manifest, _ = current_plan(project, webdataset)

    written = write_group(project, webdataset, group_number)
    run.finish(plan_manifest)  # measures how long the run took
    return dg.MaterializeResult(
        metadata=tars_metadata(written.tars, written.new_tars, run.seconds),
        data_version=dg.DataVersion(plan_manifest.digest),
    )


def tars_metadata(
    tars: Sequence[TarFacts], new_tars: Sequence[TarFacts], seconds: float
) -> dict[str, Any]:
    """Return what Dagster's UI shows of a group of tar files that a run has written.

    For example:

        summary              "**2 tars, 1,000 contexts**, 4.20 MB; 1 written now."
        tars                 a table: size and checksum of each tar
        shards               2          (tars)
        sequences            1000       (training samples)
        tokens               2048000
        tokens_per_second    1200000.0

    Args:
        tars: All tars of the group.
        new_tars: Those that this run has written. An earlier run, which was interrupted, may have
            written the others.
        seconds: How long this run took.

    Returns:
        Heading → value, as in the example. The speed is left out if nothing was written.
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
    """Return the row of a tar file in a table: its number of samples, size and checksum.

    For example, `{"tar": "shard-00000007.tar", "sequences": "500", "size": "2.10 MB", "sha256":
    "5f0c1d2e3a4b5c6d…"}`.

    Args:
        tar: What was recorded when the tar was written.
    """
    return {
        "tar": f"{tar.stem}.tar",
        "sequences": f"{tar.sequences:,}",
        "size": format_bytes(tar.size_bytes),
        "sha256": f"{tar.sha256[:16]}…",
    }


def webdataset_page(run: AssetRun) -> dict[str, Any]:
    """Write the lists by which trainers find the tars of a dataset; return what the UI shows of it.

    Args:
        run: Executes a Dagster asset for one dataset of tar files. `run.make()` checks the tars,
            and writes the lists.

    Returns:
        What the page of the asset shows: heading → value. See `webdataset_metadata`.

    Raises:
        NanosetError: A tar is missing, or the lists could not be written.
    """
    manifest = run.make()
    return webdataset_metadata(run.project, manifest)


def webdataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of a shuffled dataset of tar files that is complete.

    Its training samples all have the same number of tokens. They are called sequences in the names
    of counts.

    Args:
        project: Its folder: the path of the tars is shown relative to it.
        manifest: The record of the dataset: its files, and what was counted.

    Returns:
        Heading → value: a text, a table or a number.
    """
    facts = manifest.facts
    # What each of the datasets contributes that are mixed, such as its tokens.
    rows = [_source_row(source) for source in facts["sources"]]
    return {
        "summary": markdown(_webdataset_summary(facts)),  # such as "**5,000 contexts of 2,048 …"
        "read_it": markdown(*_reader_texts(project, manifest)),  # how a trainer reads the tars
        "sources": table(rows, len(rows)),
        "dagster/row_count": facts["sequences"],  # Dagster shows it as the size
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
    """Return what one of the mixed datasets contributes to a webdataset, as a row of a table.

    Its tokens are cut into contexts, training samples of fixed length. For example, 2,500 tokens
    are cut into contexts of 1,000:

        corpus    tokens    contexts    dropped    padded
        web       2,500     2           500        0         (the rest is dropped)
        web       2,500     3           0          500       (the rest is padded, if so configured)

    Args:
        source: What was counted for the dataset.
    """
    return {
        "corpus": source["name"],
        "tokens": f"{source['tokens']:,}",
        "contexts": f"{source['contexts']:,}",
        "dropped": f"{source['tokens_dropped']:,}",
        "padded": f"{source['pad_tokens']:,}",
    }


def _reader_texts(project: Project, manifest: Manifest) -> list[str]:
    """Say how two programs, OpenLM and the Python library webdataset, read a dataset of tar files.

    For example:

        In `outputs/webdatasets/streamed/5f0c…`:
        OpenLM: `--dataset-manifest manifest.jsonl`
        webdataset: `webdataset.WebDataset('shard-{00000000..00000041}.tar')`

    Args:
        project: Its folder: the path of the tars is shown relative to it.
        manifest: The record of the dataset: its folder, and the number of tars.

    Returns:
        These lines, as Markdown.
    """
    tars = _tar_name_range(manifest.facts["shards"])  # shard-{00000000..00000041}.tar
    folder = manifest.url()
    if is_remote(folder):
        # The library webdataset cannot open tars in a bucket, but it can read what a command
        # prints. This command prints their content.
        command = f"pipe:aws s3 cp {folder}/{tars} -"
        return _program_texts(manifest_path=f"{folder}/{MANIFEST_NAME}", tars=command)

    relative_folder = place(project, folder).path or folder
    programs = _program_texts(manifest_path=MANIFEST_NAME, tars=tars)
    return [f"In {code(relative_folder)}:", *programs]


def _tar_name_range(n_tars: int) -> str:
    """Return the names of all tars of a dataset in short: shard-{00000000..00000041}.tar.

    The library webdataset expands the range in braces to 42 names, as a shell does.

    Args:
        n_tars: How many tars there are, at least one.
    """
    first_number = shard_stem(0).removeprefix("shard-")  # "00000000"
    last_number = shard_stem(n_tars - 1).removeprefix("shard-")  # "00000041" of 42 tars
    return f"shard-{{{first_number}..{last_number}}}.tar"


def _program_texts(manifest_path: str, tars: str) -> list[str]:
    """Say which option and which call open a dataset of tar files, as lines of Markdown.

    For example:

        OpenLM: `--dataset-manifest manifest.jsonl`
        webdataset: `webdataset.WebDataset('shard-{00000000..00000041}.tar')`

    Args:
        manifest_path: Path or address of the file that lists the tars, which OpenLM needs.
        tars: Names of the tars, or the command that prints their content, for webdataset.
    """
    return [
        f"OpenLM: {code(f'--dataset-manifest {manifest_path}')}",
        f"webdataset: {code(f'webdataset.WebDataset({tars!r})')}",
    ]
