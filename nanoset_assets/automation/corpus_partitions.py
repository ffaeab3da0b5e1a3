"""Decide which corpora are added as partitions, and which are removed.

A corpus is a folder of raw text, and a partition of the assets that are made from it. A new folder
`raw/web` becomes the partition `web`. If the folder is deleted, the partition is removed by the
second tick of the sensor that does not see it, unless nanoset.yaml or an active run needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import dagster as dg

from nanoset_assets.assets.partition_sets import assets_of_partition_set, corpora_by_partition_set
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.names import Names
from nanoset_core.project.requested_corpora import requested_corpora
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.text.files.survey import RawText

PartitionsRequest = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


@dataclass(frozen=True, slots=True)
class KnownCorpora:
    """The corpora that the last tick knew."""

    seen: set[str]
    """Corpora that were in the raw folder."""
    missing: set[str]
    """Corpora that were partitions but missing from the raw folder."""
    members: Mapping[str, list[str]]
    """Name of a set of partitions that only some corpora belong to → corpora that were added."""


@dataclass(slots=True)
class PartitionChanges:
    """The changes of partitions that a tick requests, and what the next tick has to know."""

    registered: set[str]
    """All corpora that are partitions before the changes."""
    requests: list[PartitionsRequest] = field(default_factory=list)
    """Add and delete partitions."""
    missing: list[str] = field(default_factory=list)
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
    """Return which corpora are added to Dagster as partitions, and which partitions are removed.

    A corpus is a folder of raw text, such as raw/web. Dagster shows it as a partition of each asset
    that is made from it. A sensor looks at the raw folder again and again, and calls this:

        folder                                     what is done
        is new                                     its partition is added
        is missing for the first time              nothing: it may be being replaced
        is missing for the second time in a row    its partition is removed
        is missing, but nanoset.yaml names it      nothing
        was never seen                             nothing: the partition may be another project's

    Args:
        config: The current settings of nanoset.yaml, which may need a corpus.
        names: The names of the project in Dagster.
        active_runs: The runs that were active before the raw folder was read. A partition that one
            of them makes is not removed yet.
        text: The corpora of the raw folder.
        before: The corpora that the last call knew.

    Returns:
        The requests, notes for the log, and what the next call has to know.
    """
    registered = set(active_runs.instance.get_dynamic_partitions(names.corpora_name))
    changes = PartitionChanges(registered)
    partition_sets = _PartitionSets(names, active_runs, before)

    # Suppose that web, books and code are partitions, and the raw folder has only web. If the last
    # tick missed books, too, then books is removed now, and code by the next tick.
    missing = _missing_corpora(registered, text, before)  # books, code
    unneeded = (missing & before.missing) - requested_corpora(config)  # books
    removed = partition_sets.without_active_runs(names.corpora_name, unneeded, changes.notes)
    changes.missing = sorted(missing - removed)  # code, for the next tick

    # Change the set of all corpora.
    present = set(text.corpora)
    new = present - registered
    changes.requests += _change_requests(names.corpora, added=new, removed=removed)

    # Change the sets that only some corpora are in, such as those with a `.pbin`.
    all_corpora = (registered | new) - removed
    for set_name, members in corpora_by_partition_set(config, names, all_corpora).items():
        if set_name != names.corpora_name:
            partition_sets.change_members(set_name, members, changes)
    return changes


def _missing_corpora(registered: set[str], text: RawText, before: KnownCorpora) -> set[str]:
    """Return the partitions whose folder of raw text was there before, and is missing now.

    Args:
        registered: The corpora (text collections) that are partitions in Dagster.
        text: The corpora of the raw folder.
        before: The corpora that the last call of the sensor knew.
    """
    # A folder that exists, but cannot be read at the moment, is not missing.
    present = text.corpora.keys() | text.faults.keys()
    absent = registered - present
    # A partition that never had a folder may have been added by another project: ignore it.
    known_before = before.seen | before.missing
    return absent & known_before


@dataclass(frozen=True, slots=True)
class _PartitionSets:
    """The sets of partitions of a project, each with the names of some corpora.

    One set has all corpora. Other sets belong to assets that exist only for some corpora, such as
    the `.pbin` files of a corpus.
    """

    names: Names
    """The names of the project."""
    active_runs: ActiveRuns
    """The active runs and open backfills."""
    before: KnownCorpora
    """The corpora that the last tick knew."""

    def change_members(self, set_name: str, members: set[str], changes: PartitionChanges) -> None:
        """Request that a set of Dagster's partitions is changed to contain the right corpora.

        For example, an asset is made for a few corpora (text collections) only, which the settings
        name. If the set has `web` and `old`, and should have `web` and `news`, then `news` is added
        and `old` is deleted. But `old` has to stay for now if a run is making it: it is remembered,
        so that a later call deletes it.

        Args:
            set_name: The name of the set.
            members: The corpora that should be in the set.
            changes: Receives the requests, and notes for the log. Its `members` is what the next
                call of the sensor gets as `self.before.members`.
        """
        present = set(self.active_runs.instance.get_dynamic_partitions(set_name))
        # Delete only what an earlier call has added: other partitions may belong to another
        # project.
        added_before = present.intersection(self.before.members.get(set_name, ()))
        unneeded = added_before - members
        deletable = self.without_active_runs(set_name, unneeded, changes.notes)

        definition = dg.DynamicPartitionsDefinition(name=set_name)
        changes.requests += _change_requests(definition, added=members - present, removed=deletable)
        undeleted = unneeded - deletable
        changes.members[set_name] = sorted(members | undeleted)

    def without_active_runs(self, set_name: str, corpora: set[str], notes: list[str]) -> set[str]:
        """Return those of some partitions that no run or backfill is making at the moment.

        A backfill is a request for many partitions. If one of them were deleted, Dagster would end
        the whole backfill as failed. So such a partition has to stay until the backfill has ended.

        Args:
            set_name: Name of the set of partitions.
            corpora: The partitions that should be deleted.
            notes: Receives a line for each partition that has to stay.
        """
        if not corpora:
            return corpora
        assets = assets_of_partition_set(self.names, set_name)
        targeted: set[str] = set()
        for corpus in sorted(corpora):
            if any(self.active_runs.targets(asset, corpus) for asset in assets):
                targeted.add(corpus)
                notes.append(
                    f"{corpus}: its partition of {set_name} stays "
                    "until the run or backfill of it has ended"
                )
        return corpora - targeted


def _change_requests(
    definition: dg.DynamicPartitionsDefinition, *, added: Iterable[str], removed: Iterable[str]
) -> list[PartitionsRequest]:
    """Return the requests to Dagster that add partitions to a set and delete others from it.

    For example, two requests: add ["news"], and delete ["books"].

    Args:
        definition: The set of partitions, such as that of all text collections.
        added: The partitions to add. Without any, there is no such request.
        removed: The partitions to delete; the same applies.
    """
    requests: list[PartitionsRequest] = []
    new = sorted(added)
    if new:
        requests.append(definition.build_add_request(new))
    old = sorted(removed)
    if old:
        requests.append(definition.build_delete_request(old))
    return requests
