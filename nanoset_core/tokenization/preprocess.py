"""Files → one .bin/.idx pair a key, as the peers' preprocess_data.py makes: resumable, every line accounted for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.execution.processes import available_processors
from nanoset_core.execution.progress import Listener, Meter, silent
from nanoset_core.indexed import merge_indexed_datasets
from nanoset_core.indexed.reordering import deal_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.raw.fingerprints import FingerprintMemory
from nanoset_core.raw.pieces import Piece, SourceRange, group_pieces
from nanoset_core.raw.rejects import MAX_REJECTED_FRACTION, OnReject, RejectedFraction
from nanoset_core.storage.access import LocalAccess
from nanoset_core.storage.atomic import sha256_file, write_atomic
from nanoset_core.storage.scratch import detour
from nanoset_core.tokenization.bpe import EngineName
from nanoset_core.tokenization.document_table import tokens_by_file
from nanoset_core.tokenization.framing import WriterPreset, make_framing, pair_name
from nanoset_core.tokenization.inputs import InputFiles
from nanoset_core.tokenization.job import RejectPolicy, TokenizeJob
from nanoset_core.tokenization.shards import DOCUMENTS, REJECTS, TOKENS, ShardFacts, ShardSettings
from nanoset_core.tokenization.tokenizer import token_id, tokenizer_facts

RANGE_BYTES = 32 << 20
MANIFEST_ENDING = ".manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessOptions:
    """Settings of one call, named as the peers' flags."""

    tokenizer: Path
    """A tokenizer.json."""
    keys: tuple[str, ...] = ("text",)
    """JSON keys to tokenize; each gives a pair."""
    preset: WriterPreset = "megatron"
    """Whose tool is matched."""
    eod: str | None = None
    """Token to end documents with."""
    bos: str | None = None
    """Token to begin documents with."""
    partitions: int = 1
    """Documents are written as if dealt to so many files in turn and joined: 0, P, 2P, … 1, P + 1 and so on."""
    keep_sequential_samples: bool = False
    """With partitions: keep the input's order instead."""
    workers: int | None = None
    """Processes; None = one for each processor."""
    engine: EngineName = "auto"
    """One of bpe.KINDS; all give the same bytes."""
    on_reject: OnReject = "quarantine"
    """What a line that is no document does: quarantine or fail."""
    max_rejected_fraction: RejectedFraction = MAX_REJECTED_FRACTION
    """Share of lines above which nothing is written."""
    max_line_bytes: int = 1 << 30
    """A longer line is rejected."""
    count_by_file: bool = False
    """Also count the tokens of each input file."""


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """One finished pair."""

    prefix: Path
    """Of the .bin and .idx."""
    facts: ShardFacts
    """What was read and written."""
    rejects: Path | None
    """The rejected lines, or None where there are none."""
    tokens_by_file: dict[str, int] | None = None
    """Path relative to the inputs' folder → tokens, in document order; None where that was not asked for."""


def tokenizer_path(given: Path) -> Path:
    """A tokenizer.json, from its own path or from the folder that holds it.

    Raises:
        MissingError: neither is there.
    """
    file = given / "tokenizer.json" if given.is_dir() else given
    if not file.is_file():
        raise MissingError(
            "no tokenizer there",
            where=given,
            expected="a tokenizer.json, or a folder with one",
            remedy="name one that is there: tokenizer.json is written by save_pretrained and tokenizer.save",
        )
    return file


def end_token(tokenizer: Path, given: str | None) -> str:
    """The end-of-document token: the one given, else what tokenizer_config.json beside the tokenizer says.

    Raises:
        ConfigError: neither names one.
    """
    if given is not None:
        return given
    try:
        named = json.loads((tokenizer.parent / "tokenizer_config.json").read_bytes()).get("eos_token")
    except (FileNotFoundError, ValueError):
        named = None
    named = named.get("content") if isinstance(named, dict) else named
    if not isinstance(named, str):
        raise ConfigError(
            "the end-of-document token is not known",
            where=tokenizer.parent / "tokenizer_config.json",
            expected="its eos_token",
            remedy='name it: --eod "<|endoftext|>"',
        )
    return named


