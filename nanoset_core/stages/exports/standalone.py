"""Export a .bin/.idx pair to the format of another reader, without a project: `nanoset export`.

The files go to a folder of this machine or in a bucket, with a receipt that names what they were
made from. If the same call is repeated, the receipt shows that there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.execution.progress import SILENT, Progress, RunningWork
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.ids import check_all_ids
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.formats.indexed.stream import Stream, stream_of
from nanoset_core.outputs.deliver import Delivery, Draft
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.outputs.receipts import Receipt, describe_call, hidden_receipt_name
from nanoset_core.stages.dataset.named_pair import open_pair
from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.stages.exports.ends import check_end_tokens
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.sample_files import FileTask, SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import (
    COPIED,
    COPIED_IN_BUCKET,
    WRITTEN,
    LinkedExport,
    TokensFile,
    count_documents,
    export_facts,
    put_tokens,
)
from nanoset_core.storage.atomic import sweep_abandoned
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import copy_within_bucket, is_here, stored_object
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, special_ids, tokenizer_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Settings of one call."""

    format: str
    """Name of the format, one of `FORMATS`."""
    name: str | None = None
    """Name of the files; by default that of the pair."""
    tokenizer: TokenizerPath | None = None
    """File of the tokenizer, which is used to check the tokens.

    Ids must be in its vocabulary, documents must end in one of its special tokens, and tokens must
    have the size that a reader derives from its vocabulary. Without it, only the ends are checked.
    """
    tokenizer_name: str | None = None
    """Name of the tokenizer in the files."""
    sequence_length: int | None = None
    """Tokens in a sample, for formats that consist of samples."""


class Exported(NamedTuple):
    """The result of a call."""

    facts: Mapping[str, Any]
    """Counts, and how the export got its tokens."""
    files: list[Location]
    is_new: bool
    """Whether this call wrote the files, rather than an earlier one."""


