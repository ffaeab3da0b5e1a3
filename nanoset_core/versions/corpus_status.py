"""The state of a corpus: its files, shards and merged dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nanoset_core.errors import NanosetError
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.pipeline import indexed, raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import cut_ranges
from nanoset_core.tokenization.shards import REJECTS, ShardFacts
from nanoset_core.versions.live import Live, live_version
from nanoset_core.versions.rows import Row, State, state_of, stored_bytes
from nanoset_core.versions.stat_survey import Budget, StatSurvey, survey_stats


@dataclass(frozen=True, slots=True)
class CorpusStatus:
    """What is known of a corpus."""

    row: Row
    dataset: str | None
    """digest of the merged dataset that belongs to its files as they are now; None where that cannot be told"""


@dataclass(frozen=True, slots=True)
class _Chain:
    project: Project
    corpus: str
    inventory: Live
    tokenized: Live
    dataset: Live

    def row(self, state: State, why: list[str], *, busy: bool) -> Row:
        dataset, inventory, tokenized = self.dataset.manifest, self.inventory.manifest, self.tokenized.manifest
        figures = {"files": int(inventory.facts["files"])} if inventory is not None else {}
        if dataset is not None:
            figures |= {name: int(dataset.facts[name]) for name in ("documents", "tokens")}
            figures |= {"rejected": dataset.facts["rejected"] + dataset.facts["faults"], "bytes": stored_bytes(dataset)}
        rejects = () if tokenized is None else tuple(_reject_files(self.project, self.corpus, tokenized.facts))
        return Row("corpus", self.corpus, None, state, tuple(why), figures, self.dataset.made_at, busy, rejects)


def corpus_status(project: Project, corpus: str, budget: Budget, *, busy: bool = False) -> CorpusStatus:
    """Compare a corpus's outputs with its files and the present settings; a corpus that cannot be read is failing."""
    stages = (raw.STAGE, tokenization.STAGE, indexed.STAGE)
    chain = _Chain(project, corpus, *(live_version(project, stage, corpus) for stage in stages))
    whole = chain.inventory.manifest if chain.inventory.problem is None else None
    try:
        survey = survey_stats(project, corpus, whole, budget)
    except (NanosetError, OSError) as error:
        return CorpusStatus(chain.row("failing", [said(error)], busy=busy), None)
    if survey.snapshot is None:
        why = [chain.inventory.problem or str(survey.changes)]
        return CorpusStatus(chain.row(state_of(chain.dataset, why), why, busy=busy), None)
    wanted = indexed.dataset_recipe(project, corpus, survey.snapshot)
    shards = tokenization.tokenized_recipe(project, corpus, survey.snapshot)
    why = list(dict.fromkeys(_reasons(chain, survey, shards, wanted)))
    if why and (refusal := _refusal(chain, survey, shards)):
        return CorpusStatus(chain.row("failing", [refusal], busy=busy), wanted.digest)
    return CorpusStatus(chain.row(state_of(chain.dataset, why), why, busy=busy), wanted.digest)


def said(error: BaseException) -> str:
    """An error in one line."""
    if not isinstance(error, NanosetError):
        return str(error)
    found = f" ({error.found})" if error.found else ""
    return f"{error.what}{found}: {error.where}" if error.where else error.what + found


def _reasons(chain: _Chain, survey: StatSurvey, shards: Recipe, wanted: Recipe) -> Iterator[str]:
    """Why the chain is not done, from its beginning; what only follows from an earlier reason is left out."""
    project = chain.project
    changed = (
        survey.snapshot != getattr(chain.inventory.manifest, "digest", None) or chain.inventory.problem is not None
    )
    if changed:
        yield chain.inventory.problem or str(survey.changes) or "the inventory's format changed"
    for live, recipe in ((chain.tokenized, shards), (chain.dataset, wanted)):
        for reason in live.why_not(recipe):
            if reason != "inventory changed":
                yield reason
            elif not changed:
                yield "files changed since it was built"
    if not chain.tokenized.why_not(shards) and not tokenization.are_shards_whole(project, shards):
        yield "a shard is missing or damaged, or holds more rejects than are allowed now"


def _refusal(chain: _Chain, survey: StatSurvey, shards: Recipe) -> str | None:
    """Why the corpus would be refused, where all its shards are there to tell."""
    facts = _counts(chain, survey, shards)
    if facts is None or tokenization.is_allowed(chain.project, facts):
        return None
    rejected = facts.rejected + facts.faults
    return f"{rejected:,} of {facts.lines:,} lines rejected, which is more than allowed ({_spelled(facts.reasons)})"


def _counts(chain: _Chain, survey: StatSurvey, shards: Recipe) -> ShardFacts | None:
    if chain.tokenized.manifest is not None and chain.tokenized.manifest.digest == shards.digest:
        return tokenization.tokenized_facts(chain.tokenized.manifest)
    project, corpus = chain.project, chain.corpus
    inventory = survey.inventory or raw.current_inventory(project, corpus)[1]
    total = ShardFacts()
    for source in cut_ranges(inventory, shards.options["range_bytes"]):
        shard = project.outputs.find(tokenization.shard_recipe(project, corpus, source))
        if shard is None:
            return None
        total += ShardFacts(**shard.facts)
    return total


def _reject_files(project: Project, corpus: str, facts: dict) -> Iterator[str]:
    """Files with rejected lines among the shards of a tokenized corpus."""
    if facts["rejected"] + facts["faults"]:
        for digest in facts["shards"]:
            try:
                shard = project.outputs.manifest_at(project.outputs.folder / tokenization.SHARDS / corpus / digest)
            except NanosetError:
                continue  # the shard is damaged, which is told as such
            if shard is not None and shard.facts["reasons"]:
                yield shard.url(REJECTS)


def _spelled(reasons: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
