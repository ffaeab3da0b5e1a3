"""Files → one .bin/.idx pair for each key, as other tools' preprocess_data.py makes: resumable, no
line unaccounted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Meter, Progress, ProgressCallback, silent
from nanoset_core.execution.resources import available_processors
from nanoset_core.formats.indexed.builder import deal_documents, merge_indexed_datasets
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.names import MOST_KEY_BYTES, check_text_key
from nanoset_core.outputs.recorded import (
    OutputPlace,
    RecordedOutput,
    check_apart,
    read_record,
    real_path,
)
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.shards.document_table import counts_by_file, tokens_by_file
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.framing import (
    Framing,
    SpecialTokens,
    WriterPreset,
    make_framing,
    pair_name,
)
from nanoset_core.stages.shards.inputs import InputFiles
from nanoset_core.stages.shards.job import TokenizeJob
from nanoset_core.stages.shards.losses import Listing, Losses, RejectPolicy, losses_of, stored_sizes
from nanoset_core.stages.shards.make import DOCUMENTS, REJECTS, TOKENS, ShardSettings
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import Location, RemoteFolder, store_of
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.working_copies import copies_in, work_folder
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.fingerprints import fingerprint, hash_parts
from nanoset_core.text.pieces import Piece, SourceRange, deal_parts
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.audit import DEFAULT_SHARE
from nanoset_core.tokenizers.encoders import Encoder, encoders_of
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath, as_source
from nanoset_core.tokenizers.tokenizer import (
    TokenizerFacts,
    token_id,
    tokenizer_facts,
)

RANGE_BYTES, MOST_RANGE_BYTES = 4 << 20, 64 << 20
"""Of a range at least, and at most. Their number is that of no workers, so that any number finds
what is finished.
"""
_RANGES = 64
MANIFEST_ENDING = ".manifest.json"
_FLAGS = {"keys": "--json-keys", "framing.before": "--bos", "framing.after": "--append-eod, --eod"}
REJECTS_ENDING = "_rejects.jsonl"
_MOST_NAME_BYTES = 255 - 64
"""Of a file's name: file systems take 255, of which 64 are for what unfinished files are called
besides.
"""
_ROOM = "room for the tokens twice, or once here and once in --scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessOptions(RejectOptions):
    """Settings of one call, named as the peers' flags."""

    tokenizer: TokenizerPath
    """Where the tokenizer is."""
    keys: tuple[str, ...] = ("text",)
    """JSON keys to tokenize; each gives a pair."""
    preset: WriterPreset = "megatron"
    """Whose tool is matched."""
    eod: str | None = None
    """Token to end documents with."""
    bos: str | None = None
    """Token to begin documents with."""
    special_tokens: SpecialTokens | None = None
    """Whether those are added that the tokenizer's own `encode` adds; None: with nanotron alone."""
    partitions: int = 1
    """Documents are written as if dealt to so many files in turn and joined: 0, P, 2P, … 1, P + 1
    and so on.
    """
    keep_sequential_samples: bool = False
    """With partitions: keep the input's order instead."""
    workers: int | None = None
    """Processes; None = one for each processor."""
    engine: EngineName = "auto"
    """One of bpe.KINDS; all give the same bytes."""
    audit: float = DEFAULT_SHARE
    """Share of the documents that the reference tokenizes too."""
    max_line_bytes: int = 1 << 30
    """A longer line is rejected."""
    count_by_file: bool = False
    """Also count the tokens of each input file."""


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """One finished pair."""

    prefix: Location
    """Of the .bin and .idx."""
    facts: ShardFacts
    """What was read and written."""
    rejects: Location | None
    """The rejected lines, or None where there are none."""
    lost: str = ""
    """Which files could not be read to their end, and how much of the input that is; empty where
    all could.
    """
    tokens_by_file: dict[str, int] | None = None
    """Path relative to the inputs' folder → tokens, in document order; None where that was not
    asked for.
    """
    made: bool = field(default=True, compare=False)
    """False where it was there already."""
    encoders: tuple[Encoder, ...] = field(default=(), compare=False)
    """Which engines made its shards, and how many documents were compared; none where it was there
    already.
    """