def export_pair(
    prefix: Location,
    folder: Location,
    options: ExportOptions,
    progress: Progress = SILENT,
    *,
    overwrite: bool = False,
) -> Exported:
    """Export a .bin and its .idx to the file format of another library, unless that was done.

        web.bin, web.idx  →  shard.00000.mds, …, index.json    (MosaicML's format)

    If the format has the same bytes of tokens as the .bin, the export's file of tokens is a link to
    the .bin, or a copy of it. For other formats, the tokens are written again.

    Args:
        prefix: Path of the pair without an ending.
        folder: Where the files go.
        options: Format and settings.
        progress: Shows how far the work has come.
        overwrite: Whether files of another pair or other settings may be replaced.

    Raises:
        ConfigError: The format's reader could not read the pair: its tokens have the wrong type, or
            documents lack the end tokens that it needs. Or files exist that may not be replaced.
        InputError: A token is not in the vocabulary.
        FormatError: The pair is damaged.
        MissingError: The pair does not exist.
    """
    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = tokenizer_facts(tokenizer_path(options.tokenizer))
    pair = _Pair(prefix, folder, options, tokenizer, progress)
    export_format = FORMATS[options.format]
    if is_here(folder):
        sweep_abandoned(folder)  # incomplete files of calls that were killed
    if isinstance(export_format, SampledFormat):
        return _export_samples(pair, export_format, overwrite=overwrite)
    return _export_linked(pair, export_format, overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The .bin/.idx pair that one call exports, and where its export goes."""

    prefix: Location
    """Path of the pair without an ending."""
    folder: Location
    """Folder of the export, on this machine or in a bucket."""
    options: ExportOptions
    tokenizer: TokenizerFacts | None
    """Vocabulary of the tokenizer, to check the tokens with; None if it was not named."""
    progress: Progress
    """Shows how many tokens have been written."""

    @property
    def name(self) -> str:
        """Name of the export's files."""
        return self.options.name or self.prefix.name

    def delivery(self, names: list[str], *, is_of_samples: bool = False) -> Delivery:
        """Describe where the files of an export go, and what they are made from.

        This is stored next to the files, in a small JSON file, the receipt. If the same call is
        made again, it finds the receipt, and has nothing to do.

        Args:
            names: Names of the files, such as web.ds, web.ds.index and web.ds.metadata.
            is_of_samples: Whether it consists of many files of samples. Then it needs a folder of
                its own. If a call is killed, its files are kept, and the next call writes the
                missing ones.
        """
        return Delivery(
            folder=self.folder,
            receipt=self._receipt(names[0]),
            files=tuple(names),
            completing_files=_completing_files(names),  # those that are put in place last
            inputs=pair_files(self.prefix),
            resumes_interrupted=is_of_samples,
            needs_own_folder=is_of_samples,
        )

    def _receipt(self, first_name: str) -> Receipt:
        """Return a receipt that names everything that decides the bytes of the export.

        Args:
            first_name: Name of its first file.
        """
        source_files = pair_files(self.prefix)
        made_from = describe_call(
            "export", self.folder / first_name, source_files, self._settings()
        )
        return Receipt(
            name=hidden_receipt_name(f"{self.name}.{self.options.format}"), made_from=made_from
        )

    def _settings(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of the export, for its receipt.

            {"format": "mds", "name": "web", "tokenizer": "9a3f…", "sequence_length": 2048, …}

        If a later call has the same ones, and the same input files, it need not write the export
        again.
        """
        settings: dict[str, Any] = {
            "format": self.options.format,
            "name": self.name,
            "tokenizer": None,
            "tokenizer_name": self.options.tokenizer_name,
        }
        if self.tokenizer is not None:
            settings["tokenizer"] = self.tokenizer.fingerprint
        # Older versions had no formats with samples, and no such key. Without it, receipts of these
        # versions are still equal to those of the same call now.
        if self.options.sequence_length is not None:
            settings["sequence_length"] = self.options.sequence_length
        return settings

    def open(self, export_format: ExportFormat) -> _OpenedPair:
        """Open a .bin and .idx, and check that another program could read an export of them.

        Otherwise the export would be written, and that program would fail, or read something else.

        Args:
            export_format: The format, which belongs to a program such as OLMo-core.

        Raises:
            ConfigError: The program could not read the tokens, or find the documents.
            InputError: A token is not in the vocabulary.
            FormatError: The pair is damaged, or its files do not belong together.
        """
        dataset = open_pair(self.prefix)
        stream = stream_of(dataset)  # where its tokens are; None if they are in order in the .bin
        traits = self._traits(dataset)

        # The program must know the type of the tokens. It may find documents by their end tokens.
        export_format.check(traits)
        if export_format.needs_end:
            check_end_tokens(export_format, traits, dataset, stream, self._end_ids())

        # All ids must be in the vocabulary. This reads all tokens, so not those in a bucket.
        if self.tokenizer is not None and dataset.is_here:
            check_all_ids(dataset, stream, self.tokenizer.max_id)
        return _OpenedPair(dataset, stream, traits)

    def linked_export(self, export_format: LinkedFormat) -> LinkedExport:
        """Open the pair, and prepare an export that has the same bytes of tokens as the .bin.

        Such are the formats of datatrove and OLMo-core. Their file of tokens can be a link to the
        .bin, so only small files have to be written, which say where documents end.

        Args:
            export_format: The format.

        Raises:
            ConfigError, InputError, FormatError: See `open`.
        """
        opened = self.open(export_format)
        return LinkedExport(
            format=export_format,
            name=self.name,
            dataset=opened.dataset,
            stream=opened.stream,
            traits=opened.traits,
            progress=self.progress,
        )

    def _traits(self, dataset: MMapIndexedDataset) -> DatasetTraits:
        """Return the properties of a pair of files that decide whether another program can read it.

        A .bin has tokens, and its .idx the lengths of their sequences. For example, OLMo-core can
        read tokens of 2 bytes only if the vocabulary has up to 65,536 ids.

        Args:
            dataset: The pair, opened.
        """
        vocab_size: int | None = None  # unknown if the user names no tokenizer
        if self.tokenizer is not None:
            vocab_size = self.tokenizer.max_id + 1
        return DatasetTraits(
            where=dataset.prefix,
            dtype=dataset.dtype,
            tokens=int(dataset.sequence_lengths.sum(dtype=np.int64)),
            vocab_size=vocab_size,
            tokenizer=self.options.tokenizer_name,
            sequence_length=self.options.sequence_length,
        )

    def sample_files(self, export_format: SampledFormat, opened: _OpenedPair) -> SampleFiles:
        """Divide the tokens into the files of an export, before anything is written.

        The files consist of samples of one length. For samples of 100 tokens, and 40 of them in a
        file:

            file 0    tokens 0 to 4,000
            file 1    tokens 4,000 to 8,000

        Args:
            export_format: The format, such as that of MosaicML's streaming.
            opened: The .bin and .idx with the tokens, opened.
        """
        access, bin_file = opened.dataset.place  # how any process can read the .bin
        return SampleFiles(
            format=export_format,
            cut=export_format.cut(opened.traits),  # which tokens each file gets
            source=access,
            bin=bin_file,
            target=store_of(self.folder),
        )

    def _end_ids(self) -> frozenset[int]:
        """Return the ids of the tokenizer's special tokens, one of which should end documents.

        They are not known, and none is returned, if the tokenizer was not named.
        """
        if self.options.tokenizer is None:
            return frozenset()
        return frozenset(special_ids(tokenizer_path(self.options.tokenizer)).values())


def _completing_files(names: list[str]) -> tuple[str, ...]:
    """Return which of the files of an export are removed first, and put in place last.

    Readers find an export by the last one of its files, such as index.json. They never find a
    mixture of old and new files if it is missing meanwhile. A single file is simply replaced.
    """
    if len(names) == 1:
        return ()
    return (names[-1],)


class _OpenedPair(NamedTuple):
    """A pair whose tokens the reader of a format can read."""

    dataset: MMapIndexedDataset
    stream: Stream | None
    """Order of its tokens; None if they are in order in the .bin."""
    traits: DatasetTraits
    """Properties of the pair that the format depends on."""

    @property
    def token_bytes(self) -> int:
        """Size of all tokens in bytes."""
        return self.traits.tokens * self.traits.dtype.itemsize

    def facts(self, made_by: str) -> dict[str, Any]:
        """Return the facts that the receipt of every export contains.

        Args:
            made_by: How the export got its tokens, such as `WRITTEN`.
        """
        n_documents = count_documents(self.dataset, self.stream)
        return export_facts(self.dataset, n_documents, self.traits, made_by)


def _export_linked(pair: _Pair, export_format: LinkedFormat, *, overwrite: bool) -> Exported:
    """Export a .bin and its .idx to a format that has the same bytes of tokens as the .bin.

    So its file of tokens can be a link to the .bin. Small files next to it say where documents end.
    For example, in the format of datatrove:

        web.ds                              a link to web.bin
        web.ds.index, web.ds.metadata       small files

    Args:
        pair: The two files, and where their export goes.
        export_format: The format.
        overwrite: Whether files of another pair or other settings may be replaced.

    Returns:
        The files, what was counted, and whether they are new: a second, equal call writes nothing.
    """
    names = export_format.files(pair.name)
    files = [pair.folder / name for name in names]
    delivery = pair.delivery(names)
    receipt = delivery.find(overwrite=overwrite)  # of an earlier, equal call
    if receipt is not None:
        return Exported(receipt["facts"], files, is_new=False)

    export = pair.linked_export(export_format)
    tokens_target = files[0]
    bin_file, _ = pair_files(pair.prefix)
    # When the block ends, the files of the draft are moved to their places.
    with delivery.drafting(overwrite=overwrite) as draft:
        tokens_file = _DraftedTokens(source=bin_file, target=tokens_target, draft=draft)
        facts = export.write(draft.folder, tokens_file)
        draft.facts = facts
    return Exported(facts, files, is_new=True)


def _export_samples(pair: _Pair, export_format: SampledFormat, *, overwrite: bool) -> Exported:
    """Export a .bin and its .idx in a format that consists of samples: sequences of one length.

    The tokens are divided into many files, such as the following. They are written by functions
    that are called later:

        shard.00000.mds      samples 0 to 16,383
        shard.00001.mds      samples 16,384 to 32,767, and so on
        index.json           lists the files

    If the call is killed, the next one keeps the files that are complete.

    Args:
        pair: The two files, and where their export goes.
        export_format: The format, such as that of MosaicML's streaming.
        overwrite: Whether files of another pair or other settings may be replaced.

    Returns:
        The files, what was counted, and whether they are new: a second, equal call writes nothing.
    """
    # How many files there are depends on the number of tokens, so the pair is opened first.
    opened = pair.open(export_format)
    samples = pair.sample_files(export_format, opened)
    names = export_format.names(samples.cut)
    files = [pair.folder / name for name in names]

    # If the same call has made the export before, there is a receipt next to it.
    delivery = pair.delivery(names, is_of_samples=True)
    receipt = delivery.find(overwrite=overwrite)
    if receipt is not None:
        return Exported(receipt["facts"], files, is_new=False)

    facts = {**opened.facts(WRITTEN), **export_format.facts(samples.cut)}
    work = pair.progress.work("export", pair.name, opened.token_bytes)
    function_by_file = _SampleWriter(samples, work).function_by_file(opened.stream)

    # Usually new files are written in this block, and moved to their places when it ends. These may
    # be many and large. So the block only names a function for each of them, which is called when
    # it ends, and writes the file to its place.
    with delivery.drafting(overwrite=overwrite) as draft:
        draft.writers.update(function_by_file)
        draft.facts = facts
    return Exported(facts, files, is_new=True)


@dataclass(slots=True)
class _SampleWriter:
    """Writes the files of an export that consists of samples, and then its index.json.

    The functions of `function_by_file` must be called in their order: index.json lists the sha256
    of the other files, which is known once they are written.
    """

    samples: SampleFiles
    """The files, and the tokens that they are written from."""
    work: RunningWork
    """Shows how many bytes have been written."""
    written: list[FileFact] = field(default_factory=list)
    """Size and sha256 of each file of samples so far, in order."""

    def function_by_file(self, stream: Stream | None) -> dict[str, Callable[[], object]]:
        """Return a function to write each file, by its name, in the order in which to call them.

        Args:
            stream: Order of the dataset's tokens; None if they are in order in the .bin.
        """
        functions: dict[str, Callable[[], object]] = {}
        for task in self.samples.tasks(stream):
            file_name = self.samples.format.file(task.number)
            functions[file_name] = partial(self._write, task)
        functions[INDEX] = self._write_index
        return functions

    def _write(self, task: FileTask) -> None:
        """Write a file of samples, unless an interrupted call has written it."""
        fact = self.samples.complete(task)
        self.written.append(fact)
        self.work.advance(fact.size)

    def _write_index(self) -> None:
        """Write index.json, which lists all files."""
        self.samples.target.put(INDEX, self.samples.index(self.written))


@dataclass(frozen=True, slots=True)
class _DraftedTokens(TokensFile):
    """The file of tokens of an export that is delivered to a folder outside of a project."""

    source: Location
    """The .bin of the pair."""
    target: Location
    """The file in its final place."""
    draft: Draft
    """The files of the export before they are delivered."""

    def link_or_copy(self) -> str:
        """Make an export's file of tokens from a .bin, which has the same bytes.

            from a disk to the same disk        a link (`LINKED`), or a copy if links are refused
            from a disk to a bucket             a copy (`COPIED`)
            from a bucket to a disk             a copy (`COPIED`)
            within a bucket                     a copy that the bucket makes (`COPIED_IN_BUCKET`)

        Returns:
            How it was made: `LINKED`, `COPIED` or `COPIED_IN_BUCKET`.
        """
        if is_here(self.source):
            return self._put_into_draft(self.source)
        copy_in_bucket = copy_within_bucket(self.source, self.target)
        if copy_in_bucket is None:  # they are not in the same bucket
            self.write(self.source.store.blocks(stored_object(self.source)))
            return COPIED
        # The file is never in the draft. This is called when all other files are complete.
        self.draft.writers[self.target.name] = copy_in_bucket
        return COPIED_IN_BUCKET

    def _put_into_draft(self, source: Path) -> str:
        """Put a .bin of this machine into the draft, a temporary folder, as a link if possible.

        When the export is complete, the files of the draft are moved to a folder, or uploaded.

        Args:
            source: The .bin.

        Returns:
            What is in the final place: `LINKED` or `COPIED`.
        """
        link_or_copy = put_tokens(source, self._drafted)
        is_uploaded = not is_here(self.target)
        return COPIED if is_uploaded else link_or_copy

    def write(self, blocks: Iterator[bytes]) -> None:
        """Write the file to the draft."""
        with self._drafted.open("xb") as file:
            file.writelines(blocks)

    @property
    def _drafted(self) -> Path:
        """Path of the file in the draft."""
        return self.draft.folder / self.target.name
