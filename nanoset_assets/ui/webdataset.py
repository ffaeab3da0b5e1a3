"""What the UI shows of a webdataset: what it is made of, how well it is mixed, and how to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nanoset_assets.ui.metadata import ROWS_SHOWN, code, markdown, per_second, place, table
from nanoset_core.cli.shuffle_tables import source_row
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.project import Project
from nanoset_core.serialization.text import format_bytes, format_count
from nanoset_core.shuffling.engines import choose_engine
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import TarFacts, output_bytes, shard_stem
from nanoset_core.shuffling.webdataset import MANIFEST_NAME
from nanoset_core.storage.location import is_remote

_ALWAYS = ("source", "tokens", "contexts", "share")
_NOTHING = (0, "1")
MEASURES = (
    ("neighbours from one source", "same_source", "{same_source_expected:.3g}"),
    ("neighbours that touch in their source", "neighbours", "{neighbours_expected:.3g}"),
    ("rank correlation with the sources", "rank_correlation", "0 ± {rank_correlation_error:.3g}"),
    ("mix of sources in a shard, mean deviation in standard errors", "mix_mean", "0.8"),
    ("largest of these", "mix_max", "about {mix_max_expected:.3g}"),
)


def plan_metadata(plan: ShufflePlan, quality: Mapping[str, Any]) -> dict[str, Any]:
    """Of a plan: its order as a picture, how well it mixes, and what becomes of each source."""
    size, exact = output_bytes(plan)
    least = choose_engine(plan, available_memory=0, engine="mmap")
    sources = plan.table.sources
    return {
        "summary": markdown(_plan_summary(plan, quality["even"])),
        "order": markdown(_order(quality["picture"])),
        "quality": table([_measure(row, quality) for row in MEASURES]),
        "sources": table(_sources(plan), len(sources)),
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


def _sources(plan: ShufflePlan) -> list[dict[str, object]]:
    """What becomes of each source; columns that say nothing of any source are left out."""
    rows = [source_row(source, plan) for source in plan.table.sources[:ROWS_SHOWN]]
    said = {key for row in rows for key, value in row.items() if key in _ALWAYS or value not in _NOTHING}
    return [{key: value for key, value in row.items() if key in said} for row in rows]


def _plan_summary(plan: ShufflePlan, even: bool) -> str:
    mixed = "" if even else " **The order is not even**: see `quality`."
    return (
        f"**{format_count(plan.contexts, 'context')} of {plan.sequence_length:,} tokens in "
        f"{format_count(plan.shards, 'tar')}**, {format_count(plan.tokens, 'token')} of "
        f"{format_count(len(plan.table.sources), 'source')}; "
        f"{plan.tokens_dropped:,} dropped, {plan.pad_tokens:,} padded.{mixed}"
    )


def _order(picture: str) -> str:
    caption = "Each context's place in the sources (across) and in the tars (down): an even shuffle is noise."
    return f"![places in the sources → places in the tars](data:image/png;base64,{picture})\n\n{caption}"


def _measure(measure: tuple[str, str, str], quality: Mapping[str, Any]) -> dict[str, str]:
    label, key, expected = measure
    return {"measure": label, "found": f"{quality[key]:.3g}", "by chance": expected.format(**quality)}


def tars_metadata(shards: Sequence[TarFacts], made: Sequence[TarFacts], seconds: float) -> dict[str, Any]:
    """Of one group of tars, `made` of which were written in these seconds."""
    sequences, size = sum(shard.sequences for shard in shards), sum(shard.size_bytes for shard in shards)
    metadata: dict[str, Any] = {
        "summary": markdown(
            f"**{format_count(len(shards), 'tar')}, {format_count(sequences, 'sequence')}**, {format_bytes(size)}; "
            f"{len(made):,} written now."
        ),
        "tars": table([_tar(shard) for shard in shards[:ROWS_SHOWN]], len(shards)),
        "dagster/row_count": sequences,
        "shards": len(shards),
        "sequences": sequences,
        "tokens": sum(shard.tokens for shard in shards),
        "size_bytes": size,
        "seconds": round(seconds, 3),
    }
    if made:
        metadata["tokens_per_second"] = per_second(sum(shard.tokens for shard in made), seconds)
    return metadata


def _tar(shard: TarFacts) -> dict[str, str]:
    return {
        "tar": f"{shard.stem}.tar",
        "sequences": f"{shard.sequences:,}",
        "size": format_bytes(shard.size_bytes),
        "sha256": f"{shard.sha256[:16]}…",
    }


def webdataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Of a complete webdataset: what is in it and how it is read."""
    facts = manifest.facts
    names = ("shards", "sequences", "sequence_length", "tokens", "pad_tokens", "tokens_dropped", "contexts_left_out")
    size = sum(shard["size_bytes"] for shard in facts["shards_written"])
    return {
        "summary": markdown(
            f"**{format_count(facts['sequences'], 'sequence')} of {facts['sequence_length']:,} tokens in "
            f"{format_count(facts['shards'], 'tar')}**, {format_count(facts['tokens'], 'token')}, {format_bytes(size)}."
        ),
        "read_it": markdown(*_readers(project, manifest)),
        "sources": table([_source(source) for source in facts["sources"][:ROWS_SHOWN]], len(facts["sources"])),
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


def _source(source: Mapping[str, Any]) -> dict[str, str]:
    return {
        "corpus": source["name"],
        "tokens": f"{source['tokens']:,}",
        "contexts": f"{source['contexts']:,}",
        "dropped": f"{source['tokens_dropped']:,}",
        "padded": f"{source['pad_tokens']:,}",
    }
