"""Writes a first nanoset.yaml, in which every key is explained by the help of its field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.config.nanoset import NanosetSpec
from nanoset_core.config.project import CONFIG_FILE, ProjectConfig
from nanoset_core.config.tokenization import DocumentsSpec, TokenizationSpec
from nanoset_core.config.webdataset import WebdatasetSpec
from nanoset_core.errors import ConfigError
from nanoset_core.mapping.config import DEFAULT_SPLIT
from nanoset_core.raw.survey import discover_corpora
from nanoset_core.serialization.settings import inner_sections, setting
from nanoset_core.storage.atomic import write_atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Suggested:
    """A value that is written as a comment, for the reader to take or leave."""

    value: Any
    """What the key would hold."""


def write_config(folder: Path) -> Path:
    """Write nanoset.yaml into `folder`, naming the corpora found in its raw folder, if there are any.

    Raises:
        ConfigError: there is one already, or a folder in raw cannot be a corpus.
        InputError: see discover_corpora.
    """
    path = folder / CONFIG_FILE
    if path.exists():
        raise ConfigError("there is a configuration already", where=path, remedy="edit it, or remove it first")
    raw = folder / "raw"
    corpora = (discover_corpora(raw) if raw.is_dir() else []) or ["web"]
    write_atomic(path, config_text(_first_values(corpora)).encode())
    return path


def _first_values(corpora: list[str]) -> dict[str, Any]:
    nanoset = {"blend": corpora[0] if len(corpora) == 1 else dict.fromkeys(corpora, 1.0), "sequence_length": 2048}
    suggested = {"samples": Suggested({"train": 1_000_000}), "trainer_path": Suggested("/data")}
    tars = _defaults(WebdatasetSpec, "sequence_length", "samples_per_shard", "seed", "member")
    return {
        "raw": "raw",
        "root": "data",
        "tokenizer": {"path": "tokenizer.json", "eod": "<|endoftext|>"},
        "documents": _defaults(DocumentsSpec, "text_key", "on_reject", "max_rejected_fraction"),
        "tokenization": _defaults(TokenizationSpec, "append_eod"),
        "nanosets": {"pretrain": nanoset | {"split": DEFAULT_SPLIT} | _defaults(NanosetSpec, "seed") | suggested},
        "webdatasets": {"shuffled": {"corpora": corpora} | tars},
        "packed": Suggested(corpora),
    }


def _defaults(section: type[DataclassInstance], *names: str) -> dict[str, Any]:
    return {name: setting(section, name).default for name in names}


def config_text(values: Mapping[str, Any]) -> str:
    """A nanoset.yaml with the help of every key above it.

    Args:
        values: key → plain value, or mapping of the keys within it, or Suggested; in the order to write.
    """
    return "".join(f"{line}\n" for line in _lines(ProjectConfig, values))


def _lines(section: type[DataclassInstance], values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        found = setting(section, key)
        inner, suffix = next(inner_sections(found.hint), (None, ""))
        yield f"{indent}# {found.help}"
        if isinstance(value, Suggested):
            yield f"{indent}# {key}: {_in_yaml(value.value)}"
        elif inner is None:
            yield f"{indent}{key}: {_in_yaml(value)}"
        else:
            yield f"{indent}{key}:"
            for name, settings in value.items() if suffix else [("", value)]:
                if name:
                    yield f"{indent}  {_in_yaml(name)}:"
                yield from _lines(inner, settings, indent + "  " * (2 if name else 1))


def _in_yaml(value: object) -> str:
    """A plain value on one line: a name in quotes where it would be read as a number, a date or a truth value."""
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=1 << 20)[1:-2]
