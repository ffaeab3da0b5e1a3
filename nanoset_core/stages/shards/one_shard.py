"""Make one shard: tokenize the documents of one range of a corpus's text.

A shard consists of the tokens (tokens.bin and tokens.idx), a table of the documents
(documents.parquet), and the lines that are not documents (rejects.jsonl). Shards are made in worker
processes, also on other machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.errors import ConfigError, InputError, SourceChangedError
from nanoset_core.execution.progress import Amount, PartReport, TaskNote, report_progress
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.outputs.manifest import FileFact, Recipe, Written
from nanoset_core.records.json_records import dump, to_plain
from nanoset_core.stages.per_shard import PerShardTask
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.document_table import Add, document_table
from nanoset_core.stages.shards.facts import ShardFacts, facts_of
from nanoset_core.stages.shards.framing import Framed, Framing, frame
from nanoset_core.stages.shards.line_numbers import line_name, piece_lines_of_shard
from nanoset_core.stages.shards.names import SHARDS_FOLDER, VERSION
from nanoset_core.stages.shards.repeats import Repeats
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.location import Location
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.raw_files import too_large
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.audit import DEFAULT_SHARE, Audit
from nanoset_core.tokenizers.encoders import ENCODER_FACT, Encoder
from nanoset_core.tokenizers.engines import Encoded, Engine, make_engine
from nanoset_core.tokenizers.engines.arrays import Ids
from nanoset_core.tokenizers.engines.engine import EncodingError, WrongTokensError
from nanoset_core.tokenizers.files import TokenizerPath, define, local_tokenizer, stat_signature
from nanoset_core.tokenizers.vanishing import vanishing_characters

TOKENS = "tokens"
BIN = f"{TOKENS}.bin"
"""The only file of a shard that may be a range of a dataset instead."""
DOCUMENTS = "documents.parquet"
REJECTS = "rejects.jsonl"
_REPORT_SECONDS = 0.5
"""Between two reports on the progress of one shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """How documents become the tokens of a shard."""

    tokenizer_file: TokenizerPath
    """Path of the tokenizer."""
    engine: str = "auto"
    """Engine that tokenizes; all give the same bytes."""
    audit: float = DEFAULT_SHARE
    """Share of the documents that the reference engine tokenizes as well, for comparison; does not
    change the output.
    """
    dtype: str
    """Type of the tokens in the .bin."""
    max_id: int
    """The largest id in the vocabulary."""
    framing: Framing
    """Special tokens around each document, and what becomes of documents without tokens."""
    text_key: str
    """Key of the text."""
    id_key: str = "id"
    """Key of the document's own id."""
    required_keys: tuple[str, ...] = ()
    """Other keys that must hold text; lines without one of them are rejected."""
    max_line_bytes: int
    """Longer lines are rejected."""
    fail_on_reject: bool
    """Whether the first rejected line is an error."""
    documents: bool = True
    """Whether to write a table of the documents."""
    room: int = 0
    """Bytes of the disk that shards which are made at the same time may take."""
    hashed: bool = True
    """Whether to store the sha256 of the files in the manifest; temporary shards need none."""

    def recipe_options(self, tokenizer: str) -> dict[str, Any]:
        """Return the settings that decide which tokens a text becomes.

            {"tokenizer": "9a3f…", "dtype": "uint16", "text_key": "text", …}

        They are part of a recipe, everything that decides the bytes of an output. If one of them
        changes, the text is tokenized again.

        Args:
            tokenizer: Digest of the tokenizer.
        """
        return {
            "tokenizer": tokenizer,
            "dtype": self.dtype,
            "framing": to_plain(self.framing),
            "text_key": self.text_key,
            "id_key": self.id_key,
            "max_line_bytes": self.max_line_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask(PerShardTask):
    """Everything that a worker needs to make one shard."""

    # If this is raised for one shard, the others are made first: whoever erased documents has to
    # know all places in which they are again.
    deferred_errors = (purged.ReturnedDocumentsError,)

    folder: Location
    """The corpus's folder."""
    source: SourceRange
    """The range of the corpus's text."""
    settings: ShardSettings

    def write(self, folder: Path) -> Written:
        """Tokenize a part of a collection of texts, and write the result: a shard.

            tokens.bin, tokens.idx      the tokens of all documents
            documents.parquet           a row for each document: its file, line and length
            rejects.jsonl               the lines that are no documents, such as invalid JSON

        Args:
            folder: An empty folder, in which the files are created.

        Raises:
            InputError: A line was rejected, and the settings do not allow this.
            SourceChangedError, MissingError: The text files have changed since they were listed.
            DistrustError: The program that tokenizes gave wrong tokens; it will not be used any
                more.
            ReturnedDocumentsError: Documents that had been erased on request are in the files
                again.
        """
        return _write_shard(self, folder)


def shard_recipe(corpus: str, source: SourceRange, options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a shard: everything that decides its bytes, by which it is found again.

    Args:
        corpus: Name of the corpus.
        source: The range of the corpus's text that becomes the shard. Its digest counts.
        options: The options that decide the tokens; see `shard_options`.
    """
    return Recipe(SHARDS_FOLDER, corpus, VERSION, {"source": source.digest}, dict(options))


def _write_shard(task: ShardTask, folder: Path) -> Written:
    """Tokenize one range of a corpus's text, and write the files of its shard.

        a.jsonl, bytes 0 to 256 MiB  →  tokens.bin           the tokens of all documents
                                        tokens.idx           where each document starts
                                        documents.parquet    file, line and id of each document
                                        rejects.jsonl        the lines that are no documents

    Args:
        task: The range of text, and the settings by which it becomes tokens.
        folder: An empty folder, in which the files are created.

    Returns:
        The counts for the shard's manifest, and the size and sha256 of each file.

    Raises:
        InputError: A line was rejected, and the policy is to fail.
        ReturnedDocumentsError: Documents that were erased from the corpus are in its text again.
    """
    settings = task.settings
    task.root.access.make_room(settings.room, f"shards of {task.recipe.name}")
    shard = _ShardInProgress(task, _engine(task))
    with (
        MMapIndexedDatasetBuilder(folder / TOKENS, np.dtype(settings.dtype)) as builder,
        _optional_table(task, folder) as add_to_table,
        (folder / REJECTS).open("wb") as rejects_file,
    ):
        for batch in _batches(task):
            rejects_file.writelines(map(dump, batch.rejects))
            if batch.rejects and settings.fail_on_reject:
                raise _reject_error(task, batch.rejects[0])
            if not shard.finds_erased(batch):
                _write_batch(batch, shard, settings.framing, builder, add_to_table)

    if shard.erased_places:
        raise purged.ReturnedDocumentsError(shard.erased_places)
    return Written(shard.all_facts(), _describe_files(folder, settings))


def _optional_table(task: ShardTask, folder: Path) -> AbstractContextManager[Add | None]:
    """Begin the table of the documents of a shard, if its settings demand one.

    Args:
        task: Names the files of text, and says whether there is a table.
        folder: The folder of the shard.

    Returns:
        A context for `with`: it gives a function that adds documents; or None without a table.
    """
    if not task.settings.documents:
        return nullcontext()
    return document_table(folder / DOCUMENTS, task.source.files)


def _write_batch(
    batch: DocumentBatch,
    shard: _ShardInProgress,
    framing: Framing,
    builder: MMapIndexedDatasetBuilder,
    add_to_table: Add | None,
) -> None:
    """Tokenize a batch of documents, and write them to the files of a shard.

        texts          "the cat",    "hello"
        encoded        [5, 9],       [7]
        framed         [5, 9, 0],    [7, 0]       with the end-of-document token 0
        written        to the .bin with all tokens, and a row each to the table of documents

    Args:
        batch: The documents.
        shard: Encodes and counts them.
        framing: Tokens that are added to each document, such as end-of-document.
        builder: Writes the tokens.
        add_to_table: Adds documents to the table; None if the shard has none.
    """
    encoded = shard.encode(batch)
    framed = frame(encoded, framing)
    _add_sequences(builder, framed)
    if add_to_table is not None:
        add_to_table(batch, framed.lengths, framed.is_written)
    shard.count(batch, encoded, facts_of(batch, framed))


def _add_sequences(builder: MMapIndexedDatasetBuilder, framed: Framed) -> None:
    """Add the documents of a batch to a dataset, each with a sequence of tokens, or with none.

    Args:
        builder: Writes the dataset.
        framed: Tokens of the documents. Some documents without tokens are not written.
    """
    sequence_lengths = framed.lengths[framed.sequence_counts > 0]
    sequence_counts = framed.sequence_counts[framed.is_written]
    builder.add_documents(framed.ids, sequence_lengths, sequence_counts)


def _describe_files(folder: Path, settings: ShardSettings) -> dict[str, str | FileFact]:
    """Return what is recorded of each file of a shard, by which later changes are noticed.

        {"tokens.bin": "77cd…", "tokens.idx": "a07e…", "rejects.jsonl": "b113…", …}

    Args:
        folder: The folder with the files.
        settings: Say whether there is a table of documents, and whether files are hashed.

    Returns:
        Name of the file → its sha256; or its size alone if files are not hashed.
    """
    names = [BIN, f"{TOKENS}.idx", REJECTS]
    if settings.documents:
        names.append(DOCUMENTS)
    files: dict[str, str | FileFact] = {}
    for name in names:
        path = folder / name
        if settings.hashed:
            files[name] = sha256_file(path)
        else:
            files[name] = FileFact(path.stat().st_size, sha256=None)
    return files


def _batches(task: ShardTask) -> Iterator[DocumentBatch]:
    """Read the documents of a part of the text, in batches of about a MiB of text.

    A corpus (a collection of texts) is tokenized in parts, each of which becomes a shard. The
    settings say which key of a line is the text, and which is the id of the document:

        {"text": "Some text.", "id": "doc-17"}

    Args:
        task: Which part of the text becomes a shard, and the settings.
    """
    settings = task.settings
    return read_documents(
        task.folder,
        task.source,
        text_key=settings.text_key,
        id_key=settings.id_key,
        required_keys=settings.required_keys,
        max_line_bytes=settings.max_line_bytes,
    )


class _ShardInProgress:
    """Encodes the batches of one shard, counts what they contain, and reports the progress."""

    def __init__(self, task: ShardTask, engine: Engine) -> None:
        """Prepare to encode the text of a shard.

        Args:
            task: The shard to make.
            engine: Turns its texts into token ids.
        """
        self._task = task
        self._engine = engine
        self._audit = Audit(engine, task.settings.audit, task.recipe.digest)
        """Compares a share of the documents with the reference engine."""
        self._vanishing = vanishing_characters(engine)
        """Counts characters that the tokenizer has no token for; None if it has all."""
        self._facts = ShardFacts(stored_bytes=task.source.size)
        self._repeats = Repeats()
        self._lines_of_pieces: list[tuple[Piece, int]] = []
        self._read_bytes = 0
        self._reported_at = time.monotonic()
        self._erased = purged.read_erased(task.root, task.recipe.name)
        self.erased_places: list[purged.ErasedPlace] = []
        """Where documents that were erased are in the text again."""

    def finds_erased(self, batch: DocumentBatch) -> bool:
        """Return whether documents that a user has erased were found in the text, now or earlier.

        Their places are added to `erased_places`. A shard with such a document is not stored. So
        the rest of the text is not tokenized, but only read, to report all of them in one error.

        Args:
            batch: The documents that were read last.
        """
        self.erased_places += purged.find_erased(self._erased, self._task.source, batch)
        return bool(self.erased_places)

    def encode(self, batch: DocumentBatch) -> Encoded:
        """Tokenize the documents of a batch, such as "the cat" and "hello", as the ids 5 9 and 7.

        Args:
            batch: The documents.

        Returns:
            The ids of all documents, concatenated, and the length of each document: [5, 9, 7] and
                [2, 1].
            Ids have the integer type of the .bin file to which they are written.

        Raises:
            InputError: A document is too large, or cannot be encoded.
            DistrustError: The engine gave wrong tokens; it is recorded as distrusted.
            ConfigError: The engine gave an id outside of the vocabulary.
        """
        encoded = self._encode_texts(batch)
        self._check_ids(encoded.ids)
        return encoded._replace(ids=encoded.ids.astype(self._task.settings.dtype))

    def _encode_texts(self, batch: DocumentBatch) -> Encoded:
        """Turn the texts of documents into token ids, and name the document if that fails.

            the error                      the document that it names
            the memory is not enough       the longest one: "raw/web/a.jsonl:7 (byte 4,096)"
            a text cannot be encoded       that of this text
            the tokens are wrong           the first one with wrong tokens

        Wrong tokens are noticed if a second implementation of the tokenizer gives other ones. Only
        some texts are compared in this way.

        Args:
            batch: The documents.

        Raises:
            InputError: A document is too large, or cannot be encoded.
            DistrustError: The tokens of a document were wrong. This is recorded, and the text is
                tokenized again with another implementation.
        """
        try:
            return self._audit.encode(batch.texts)  # also compares tokens
        except MemoryError as error:
            place = self._place_of_longest(batch)
            raise too_large(place, str(error) or None) from error
        except EncodingError as error:
            place = _document_place(self._task, batch, error.document)
            raise error.at(place) from error
        except WrongTokensError as error:
            place = _document_place(self._task, batch, error.document)
            record = self._record_distrust(place, error)
            raise distrust.DistrustError(record) from error

    def _place_of_longest(self, batch: DocumentBatch) -> str:
        """Return the place of the longest document of a batch, which needs the most memory."""
        longest = int(np.argmax([len(text) for text in batch.texts]))
        return _document_place(self._task, batch, longest)

    def _record_distrust(self, place: str, error: WrongTokensError) -> distrust.Distrust:
        """Record that an implementation of the tokenizer gave wrong tokens: nobody uses it again.

            gigatoken 0.3 gave wrong tokens for web: raw/web/a.jsonl:7: …

        Args:
            place: The document with wrong tokens.
            error: How the tokens differ from the right ones.

        Returns:
            The record.
        """
        task = self._task
        record = distrust.Distrust(
            engine=self._engine.name,
            version=self._engine.version,
            tokenizer=task.recipe.options["tokenizer"],  # the digest of its files
            where=f"{task.recipe.name}: {place}",  # the corpus and the document
            what=str(error),
        )
        # Store it with the outputs of the project, where other machines find it.
        distrust.NOTEBOOK.add(task.root, record)
        return record

    def _check_ids(self, ids: Ids) -> None:
        """Check that token ids are in the vocabulary, before they are converted to a smaller type.

        For example, with a vocabulary of 50,257 tokens, ids are stored as uint16. An id of 70,000
        would become 4,464 without any error.

        Args:
            ids: Ids of a batch, shape (n_tokens,).

        Raises:
            ConfigError: An id is negative, or larger than the largest one of the vocabulary.
        """
        settings = self._task.settings
        if len(ids) == 0:
            return
        smallest = int(ids.min())
        largest = int(ids.max())
        if smallest < 0 or largest > settings.max_id:
            raise ConfigError(
                "the tokenizer gave an id outside its vocabulary",
                where=settings.tokenizer_file,
                found=f"{smallest} to {largest}",
                expected=f"0 to {settings.max_id}",
                remedy="choose another tokenization.engine, and report this",
            )

    def count(self, batch: DocumentBatch, encoded: Encoded, facts: ShardFacts) -> None:
        """Add a batch of documents to what `all_facts` will return, and report the progress.

        Args:
            batch: The documents, and the lines that are no documents.
            encoded: The tokens of the documents.
            facts: How many documents, tokens and so on the batch has.
        """
        self._facts = self._facts + facts
        if self._vanishing is not None:  # there are characters that the tokenizer has no token for
            self._facts.vanished += self._vanishing.count(batch.texts)
        self._lines_of_pieces += batch.lines_of_pieces  # how many lines a piece of a file has
        self._repeats.add(encoded)  # finds documents with equal tokens
        self._read_bytes += batch.stored_bytes
        if time.monotonic() > self._reported_at + _REPORT_SECONDS:
            self._report()

    def _report(self) -> None:
        """Report the progress, and free copies of files if the disk has little room.

        `tokenize web: 1.2 GiB, 3,400 documents, 250,000 tokens`, for example: the main process
        shows the sum over all workers.
        """
        task = self._task
        facts = self._facts
        amount = Amount(self._read_bytes, facts.documents, facts.tokens)
        report_progress(PartReport(task.recipe.digest, amount))
        task.root.access.make_room(0, f"a shard of {task.source.files[0]}")
        self._reported_at = time.monotonic()

    def all_facts(self) -> dict[str, Any]:
        """Return what is recorded about a shard, once all batches were counted.

        A shard is a part of a corpus that one process tokenizes. For example:

            {
                "documents": 3400, "tokens": 250000, "rejected": 3, "repeated": 12, …
                "encoder": {"engine": "numpy", "audited": 34, …}
            }

        The encoder is the implementation of the tokenizer. If it turns out to be wrong, the shards
        that it made are known. `audited` counts the documents that a second implementation encoded,
        and `repeated` those with the same tokens as an earlier one.
        """
        self._facts.repeated = self._repeats.among(self._facts.documents)
        encoder = Encoder(
            engine=self._engine.name,
            version=self._engine.version,
            audited=self._audit.documents,
            helper=self._engine.helper,
        )
        return {
            **to_plain(self._facts),
            **piece_lines_of_shard(self._lines_of_pieces),  # lines in pieces of large files
            ENCODER_FACT: to_plain(encoder),
        }


def _document_place(task: ShardTask, batch: DocumentBatch, number: int) -> str:
    """Return the place of a document of a batch, for messages."""
    file = task.source.files[batch.files[number]]
    return _line_place(task, file, batch.lines[number], batch.offsets[number])


def _line_place(task: ShardTask, file: str, line: int, offset: int) -> str:
    """Return the place of a line, for messages while its range is read.

    The place includes the first byte of the line, by which it can be found in a file whose lines
    were not counted yet. A row of a table has none (-1).
    """
    place = str(task.folder / line_name(task.source, file, line, offset))
    return f"{place} (byte {offset:,})" if offset >= 0 else place


def _engine(task: ShardTask) -> Engine:
    """Return the implementation of the tokenizer that a task uses.

    There are several, such as a fast one and the one of Hugging Face. Loading one takes seconds, so
    it is kept for the next tasks of this process.

    Args:
        task: The task: a range of text that becomes a shard, and the settings for it.

    Raises:
        SourceChangedError: The tokenizer's file has changed since the build started.
    """
    distrusted = tuple(task.recipe.options.get(distrust.OPTION, ()))
    file = local_tokenizer(task.settings.tokenizer_file)
    loaded = _load_and_report(file, task.settings.engine, distrusted)
    _check_same_tokenizer(file, loaded.fingerprint, task.recipe.options["tokenizer"])
    return loaded.engine


def _load_and_report(file: TokenizerPath, kind: str, distrusted: tuple[str, ...]) -> _LoadedEngine:
    """Return an implementation of the tokenizer, and tell the user which one if it was loaded now.

    `_loaded_engine` is cached, and counts the calls that load an engine as misses of its cache.

    Args:
        file: Path of the tokenizer.
        kind: Name of the implementation, or "auto".
        distrusted: Name and version of implementations that have given wrong tokens.
    """
    n_loads_before = _loaded_engine.cache_info().misses
    loaded = _loaded_engine(file, stat_signature(file), kind, distrusted)
    is_newly_loaded = _loaded_engine.cache_info().misses > n_loads_before
    if is_newly_loaded:
        report_progress(TaskNote(f"engine {loaded.engine.name}: {loaded.engine.reason}"))
    return loaded


def _check_same_tokenizer(file: TokenizerPath, fingerprint: str, expected_fingerprint: str) -> None:
    """Check that a tokenizer is still the one with which the build started.

    Args:
        file: Path of the tokenizer.
        fingerprint: Digest of the tokenizer that was loaded now.
        expected_fingerprint: Its digest when the build started.

    Raises:
        SourceChangedError: They differ.
    """
    if fingerprint != expected_fingerprint:
        raise SourceChangedError(
            "the tokenizer has changed since this build started",
            where=file,
            found=f"sha256 {fingerprint[:16]}…",
            expected=f"sha256 {expected_fingerprint[:16]}…",
            remedy="build again once no program writes to it",
        )


def engine_choice(tokenizer_file: TokenizerPath, kind: str) -> str:
    """Return which implementation of the tokenizer is used, and why, for the user to see.

    There may be a faster one than the `tokenizers` library. "auto" takes it only if it gives the
    same tokens for test texts.

    Args:
        tokenizer_file: Path of the tokenizer.
        kind: Name of the implementation that the settings ask for, or "auto".

    Returns:
        Text such as "gigatoken: same tokens as the tokenizers library on test texts".

    Raises:
        MissingError: The tokenizer does not exist.
        FormatError: The tokenizer is damaged.
        ConfigError: The implementation does not support the tokenizer, or is not installed.
    """
    signature = stat_signature(tokenizer_file)  # size and times, to load a changed file again
    no_exclusions: tuple[str, ...] = ()  # all implementations may be used
    engine = _loaded_engine(tokenizer_file, signature, kind, no_exclusions).engine
    choice = f"{engine.name}: {engine.reason}"
    report_progress(TaskNote(f"engine {choice}"))
    return choice


class _LoadedEngine(NamedTuple):
    """An engine, and the tokenizer that it applies."""

    engine: Engine
    fingerprint: str
    """Identifies the tokenizer by its files and settings."""


@lru_cache(maxsize=2)
def _loaded_engine(
    file: TokenizerPath, _stamp: object, kind: str, without: tuple[str, ...]
) -> _LoadedEngine:
    """Load an implementation of the tokenizer, and keep it until the tokenizer's file changes.

    Args:
        file: Path of the tokenizer.
        _stamp: Size and times of the file. The function does not use them, but its cache does: if
            the file is overwritten, they change, and the file is loaded again.
        kind: Name of the implementation, or "auto".
        without: Name and version of implementations that have given wrong tokens.
    """
    engine = make_engine(file, kind, without=without)
    return _LoadedEngine(engine, define(file).fingerprint)


def _reject_error(task: ShardTask, reject: Reject) -> InputError:
    """Return the error with which a build fails at the first rejected line.

        a line was rejected: invalid_json
        where: raw/web/a.jsonl:7 (byte 4,096)
        found: … {"text": "the c

    Args:
        task: The part of the text that is tokenized.
        reject: The rejected line, or the fault by which a file cannot be read to its end.
    """
    if reject.is_fault:
        message = "a file cannot be read to its end"
        unit = "file"
        found = reject.detail
    else:
        message = "a line was rejected"
        unit = "line"
        found = f"{reject.detail}: {reject.excerpt}"
    return InputError(
        f"{message}: {reject.reason}",
        where=_line_place(task, reject.file, reject.line, reject.offset),
        found=found,
        expected="one JSON object a line, or one row of a table, with its text as a string",
        remedy=f"repair the {unit}, or write rejected lines to a file (on_reject: quarantine)",
    )
