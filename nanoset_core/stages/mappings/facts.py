"""The facts that the manifest of a split records, and how others read them.

A split has two outputs, its index mappings and its blend. Their manifests have the same facts:

- `samples`: length of the split's dataset, as the trainer counts it.
- `blended`: whether it is a mixture of datasets.
- `members`: what is read of each dataset.
- `corpora`: what is read of each corpus, through all datasets that hold its documents.
- `lacking`: why the split has no sample although it has a share of the data.
- `mixture`: what each part of a tree of shares gets.
- `cache_files`: size and sha256 of the index files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.loading.layout import LACKING
from nanoset_core.loading.plan_file import PLAN_FILE
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.coverage import MemberCoverage, coverage
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.stages.mappings.make import FileNotes
from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit

CORPORA = "corpora"
MIXTURE = "mixture"
CACHE_FILES = "cache_files"


def split_facts(
    nanoset: NanosetContext, planned: PlannedSplit, samples_given: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return what is recorded of a split: how many samples it has, and of which datasets.

    A nanoset is the data of a training run. Each of its splits (train, valid and test) reads
    samples of one or more datasets. When the index files of a split are written, these facts are
    stored in a manifest next to them, where `nanoset status` finds them.

        {"samples": 1000, "blended": true, "members": [{"corpus": "web", …}, …], …}
        {"samples": 0, "blended": false, "members": []}      a split without data

    Args:
        nanoset: The nanoset.
        planned: The plan of one of its splits: what will be read of each dataset.
        samples_given: How many samples the built blend takes of each dataset; None for as many as
            planned.

    Returns:
        Name of a fact → JSON value. The module lists all facts.
    """
    facts: dict[str, Any] = {"samples": 0, "blended": False, "members": []}
    if planned.plan is not None:
        facts |= _data_facts(nanoset, planned, planned.plan, samples_given)
    if planned.lacking is not None:  # why it has no sample, in words
        facts[LACKING] = planned.lacking
    return facts


def _data_facts(
    nanoset: NanosetContext,
    planned: PlannedSplit,
    plan: SplitPlan,
    samples_given: Sequence[int] | None,
) -> dict[str, Any]:
    """Return what the manifest of a split records about its data: samples, datasets and corpora.

        {"samples": 1000, "blended": True, "members": [{"corpus": "web", "epochs": 0.35, …}, …], …}

    Args:
        nanoset: The nanoset, which is the data of a training run.
        planned: One of its splits (train, valid or test), which has data.
        plan: Which samples it has.
        samples_given: How many samples the built blend takes of each dataset; None for as many as
            planned.
    """
    members = _members_read(planned, samples_given)
    facts: dict[str, Any] = {
        "samples": plan.samples,
        "blended": plan.blend is not None,
        "members": _member_facts(planned, members),
        CORPORA: [corpus.to_json() for corpus in nanoset.corpora(planned, members)],
    }
    if planned.mixture:
        facts[MIXTURE] = [asdict(row) for row in planned.mixture]
    return facts


def _members_read(
    planned: PlannedSplit, samples_given: Sequence[int] | None
) -> Sequence[MemberCoverage]:
    """Return how much a split of the training data reads of each of its datasets.

    Of 1,000 samples, 700 may be from `web`, which is 0.35 epochs of it. The plan of a large blend
    only estimates these numbers, wrong by a sample or two. Once the blend is built, they can be
    counted.

    Args:
        planned: The plan of the split: train, valid or test.
        samples_given: Samples of each dataset, as counted in a built blend, such as [700, 300];
            None if no blend was built.
    """
    if samples_given is None or planned.plan is None:
        return planned.members

    # Compute again what is read of each dataset, now from the counted samples, and with the same
    # limits on how often it may be read.
    limit_by_prefix: dict[str, float] = {}
    for member in planned.members:
        if member.max_epochs is not None:
            limit_by_prefix[member.prefix] = member.max_epochs
    return coverage(planned.plan, planned.config, limit_by_prefix, samples_given)


