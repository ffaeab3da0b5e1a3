"""What the types of a nanoset.yaml cannot say: ranges, weights, splits, and settings that need each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.splits import SPLITS, parse_split
from nanoset_core.names import check_asset_name, check_corpus_name

if TYPE_CHECKING:
    from nanoset_core.config import NanosetSpec, ProjectConfig, WebdatasetSpec


def check_project(config: ProjectConfig) -> None:
    """Raise ConfigError, naming the key and what to do, for the first value that cannot be."""
    file = config.file
    _check_places(config)
    documents, tokenization = config.documents, config.tokenization
    if not documents.text_key or "/" in documents.text_key or "\0" in documents.text_key:
        raise ConfigError(
            "this key cannot be part of a file's name",
            where=f"{file}: documents.text_key",
            found=repr(documents.text_key),
            expected="text without '/', since datasets are named <corpus>_<text_key>_document",
            remedy="rename the key in the raw text",
        )
    _within(file, "documents.max_rejected_fraction", documents.max_rejected_fraction, 0, 1)
    _within(file, "documents.max_line_mib", documents.max_line_mib, 0.001, 2047)
    _within(file, "tokenization.range_mib", tokenization.range_mib, 0.001, 1 << 20)
    if tokenization.workers is not None:
        _within(file, "tokenization.workers", tokenization.workers, 1, 4096)
    if tokenization.append_eod and config.tokenizer.eod is None:
        raise ConfigError(
            "append_eod needs an end-of-document token",
            where=f"{file}: tokenizer.eod",
            remedy='name it, for example eod: "<|endoftext|>", or set tokenization.append_eod to false',
        )
    if tokenization.prepend_bos and config.tokenizer.bos is None:
        raise ConfigError(
            "prepend_bos needs a begin-of-document token",
            where=f"{file}: tokenizer.bos",
            remedy='name it, for example bos: "<s>", or set tokenization.prepend_bos to false',
        )
    for name, nanoset in config.nanosets.items():
        _check_nanoset(file, f"nanosets.{name}", name, nanoset)
    for name, webdataset in config.webdatasets.items():
        _check_webdataset(file, f"webdatasets.{name}", name, webdataset, config)
    _check_distinct(config)


def _check_places(config: ProjectConfig) -> None:
    raw, root, _ = config.raw_folder, config.root_folder, config.tokenizer_file
    if root == raw or raw in root.parents:
        raise ConfigError(
            "the outputs would lie among the raw text, and be taken for it",
            where=f"{config.file}: root",
            found=root,
            expected=f"a folder that is not inside {raw}",
            remedy="give root a folder of its own, such as data",
        )


def _check_distinct(config: ProjectConfig) -> None:
    """Nanosets and webdatasets name jobs and asset groups, for which '-' and '_' are the same."""
    taken: dict[str, str] = {}
    names = [f"nanosets.{name}" for name in config.nanosets] + [f"webdatasets.{name}" for name in config.webdatasets]
    for path in names:
        plain = path.partition(".")[2].replace("-", "_")
        if plain in taken:
            raise ConfigError(
                "two things share a name",
                where=f"{config.file}: {path}",
                found=f"{taken[plain]} has the same",
                expected="names of nanosets and webdatasets that differ in more than '-' and '_'",
                remedy="rename one of them",
            )
        taken[plain] = path


def _check_nanoset(file: Path, path: str, name: str, nanoset: NanosetSpec) -> None:
    check_asset_name(name, f"{file}: {path}")
    _check_corpora(file, f"{path}.blend", nanoset.corpora)
    _within(file, f"{path}.sequence_length", nanoset.sequence_length, 1, 2**31 - 2)
    _within(file, f"{path}.seed", nanoset.seed, 0, 2**32 - 1)
    if isinstance(nanoset.blend, Mapping):
        _check_weights(file, f"{path}.blend", nanoset.blend)
    shares = dict(zip(SPLITS, _split(file, f"{path}.split", nanoset.split), strict=True))
    for split, samples in nanoset.samples.items():
        where = f"{path}.samples.{split}"
        if split not in SPLITS:
            raise ConfigError(
                "this is no split",
                where=f"{file}: {where}",
                expected=f"one of {', '.join(SPLITS)}",
                remedy="correct the name",
            )
        _within(file, where, samples, 1, 2**62)
        if shares[split] == 0:
            raise ConfigError(
                "samples are asked of a split that gets no documents",
                where=f"{file}: {where}",
                found=f"split {nanoset.split!r}",
                expected=f"a share of {split} above 0",
                remedy=f"give {split} a share in {path}.split, or remove the key",
            )


def _check_webdataset(file: Path, path: str, name: str, webdataset: WebdatasetSpec, config: ProjectConfig) -> None:
    check_asset_name(name, f"{file}: {path}")
    _check_corpora(file, f"{path}.corpora", webdataset.corpora)
    _within(file, f"{path}.sequence_length", webdataset.sequence_length, 1, 1 << 24)
    _within(file, f"{path}.samples_per_shard", webdataset.samples_per_shard, 1, 10**8 - 1)
    _within(file, f"{path}.seed", webdataset.seed, 0, 2**64 - 1)
    _within(file, f"{path}.groups", webdataset.groups, 1, 1000)
    if webdataset.tail == "pad" and config.tokenizer.pad is None:
        raise ConfigError(
            "tail: pad needs a padding token",
            where=f"{file}: tokenizer.pad",
            remedy='name it, for example pad: "<|padding|>", or set tail to drop',
        )


def _check_corpora(file: Path, path: str, corpora: tuple[str, ...]) -> None:
    if not corpora:
        raise ConfigError(
            "no corpora are named", where=f"{file}: {path}", expected="at least one", remedy="name a folder of raw text"
        )
    for corpus in corpora:
        check_corpus_name(corpus, f"{file}: {path}")
    if len(set(corpora)) != len(corpora):
        raise ConfigError(
            "a corpus is named twice",
            where=f"{file}: {path}",
            found=", ".join(corpora),
            expected="each corpus once",
            remedy="remove the repetition; to see a corpus more often, give it a greater weight",
        )


def _check_weights(file: Path, path: str, weights: Mapping[str, float]) -> None:
    for corpus, weight in weights.items():
        if weight < 0:
            raise ConfigError(
                "a weight is negative",
                where=f"{file}: {path}.{corpus}",
                found=weight,
                expected="a number above 0",
                remedy="give it a share, or leave the corpus out of the blend",
            )
    if sum(weights.values()) == 0:
        raise ConfigError(
            "the weights sum to 0",
            where=f"{file}: {path}",
            found=", ".join(f"{corpus}: {weight}" for corpus, weight in weights.items()),
            expected="weights above 0",
            remedy="give each corpus a share",
        )
    for corpus, weight in weights.items():
        if weight == 0:
            raise ConfigError(
                "a weight is 0",
                where=f"{file}: {path}.{corpus}",
                found=weight,
                expected="a number above 0",
                remedy="leave the corpus out of the blend",
            )


def _split(file: Path, path: str, split: str) -> tuple[float, float, float]:
    try:
        return parse_split(split)
    except ConfigError as error:
        raise ConfigError(
            error.what,
            where=f"{file}: {path}",
            found=error.found,
            expected=error.expected,
            remedy=error.remedy or "correct the shares",
        ) from error


def _within(file: Path, path: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(
            "this value is out of range",
            where=f"{file}: {path}",
            found=value,
            expected=f"{low:,} to {high:,}",
            remedy="correct the value",
        )
