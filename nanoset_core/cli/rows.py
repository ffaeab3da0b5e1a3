"""Rows that both the commands and the UI show: heading → text or integer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.shuffling.plan import ShufflePlan

Row = dict[str, Any]
_MEASURES = (
    ("neighbours from one source", "same_source", "{same_source_expected:.3g}"),
    ("neighbours that touch in their source", "neighbours", "{neighbours_expected:.3g}"),
    ("rank correlation with the sources", "rank_correlation", "0 ± {rank_correlation_error:.3g}"),
    ("mix of sources in a shard, mean deviation in standard errors", "mix_mean", "0.8"),
    ("largest of these", "mix_max", "about {mix_max_expected:.3g}"),
)


def member_rows(members: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return what a split takes of each corpus, and the tokens of an epoch, without columns that say nothing.

    Args:
        members: `corpus` and the JSON values of `MemberCoverage`.
    """
    rows = [
        {
            "corpus": member["corpus"],
            "asked": _percent(member["weight"]),
            "given": _percent(member["share"]),
            "samples": f"{member['samples_given']:,}",
            "surplus": f"{member['surplus']:,}",
            "epochs": f"{member['epochs']:.2f}",
            "limit": "none" if member["max_epochs"] is None else f"{member['max_epochs']:g}",
            "tokens": f"{member['tokens']:,}",
            "unseen": "by chance" if member["tokens_unseen"] is None else f"{member['tokens_unseen']:,}",
        }
        for member in members
    ]
    silent = {"given"} if all(row["asked"] == row["given"] for row in rows) else set()
    silent |= {"limit"} if all(row["limit"] == "none" for row in rows) else set()
    return [{name: value for name, value in row.items() if name not in silent} for row in rows]


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def source_rows(plan: ShufflePlan, most: int) -> list[Row]:
    """Return what a plan does with each source (before contexts are left out for `even` shards), without columns that
    say nothing of any of the first `most` sources."""
    rows: list[Row] = [
        {
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
        for source in plan.table.sources[:most]
    ]
    always = ("source", "tokens", "contexts", "share")
    said = [key for key in rows[0] if key in always or any(row[key] not in (0, "1") for row in rows)]
    return [{key: row[key] for key in said} for row in rows]


def quality_rows(quality: Mapping[str, Any]) -> list[Row]:
    """Return the measures of an order beside what chance gives, from the JSON values of `ShuffleQuality`."""
    return [
        {"measure": label, "found": f"{quality[key]:.3g}", "by chance": expected.format(**quality)}
        for label, key, expected in _MEASURES
    ]


def place_of(origin: DocumentOrigin) -> str:
    """Return where a document came from, as `corpus/file:line`."""
    return f"{origin.corpus}/{origin.file}:{origin.line}"
