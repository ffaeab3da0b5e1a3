"""Source ranges → shards, in worker processes: tokens.bin, tokens.idx, documents.parquet, rejects.jsonl of each."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, InputError, NanosetError, SourceChangedError
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback, hearing, note, tell
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.outputs.manifest import FileFact, Manifest, PackedManifests, Recipe, pack, unpack
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.document_table import count_facts, document_table, place_in
from nanoset_core.stages.shards.facts import ShardFacts, facts_of
from nanoset_core.stages.shards.framing import Framing, frame
from nanoset_core.stages.shards.repeats import Repeats
from nanoset_core.storage.atomic import sha256_file, sweep_abandoned
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.documents import DocumentBatch, read_documents
from nanoset_core.text.pieces import Piece, SourceRange, too_large
from nanoset_core.text.rejects import Reject
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.engines import Encoded, Engine, make_engine
from nanoset_core.tokenizers.engines.reference import EncodingError, WrongTokensError
from nanoset_core.tokenizers.files import TokenizerPath, define, local_tokenizer, stat_signature
from nanoset_core.tokenizers.vanishing import vanishing_characters
from nanoset_core.untrusted import safe_logger

STAGE = "shards"
VERSION = 2
TOKENS = "tokens"
BIN = f"{TOKENS}.bin"
"""The only file of a shard that may be a range of a dataset instead."""
DOCUMENTS = "documents.parquet"
REJECTS = "rejects.jsonl"
_TOLD_SECONDS = 0.5
"""Between two reports on one shard."""

logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """How documents become the tokens of a shard."""

    tokenizer_file: TokenizerPath
    """Where the tokenizer is."""
    engine: str = "auto"
    """One of bpe.KINDS; all give the same bytes."""
    audit: float = distrust.SHARE
    """Share of the documents that the reference encodes too; it shows in no bytes."""
    dtype: str
    """Of the .bin."""
    max_id: int
    """The greatest id that the tokenizer has."""
    framing: Framing
    """What is put around each document's tokens."""
    text_key: str
    """Key of the text."""
    id_key: str = "id"
    """Key of the document's own id."""
    required_keys: tuple[str, ...] = ()
    """Further keys that a line must have as text, or it is rejected."""
    max_line_bytes: int
    """Longer lines are rejected."""
    fail_on_reject: bool
    """Whether the first reject ends the work."""
    documents: bool = True
    """Whether a table of the documents is written, too."""
    room: int = 0
    """Bytes of the disk that shards which are made at the same time may take."""
    hashed: bool = True
    """Whether the manifest holds the files' sha256: not of shards that live no longer than the call."""

    def recipe_options(self, tokenizer: str) -> dict[str, Any]:
        """Return the settings that reach the tokens, as recipes hold them; `tokenizer` is its fingerprint."""
        return {
            "tokenizer": tokenizer,
            "dtype": self.dtype,
            "framing": self.framing.to_json(),
            "text_key": self.text_key,
            "id_key": self.id_key,
            "max_line_bytes": self.max_line_bytes,
        }


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything that a worker needs to make one shard."""

    root: OutputRoot
    recipe: Recipe
    folder: RawFolder
    """The corpus's folder."""
    source: SourceRange
    settings: ShardSettings


def make_shard(task: ShardTask) -> Manifest:
    """Make and store the shard of one source range, or return it when it is there already.

    Raises:
        InputError: A line was rejected and the policy is to fail.
        SourceChangedError, MissingError: The files are not those of the inventory.
        DistrustError: The engine gave wrong tokens; it is recorded as distrusted.
        PurgedError: Documents that were erased are in the files again.
    """
    with task.root.in_task() as root:
        here = replace(task, root=root)
        return root.commit(task.recipe, lambda folder: _write_shard(here, folder))


def _shard_or_places(task: ShardTask) -> Manifest | Collection[purged.Place]:
    """Make a shard, or return where its files hold erased documents again."""
    try:
        return make_shard(task)
    except purged.PurgedError as error:
        return error.places


