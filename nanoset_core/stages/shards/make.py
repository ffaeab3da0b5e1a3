"""Tokenize a corpus: make its shards that do not exist yet, and the set that lists all shards.

The text of the corpus is cut into ranges, each of which becomes a shard. A shard that an earlier
build has made of the same text and settings is used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project, holding
from nanoset_core.records.json_records import to_plain
from nanoset_core.stages.inventory.corpora import corpus_folder
from nanoset_core.stages.inventory.make import current_inventory, with_object_marks
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.job import MadeShards, TokenizeJob
from nanoset_core.stages.shards.line_numbers import piece_lines_of_corpus
from nanoset_core.stages.shards.losses import Losses, sum_losses
from nanoset_core.stages.shards.options import end_of_documents_notice, range_bytes, shard_settings
from nanoset_core.stages.shards.shard_sets import (
    BY_SHARD,
    no_text_error,
    reject_policy,
    set_recipe,
)
from nanoset_core.text.files.endings import is_compressed, is_table
from nanoset_core.text.inventory.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.tokenizers.files import define
from nanoset_core.wording import format_bytes

_MANY_SHARDS = 256
"""Shards from which on their set lists the documents of each."""
_BYTES_PER_TOKEN = 4
"""Bytes of stored text in a token, at most about."""
_COMPRESSION = 3
"""Bytes of text in a byte of compressed text, about."""


@holding
def tokenize_corpus(project: Project, corpus: str) -> Manifest:
    """Tokenize the text of a corpus, by several processes and in several files.

    The text is divided into ranges. The tokens of each become a shard, a folder of its own. Shards
    that exist already are kept, so after new text was added, only that is tokenized. Meanwhile,
    `nanoset gc` deletes none of them (`holding`).

        range of text                 its shard
        a.jsonl, 0 to 256 MiB         3f9c…    exists
        a.jsonl, 256 to 400 MiB       a07e…    exists
        b.jsonl (new)                 b113…    is made now

    Args:
        project: Its settings are read, and its output root gets the shards.
        corpus: Name of the corpus, a folder of raw text.

    Returns:
        The manifest of the corpus's list of shards, with counts of documents, tokens and so on.

    Raises:
        InputError: There is no text, or more was lost than is allowed.
        SourceChangedError: A file has changed since the inventory was made.
    """
    inventory_manifest, inventory = current_inventory(project, corpus)  # the list of files
    _show_notices(project)
    result = _make_shards_without_erased(project, corpus, inventory)
    losses = sum_losses(result.shards, inventory.pieces)
    _check_text(project, corpus, losses)

    made_from = {"inventory": inventory_manifest.digest}
    recipe = set_recipe(project, corpus, made_from, result.options)
    facts = _facts_of_set(result.shards, losses, inventory)
    return project.outputs.commit_record(recipe, facts)


def _show_notices(project: Project) -> None:
    """Tell the user what is unusual about the tokenizer, and how documents end.

        EOD '<|endoftext|>' (id 50256)

    Args:
        project: Its tokenizer is read, and its log gets the notices.
    """
    for notice in define(project.tokenizer.file).notices:
        project.progress.note(f"notice: {notice}")
    project.progress.note(end_of_documents_notice(project))


def _facts_of_set(
    shards: Sequence[Manifest], losses: Losses, inventory: Inventory
) -> dict[str, Any]:
    """Return what is recorded about a tokenized corpus: its counts, and its shards.

        {"documents": 1000, "tokens": 250000, "rejected": 3, …, "shards": ["3f9c…", "a07e…"]}

    If there are very many shards, the number of documents of each is recorded, too. Readers need
    it, and to open the manifests of all shards takes long.

    Args:
        shards: The shards, in document order: the parts in which the corpus was tokenized.
        losses: The sums of their counts, also of lines that could not be used.
        inventory: The files of the corpus, which may be divided into pieces.
    """
    facts: dict[str, Any] = {
        **to_plain(losses.facts),  # "documents", "tokens", "rejected" and so on
        **piece_lines_of_corpus(shards, inventory.pieces),
        SHARDS: [shard.digest for shard in shards],
    }
    if len(shards) >= _MANY_SHARDS:
        facts[BY_SHARD] = [shard.facts["documents"] for shard in shards]
    return facts


def _check_text(project: Project, corpus: str, lost: Losses) -> None:
    """Check that a corpus has text, and that not more of it was lost than the settings allow.

    For example, 3 of 1,000 lines were no JSON, and 1 % of the lines may be lost: fine.

    Args:
        project: Its limits for lost text are read.
        corpus: Name of the corpus.
        lost: What was lost, and the counts of what was read.

    Raises:
        InputError: There is no text, or more was lost than is allowed.
    """
    folder = project.config.corpus_folder(corpus)
    reject_policy(project, corpus).check(lost, folder)
    if lost.facts.tokens == 0:
        raise no_text_error(project, corpus, lost)


def _make_shards_without_erased(project: Project, corpus: str, inventory: Inventory) -> MadeShards:
    """Tokenize a corpus without documents that were erased from it, even if they come back.

    A user may erase documents, for example because their author has asked for it. If a new file
    contains them again, the first attempt finds that out. Their places are recorded, and the next
    attempt leaves them out.

    Args:
        project: Its settings are read, and its output root gets the shards.
        corpus: Name of the corpus.
        inventory: The files of the corpus.

    Returns:
        All shards of the corpus. The options that decided their tokens name the erased documents.
    """
    while True:
        try:
            return _make_shards(project, corpus, inventory)
        except purged.ReturnedDocumentsError as error:
            # Record the places, and try again: the recorded documents are left out then.
            n_documents = len(error.places)
            folder = project.config.corpus_folder(corpus)
            project.progress.note(
                f"{n_documents:,} documents that were erased are in {folder} again, and left out"
            )
            purged.add_record(project.outputs, corpus, error.places)


def _make_shards(project: Project, corpus: str, inventory: Inventory) -> MadeShards:
    """Make the shards that do not exist yet, one for each range of a corpus's text.

    Args:
        project: Its settings are read, and its output root gets the shards.
        corpus: Name of the corpus.
        inventory: The files of the corpus, which are cut into ranges here.

    Returns:
        All shards of the corpus, and the options that decided their tokens.

    Raises:
        ReturnedDocumentsError: Erased documents are in the text again, in places that are not
            recorded.
        NanosetError: For the reasons that `TokenizeJob.run` names.
    """
    folder = corpus_folder(project, corpus)
    erased = purged.read_erased(project.outputs, corpus, again=True)
    ranges = purged.leave_out(cut_ranges(inventory, range_bytes(project)), erased)
    ranges = with_object_marks(project, folder, ranges)

    settings = shard_settings(project, corpus)
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
    result = job.run()
    return MadeShards(result.shards, options=result.options | purged.recipe_options(erased))


@dataclass(frozen=True, slots=True)
class _DiskLimits:
    """How much may be made at the same time on a disk with little room."""

    workers: int
    """Shards that are made at the same time."""
    room_bytes: int
    """Bytes that these shards may take; 0 for any number."""


def _disk_limits(project: Project, corpus: str, ranges: Sequence[SourceRange]) -> _DiskLimits:
    """Return how many shards can be made at the same time on a disk with little room.

    A shard is the tokens of a range of text. If the outputs are in a bucket, each shard is written
    to the disk of this machine before it is uploaded, and a setting limits the room for that
    (`storage.scratch_mib`). For example, with 8 worker processes:

        room for shards       3 GiB
        largest shard         1.2 GiB, estimated from its text
        result                2 workers, which need 2.4 GiB

    Args:
        project: Its number of workers, and the room for its outputs, are read.
        corpus: Name of the corpus.
        ranges: The ranges of its text, each of which becomes a shard.

    Raises:
        StorageError: A shard is certainly larger than the room.
    """
    workers = project.config.workers
    room_bytes = project.outputs.access.room
    if room_bytes is None or not ranges:
        return _DiskLimits(workers, room_bytes=0)  # 0 stands for no limit

    _check_room(project, corpus, ranges, room_bytes)
    shard_bytes = _largest_shard_bytes(ranges)
    is_on_cluster = project.executor is not None
    if is_on_cluster:  # each worker has this room for itself, and makes one shard at a time
        return _DiskLimits(workers, room_bytes=min(room_bytes, shard_bytes))
    workers = _workers_with_room(project, room_bytes // shard_bytes)
    return _DiskLimits(workers, room_bytes=min(room_bytes, shard_bytes * workers))


def _workers_with_room(project: Project, n_fitting_shards: int) -> int:
    """Return how many processes of this machine can make shards, if the disk has little room.

    Each makes one shard at a time. One of them can work in any case. The user is told if these are
    fewer than the settings allow.

    Args:
        project: Its number of workers is read, and its log gets the notice.
        n_fitting_shards: How many shards of the largest size fit on the disk.
    """
    max_workers = project.config.workers
    workers = max(1, min(max_workers, n_fitting_shards))
    if workers < max_workers:
        project.progress.note(
            f"{workers} of {max_workers} workers: storage.scratch_mib has no room for more shards"
        )
    return workers


def _largest_shard_bytes(ranges: Sequence[SourceRange]) -> int:
    """Estimate how many bytes the files of the largest shard of a corpus will have.

    A shard has the tokens of a range of text. Its files are taken to be 1.5 times as large as this
    text.

    Args:
        ranges: The ranges, at least one.
    """
    largest_text_bytes = max(_text_bytes(source) for source in ranges)
    return largest_text_bytes * 3 // 2


def _check_room(
    project: Project, corpus: str, ranges: Sequence[SourceRange], room_bytes: int
) -> None:
    """Refuse to tokenize a corpus if a part of it certainly does not fit on the disk.

    The text is divided into ranges, and the tokens of each are written to one file. A token stands
    for up to 4 bytes of text, about. So a range of 1 GiB has at least 256 Mi tokens, or with 2
    bytes for each, 512 MiB.

    Args:
        project: The size of its token ids is read; its settings are for the error.
        corpus: Name of the corpus.
        ranges: The ranges of its text.
        room_bytes: Bytes that files on the disk may take: three quarters of the setting
            `storage.scratch_mib`.

    Raises:
        StorageError: A file is certainly larger than the room.
    """
    largest_text_bytes = max(source.size for source in ranges)  # compressed text counts as it is
    least_tokens = largest_text_bytes // _BYTES_PER_TOKEN
    least_bytes = least_tokens * project.tokenizer.dtype.itemsize
    if least_bytes > room_bytes:
        raise StorageError(
            "a shard is larger than the room for working copies",
            where=project.config.corpus_folder(corpus),
            found=f"about {format_bytes(least_bytes)} of tokens in "
            f"{format_bytes(largest_text_bytes)} of text as stored",
            expected=f"at most {format_bytes(room_bytes)}, three quarters of storage.scratch_mib",
            remedy="set storage.scratch_mib to more, or tokenization.range_mib to less; "
            "keep compressed text and tables in smaller files",
        )


def _text_bytes(source: SourceRange) -> int:
    """Estimate the bytes of text in a range: for compressed files, three times what is stored.

    Args:
        source: The range, which names its files, such as a.jsonl.gz.
    """
    may_be_compressed = any(is_compressed(path) or is_table(path) for path in source.files)
    return source.size * _COMPRESSION if may_be_compressed else source.size
