"""What the types of a webdataset's settings cannot say: ranges, and settings that need each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nanoset_core.config.webdataset import WebdatasetSpec
from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import check_asset_name, check_corpora, check_within

if TYPE_CHECKING:
    from nanoset_core.config.project import ProjectConfig


def check_webdataset(config: ProjectConfig, name: str, spec: WebdatasetSpec) -> None:
    """Raise ConfigError, naming the key and what to do, for the first value that cannot be."""
    file, path = config.file, f"webdatasets.{name}"
    check_asset_name(name, f"{file}: {path}")
    check_corpora(file, f"{path}.corpora", spec.names)
    check_within(file, f"{path}.sequence_length", spec.sequence_length, 1 + spec.bos, 1 << 24)
    check_within(file, f"{path}.samples_per_shard", spec.samples_per_shard, 1, 10**8 - 1)
    check_within(file, f"{path}.seed", spec.seed, 0, 2**64 - 1)
    check_within(file, f"{path}.groups", spec.groups, 1, 1000)
    check_within(file, f"{path}.memory_mib", spec.memory_mib, 16, 1 << 24)
    _check_tokens(config, path, spec)
    _check_numbers(file, path, spec)
    if spec.preset == "tokshuf":
        _check_tokshuf(config, path, spec)


def _check_tokens(config: ProjectConfig, path: str, spec: WebdatasetSpec) -> None:
    if spec.tail == "pad" and config.tokenizer.pad is None:
        raise ConfigError(
            "tail: pad needs a padding token",
            where=f"{config.file}: tokenizer.pad",
            remedy='name it, for example pad: "<|padding|>", or set tail to drop',
        )
    if spec.bos and config.tokenizer.bos is None:
        raise ConfigError(
            "bos needs a begin-of-document token",
            where=f"{config.file}: tokenizer.bos",
            remedy=f'name it, for example bos: "<s>", or set {path}.bos to false',
        )


def _check_numbers(file: Path, path: str, spec: WebdatasetSpec) -> None:
    numbers = spec.numbers or {}
    low = 1e-9 if spec.mix == "weights" else 0
    for corpus, number in numbers.items():
        check_within(file, f"{path}.corpora.{corpus}", number, low, 1e6)
    if numbers and not any(numbers.values()):
        raise ConfigError(
            "every corpus is left out",
            where=f"{file}: {path}.corpora",
            found="frequencies of 0",
            expected="a number above 0",
            remedy="give one of them a frequency, 1 for each context once",
        )
    if spec.mix == "weights" and not numbers:
        raise ConfigError(
            "mix: weights needs a weight for each corpus",
            where=f"{file}: {path}.corpora",
            expected="corpora: {web: 0.7, code: 0.3}",
            remedy="give them, or remove the key mix",
        )
    if spec.contexts is not None:
        check_within(file, f"{path}.contexts", spec.contexts, 1, 2**50)
        if spec.mix != "weights":
            raise ConfigError(
                "a number of contexts goes with weights",
                where=f"{file}: {path}.contexts",
                found="mix: frequencies, which say themselves how many there are",
                remedy="set mix to weights, or remove the key",
            )


def _check_tokshuf(config: ProjectConfig, path: str, spec: WebdatasetSpec) -> None:
    settings = config.tokenization
    if spec.tail != "drop" or spec.bos:
        raise ConfigError(
            "the preset tokshuf pads each file, and adds no BOS",
            where=f"{config.file}: {path}",
            found=f"tail: {spec.tail}, bos: {str(spec.bos).lower()}",
            expected="neither key",
            remedy="remove them, or the preset",
        )
    if settings.preset != "tokshuf" or not settings.append_eod:
        raise ConfigError(
            "the preset tokshuf wants an end token after every document, empty ones too",
            where=f"{config.file}: tokenization.preset",
            found=f"preset: {settings.preset}, append_eod: {str(settings.append_eod).lower()}",
            expected="preset: tokshuf, append_eod: true",
            remedy="set tokenization.preset: tokshuf, or use `nanoset shuffle --preset tokshuf` on the raw text",
        )