def _all_made(
    found: Iterable[tuple[int, Manifest | Collection[purged.Place]]],
) -> Iterator[tuple[int, Manifest]]:
    """Yield the shards that were made; PurgedError behind the last one, where some hold erased documents again."""
    back = list[purged.Place]()
    for place, one in found:
        if isinstance(one, Manifest):
            yield place, one
        else:
            back += one
    if back:
        raise purged.PurgedError(back)


def _write_shard(task: ShardTask, folder: Path) -> tuple[dict[str, Any], Mapping[str, str | FileFact]]:
    """Fill a folder; return the facts, and the sha256 of the files."""
    settings, engine, digest = task.settings, _engine(task), task.recipe.digest
    task.root.access.make_room(settings.room, f"shards of {task.recipe.name}")
    audit = distrust.Audit(engine, settings.audit, digest)
    vanishing = vanishing_characters(engine)
    facts, repeats = ShardFacts(stored_bytes=task.source.size), Repeats()
    read, told, counted = 0, time.monotonic(), list[tuple[Piece, int]]()
    erased, back = purged.noted(task.root, task.recipe.name), list[purged.Place]()
    batches = read_documents(
        task.folder,
        task.source,
        text_key=settings.text_key,
        id_key=settings.id_key,
        required_keys=settings.required_keys,
        max_line_bytes=settings.max_line_bytes,
    )
    with (
        MMapIndexedDatasetBuilder(folder / TOKENS, np.dtype(settings.dtype)) as builder,
        document_table(folder / DOCUMENTS, task.source.files) if settings.documents else nullcontext() as add_rows,
        (folder / REJECTS).open("wb") as rejects,
    ):
        for batch in batches:
            rejects.writelines(json.dumps(asdict(reject)).encode() + b"\n" for reject in batch.rejects)
            if batch.rejects and settings.fail_on_reject:
                raise _reject_error(task, batch.rejects[0])
            if back := [*back, *purged.come_back(erased, task.source, batch)]:
                continue
            encoded = _encoded(engine, audit, batch, task)
            framed = frame(encoded, settings.framing)
            builder.add_documents(framed.ids, framed.lengths[framed.sequences > 0], framed.sequences[framed.kept])
            if add_rows is not None:
                add_rows(batch, framed.lengths, framed.kept)
            facts += facts_of(batch, framed)
            if vanishing is not None:
                facts.vanished += vanishing.count(batch.texts)
            counted += batch.counted
            repeats.add(encoded)
            read += batch.stored_bytes
            if time.monotonic() > told + _TOLD_SECONDS:
                tell(Progress(STAGE, digest, read, facts.stored_bytes, "bytes", facts.documents, facts.tokens))
                task.root.access.make_room(0, f"a shard of {task.source.files[0]}")
                told = time.monotonic()
    if back:
        raise purged.PurgedError(back)
    facts.repeated = repeats.among(facts.documents)
    names = (BIN, f"{TOKENS}.idx", *([DOCUMENTS] if settings.documents else []), REJECTS)
    encoder = distrust.Encoder(engine.name, engine.version, audit.documents, engine.helper)
    found = facts.to_json() | count_facts(counted) | {distrust.ENCODER: asdict(encoder)}
    if settings.hashed:
        return found, {name: sha256_file(folder / name) for name in names}
    return found, {name: FileFact((folder / name).stat().st_size, None) for name in names}


def _encoded(engine: Engine, audit: distrust.Audit, batch: DocumentBatch, task: ShardTask) -> Encoded:
    """Encode a batch as tokens of the shard's type; record an engine that the audit finds wrong."""
    settings = task.settings

    def place(number: int) -> str:
        return _place(task, task.source.files[batch.files[number]], batch.lines[number], batch.offsets[number])

    try:
        encoded = audit.encode(batch.texts)
    except MemoryError as error:
        raise too_large(place(int(np.argmax([*map(len, batch.texts)]))), str(error) or None) from error
    except EncodingError as error:
        raise error.at(place(error.document)) from error
    except WrongTokensError as error:
        where, tokenizer = f"{task.recipe.name}: {place(error.document)}", task.recipe.options["tokenizer"]
        record = distrust.Distrust(engine.name, engine.version, tokenizer, where, str(error))
        distrust.note(task.root, record)
        raise distrust.DistrustError(record) from error
    if len(encoded.ids) and (encoded.ids.min() < 0 or encoded.ids.max() > settings.max_id):
        raise ConfigError(
            "the tokenizer gave an id outside its vocabulary",
            where=settings.tokenizer_file,
            found=f"{int(encoded.ids.min())} to {int(encoded.ids.max())}",
            expected=f"0 to {settings.max_id}",
            remedy="choose another tokenization.engine, and report this",
        )
    return encoded._replace(ids=encoded.ids.astype(settings.dtype))


