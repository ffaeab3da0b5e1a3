"""Which corpora are added as partitions, and which are retired."""

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
    """What an earlier look at the raw folder knew."""

    seen: set[str]
    """Corpora that had text."""
    gone: set[str]
    """Registered corpora that did not exist."""
    members: Mapping[str, list[str]]
    """Name of a set of partitions that only some corpora have → corpora that were put into it."""


@dataclass(slots=True)
class PartitionChanges:
    """What a look at the raw folder changes in the partitions."""

    registered: set[str]
    """All corpora that were partitions before."""
    requests: list[PartitionsRequest] = field(default_factory=list)
    """Add and delete partitions."""
    gone: list[str] = field(default_factory=list)
    """Registered corpora that do not exist, and that are not retired yet."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """As in `KnownCorpora`, for the next look."""
    notes: list[str] = field(default_factory=list)
    """Why partitions stay."""


def partition_changes(
    config: ProjectConfig,
    names: Names,
    active_runs: ActiveRuns,
    text: RawText,
    before: KnownCorpora,
) -> PartitionChanges:
    """Return which corpora are added as partitions, and which are retired.

    A corpus is retired once two looks in sequence have not found it and nothing needs it.
    Partitions that no look has seen text of may be another project's, and stay.

    Args:
        config: The project as it is configured now.
        names: Its names.
        active_runs: Those that were active before the raw folder was read.
        text: What is in the raw folder.
        before: What the look before knew.
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
        # Only what an earlier look has put into it: other members may be another project's.
        dropped = registered_members.intersection(before.members.get(set_name, ())) - members
        removed = _without_targeted(names, active_runs, set_name, dropped, changes.notes)
        # Those that are still targeted are remembered, to be removed later.
        changes.members[set_name] = sorted(members | (dropped - removed))
        definition = dg.DynamicPartitionsDefinition(name=set_name)
        changes.requests += _add_and_delete(definition, members - registered_members, removed)
    return changes


def _without_targeted(
    names: Names, active_runs: ActiveRuns, set_name: str, corpora: set[str], notes: list[str]
) -> set[str]:
    """Return the partitions that no active run and no open backfill will make.

    The others are noted, and stay until the run or backfill has ended.

    Dagster ends a whole backfill as failed if one of the partitions that it targets is deleted.
    """
    if not corpora:
        return corpora
    assets = assets_of_partition_set(names, set_name)
    targeted: set[str] = set()
    for corpus in sorted(corpora):
        if any(active_runs.targets(asset, corpus) for asset in assets):
            targeted.add(corpus)
            notes.append(
                f"{corpus}: its partition of {set_name} stays until the run or backfill of it has ended"
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