def preprocess(
    inputs: InputFiles,
    output_prefix: Path,
    options: PreprocessOptions,
    *,
    scratch: Path | None = None,
    listener: Listener = silent,
) -> list[Preprocessed]:
    """Tokenize files into `<output_prefix>_<key>_document.bin/.idx` (nanotron: `<output_prefix>_<key>`).

    Byte-identical to the preset's tool on the same lines, for any number of workers. A pair that is there already and
    was made from the same lines and settings is left alone. Finished shards stay in `.<prefix>.scratch` until all is
    done, so that a call that was killed goes on where it was; then that folder is removed.

    Args:
        inputs: the files, in order.
        output_prefix: names begin so.
        options: the settings.
        scratch: where to make the folder for unfinished work; default: beside the output.
        listener: hears the progress.

    Raises:
        ConfigError: the tokenizer has no such token, or an option is out of range.
        InputError: there are no documents, or too many rejects.
        SourceChangedError: a file changed meanwhile.
    """
    if options.partitions < 1:
        raise ConfigError(
            "out of range",
            where="--partitions",
            found=options.partitions,
            expected="1 or more",
            remedy="name another number",
        )
    if not options.keys or len(set(options.keys)) != len(options.keys):
        raise ConfigError(
            "no keys, or one of them twice",
            where="--json-keys",
            found=" ".join(options.keys),
            expected="at least one key, each once",
            remedy="name each key once",
        )
    # A folder of our own, also within one that is given: it is removed at the end.
    root = OutputRoot(LocalAccess(detour(output_prefix, f".{output_prefix.name}.scratch", scratch)))
    root.sweep()
    ranges = group_pieces(_pieces(inputs, root, listener), RANGE_BYTES)
    call = _Call(inputs, output_prefix, options, root, ranges, listener)
    results = [_preprocess_key(call, key) for key in options.keys]
    shutil.rmtree(root.folder)
    return results


def _pieces(inputs: InputFiles, root: OutputRoot, listener: Listener) -> list[Piece]:
    memory = FingerprintMemory(root.folder / "fingerprints.json")
    meter = Meter(listener, "hash", "input", sum(stat.size for stat in inputs.files))
    pieces: list[Piece] = []
    for stat in inputs.files:
        pieces.extend(memory.pieces(inputs.folder, stat))
        meter.advance(stat.size)
    memory.save({stat.path for stat in inputs.files})
    return pieces


class _Call:
    """What is the same for all keys of one call."""

    def __init__(
        self,
        inputs: InputFiles,
        output_prefix: Path,
        options: PreprocessOptions,
        root: OutputRoot,
        ranges: list[SourceRange],
        listener: Listener,
    ) -> None:
        self.inputs, self.output_prefix, self.options = inputs, output_prefix, options
        self.root, self.ranges, self.listener = root, ranges, listener
        self.policy = RejectPolicy(options.on_reject, options.max_rejected_fraction)
        self.tokenizer = tokenizer_facts(options.tokenizer)
        bos = None if options.bos is None else token_id(options.tokenizer, options.bos, "--bos")
        eod = None if options.eod is None else token_id(options.tokenizer, options.eod, "--eod")
        self.framing = make_framing(options.preset, options.tokenizer, bos=bos, eod=eod)

    def provenance(self, key: str) -> dict[str, Any]:
        """All that decides the bytes of a pair."""
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
        sources = [asdict(piece) for source in self.ranges for piece in source.pieces]
        return {"nanoset": 1, "key": key, "options": settings, "sources": sources}

    def job(self, key: str) -> TokenizeJob:
        """The shards of one key's texts."""
        others = tuple(other for other in self.options.keys if other != key)
        settings = ShardSettings(
            tokenizer_file=self.options.tokenizer,
            engine=self.options.engine,
            dtype=self.tokenizer.dtype.name,
            max_id=self.tokenizer.max_id,
            framing=self.framing,
            text_key=key,
            required_keys=others,
            max_line_bytes=self.options.max_line_bytes,
            fail_on_reject=self.policy.fails,
        )
        recipe_options = {
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": self.tokenizer.dtype.name,
            "framing": self.framing.to_json(),
            "text_key": key,
            "required_keys": list(others),
            "max_line_bytes": self.options.max_line_bytes,
        }
        return TokenizeJob(
            root=self.root,
            corpus="input",
            folder=self.inputs.folder,
            ranges=self.ranges,
            options=recipe_options,
            settings=settings,
        )


