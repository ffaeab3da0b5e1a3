"""The facts that the manifest of a split records, and how others read them.

A split has two outputs, its index mappings and its blend. Their manifests have the same facts:

- `samples`: length of the split's dataset, as the trainer counts it.
- `blended`: whether it is a mixture of datasets.
- `members`: what is read of each dataset.
- `corpora`: what is read of each corpus, through all datasets that hold its documents.
- `lacking`: why the split has no sample although it has a share of the data.
- `limit_warnings`: which documents may be read more often than `max_epochs` says, if there are any.
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
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit
from nanoset_core.stages.mappings.rows import unused_samples_of
from nanoset_core.stages.mappings.writing import FileEntries

CORPORA = "corpora"
LIMIT_WARNINGS = "limit_warnings"
MIXTURE = "mixture"
CACHE_FILES = "cache_files"


def split_facts(
    nanoset: NanosetContext, planned: PlannedSplit, samples_given: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return what is recorded of a split of the training data, for `nanoset status` to show.

    For example, train reads 1,000 samples of the corpus web, a collection of texts. It reads them
    from two datasets: one with all of web, and one with the best texts of web (a view):

        samples           1000
        blended           True: samples of several datasets are mixed
        members           what is read of each dataset, such as 0.7 epochs, and 0.4 epochs
        corpora           how often the texts of web are read, through both datasets
        limit_warnings    texts that may be read too often, since they are in both
        mixture           what each part gets of a `mix`, a tree of shares in nanoset.yaml
        lacking           why the split has no sample, if it has too little data for one

    The last three are left out if there is nothing to say. A split without data has no `corpora`.

    Args:
        nanoset: The training data.
        planned: The plan of the split: how many samples it reads of which datasets.
        samples_given: How many samples it reads of each dataset, if these were counted; otherwise,
            as many as planned.

    Returns:
        Name of a fact → JSON value.
    """
    plan = planned.plan
    facts: dict[str, Any]
    if plan is None:
        facts = {"samples": 0, "blended": False, "members": []}
    else:
        members = _members_read(planned, plan, samples_given)
        corpora = nanoset.corpora(planned, members)
        facts = {
            "samples": plan.samples,
            "blended": plan.blend is not None,
            "members": _member_facts(planned.corpora, members, plan.members),
            CORPORA: [corpus.to_json() for corpus in corpora],
        }
        limit_warnings = nanoset.limit_warnings(planned)
        if limit_warnings:
            facts[LIMIT_WARNINGS] = limit_warnings
    if planned.mixture:
        facts[MIXTURE] = [asdict(row) for row in planned.mixture]
    if planned.lacking is not None:
        facts[LACKING] = planned.lacking
    return facts


def _members_read(
    planned: PlannedSplit, plan: SplitPlan, samples_given: Sequence[int] | None
) -> Sequence[MemberCoverage]:
    """Return how much is read of each dataset of a split, such as 700 samples, or 0.35 epochs.

    The plan says it, but for many samples it only estimates the numbers. If the true numbers are
    known, it is computed again from these.

    Args:
        planned: The split, with what is planned to be read of each dataset.
        plan: Its plan.
        samples_given: The true numbers of samples, such as [700, 300]; None if they are not known.
    """
    if samples_given is None:
        return planned.members

    # The result also says how often each dataset may be read.
    limit_by_prefix: dict[str, float] = {}
    for member in planned.members:
        if member.max_epochs is not None:
            limit_by_prefix[member.prefix] = member.max_epochs
    return coverage(plan, planned.config, limit_by_prefix, samples_given)


def _member_facts(
    names: Sequence[str], members: Sequence[MemberCoverage], plans: Sequence[MemberPlan]
) -> list[dict[str, Any]]:
    """Return what is recorded of each dataset: `{"corpus": "web", "epochs": 0.35, …}`.

    Args:
        names: Name of each dataset: that of a corpus, or of a selection of its documents.
        members: What is read of each dataset.
        plans: What was planned for each dataset.
    """
    facts = []
    for name, member, plan in zip(names, members, plans, strict=True):
        values = member.to_json()
        del values["prefix"]  # a path of this machine, but outputs may be copied to another one
        facts.append({"corpus": name, **values, "epochs_built": plan.epochs})
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


def tokens_read(facts: Mapping[str, Any], sequence_length: int) -> int:
    """Add up how many tokens a training run reads of all datasets of a split.

    Args:
        facts: Facts about the split. Each entry of `members` is a dataset, such as
            `{"corpus": "web", "samples_given": 1000, "tokens_taken": 2048000, …}`. Old records have
            no `tokens_taken`.
        sequence_length: Number of tokens in a sample, such as 2,048, by which the tokens of old
            records are computed: 1,000 * 2,048.
    """
    n_tokens = 0
    for member in facts["members"]:
        if "tokens_taken" in member:
            n_tokens += member["tokens_taken"]
        else:
            n_tokens += member["samples_given"] * sequence_length
    return n_tokens


def unused_samples(facts: Mapping[str, Any]) -> int:
    """Return how many samples a split's index files contain that the run does not read.

    Args:
        facts: Facts in the manifest of the split's index mappings or blend.

    Returns:
        The sum over all datasets of the split.
    """
    return sum(unused_samples_of(member) for member in facts["members"])