def _member_facts(planned: PlannedSplit, members: Sequence[MemberCoverage]) -> list[dict[str, Any]]:
    """Return what is recorded of each dataset of a split, such as `{"corpus": "web", "epochs":
    0.35, …}`.

    Args:
        planned: The plan of the split, with the name of the corpus or view of each dataset.
        members: What is read of each dataset. Its path is left out: it is one of this machine, and
            outputs may be copied to another.
    """
    facts = []
    plans = [] if planned.plan is None else planned.plan.members
    for corpus, member, member_plan in zip(planned.corpora, members, plans, strict=True):
        values = member.to_json()
        del values["prefix"]
        facts.append({"corpus": corpus, **values, "epochs_built": member_plan.epochs})
    return facts


def samples_read(facts: Mapping[str, Any]) -> int:
    """Add up how many samples a training run reads of all datasets of a split.

    This can be less than the fact `samples`, which is how many the index files have. Without a
    blend, the index files always have whole epochs: they may have 1,500 samples of `web`, though
    the run reads only 1,000 of them.

    Args:
        facts: Facts about the index files of the split. Each entry of `members` is a dataset, such
            as `{"corpus": "web", "samples_given": 1000, …}`.
    """
    return sum(member["samples_given"] for member in facts["members"])


def unused_samples(facts: Mapping[str, Any]) -> int:
    """Return how many samples a split's index files contain that the run does not read.

    Args:
        facts: Facts in the manifest of the split's index mappings or blend.

    Returns:
        The sum over all datasets of the split.
    """
    return sum(member["surplus"] for member in facts["members"])


def cache_files(manifest: Manifest) -> FileNotes:
    """Return the size and sha256 of each of the trainer's index files that belong to a split.

    Args:
        manifest: Manifest of the split's index mappings or blend.

    Returns:
        Name in the cache folder → `{"bytes": size, "sha256": digest}`; empty for outputs that do
        not record them.
    """
    notes: FileNotes = manifest.facts.get(CACHE_FILES, {})
    return notes


def files_in_use(manifest: Manifest) -> set[str]:
    """Return the names of the files in the trainer's cache that an output of a split needs.

    `nanoset gc` deletes what nothing needs, and so must keep these:

        5ce5…-GPTDataset-train-shuffle_index.npy, …    the order in which the trainer reads samples
        5ce5…-GPTDataset-train-nanoset.json            a note on what these files were made from

    Args:
        manifest: Manifest of the output, which records its files, and has a plan next to it.

    Returns:
        The files that the manifest records, and those that the plan names.

    Raises:
        FormatError: The plan of the split cannot be read.
        StorageError: The bucket cannot be reached.
    """
    try:
        content = manifest.access.read_current(manifest.folder / PLAN_FILE)
        planned_names = _planned_names(content)
    except FileNotFoundError:
        planned_names = set()  # a plan that was deleted names no files
    except StorageError:
        # It is also an OSError, but the next clause must not call the file damaged.
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            "this is not the plan of a split",
            where=manifest.url(PLAN_FILE),
            found=repr(error),
            remedy="run `nanoset build`",
        ) from error
    return planned_names.union(cache_files(manifest))


def _planned_names(content: bytes) -> set[str]:
    """Return the names of all index files in a stored plan, which may be of an old format.

    Args:
        content: The file of the plan, JSON.

    Returns:
        Names below the trainer's cache, such as "5ce5…-shuffle_index.npy".
    """
    # Each dataset of the split has index files, and so has the blend of several datasets. A sidecar
    # is a note next to the files that says what they were made from.
    plan = json.loads(content)["plan"] or {}
    names: set[str] = set()
    for part in [*plan.get("members", ()), plan.get("blend")]:
        if part:  # a split of one dataset has no blend
            names.update(part["files"].values())
            names.add(part["sidecar"])
    return names
