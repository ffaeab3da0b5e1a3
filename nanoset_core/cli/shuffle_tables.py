"""What `nanoset shuffle` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nanoset_core.cli.tables import make_table, print_table, wide_console
from nanoset_core.cli.terminal import emphasis, rejected_text
from nanoset_core.serialization.text import format_bytes
from nanoset_core.shuffling.contexts import SourceContexts
from nanoset_core.shuffling.inputs import ShuffleInputs
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.preview import Preview
from nanoset_core.shuffling.quality import ShuffleQuality, shuffle_quality
from nanoset_core.shuffling.standalone import Shuffled

if TYPE_CHECKING:
    from rich.table import Table

SOURCES_SHOWN = 50
_ALWAYS = ("source", "tokens", "contexts", "share")


def print_preview(found: Preview, inputs: ShuffleInputs) -> None:
    """Print a preview as tables."""
    from rich.table import Table

    console = wide_console()
    totals = Table("", "", show_header=False)
    for what, much in _rows(found):
        totals.add_row(what, much)
    if inputs.left_out:
        totals.add_row("inputs left out", f"{inputs.left_out:,} (of no source, or of one that is not seen)")
    console.print(totals)
    print_table(console, _sources(found.plan))


def _rows(found: Preview) -> Iterator[tuple[str, str]]:
    """The preview as lines of (what, how much)."""
    plan, about = found.plan, "about " if found.estimated else ""
    share = plan.tokens_dropped / max(sum(source.tokens for source in plan.table.sources), 1)
    filled = plan.pad_tokens / max(plan.contexts * plan.sequence_length, 1)
    yield "contexts", f"{about}{plan.contexts:,} of {plan.sequence_length:,} tokens"
    yield "shards", f"{about}{plan.shards:,} of {plan.shard_size:,} contexts" + (", all equal" if plan.even else "")
    yield "tokens", f"{about}{plan.tokens:,}"
    yield "dropped tokens", f"{about}{plan.tokens_dropped:,} ({share:.4%})"
    yield "pad tokens", f"{about}{plan.pad_tokens:,} ({filled:.4%})"
    if plan.even:
        yield "contexts left out", f"{about}{plan.contexts_left_out:,}, the last of the order"
    yield "tars", f"{'' if found.output_exact else 'about '}{format_bytes(found.output_bytes)}"
    yield (
        "scratch",
        f"{about}{format_bytes(found.token_bytes)} tokens, {format_bytes(found.engine.scratch_bytes)} buckets",
    )
    yield "engine", f"{found.engine.engine}: {found.engine.reason}"
    yield "sweeps over the tokens", f"{found.engine.passes:,}"
    yield "memory", f"{format_bytes(found.engine.memory_bytes)} in all"
    yield from _quality(shuffle_quality(plan))


def _quality(found: ShuffleQuality) -> Iterator[tuple[str, str]]:
    yield "evenly shuffled", "yes" if found.even else "no"
    yield "neighbours from one source", f"{found.same_source:.3g} (by chance {found.same_source_expected:.3g})"
    yield "neighbours that touch", f"{found.neighbours:.3g} (by chance {found.neighbours_expected:.3g})"
    yield "rank correlation", f"{found.rank_correlation:.2g} (by chance 0 ± {found.rank_correlation_error:.2g})"
    yield (
        "mix of sources in a shard",
        f"at most {found.mix_max:.2g} standard errors off (by chance {found.mix_max_expected:.2g})",
    )


def _sources(plan: ShufflePlan) -> Table:
    found = [source_row(source, plan) for source in plan.table.sources]
    # columns that say nothing are left out
    shown = [key for key in found[0] if key in _ALWAYS or any(row[key] not in (0, "1") for row in found)]
    columns = [column.replace("_", " ") for column in shown]
    table = make_table(*columns, whole=columns[1:], title="Sources")
    for row in found[:SOURCES_SHOWN]:
        table.add_row(*(f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in shown))
    if len(plan.table.sources) > SOURCES_SHOWN:
        table.add_row(f"and {len(plan.table.sources) - SOURCES_SHOWN:,} more")
    return table


def source_row(source: SourceContexts, plan: ShufflePlan) -> dict[str, object]:
    """What a plan does with a source: counts before any contexts are left out for `even` shards."""
    return {
        "source": source.name,
        "tokens": source.tokens,
        "contexts": source.contexts,
        "share": f"{source.contexts / max(plan.table.contexts, 1):.2%}",
        "frequency": f"{source.frequency:.6g}",
        "dropped": source.tokens_dropped,
        "carried": source.tokens_carried,
        "padded": source.pad_tokens,
        "not_chosen": max(source.rows - source.contexts, 0),
    }


def result_line(result: Shuffled) -> str:
    """One line on what was made."""
    plan = result.manifest.facts["plan"]
    rejected = result.manifest.facts["rejected"]
    line = (
        f"{result.folder}: {plan['shards']:,} shards, {plan['contexts']:,} contexts, {plan['tokens']:,} tokens, "
        f"{plan['tokens_dropped']:,} dropped, {plan['pad_tokens']:,} padded"
    )
    line += f", {plan['contexts_left_out']:,} contexts left out" if plan["even"] else ""
    line += f", {rejected_text(rejected, result.faults)} (rejects.jsonl)" if rejected else ""
    line += emphasis("; ".join(result.lost))
    return line if result.made else f"{line} (there already)"