def preprocess(
    inputs: InputFiles,
    output_prefix: Location,
    options: PreprocessOptions,
    *,
    scratch: Path | None = None,
    listener: ProgressCallback = silent,
    overwrite: bool = True,
    executor: Executor | None = None,
) -> list[Preprocessed]:
    """Tokenize files into `<output_prefix>_<key>_document.bin/.idx` (nanotron:
    `<output_prefix>_<key>`).

    Byte-identical to the preset's tool on the same lines, for any number of workers. A pair that is
    there already and was made from the same lines and settings is left alone. Finished shards stay
    in `.<prefix>.scratch` until all is done, so that a call that was killed goes on where it was;
    then that folder is removed.

    Args:
        inputs: The files, in order.
        output_prefix: What the names of the pairs begin with.
        options: The settings.
        scratch: Where to make the folder for unfinished work; default: beside the output.
        listener: Receives the progress.
        overwrite: Whether pairs and rejects that were made from other lines or settings, or by
            something else, may be replaced. A call that is killed meanwhile leaves the old pair,
            the new one, or a .bin without an .idx.
        executor: Runs the tasks instead of `options.workers` processes of this call.

    Raises:
        ConfigError: The tokenizer has no such token, an option is out of range, an output is an
            input, or one is there already that may not be replaced.
        StorageError: The folder cannot be written to, or is full.
        InputError: There are no documents, or too many rejects.
        SourceChangedError: A file changed meanwhile.
    """
    if options.partitions < 1:
        what, remedy = "out of range", "give 1 or more"
        raise ConfigError(
            what,
            where="--partitions",
            found=options.partitions,
            expected="1 or more",
            remedy=remedy,
        )
    if not options.keys or len(set(options.keys)) != len(options.keys):
        found = " ".join(options.keys)
        what, remedy = "no keys, or one twice", "name each key once"
        raise ConfigError(
            what, where="--json-keys", found=found, expected="each key once", remedy=remedy
        )
    _check_names(output_prefix, options)
    tokenizer = as_source(options.tokenizer).path
    pairs = {
        key: output_prefix.with_name(pair_name(options.preset, output_prefix.name, key))
        for key in options.keys
    }
    files = [file for pair in pairs.values() for file in _pair_files(pair)]
    check_apart([*files, _ending(output_prefix, REJECTS_ENDING)], [*inputs.paths, tokenizer])
    framing = make_framing(
        options.preset,
        options.tokenizer,
        bos=None if options.bos is None else token_id(options.tokenizer, options.bos, "--bos"),
        eod=None if options.eod is None else token_id(options.tokenizer, options.eod, "--eod"),
        special_tokens=options.special_tokens,
    )
    # A folder of our own, also within one that is given: it is removed at the end.
    folder = work_folder(output_prefix, f".{output_prefix.name}.scratch", scratch)
    with (
        OutputPlace(output_prefix.parent).writing(expected=_ROOM),
        writing_to(folder.parent, expected=_ROOM),
    ):
        root = OutputRoot(FileAccess(folder))
        root.sweep()
        ranges, facts = _Ranges(inputs, listener), tokenizer_facts(options.tokenizer)
        call = _Call(
            inputs,
            output_prefix,
            options,
            root,
            listener,
            overwrite,
            executor,
            ranges,
            facts,
            framing,
        )
        done = [_finished(call, key, pair) for key, pair in pairs.items()]
        results = [
            made or _preprocess_key(call, *pair)
            for pair, made in zip(pairs.items(), done, strict=True)
        ]
        shutil.rmtree(folder, ignore_errors=True)
    return results


def _check_names(output_prefix: Location, options: PreprocessOptions) -> None:
    """Raise ConfigError if the files of a pair cannot be named after its key, or if their names
    would be too long.
    """
    name_without_key = f"{pair_name(options.preset, output_prefix.name, '')}{MANIFEST_ENDING}"
    key_room = _MOST_NAME_BYTES - len(name_without_key.encode())
    if key_room < MOST_KEY_BYTES and any(
        len(key.encode(errors="replace")) > key_room for key in options.keys
    ):
        raise ConfigError(
            "the names of the files would be too long",
            where="--output-prefix",
            found=f"{name_without_key}, which has {len(name_without_key.encode()):,} bytes without the key",
            expected=f"names of up to {_MOST_NAME_BYTES} bytes",
            remedy="choose a shorter prefix",
        )
    for key in options.keys:
        check_text_key(key, "--json-keys", key_room)