def unused_tokens(facts: Mapping[str, Any]) -> int | None:
    """Return how many tokens of a split no sample contains, or None if this is not known.

    A token that is read through one dataset is used, even if other datasets contain it, too. For
    example, the run reads all of web, and a part of half, a selection of its documents:

        dataset    tokens    tokens that none of its samples contains
        web        1,000     0
        half         500     200      the run reads them through web: the result is 0

    Args:
        facts: What is recorded of the split. `members` are its datasets: `[{"corpus": "web",
            "tokens": 1000, "tokens_unseen": 0, …}, …]`. `corpora` says which datasets have
            documents of the same collection of texts: `[{"members": ["web", "half"], …}]`. Old
            records have no `corpora`: then datasets count as if they shared no documents.

    Returns:
        The number. It is an estimate if several datasets have the same documents, and samples of
        them are chosen at random.
    """
    uncounted = {member["corpus"]: member for member in facts["members"]}
    counts: list[int | None] = []
    for corpus in facts.get(CORPORA, ()):
        names = corpus["members"]  # ["web", "half"]
        if not all(name in uncounted for name in names):
            return None  # one of them was read by an earlier phase of the run: how much is unknown
        members = [uncounted.pop(name) for name in names]
        counts.append(_unused_tokens_of_corpus(corpus, members))
    counts += [member["tokens_unseen"] for member in uncounted.values()]
    return _sum_if_known(counts)


def _unused_tokens_of_corpus(
    corpus: Mapping[str, Any], members: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return how many tokens of a collection of texts no training sample contains.

    Several datasets may have been made from the texts. For a collection of 1,000 tokens:

        tokens of the datasets    result
        half 500, rest 500        no document is in both: the sum of their unused tokens
        web 1000, half 500        some documents are in both: 1,000 - the tokens that are read
                                  through any of the two (`unique_tokens`)

    `unique_tokens` are those of one phase of the training run. If some documents are in both, and
    an earlier phase has read some of them, too, the number is not known.

    Args:
        corpus: What is recorded of the collection: `{"tokens_available": 1000, "unique_tokens":
            990, …}`.
        members: What is recorded of each dataset: `{"tokens": 500, "tokens_unseen": 10, …}`.

    Returns:
        The number, or None if it is not known.
    """
    n_tokens = sum(member["tokens"] for member in members)
    has_common_documents = n_tokens != corpus["tokens_available"]
    if not has_common_documents:
        return _sum_if_known([member["tokens_unseen"] for member in members])

    was_read_before = any(member.get("before") for member in members)
    if was_read_before:
        return None
    n_unused: int = corpus["tokens_available"] - corpus["unique_tokens"]
    return n_unused


def _sum_if_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum of some counts, or None if one of them is None."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def cache_files(manifest: Manifest) -> FileEntries:
    """Return the size and sha256 of each of the trainer's index files that belong to a split.

    Args:
        manifest: Manifest of the split's index mappings or blend.

    Returns:
        Name in the cache folder → `{"bytes": size, "sha256": digest}`; empty for outputs that do
        not record them.
    """
    entries: FileEntries = manifest.facts.get(CACHE_FILES, {})
    return entries


def files_in_use(manifest: Manifest) -> set[str]:
    """Return the names of the index files that a split of the training data needs.

    `nanoset gc` deletes other files from the folder in which they are.

    Args:
        manifest: The record of the split, which lists its files. Next to it is the plan of the
            split, which also names them.

    Returns:
        Names in either of the two, such as "5ce5…-GPTDataset-train-shuffle_index.npy".

    Raises:
        FormatError: The plan cannot be read.
        StorageError: The bucket cannot be reached.
    """
    return {*cache_files(manifest), *_names_in_plan(manifest)}


def _names_in_plan(manifest: Manifest) -> set[str]:
    """Return the names of the index files in the plan of a split; none if the plan was deleted.

    Args:
        manifest: The record of the split, which has the plan next to it.

    Raises:
        FormatError: The plan cannot be read.
        StorageError: The bucket cannot be reached.
    """
    try:
        content = manifest.access.read_current(manifest.folder / PLAN_FILE)
        return _planned_names(content)
    except FileNotFoundError:
        return set()
    except StorageError:
        raise  # it is also an OSError, but does not mean that the plan is damaged, as below
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            "this is not the plan of a split",
            where=manifest.url(PLAN_FILE),
            found=repr(error),
            remedy="run `nanoset build`",
        ) from error


def _planned_names(content: bytes) -> set[str]:
    """Return the names of all index files in the plan of a split.

    The plan is read as plain JSON, so that plans of older versions can be read, too.

    Args:
        content: The plan: `{"plan": {"members": [{"files": {"shuffle_index": "5ce5…-shuffle_ind…",
            …}, "sidecar": "5ce5…-nanoset.json", …}], "blend": …}}`.
    """
    plan = json.loads(content)["plan"]
    if plan is None:
        return set()  # the split has no data

    parts = list(plan.get("members", ()))  # its datasets
    if plan.get("blend"):
        parts.append(plan["blend"])  # says which dataset each sample is from
    names: set[str] = set()
    for part in parts:
        names.update(part["files"].values())
        names.add(part["sidecar"])  # their receipt, which says what they were made from
    return names