def _place(task: ShardTask, file: str, line: int, offset: int) -> str:
    """Return how a line is named while its range is read; with its byte, which finds it where lines are not counted."""
    byte = f" (byte {offset:,})" if offset >= 0 else ""
    return f"{task.folder / place_in(task.source, file, line, offset)}{byte}"


def _engine(task: ShardTask) -> Engine:
    """Return the engine, kept from task to task while the tokenizer has the sha256 that the recipe names."""
    file, expected = local_tokenizer(task.settings.tokenizer_file), task.recipe.options["tokenizer"]
    without, known = tuple(task.recipe.options.get(distrust.OPTION, ())), _loaded_engine.cache_info().misses
    engine, fingerprint = _loaded_engine(file, stat_signature(file), task.settings.engine, without)
    if _loaded_engine.cache_info().misses > known:
        tell(note(f"engine {engine.name}: {engine.reason}"))
    if fingerprint != expected:
        raise SourceChangedError(
            "the tokenizer is not the one that this build began with",
            where=file,
            found=f"sha256 {fingerprint[:16]}…",
            expected=f"sha256 {expected[:16]}…",
            remedy="build again once nothing writes to it",
        )
    return engine


def engine_choice(tokenizer_file: TokenizerPath, kind: str) -> str:
    """Return which engine `kind` gives with a tokenizer, and why, and tell it; no output depends on it."""
    engine, _ = _loaded_engine(tokenizer_file, stat_signature(tokenizer_file), kind, ())
    tell(note(f"engine {engine.name}: {engine.reason}"))
    return f"{engine.name}: {engine.reason}"


@lru_cache(maxsize=2)
def _loaded_engine(file: TokenizerPath, _stamp: object, kind: str, without: tuple[str, ...]) -> tuple[Engine, str]:
    return make_engine(file, kind, without=without), define(file).fingerprint


