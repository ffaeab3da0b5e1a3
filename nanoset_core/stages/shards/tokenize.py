"""Tokenize a corpus: make its shards that do not exist yet, and the set that lists all shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import InputError, StorageError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.project.project import Project, holding
from nanoset_core.records.json_records import to_plain
from nanoset_core.records.text import format_bytes
from nanoset_core.stages.inventory.corpora import corpus_folder
from nanoset_core.stages.inventory.make import current_inventory, with_object_marks
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.job import TokenizeJob
from nanoset_core.stages.shards.line_numbers import piece_lines_of_corpus
from nanoset_core.stages.shards.losses import sum_losses
from nanoset_core.stages.shards.make import SHARDS, VERSION
from nanoset_core.stages.shards.options import end_of_documents_notice, range_bytes, shard_settings
from nanoset_core.stages.shards.shard_sets import BY_SHARD, STAGE, reject_policy
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.tokenizers.files import define

_MANY_SHARDS = 256
"""Shards from which on their set lists the documents of each."""
_BYTES_PER_TOKEN = 4
"""Bytes of stored text in a token, at most about."""
_COMPRESSION = 3
"""Bytes of text in a byte of compressed text, about."""


@holding
def tokenize_corpus(project: Project, corpus: str) -> Manifest:
    """Tokenize the text of a corpus that is new, and make the set of its shards current.

    Raises:
        InputError: There is no text, or more was lost than is allowed.
        SourceChangedError: A file has changed since the inventory was made.
    """
    inventory_manifest, inventory = current_inventory(project, corpus)
    for notice in define(project.tokenizer.file).notices:
        project.progress.note(f"notice: {notice}")
    project.progress.note(end_of_documents_notice(project))

    folder = project.config.corpus_folder(corpus)
    while True:
        try:
            shards, options = _make_shards(project, corpus, inventory)
            break
        except purged.ReturnedDocumentsError as error:
            # Erased documents are back in the text: record where, and leave them out.
            n_documents = len(error.places)
            project.progress.note(
                f"{n_documents:,} documents that were erased are in {folder} again, and left out"
            )
            purged.add_record(project.outputs, corpus, error.places)

    # The options name the engines and the erased documents that were left out, including those that
    # were found meanwhile.
    recipe = set_recipe(project, corpus, {"inventory": inventory_manifest.digest}, options)
    lost = sum_losses(shards, inventory.pieces)
    reject_policy(project, corpus).check(lost, folder)
    if lost.facts.tokens == 0:
        raise InputError(
            "the corpus holds no text",
            where=folder,
            found=lost.facts.described(),
            expected="at least one document with text",
            remedy="add documents, or remove the folder",
        )

    def write(folder: Path) -> Written:
        facts = {
            **to_plain(lost.facts),
            **piece_lines_of_corpus(shards, inventory.pieces),
            SHARDS: [shard.digest for shard in shards],
        }
        if len(shards) >= _MANY_SHARDS:
            facts[BY_SHARD] = [shard.facts["documents"] for shard in shards]
        return Written(facts)

    return project.outputs.make_current(project.outputs.commit(recipe, write))


def set_recipe(
    project: Project, corpus: str, parents: Mapping[str, str], options: Mapping[str, Any]
) -> Recipe:
    """Return the recipe of the set of a corpus's shards."""
    return Recipe(STAGE, corpus, VERSION, parents, {**options, "range_bytes": range_bytes(project)})


def _make_shards(
    project: Project, corpus: str, inventory: Inventory
) -> tuple[Sequence[Manifest], dict[str, Any]]:
    """Make the shards that do not exist yet; return all of them, and the options of their set.

    Raises:
        ReturnedDocumentsError: Erased documents are in the text again.
        NanosetError: As `TokenizeJob.run`.
    """
    settings = shard_settings(project, corpus)
    folder = corpus_folder(project, corpus)
    erased = purged.read_erased(project.outputs, corpus, again=True)
    ranges = purged.leave_out(cut_ranges(inventory, range_bytes(project)), erased)
    ranges = with_object_marks(project, folder, ranges)
    limits = _disk_limits(project, corpus, ranges)
    job = TokenizeJob(
        root=project.outputs,
        corpus=corpus,
        folder=folder,
        ranges=ranges,
        options=settings.recipe_options(project.tokenizer.fingerprint),
        settings=replace(settings, room=limits.room_bytes),
        workers=limits.workers,
        executor=project.executor,
        progress=project.progress,
        activity="tokenized_shards",
        subject=corpus,
        text_bytes=sum(source.size for source in ranges),
        look_first=not project.rebuild,
    )
    shards, options = job.run()
    return shards, options | purged.recipe_options(erased)


@dataclass(frozen=True, slots=True)
class _DiskLimits:
    """How much may be made at the same time on a disk with little room."""

    workers: int
    """Shards that are made at the same time."""
    room_bytes: int
    """Bytes that these shards may take; 0 for any number."""


def _disk_limits(project: Project, corpus: str, ranges: Sequence[SourceRange]) -> _DiskLimits:
    """Return how many shards can be made at the same time in the room for working copies.

    A shard is estimated to take 1.5 times its text, and compressed text to be three times as long
    as it is stored.

    Raises:
        StorageError: A shard is certainly larger than the room.
    """
    room_bytes = project.outputs.access.room
    workers = project.config.workers
    if room_bytes is None or not ranges:
        return _DiskLimits(workers, 0)

    largest = max(source.size for source in ranges)
    least_token_bytes = largest // _BYTES_PER_TOKEN * project.tokenizer.dtype.itemsize
    if least_token_bytes > room_bytes:
        raise StorageError(
            "a shard is larger than the room for working copies",
            where=project.config.corpus_folder(corpus),
            found=f"about {format_bytes(least_token_bytes)} of tokens in "
            f"{format_bytes(largest)} of text as stored",
            expected=f"at most {format_bytes(room_bytes)}, three quarters of storage.scratch_mib",
            remedy="set storage.scratch_mib to more, or tokenization.range_mib to less; "
            "keep compressed text and tables in smaller files",
        )

    shard_bytes = max(_text_bytes(source) for source in ranges) * 3 // 2
    if project.executor is not None:
        # Each of the other machines has this room for its own shards.
        return _DiskLimits(workers, min(room_bytes, shard_bytes))
    at_once = max(1, min(workers, room_bytes // shard_bytes))
    if at_once < workers:
        project.progress.note(
            f"{at_once} of {workers} workers: storage.scratch_mib has no room for more shards"
        )
    return _DiskLimits(at_once, min(room_bytes, shard_bytes * at_once))


def _text_bytes(source: SourceRange) -> int:
    """Estimate the bytes of text in a range, which are more than are stored in compressed files."""
    is_plain = all(is_cuttable(path) for path in source.files)
    return source.size if is_plain else source.size * _COMPRESSION
