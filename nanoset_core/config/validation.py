"""What the types of a nanoset.yaml cannot say: ranges, weights, splits, and settings that need each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoset_core.config.automation import check_automation
from nanoset_core.config.executor import check_executor
from nanoset_core.config.nanoset import phase_names
from nanoset_core.config.nanoset_checks import check_nanoset
from nanoset_core.config.webdataset_checks import check_webdataset
from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import check_corpora, check_within
from nanoset_core.storage.remote_folder import RemoteFolder

if TYPE_CHECKING:
    from nanoset_core.config.project import ProjectConfig

_MOST_KEY_BYTES = 64


def check_project(config: ProjectConfig) -> None:
    """Raise ConfigError, naming the key and what to do, for the first value that cannot be."""
    file = config.file
    _check_places(config)
    documents, tokenization = config.documents, config.tokenization
    key = documents.text_key
    if not key or "/" in key or "\0" in key or len(key.encode()) > _MOST_KEY_BYTES:
        raise ConfigError(
            "this key cannot be part of a file's name",
            where=f"{file}: documents.text_key",
            found=repr(documents.text_key),
            expected="up to 64 bytes of text without '/', since datasets are named <corpus>_<text_key>_document",
            remedy="rename the key in the raw text",
        )
    check_within(file, "documents.max_rejected_fraction", documents.max_rejected_fraction, 0, 1)
    check_within(file, "documents.max_line_mib", documents.max_line_mib, 0.001, 2047)
    check_within(file, "tokenization.range_mib", tokenization.range_mib, 0.001, 1 << 20)
    if tokenization.workers is not None:
        check_within(file, "tokenization.workers", tokenization.workers, 1, 4096)
    check_executor(file, config.executor)
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
        check_nanoset(file, name, nanoset)
    for name, webdataset in config.webdatasets.items():
        check_webdataset(config, name, webdataset)
    if config.packed:
        check_corpora(file, "packed", config.packed)
    check_automation(file, config.automation)
    _check_distinct(config)


def _check_places(config: ProjectConfig) -> None:
    raw, root, _ = config.raw_folder, config.root_folder, config.tokenizer_file
    inside = root == raw or raw in root.parents
    if isinstance(raw, RemoteFolder) or config.root_place is not None:
        inside = f"{config.root.rstrip('/')}/".startswith(f"{config.raw.rstrip('/')}/")
    if inside:
        raise ConfigError(
            "the outputs would lie among the raw text, and be taken for it",
            where=f"{config.file}: root",
            found=config.root if config.root_place is not None else root,
            expected=f"a folder that is not inside {raw}",
            remedy="give root a folder of its own, such as data",
        )


def _check_distinct(config: ProjectConfig) -> None:
    """Nanosets and webdatasets name jobs and asset groups, for which '-' and '_' are the same."""
    taken: dict[str, str] = {}
    names = [f"nanosets.{name}" for name in phase_names(config.nanosets)] + [
        f"webdatasets.{name}" for name in config.webdatasets
    ]
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
