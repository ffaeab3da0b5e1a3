"""The settings of a call of `nanoset shuffle`, and what they come to for each stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import available_processors
from nanoset_core.shuffling import tokshuf
from nanoset_core.shuffling.contexts import Tail
from nanoset_core.shuffling.inputs import Prepared, ShuffleInputs
from nanoset_core.shuffling.members import MemberKind
from nanoset_core.shuffling.plan import Preset
from nanoset_core.tokenization.preprocess import PreprocessOptions
from nanoset_core.tokenization.tokenizer import token_id, tokenizer_facts

DEFAULT_LENGTH = 2049


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOptions:
    """Settings of one call; those that reach the bytes first."""

    sequence_length: int | None = None
    """tokens in a context; None = 2049, or that of the tars"""
    samples_per_shard: int = 8192
    """contexts in a tar"""
    seed: int = 1234
    """of the order"""
    member: MemberKind = "json.gz"
    """form of a context"""
    preset: Preset = "default"
    """tokshuf: the contexts of tokshuf-rust"""
    tail: Tail = "drop"
    """what becomes of the last, short context: drop, pad or carry"""
    even: bool = False
    """equal shards"""
    tokenizer: Path | None = None
    """a tokenizer.json; needed for text, and to pad"""
    eod: str | None = None
    """text of the token that ends documents"""
    bos: str | None = None
    """text of a token that begins documents"""
    context_bos: str | None = None
    """text of a token that begins contexts"""
    pad: str | None = None
    """text of the token that pads"""
    text_key: str = "text"
    """key of the text in each line"""
    data_key: str | None = None
    """extension of the members to take from tars"""
    max_rejected_fraction: float = 0.01
    """share of lines above which nothing is written"""
    on_reject: str = "quarantine"
    """what a line that is no document does: quarantine or fail"""
    tokenizer_engine: str = "auto"
    """auto, numpy, tokenizers or gigatoken; leaves no trace"""
    engine: str = "auto"
    """auto, mmap, tiled or buckets; leaves no trace"""
    memory_bytes: int | None = None
    """for writing; leaves no trace"""
    workers: int | None = None
    """processes; leaves no trace"""

    @property
    def processes(self) -> int:
        """Worker processes."""
        return self.workers or available_processors()


def check_options(inputs: ShuffleInputs, options: ShuffleOptions) -> None:
    """Raise ConfigError for settings that do not go together, or with these inputs."""
    if inputs.kind == "text":
        text_options(options)
    if options.tail == "pad" and (options.pad is None or options.tokenizer is None):
        raise ConfigError(
            "padding needs a pad token",
            where="--tail pad",
            expected='--tokenizer and --pad "<|padding|>"',
            remedy="name it, or use --tail drop",
        )
    if options.preset == "tokshuf" and (inputs.kind != "text" or options.tail != "drop" or options.context_bos):
        raise ConfigError(
            "the preset tokshuf cuts each file of text on its own and pads it",
            where="--preset",
            found=f"input {inputs.kind}, tail {options.tail}",
            expected="files of text, and neither --tail nor --context-bos",
            remedy="leave them out, or use the default preset",
        )
    if inputs.kind == "tars" and (options.tail != "drop" or options.context_bos):
        raise ConfigError(
            "the contexts of tars stay as they are",
            where="--input",
            found=f"tail {options.tail}" + (", --context-bos" if options.context_bos else ""),
            expected="neither --tail nor --context-bos",
            remedy="leave them out",
        )
    if options.context_bos and options.tokenizer is None:
        raise ConfigError("a token needs its tokenizer", where="--context-bos", remedy="name it with --tokenizer")


def text_options(options: ShuffleOptions) -> PreprocessOptions:
    """How text is tokenized on the way."""
    if options.tokenizer is None:
        raise ConfigError("text needs a tokenizer", where="--tokenizer", remedy="name a tokenizer.json, or its folder")
    is_tokshuf = options.preset == "tokshuf"
    return PreprocessOptions(
        tokenizer=options.tokenizer,
        keys=(options.text_key,),
        preset="tokshuf" if is_tokshuf else "megatron",
        eod=tokshuf.tokshuf_tokens(options.tokenizer).eot if is_tokshuf else options.eod,
        bos=options.bos,
        workers=options.workers,
        engine=options.tokenizer_engine,
        on_reject=options.on_reject,
        max_rejected_fraction=options.max_rejected_fraction,
        count_by_file=is_tokshuf,
    )


def plan_settings(prepared: Prepared, inputs: ShuffleInputs, options: ShuffleOptions) -> dict[str, Any]:
    """The settings of `plan_shuffle` that options come to."""
    file = options.tokenizer
    pad_id = token_id(file, options.pad, "--pad") if options.tail == "pad" and options.pad and file else None
    is_tokshuf = options.preset == "tokshuf" and file is not None
    return {
        "sequence_length": prepared.sequence_length or options.sequence_length or DEFAULT_LENGTH,
        "samples_per_shard": options.samples_per_shard,
        "seed": options.seed,
        "member": options.member,
        "tail": tokshuf.TAIL if is_tokshuf else options.tail,
        "pad_id": tokshuf.tokshuf_tokens(file).pad_id if is_tokshuf and file else pad_id,
        "bos_id": token_id(file, options.context_bos, "--context-bos") if options.context_bos and file else None,
        "eod": _eod(options),
        "vocab_size": tokenizer_facts(file).max_id + 1 if file is not None and not is_tokshuf else None,
        "streams": prepared.streams or None,
        "frequencies": {source.name: source.frequency for source in inputs.sources},
        "even": options.even,
        "preset": options.preset,
    }


def _eod(options: ShuffleOptions) -> int | None:
    if options.preset == "tokshuf":
        return tokshuf.EOT
    return token_id(options.tokenizer, options.eod, "--eod") if options.eod and options.tokenizer else None