def own_rejects(path: Location, output_prefix: Location) -> bool:
    """Return whether a file lists the lines that an earlier call with this prefix rejected."""
    stem = path.name.removesuffix(REJECTS_ENDING)
    if stem == path.name or not stem.startswith(output_prefix.name):
        return False
    if real_path(path.parent) != real_path(output_prefix.parent):
        return False
    names = (name for name in store_of(path.parent).level()[1] if name.startswith(f"{stem}_"))
    return any(
        read_record(path.with_name(name)) for name in names if name.endswith(MANIFEST_ENDING)
    )


class _Ranges:
    """The input as units of work, in document order: read when they are first asked for, while
    others are done.
    """

    def __init__(self, inputs: InputFiles, listener: ProgressCallback) -> None:
        self.size = sum(stat.size for stat in inputs.files)
        """Stored bytes."""
        self._inputs, self._meter = inputs, Meter(listener, "hash", "input", self.size)
        target = min(max(self.size // _RANGES, RANGE_BYTES), MOST_RANGE_BYTES)
        self._read = deal_parts(self._parts(target), target)
        self._known: list[SourceRange] = []
        self._pieces: list[Piece] = []

    def __iter__(self) -> Iterator[SourceRange]:
        yield from self._known
        for source in self._read:
            self._known.append(source)
            yield source

    def pieces(self) -> list[Piece]:
        """Return the pieces of all files as inventories have them, in document order."""
        for _ in self:
            pass
        return self._pieces

    def _parts(self, part_bytes: int) -> Iterator[Piece]:
        folder = self._inputs.folder
        for stat in self._inputs.files:
            if isinstance(folder, RemoteFolder) and not is_cuttable(stat.path):
                # An object that is not cut is known by its ETag, so that it is read once and not
                # twice.
                parts: Iterable[Piece] = fingerprint(replace(folder, by_etag=True), stat)
                self._pieces += parts
            else:
                parts = hash_parts(folder, stat, part_bytes, self._pieces.append)
            for part in parts:
                self._meter.advance(part.size)
                yield part


@dataclass(frozen=True, slots=True)
class _Call:
    """What is the same for all keys of one call."""

    inputs: InputFiles
    output_prefix: Location
    options: PreprocessOptions
    root: OutputRoot
    listener: ProgressCallback
    overwrite: bool
    executor: Executor | None
    ranges: _Ranges
    tokenizer: TokenizerFacts
    framing: Framing

    @property
    def rejects(self) -> Location:
        """Where the lines go that are no documents."""
        return _ending(self.output_prefix, REJECTS_ENDING)

    def output(self, key: str, prefix: Location) -> RecordedOutput:
        """Return the pair of a key; the last one has the rejects with it."""
        options = self.options
        settings = {
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": self.tokenizer.dtype.name,
            "preset": options.preset,
            "framing": self.framing.to_json(),
            "partitions": 1 if options.keep_sequential_samples else options.partitions,
            "keys": list(options.keys),
            "max_line_bytes": options.max_line_bytes,
        }
        sources = [asdict(piece) for piece in self.ranges.pieces()]
        bin_file, idx_file, record = _pair_files(prefix)
        return RecordedOutput(
            record=record,
            made_from={"nanoset": 1, "key": key, "options": settings, "sources": sources},
            files=(bin_file, idx_file),
            others=(self.rejects,) if key == options.keys[-1] else (),
            flags=_FLAGS,
            hashed=True,
        )

    def job(self, key: str) -> TokenizeJob:
        """Return the job that makes the shards of one key's texts."""
        options = self.options
        settings = ShardSettings(
            tokenizer_file=options.tokenizer,
            engine=options.engine,
            audit=options.audit,
            dtype=self.tokenizer.dtype.name,
            max_id=self.tokenizer.max_id,
            framing=self.framing,
            text_key=key,
            required_keys=tuple(other for other in options.keys if other != key),
            max_line_bytes=options.max_line_bytes,
            fail_on_reject=options.on_reject == "fail",
            documents=options.count_by_file,
            hashed=False,
        )
        more = {"required_keys": list(settings.required_keys), "documents": settings.documents}
        return TokenizeJob(
            root=self.root,
            corpus="input",
            folder=self.inputs.folder,
            ranges=self.ranges,
            options=settings.recipe_options(self.tokenizer.fingerprint) | more,
            settings=settings,
            workers=options.workers or available_processors(),
            executor=self.executor,
            listener=self.listener,
            news=Progress("tokenize", key, 0, self.ranges.size),
        )


def _preprocess_key(call: _Call, key: str, prefix: Location) -> Preprocessed:
    options, inputs = call.options, call.inputs
    shards, _ = call.job(key).run()
    lost = losses_of(shards, call.ranges.pieces())
    RejectPolicy(options, key).check(lost, inputs.folder)
    facts = lost.facts
    if facts.documents == 0:
        raise InputError(
            "the input holds no documents",
            where=inputs.folder,
            found=facts.described(),
            expected="at least one document",
            remedy="name files with documents"
            + (", or another --json-keys" if facts.rejected else ""),
        )
    by_file = None
    if options.count_by_file:
        counts = (counts_by_file(shard.path(DOCUMENTS)) for shard in shards)
        by_file = tokens_by_file((file.path for file in inputs.files), counts)
    with call.output(key, prefix).making(overwrite=call.overwrite) as draft:
        draft.facts = facts.to_json()
        draft.more = {} if by_file is None else {"tokens_by_file": by_file}
        _write_pair(shards, draft.folder / prefix.name, options, call.root)
        if facts.reasons:
            rejected = b"".join(shard.path(REJECTS).read_bytes() for shard in shards)
            write_atomic(draft.folder / call.rejects.name, rejected)
    rejects = call.rejects if facts.reasons else None
    return Preprocessed(
        prefix, facts, rejects, lost.beyond_rejects(), by_file, encoders=encoders_of(shards)
    )


def _finished(call: _Call, key: str, prefix: Location) -> Preprocessed | None:
    """Return a pair that is there, whole, made from just this, and allowed; or None. Raises as
    `RecordedOutput.find`.

    It is none either where it is no longer known which files could not be read to their end.
    """
    place = OutputPlace(call.output_prefix.parent)
    if not any(place.has(path.name) for path in [*_pair_files(prefix), call.rejects]):
        return None  # the input need not be read to know that
    record = call.output(key, prefix).find(overwrite=call.overwrite)
    if record is None or (call.options.count_by_file and record.get("tokens_by_file") is None):
        return None
    try:
        facts = ShardFacts(**record["facts"])
        listing = Listing(record["facts"], lambda _: copies_in(call.root.folder, [call.rejects])[0])
        lost = Losses(facts, [listing], stored_sizes(call.ranges.pieces()))
        if (
            RejectPolicy(call.options, key).refusal(lost, call.inputs.folder)
            or len(lost.unreadable) != facts.faults
        ):
            return None
    except (KeyError, TypeError, FormatError):
        return None
    rejects = call.rejects if facts.reasons else None
    return Preprocessed(
        prefix, facts, rejects, lost.beyond_rejects(), record.get("tokens_by_file"), made=False
    )


def _ending(prefix: Location, ending: str) -> Location:
    return prefix.with_name(prefix.name + ending)


def _pair_files(prefix: Location) -> list[Location]:
    return [_ending(prefix, ending) for ending in (".bin", ".idx", MANIFEST_ENDING)]


def _write_pair(
    shards: Sequence[Manifest], prefix: Path, options: PreprocessOptions, root: OutputRoot
) -> None:
    is_dealt = options.partitions > 1 and not options.keep_sequential_samples
    joined = root.folder / "joined" if is_dealt else prefix
    merge_indexed_datasets([shard.path(TOKENS) for shard in shards], joined)
    if is_dealt:
        deal_documents(joined, prefix, options.partitions)