def _reject_error(task: ShardTask, reject: Reject) -> InputError:
    what, part = ("a file cannot be read to its end", "file") if reject.is_fault else ("a line was rejected", "line")
    return InputError(
        f"{what}: {reject.reason}",
        where=_place(task, reject.file, reject.line, reject.offset),
        found=reject.detail if reject.is_fault else f"{reject.detail}: {reject.excerpt}",
        expected="one JSON object a line, or one row of a table, with its text as a string",
        remedy=f"mend the {part}, or keep rejects aside (on_reject: quarantine)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeJob:
    """Source ranges of one corpus, each to become a shard named by what it is made from."""

    root: OutputRoot
    """Where the shards go; each worker puts there what it made."""
    corpus: str
    """Name of the shards, and of the folder that holds them."""
    folder: RawFolder
    """The corpus's folder of raw text."""
    ranges: Iterable[SourceRange]
    """In document order; may be made as they are first needed."""
    options: Mapping[str, Any]
    """The settings that reach the tokens, as recipes hold them, without distrusted engines."""
    settings: ShardSettings
    """How each shard is made."""
    workers: int
    """Processes."""
    executor: Executor | None = None
    """Runs the tasks instead, whatever `workers` says."""
    listener: ProgressCallback
    """Receives the progress of all ranges together."""
    news: Progress
    """What it receives first."""
    look_first: bool = False
    """This process looks for finished shards, so that workers are given unfinished ones only."""

    def run(self) -> tuple[Sequence[Manifest], dict[str, Any]]:
        """Make the shards that are not there yet; all of them again without an engine that turns out to be wrong.

        It may be this job that finds an engine wrong, or another process that notes one meanwhile.

        Returns:
            All shards, in document order; and the options of their recipes, with the engines that were not used.

        Raises:
            InputError, SourceChangedError, MissingError: See make_shard.
            PurgedError: See make_shard.
            NanosetError: An engine that is not to be used gave wrong tokens.
        """
        distrusted = distrust.noted(self.root, self.options["tokenizer"])
        while True:
            options = {**self.options, **distrust.recipe_options(distrusted)}
            shards, found = None, []
            try:
                shards = self._make(options)
            except distrust.DistrustError as error:
                found = [error.record]
                distrust.note(self.root, error.record)  # a worker's record may not be seen from here yet
            finally:
                sweep_abandoned(self.root.folder / STAGE / self.corpus)  # a cancelled run's workers end where they are
            found += distrust.noted(self.root, self.options["tokenizer"], again=True)
            more = [one for one in found if one.name not in options.get(distrust.OPTION, ())]
            if shards is not None and not more:
                return shards, options
            if not more:
                raise NanosetError(
                    "an engine gave wrong tokens that was not to be used any more",
                    where=found[0].where,
                    found=found[0],
                    expected="tokens of another engine, since this one is recorded as distrusted",
                    remedy="set the engine to `tokenizers`, install the same version of nanoset on all machines, "
                    "and report this",
                )
            for one in {one.name: one for one in more}.values():
                logger.warning("%s: %s; shards are made again with another engine", one.where, one.what)
            distrusted = [*distrusted, *more]

    def _make(self, options: Mapping[str, Any]) -> Sequence[Manifest]:
        news, made, missing = self.news, dict[int, bytes](), list[int]()
        begun: dict[str, Progress] = {}

        def keep(number: int, shard: Manifest) -> None:
            nonlocal news
            made[number], facts = pack(shard), shard.facts
            news = _sum(
                news, [Progress("", "", facts.get("stored_bytes", 0), 0, "", facts["documents"], facts["tokens"])]
            )
            begun.pop(shard.digest, None)

        def hear(told: Progress) -> None:
            if told.stage != STAGE:
                self.listener(told)
                return
            begun[told.name] = told
            self.listener(_sum(news, begun.values()))

        def tasks() -> Iterator[ShardTask]:
            for number, source in enumerate(self.ranges):
                if number not in made:
                    missing.append(number)
                    recipe = shard_recipe(self.corpus, source, options)
                    yield ShardTask(self.root, recipe, self.folder, source, self.settings)

        for number, shard in self._finished(options) if self.look_first else ():
            keep(number, shard)
        self.listener(news)
        with hearing(hear):
            for place, shard in _all_made(run_tasks(_shard_or_places, tasks(), self.workers, self.executor)):
                keep(missing[place], shard)
                self.listener(_sum(news, begun.values()))
        return PackedManifests((made[number] for number in sorted(made)), self.root.access)

    def _finished(self, options: Mapping[str, Any]) -> Iterator[tuple[int, Manifest]]:
        """Yield (number of its range, shard) of those that are there, whole."""

        def find(outputs: OutputRoot, place: Path) -> bytes | None:
            shard = outputs.find_at(place)
            return None if shard is None else pack(shard)

        digests = [shard_recipe(self.corpus, source, options).digest for source in self.ranges]
        for number, found in enumerate(self.root.each_version(find, STAGE, self.corpus, digests)):
            if found is not None:
                yield number, unpack(found, self.root.access)


def _sum(news: Progress, parts: Iterable[Progress]) -> Progress:
    """Return progress with that of parts of it."""
    for part in parts:
        done, documents, tokens = news.done + part.done, news.documents + part.documents, news.tokens + part.tokens
        news = replace(news, done=done, documents=documents, tokens=tokens)
    return news


def shard_recipe(corpus: str, source: SourceRange, options: Mapping[str, Any]) -> Recipe:
    """Return what one shard is made from."""
    return Recipe(STAGE, corpus, VERSION, {"source": source.digest}, dict(options))