def _preprocess_key(call: _Call, key: str) -> Preprocessed:
    options, inputs, output_prefix = call.options, call.inputs, call.output_prefix
    prefix = output_prefix.with_name(pair_name(options.preset, output_prefix.name, key))
    rejects = output_prefix.with_name(f"{output_prefix.name}_rejects.jsonl")
    provenance = call.provenance(key)
    done = _finished(prefix, provenance, options.count_by_file)
    if done is not None and call.policy.allows(done.facts.rejects, done.facts.lines):
        return replace(done, rejects=rejects if done.facts.reasons else None)
    workers = options.workers or available_processors()
    shards = call.job(key).run(workers, listener=call.listener, stage="tokenize", name=key)
    facts = call.policy.check(shards, inputs.folder)
    if facts.documents == 0:
        raise InputError(
            "the input holds no documents",
            where=inputs.folder,
            found=facts.described(),
            expected="at least one document",
            remedy="name files with documents, or another --json-keys",
        )
    prefix.parent.mkdir(parents=True, exist_ok=True)
    _ending(prefix, MANIFEST_ENDING).unlink(missing_ok=True)  # of another pair of that name
    _write_pair(shards, prefix, options, call.root)
    _write_rejects(shards, rejects, facts)
    paths = (_ending(prefix, ".bin"), _ending(prefix, ".idx"))
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in paths}
    value = provenance | {"facts": asdict(facts), "files": files}
    by_file = None
    if options.count_by_file:
        by_file = tokens_by_file((file.path for file in inputs.files), (shard.path(DOCUMENTS) for shard in shards))
        value["tokens_by_file"] = by_file
    write_atomic(_ending(prefix, MANIFEST_ENDING), json.dumps(value, indent=1).encode() + b"\n")
    return Preprocessed(prefix, facts, rejects if facts.reasons else None, by_file)


def _ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _finished(prefix: Path, provenance: dict[str, Any], count_by_file: bool) -> Preprocessed | None:
    """A pair that is there, whole, and made from just this; or None."""
    try:
        value = json.loads(_ending(prefix, MANIFEST_ENDING).read_bytes())
        facts, files = ShardFacts(**value.pop("facts")), value.pop("files")
        by_file = value.pop("tokens_by_file", None)
        whole = all(prefix.with_name(name).stat().st_size == fact["bytes"] for name, fact in files.items())
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not whole or value != provenance or (count_by_file and by_file is None):
        return None
    return Preprocessed(prefix, facts, None, by_file)


def _write_pair(shards: Sequence[Manifest], prefix: Path, options: PreprocessOptions, root: OutputRoot) -> None:
    parts = [shard.path(TOKENS) for shard in shards]
    if options.partitions == 1 or options.keep_sequential_samples:
        merge_indexed_datasets(parts, prefix)
        return
    joined = root.folder / "joined"
    merge_indexed_datasets(parts, joined)
    deal_documents(joined, prefix, options.partitions)


def _write_rejects(shards: Sequence[Manifest], path: Path, facts: ShardFacts) -> None:
    if facts.reasons:
        write_atomic(path, b"".join(shard.path(REJECTS).read_bytes() for shard in shards))
    else:
        path.unlink(missing_ok=True)  # of an earlier call
