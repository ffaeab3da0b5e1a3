"""tokenization: the corpus's source ranges → content-addressed shards, in worker processes."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import Manifest, Recipe, read_manifest
from nanoset_core.pipeline.project import Project, holding
from nanoset_core.pipeline.raw import corpus_folder, current_inventory
from nanoset_core.raw.corpus import SourceRange, cut_ranges
from nanoset_core.storage.atomic import sweep_abandoned
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.tokenization.framing import Framing, make_framing
from nanoset_core.tokenization.shards import REJECTS, VERSION, ShardFacts, ShardTask, make_shard

STAGE = "tokenized"
SHARDS = "shards"


def tokenized_recipe(project: Project, corpus: str, inventory_digest: str) -> Recipe:
    """What a corpus's shards, taken together, are made from; how they are cut is part of it."""
    options = token_options(project) | {"range_bytes": _range_bytes(project)}
    return Recipe(STAGE, corpus, VERSION, {"inventory": inventory_digest}, options)


def shard_recipe(project: Project, corpus: str, source: SourceRange) -> Recipe:
    """What one shard is made from."""
    return Recipe(SHARDS, corpus, VERSION, {"source": source.digest}, token_options(project))


def token_options(project: Project) -> dict[str, Any]:
    """The settings that reach the tokens."""
    config = project.config
    return {
        "tokenizer": project.tokenizer.fingerprint,
        "dtype": project.tokenizer.dtype.name,
        "framing": framing(project).to_json(),
        "text_key": config.documents.text_key,
        "id_key": config.documents.id_key,
        "max_line_bytes": _max_line_bytes(project),
    }


def framing(project: Project) -> Framing:
    """What is put around each document's tokens."""
    settings = project.config.tokenization
    return make_framing(
        settings.preset,
        project.config.tokenizer_file,
        bos=project.bos if settings.prepend_bos else None,
        eod=project.eod if settings.append_eod else None,
    )


def _range_bytes(project: Project) -> int:
    return int(project.config.tokenization.range_mib * (1 << 20))


def _max_line_bytes(project: Project) -> int:
    return int(project.config.documents.max_line_mib * (1 << 20))


@holding
def tokenize(project: Project, corpus: str) -> Manifest:
    """Tokenize what is not yet tokenized of a corpus's current inventory; make the set of its shards current.

    Raises:
        InputError: no documents at all, or more rejected than documents.max_rejected_fraction allows, or any where
            documents.on_reject is `fail`.
        SourceChangedError: a file is not as the inventory found it.
    """
    inventory_manifest, inventory = current_inventory(project, corpus)
    recipe = tokenized_recipe(project, corpus, inventory_manifest.digest)
    ranges = cut_ranges(inventory, _range_bytes(project))
    shards = _make_shards(project, corpus, ranges)
    facts = sum((ShardFacts(**shard.facts) for shard in shards), ShardFacts())
    _check_counts(project, corpus, facts, shards)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        return asdict(facts) | {"shards": [shard.digest for shard in shards]}, {}

    manifest = project.outputs.publish(recipe, write)
    project.outputs.make_current(manifest)
    return manifest


def current_shards(project: Project, tokenized: Manifest) -> list[Manifest]:
    """The shards of a tokenized corpus in document order.

    Raises:
        MissingError: a shard is gone or damaged.
    """
    place = project.outputs.folder / SHARDS / tokenized.name
    digests = tokenized.facts["shards"]
    if project.outputs.mirror is not None:
        from nanoset_core.storage.s3 import in_parallel

        return in_parallel(lambda digest: _require_shard(place / digest, tokenized.name), digests, CONNECTIONS)
    return [_require_shard(place / digest, tokenized.name) for digest in digests]


def are_shards_whole(project: Project, recipe: Recipe) -> bool:
    """Whether every shard of a tokenized corpus is there with all its files, and no more rejects than are allowed."""
    tokenized = project.outputs.find(recipe)
    if tokenized is None or not is_allowed(project, _counts(tokenized)):
        return False
    try:
        current_shards(project, tokenized)
    except NanosetError:
        return False
    return True


def _counts(tokenized: Manifest) -> ShardFacts:
    return ShardFacts(**{name: value for name, value in tokenized.facts.items() if name != SHARDS})


