"""Decide which corpora are added as partitions, and which are removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.names import Names
from nanoset_assets.partition_sets import assets_of_partition_set, corpora_by_partition_set
from nanoset_core.project.requested_corpora import requested_corpora
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.text.survey import RawText

PartitionsRequest = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


@dataclass(frozen=True, slots=True)
class KnownCorpora:
    """The corpora that the last tick knew."""

    seen: set[str]
    """Corpora in the raw folder."""
    gone: set[str]
    """Corpora that are partitions but were missing from the raw folder."""
    members: Mapping[str, list[str]]
    """Name of a set of partitions that only some corpora belong to → corpora that were added."""


@dataclass(slots=True)
class PartitionChanges:
    """The changes of partitions that a tick requests, and what the next tick has to know."""

    registered: set[str]
    """All corpora that were partitions before."""
    requests: list[PartitionsRequest] = field(default_factory=list)
    """Add and delete partitions."""
    gone: list[str] = field(default_factory=list)
    """Corpora that are missing from the raw folder, and whose partitions are not removed yet."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """`KnownCorpora.members` for the next tick."""
    notes: list[str] = field(default_factory=list)
    """Why partitions of missing corpora are not removed."""


def partition_changes(
    config: ProjectConfig,
    names: Names,
    active_runs: ActiveRuns,
    text: RawText,
    before: KnownCorpora,
) -> PartitionChanges:
    """Return which corpora are added as partitions, and which partitions are removed.

    A partition is removed when its corpus has been missing from the raw folder for two ticks in a
    row, and nothing needs it. Partitions whose text no tick has ever seen are kept: they may belong
    to another project.

    Args:
        config: The current configuration of the project.
        names: The names of the project.
        active_runs: The runs that were active before the raw folder was read.
        text: The corpora of the raw folder.
        before: The corpora that the last tick knew.
    """
    registered = set(active_runs.instance.get_dynamic_partitions(names.corpora_name))
    changes = PartitionChanges(registered)

    # The set of all corpora.
    gone = registered.difference(text.corpora, text.faults) & (before.seen | before.gone)
    may_retire = (gone & before.gone) - requested_corpora(config)
    retired = _without_targeted(names, active_runs, names.corpora_name, may_retire, changes.notes)
    changes.gone = sorted(gone - retired)
    changes.requests += _add_and_delete(names.corpora, text.corpora.keys() - registered, retired)

    # Sets that only some corpora are in: nanoset.yaml may take a corpus out as well.
    remaining = (registered | text.corpora.keys()) - retired
    for set_name, members in corpora_by_partition_set(config, names, remaining).items():
        if set_name == names.corpora_name:
            continue
        registered_members = set(active_runs.instance.get_dynamic_partitions(set_name))
        # Remove only what an earlier tick has added: other members may belong to another project.
        dropped = registered_members.intersection(before.members.get(set_name, ())) - members
        removed = _without_targeted(names, active_runs, set_name, dropped, changes.notes)
        # Remember members that an active run still makes, so that a later tick removes them.
        changes.members[set_name] = sorted(members | (dropped - removed))
        definition = dg.DynamicPartitionsDefinition(name=set_name)
        changes.requests += _add_and_delete(definition, members - registered_members, removed)
    return changes


def _without_targeted(
    names: Names, active_runs: ActiveRuns, set_name: str, corpora: set[str], notes: list[str]
) -> set[str]:
    """Return the partitions that can be removed: no active run or open backfill makes them.

    If a partition that a backfill targets is deleted, Dagster ends the whole backfill as failed.

    Args:
        names: The names of the project.
        active_runs: The active runs and open backfills.
        set_name: Name of the set of partitions.
        corpora: The partitions to be removed.
        notes: Receives a line for each partition that has to stay.
    """
    if not corpora:
        return corpora
    assets = assets_of_partition_set(names, set_name)
    targeted: set[str] = set()
    for corpus in sorted(corpora):
        if any(active_runs.targets(asset, corpus) for asset in assets):
            targeted.add(corpus)
            notes.append(
                f"{corpus}: its partition of {set_name} stays "
                "until the run or backfill of it has ended"
            )
    return corpora - targeted


def _add_and_delete(
    definition: dg.DynamicPartitionsDefinition, added: Iterable[str], removed: Iterable[str]
) -> list[PartitionsRequest]:
    """Return the requests that add partitions to a set and delete others from it."""
    requests: list[PartitionsRequest] = []
    new = sorted(added)
    if new:
        requests.append(definition.build_add_request(new))
    old = sorted(removed)
    if old:
        requests.append(definition.build_delete_request(old))
    return requests
