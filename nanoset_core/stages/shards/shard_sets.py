"""The set of shards that a corpus consists of: its shards, and what was lost on the way to them.

A shard has the tokens of one range of a corpus's text. The set has no files but its manifest, which
lists the digests of the shards, in document order, and has the sums of their counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import FormatError, InputError, MissingError
from nanoset_core.outputs.erasures import missing_version
from nanoset_core.outputs.manifest import Manifest, PackedManifests, Recipe, pack
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import inventory_at, inventory_of
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.losses import Losses, stored_sizes, sum_losses
from nanoset_core.stages.shards.names import FOLDER, SHARDS_FOLDER, VERSION
from nanoset_core.stages.shards.one_shard import REJECTS, shard_recipe
from nanoset_core.stages.shards.options import range_bytes, shard_options
from nanoset_core.stages.shards.reject_policy import RejectPolicy, SettingNames
from nanoset_core.stages.shards.repeats import repeats_text
from nanoset_core.stages.shards.settings import DocumentsSpec
from nanoset_core.text.inventory.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.text.rejects import RejectOptions

T = TypeVar("T")
BY_SHARD = "documents_by_shard"
"""Fact of a set with many shards: documents of each, since asking each shard for it takes long."""
_NAMES_IN_YAML = SettingNames(
    on_reject="documents.on_reject: fail",
    rejected="documents.max_rejected_fraction",
    unreadable="documents.max_unreadable_fraction",
    text_key="documents.text_key",
)


def set_recipe(
    project: Project, corpus: str, parents: Mapping[str, str], options: Mapping[str, Any]
) -> Recipe:
    """Return the recipe of a tokenized corpus: everything that decides which shards it consists of.

    A shard has the tokens of a range of the text. If the recipe is that of the stored shards, the
    corpus need not be tokenized again. It has:

        the text                     {"inventory": "3f9c…"}, a digest of the list of all files
        how it is tokenized          the tokenizer and so on
        how long the ranges are      256 MiB, for example

    Args:
        project: Its setting `tokenization.range_mib` is read.
        corpus: Name of the corpus.
        parents: `{"inventory": "3f9c…"}`
        options: What decides the tokens; see `token_options`.
    """
    all_options = {**options, "range_bytes": range_bytes(project)}
    return Recipe(FOLDER, corpus, VERSION, parents, all_options)


def current_shards(project: Project, tokenized: Manifest) -> Sequence[Manifest]:
    """Return the shards of a tokenized corpus, after checking that none of their files is missing.

    A shard has the tokens of a part of the corpus, in a folder such as shards/web/3f9c…. The
    manifest of the corpus lists the names of these folders.

    Args:
        project: Its outputs are read.
        tokenized: Manifest of the tokenized corpus.

    Returns:
        A manifest for each shard, in document order. There may be 100,000 of them, so they are
        compressed in memory.

    Raises:
        MissingError: A shard is missing or damaged.
    """
    return some_shards(project, tokenized.name, tokenized.facts[SHARDS])


def some_shards(project: Project, corpus: str, digests: Sequence[str]) -> Sequence[Manifest]:
    """Return the manifests of some shards of a corpus, after checking the sizes of their files.

    A shard has the tokens of a part of the corpus, and its manifest says what it contains.

    Args:
        project: Its outputs are read.
        corpus: Name of the corpus.
        digests: Which shards, such as ["3f9c…", "a07e…"]: the names of their folders.

    Returns:
        The manifests, in the order of the digests. There may be 100,000, so they are compressed in
        memory, and each is unpacked when it is used.

    Raises:
        MissingError: A shard is missing or damaged.
    """
    packed = each_shard(project, corpus, digests, pack)  # checks each shard, and packs its manifest
    return PackedManifests(packed, project.outputs.access)


def each_shard(
    project: Project, corpus: str, digests: Sequence[str], work: Callable[[Manifest], T]
) -> list[T]:
    """Call a function for each of some shards, after checking that none of its files is missing.

    A shard has the tokens of a part of a corpus, in a folder that is named after its digest:

        shards/web/3f9c…/tokens.bin, tokens.idx, documents.parquet, rejects.jsonl

    Args:
        project: Its outputs are read.
        corpus: Name of the corpus, of whose text the shards are parts.
        digests: Which shards: the names of their folders.
        work: Called with the manifest of each shard, perhaps in several threads at once.

    Returns:
        What the function returned for each shard, in the order of the digests.

    Raises:
        MissingError: A shard is missing or damaged.
    """

    def check_and_work(outputs: OutputRoot, shard_folder: Path) -> T:
        """Check the shard in a folder, and call the function with its manifest."""
        shard = _whole_shard(outputs, corpus, shard_folder)
        return work(shard)

    # Call `check_and_work` for the folder of each shard.
    return project.outputs.each_version(check_and_work, SHARDS_FOLDER, corpus, digests)


def losing_shards(project: Project, tokenized: Manifest) -> Sequence[Manifest]:
    """Return the shards of a corpus in which text was lost, after checking that all are whole.

    A shard has the tokens of a part of the corpus, in a folder such as shards/web/3f9c….

    Args:
        project: Its output root is searched for shards.
        tokenized: Manifest of the tokenized corpus, which lists its shards.

    Returns:
        The manifests of some of the shards, in document order.

    Raises:
        MissingError: A shard, which need not have lost text, is missing or damaged.
    """
    digests = tokenized.facts[SHARDS]
    packed_or_none = each_shard(project, tokenized.name, digests, _pack_if_losing)
    packed = [shard for shard in packed_or_none if shard is not None]
    return PackedManifests(packed, project.outputs.access)


def _whole_shard(outputs: OutputRoot, corpus: str, folder: Path) -> Manifest:
    """Return the manifest of a shard, after checking that its files have the recorded sizes.

    A shard has the tokens of a part of a corpus. It may be damaged if the disk was full, or if
    somebody has deleted files.

    Args:
        outputs: The outputs of the project.
        corpus: Name of the corpus.
        folder: Folder of the shard, such as shards/web/3f9c….

    Raises:
        MissingError: The shard is missing or damaged.
    """
    message = "a shard is not whole"
    remedy = f"run `nanoset build`, which tokenizes the missing text of the corpus {corpus!r} again"
    shard = outputs.manifest_at(folder)
    if shard is None:
        raise missing_version(
            outputs.access,
            (SHARDS_FOLDER, corpus, folder.name),
            message,
            found="its manifest is missing",
            remedy=remedy,
        )
    damage = shard.damage()  # what is wrong with its files, in words
    if damage:
        raise MissingError(message, where=folder, found=damage, remedy=remedy)
    return shard


def ranges_of_shards(inventory: Inventory, tokenized: Manifest) -> list[SourceRange]:
    """Return the range of raw text that each shard of a corpus was made from.

    For example, two files of 400 and 90 MiB may have become these shards of about 256 MiB:

        shard 0    a.jsonl, 0 to 256 MiB
        shard 1    a.jsonl, 256 to 400 MiB, and all of b.jsonl

    The ranges are not stored. But the same files are always cut in the same way. So they are cut
    again here, as they were cut when the shards were made.

    Args:
        inventory: The files that the shards were made from; see `inventory_of`.
        tokenized: Manifest of the set of shards, with the size of the ranges.

    Returns:
        The ranges, in the order of the shards. Documents that were erased are in them.

    Raises:
        FormatError: The shards were not made from these files.
    """
    ranges = cut_ranges(inventory, tokenized.recipe["options"]["range_bytes"])
    n_shards = len(tokenized.facts[SHARDS])
    if len(ranges) != n_shards:
        raise FormatError(
            "the shards of this version are not those of its inventory",
            where=tokenized.url(),
            found=f"{n_shards:,} shards instead of {len(ranges):,}",
            remedy="delete the folder, and build again",
        )
    return ranges


def recorded_losses(
    outputs: OutputRoot, tokenized: Manifest, shards: Iterable[Manifest] | None = None
) -> Losses:
    """Return how much text was lost when a corpus was tokenized.

        line 7 of a.jsonl is no JSON                      one line is lost
        b.jsonl.gz is damaged after 3 of its 10 MB        the rest of the file is lost

    Args:
        outputs: The outputs of the project.
        tokenized: Manifest of the tokenized corpus, which has the counts of all losses.
        shards: The parts in which it was tokenized (or only those that lost text), if the caller
            has read their manifests already. They have lists of the lines that were lost.

    Raises:
        FormatError: The manifest of a shard, or the list of files, cannot be read.
    """
    facts = ShardFacts.of(tokenized.facts)
    if not facts.reasons:  # nothing was lost
        return Losses(facts)
    if shards is None:
        losing_shards = _read_losing_shards(outputs, tokenized)
    else:
        losing_shards = _losing_shards(outputs, shards)
    return Losses(
        facts,
        shards=losing_shards,
        sizes=_sizes_of_files(outputs, tokenized),
        line_numbers=LineNumbers.of(tokenized.facts),  # converts numbers in pieces of large files
    )


def _sizes_of_files(outputs: OutputRoot, tokenized: Manifest) -> dict[str, int]:
    """Return the bytes of each file of a tokenized corpus, such as `{"a.jsonl": 1500000}`.

    They are in the list of files from which the corpus was tokenized. If that was deleted, the
    result is empty.

    Args:
        outputs: The outputs of the project.
        tokenized: Manifest of the tokenized corpus.

    Raises:
        FormatError: The list of files cannot be read.
    """
    inventory = inventory_of(outputs, tokenized)
    return {} if inventory is None else stored_sizes(inventory.pieces)


def _losing_shards(outputs: OutputRoot, shards: Iterable[Manifest]) -> PackedManifests:
    """Return the shards that lost text, by their manifests.

    There may be 100,000, so the result is compressed in memory.

    Args:
        outputs: The outputs of the project.
        shards: Manifests of all shards of a corpus, the parts in which it was tokenized.
    """
    packed = [pack(shard) for shard in shards if shard.facts["reasons"]]
    return PackedManifests(packed, outputs.access)


def _read_losing_shards(outputs: OutputRoot, tokenized: Manifest) -> PackedManifests:
    """Return the manifests of those shards of a corpus in which text was lost.

    A shard has the tokens of a part of the corpus. Its manifest counts what was lost, by reason:

        3f9c…    {"reasons": {}}                       left out
        a07e…    {"reasons": {"invalid_json": 3}}      returned

    Args:
        outputs: The outputs of the project.
        tokenized: Manifest of the tokenized corpus, which lists its shards.

    Returns:
        The manifests, in document order. There may be 100,000 of them, so they are compressed in
        memory.
    """

    def read(shard_outputs: OutputRoot, folder: Path) -> bytes | None:
        """Return the compressed manifest of a shard that lost text; None for others."""
        shard = shard_outputs.manifest_at(folder)
        return None if shard is None else _pack_if_losing(shard)

    # Call `read` for the folder of each shard.
    digests = tokenized.facts[SHARDS]
    packed_or_none = outputs.each_version(read, SHARDS_FOLDER, tokenized.name, digests)
    packed = [shard for shard in packed_or_none if shard is not None]
    return PackedManifests(packed, outputs.access)


def _pack_if_losing(shard: Manifest) -> bytes | None:
    """Return the manifest of a shard in compressed form if text was lost in it; otherwise None."""
    return pack(shard) if shard.facts["reasons"] else None


def expected_losses(project: Project, corpus: str, recipe: Recipe) -> Losses | None:
    """Return how much text would be lost if a corpus was tokenized now, if that is known already.

    Lost are lines that are no documents, and files that cannot be read to their end. By this,
    `nanoset status` warns before a build that would fail because too much is lost.

    Args:
        project: Its output root is searched for the tokens.
        corpus: Name of the corpus.
        recipe: What decides the tokens: the text, and the settings.

    Returns:
        The losses; None if not all of the text was tokenized with these settings before.

    Raises:
        FormatError: The manifest of a shard, or the inventory, cannot be read.
    """
    tokenized = project.outputs.find(recipe)
    if tokenized is not None:
        return recorded_losses(project.outputs, tokenized)
    return _losses_of_failed_build(project, corpus, recipe)


def _losses_of_failed_build(project: Project, corpus: str, recipe: Recipe) -> Losses | None:
    """Return how much text was lost in a build that tokenized a corpus, and then failed.

    It may have failed since too much was lost. All shards (the parts of the corpus) exist then, but
    no list of them.

    Args:
        project: Its output root is searched for the shards.
        corpus: Name of the corpus.
        recipe: What decides the tokens: the text, and the settings.

    Returns:
        The losses of all shards; None if some of them are missing or damaged.

    Raises:
        FormatError: The manifest of a shard, or the inventory, cannot be read.
    """
    inventory = inventory_at(project.outputs, corpus, recipe.parents["inventory"])
    if inventory is None:
        return None
    digests = shard_digests(project, inventory, recipe.options["range_bytes"])
    shards = _find_all_shards(project.outputs, corpus, digests)
    if shards is None:
        return None
    return sum_losses(shards, inventory.pieces)


def shard_digests(project: Project, inventory: Inventory, range_bytes: int) -> list[str]:
    """Return the digests of the shards that a corpus will have, one for each range of its text.

    A shard is a folder with the tokens of the range, which is named after this digest: "3f9c…".

    Args:
        project: Its settings, tokenizer and records of erased documents are read.
        inventory: The files of the corpus.
        range_bytes: Size of a range.
    """
    corpus = inventory.corpus
    options = shard_options(project, corpus)
    erased = purged.read_erased(project.outputs, corpus)
    ranges = purged.leave_out(cut_ranges(inventory, range_bytes), erased)
    return [shard_recipe(corpus, text_range, options).digest for text_range in ranges]


def _find_all_shards(
    outputs: OutputRoot, corpus: str, digests: Sequence[str]
) -> Sequence[Manifest] | None:
    """Return the manifests of shards, if all of them exist and are whole.

    A shard has the tokens of a part of a corpus.

    Args:
        outputs: The outputs of the project.
        corpus: Name of the corpus.
        digests: Digests of the shards, which are the names of their folders.

    Returns:
        The manifests, in the order of the digests; None if a shard is missing or damaged. There may
        be 100,000, so they are compressed in memory.
    """
    # Often some shards are missing, and one listing shows that without opening any.
    existing_digests = outputs.digests_in(outputs.folder / SHARDS_FOLDER / corpus)
    if not all(digest in existing_digests for digest in digests):
        return None
    packed_or_none = outputs.each_version(_pack_if_whole, SHARDS_FOLDER, corpus, digests)
    packed = [manifest for manifest in packed_or_none if manifest is not None]
    is_any_damaged = len(packed) < len(digests)
    if is_any_damaged:
        return None
    return PackedManifests(packed, outputs.access)


def _pack_if_whole(outputs: OutputRoot, folder: Path) -> bytes | None:
    """Return the manifest of the shard in a folder in compressed form; None if it is damaged."""
    shard = outputs.find_at(folder)
    return None if shard is None else pack(shard)


def reject_policy(project: Project, corpus: str) -> RejectPolicy:
    """Return how much text a corpus may lose, by the settings of nanoset.yaml.

    For example, `documents: {max_rejected_fraction: 0.01, max_unreadable_fraction: 0}` allows that
    1 % of the lines are no documents, and that no file is damaged.

    Args:
        project: Its settings are read.
        corpus: Name of the corpus, which may have settings of its own.
    """
    documents = project.config.documents_of(corpus)
    limits = RejectOptions(
        on_reject=documents.on_reject,
        max_rejected_fraction=documents.max_rejected_fraction,
        max_unreadable_fraction=documents.max_unreadable_fraction,
    )

    return RejectPolicy(limits, documents.text_key, _setting_names(project, corpus))


def _setting_names(project: Project, corpus: str) -> SettingNames:
    """Return what settings are called in nanoset.yaml, for errors that advise to change them.

        rejected     "documents.max_rejected_fraction"
        text_key     "documents.text_key", or "corpora.web.text_key" if the corpus has its own
        leave_out    "corpora: {web: {exclude: {files}}}"

    In the last one, the error replaces {files} by a list: "corpora: {web: {exclude: ["a.jsonl"]}}".

    Args:
        project: Its settings are read.
        corpus: Name of the corpus.
    """
    leave_out = "corpora: {" + corpus + ": {exclude: {files}}}"
    names = replace(_NAMES_IN_YAML, leave_out=leave_out)
    settings_of_corpus = project.config.corpora.get(corpus)
    if settings_of_corpus is not None and settings_of_corpus.text_key is not None:
        names = replace(names, text_key=f"corpora.{corpus}.text_key")
    return names


def error_of_losses(project: Project, corpus: str, lost: Losses) -> InputError | None:
    """Return the error for a corpus that lost more text than the present settings allow.

    The user may have lowered a limit since the corpus was tokenized.

    Args:
        project: Its settings for rejected lines and unreadable files are read.
        corpus: Name of the corpus, which may have settings of its own.
        lost: The lines that were no documents, and the files that could not be read to their end.

    Returns:
        The error, for the caller to raise; None if the losses are allowed.
    """
    policy = reject_policy(project, corpus)  # how much may be lost
    folder = project.config.corpus_folder(corpus)
    return policy.refusal(lost, folder)


def no_text_error(project: Project, corpus: str, read: Losses) -> InputError:
    """Return the error for a corpus of whose text no token was made.

    Args:
        project: Its raw folder has the folder of the corpus.
        corpus: Name of the corpus.
        read: The counts of what was read, and what was lost.
    """
    return InputError(
        "the corpus holds no text",
        where=project.config.corpus_folder(corpus),
        found=read.facts.described(),
        expected="at least one document with text",
        remedy="add documents, or remove the folder",
    )


def id_key_warning(project: Project, tokenized: Manifest) -> str:
    """Return a warning if the user has chosen a key for the ids, and no document has an id there.

        {"text": "The cat.", "doc_id": "7"}, with `id_key: docid`      a warning: it is misspelt
        {"text": "The cat."}, without `id_key`                         none: there are no ids

    Args:
        project: Its setting for the key of the ids is read.
        tokenized: Manifest of the tokenized corpus. Those of older versions do not count ids.

    Returns:
        The warning; empty if there is nothing to report.
    """
    id_key = project.config.documents_of(tokenized.name).id_key
    if id_key == DocumentsSpec().id_key:  # the default
        return ""
    facts = ShardFacts.of(tokenized.facts)
    has_ids = facts.without_id < facts.documents
    # Ids that are too long, for example, are not kept. There is another warning for them.
    if facts.documents == 0 or has_ids or facts.unkept_ids:
        return ""
    return (
        f"no document has an id at {id_key!r}, so that views, `explain` and `purge` cannot name "
        f"any: correct `documents.id_key`, or set `corpora.{tokenized.name}.id_key`"
    )


def repeats_warning(project: Project, tokenized: Manifest) -> str:
    """Return a warning if more documents of a corpus repeat others than allowed.

        12.0% of the documents repeat others, more than documents.max_duplicate_fraction: 0.05

    Args:
        project: Its setting `documents.max_duplicate_fraction` is read.
        tokenized: Manifest of the tokenized corpus, with the number of repeated documents.

    Returns:
        One clause; "" if there is no reason for a warning.
    """
    facts = ShardFacts.of(tokenized.facts)
    share = facts.repeated / max(facts.documents, 1)
    return repeats_text(share, project.config.documents.max_duplicate_fraction)


def reject_files(losses: Losses) -> list[str]:
    """Return the paths or URLs of the files that list the rejected lines of a corpus.

    A line is rejected if it is no document, for example because it is no JSON. The corpus was
    tokenized in parts (shards), and each that rejected lines has such a file:

        ["/data/shards/web/3f9c…/rejects.jsonl"]

    Args:
        losses: What the corpus lost, as `recorded_losses` returns it.
    """
    urls = []
    for shard in losses.shards:
        # (Losses of a command without a project have no shards, but a single list of lines.)
        if isinstance(shard, Manifest):
            urls.append(shard.url(REJECTS))
    return urls