def _require_shard(folder: Path, corpus: str) -> Manifest:
    manifest = read_manifest(folder)
    damage = "its manifest is missing" if manifest is None else manifest.damage()
    if manifest is None or damage:
        raise MissingError(
            "a shard is not whole",
            where=folder,
            found=damage,
            remedy=f"materialise tokenized_shards for the corpus {corpus!r} again",
        )
    return manifest


def _make_shards(project: Project, corpus: str, ranges: list[SourceRange]) -> list[Manifest]:
    tasks = [_task(project, corpus, source) for source in ranges]
    shards = _sent_shards(project, tasks)
    missing = [number for number in range(len(tasks)) if number not in shards]
    total = sum(source.size for source in ranges)
    done = sum(ranges[number].size for number in shards)
    documents = sum(shard.facts["documents"] for shard in shards.values())
    tokens = sum(shard.facts["tokens"] for shard in shards.values())
    try:
        with project.outputs.sending() as send:
            remaining = [tasks[number] for number in missing]
            for place, shard in run_tasks(make_shard, remaining, project.config.workers, project.executor):
                send(shard)
                number = missing[place]
                shards[number] = shard
                done += ranges[number].size
                documents += shard.facts["documents"]
                tokens += shard.facts["tokens"]
                project.listener(Progress("tokenized_shards", corpus, done, total, documents=documents, tokens=tokens))
    finally:
        sweep_abandoned(project.outputs.folder / SHARDS / corpus)  # workers of a cancelled run end where they are
    return [shards[number] for number in range(len(ranges))]


def _sent_shards(project: Project, tasks: list[ShardTask]) -> dict[int, Manifest]:
    """Shards that are in the bucket, by the number of their task; none for a local root, where workers look."""
    if project.outputs.mirror is None or project.rebuild:
        return {}
    from nanoset_core.storage.s3 import in_parallel

    found = in_parallel(lambda task: project.outputs.find(task.recipe), tasks, CONNECTIONS)
    return {number: shard for number, shard in enumerate(found) if shard is not None}


def _task(project: Project, corpus: str, source: SourceRange) -> ShardTask:
    config = project.config
    return ShardTask(
        root=replace(project.outputs, here=project.outputs.mirror is not None),
        recipe=shard_recipe(project, corpus, source),
        folder=corpus_folder(project, corpus),
        source=source,
        tokenizer_file=config.tokenizer_file,
        engine=config.tokenization.engine,
        dtype=project.tokenizer.dtype.name,
        max_id=project.tokenizer.max_id,
        framing=framing(project),
        text_key=config.documents.text_key,
        id_key=config.documents.id_key,
        max_line_bytes=_max_line_bytes(project),
        fail_on_reject=config.documents.on_reject == "fail",
    )


def is_allowed(project: Project, facts: ShardFacts) -> bool:
    """Whether a corpus has no more rejects than the present policy allows, whatever it was when they were made."""
    documents = project.config.documents
    share = 0.0 if documents.on_reject == "fail" else documents.max_rejected_fraction
    return facts.rejected + facts.faults <= share * max(facts.lines, 1)


def _check_counts(project: Project, corpus: str, facts: ShardFacts, shards: list[Manifest]) -> None:
    folder = corpus_folder(project, corpus)
    listing = ", ".join(str(shard.path(REJECTS)) for shard in shards if shard.facts["reasons"])
    found = f"{facts.lines:,} lines, {facts.rejected:,} rejected, {facts.faults:,} unreadable file(s)"
    found += (
        f" ({', '.join(f'{reason} {count:,}' for reason, count in facts.reasons.items())})" if facts.reasons else ""
    )
    if not is_allowed(project, facts):
        documents = project.config.documents
        limit = f"at most {documents.max_rejected_fraction:.2%} rejected (documents.max_rejected_fraction)"
        raise InputError(
            "too many lines are no documents",
            where=folder,
            found=found,
            expected="none rejected (documents.on_reject: fail)" if documents.on_reject == "fail" else limit,
            remedy=f"mend them, or raise the limit; each is listed in {listing}",
        )
    if facts.tokens == 0:
        raise InputError(
            "the corpus holds no text",
            where=folder,
            found=found,
            expected="at least one document with text",
            remedy="add documents, or remove the folder",
        )
