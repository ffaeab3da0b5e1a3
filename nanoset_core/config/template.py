"""Write a first nanoset.yaml, in which every key is explained by the help of its field, and its JSON schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.config import CONFIG_FILE
from nanoset_core.config.nanoset import NanosetSpec
from nanoset_core.config.project import ProjectConfig
from nanoset_core.config.tokenization import DocumentsSpec, TokenizationSpec
from nanoset_core.config.webdataset import WebdatasetSpec
from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.mapping.config import DEFAULT_SPLIT
from nanoset_core.raw.documents import Measure, measure
from nanoset_core.raw.survey import RawText, list_corpora
from nanoset_core.serialization.settings import inner_sections, json_schema, setting
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


SCHEMA_FILE = "nanoset.schema.json"
"""Name of the JSON schema beside nanoset.yaml, by which editors complete and check its keys."""
_TEXT_KEY = "text"
_LENGTH = 2048
_MOST_TOKEN_BYTES = 16
"""Hardly a text has longer tokens on average."""
_LEAST_ROOM = 20
"""So many samples, and documents, has a part of a split to be expected to hold: documents differ in length."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a sentence on the reason for it, or one that is written as a comment."""

    value: Any
    """What the key holds, or would hold."""
    note: str | None = None
    """The reason; None writes the key as a comment."""


@dataclass(frozen=True, slots=True)
class Start:
    """A first configuration, and the text that it was written for."""

    path: Path
    """The nanoset.yaml."""
    text: RawText
    """What the raw folder holds."""
    made: bool
    """False where it was there already, as it would have been written."""


def write_config(folder: Path, *, key_prefix: Sequence[str] = ()) -> Start:
    """Write nanoset.yaml and its JSON schema into `folder`, naming the corpora found in its raw folder.

    The first build of what is written succeeds, however little text there is. `key_prefix` is put before the keys of
    its assets in Dagster.

    Raises:
        ConfigError: there is another one already, or a folder in raw cannot be a corpus.
        MissingError, InputError: a corpus cannot be listed, or a file of text is in none.
        StorageError: the folder cannot be written to.
    """
    path, raw = folder / CONFIG_FILE, folder / "raw"
    text = list_corpora(raw) if raw.is_dir() else RawText({}, {})
    measures = {name: measure(raw / name, found, _TEXT_KEY) for name, found in text.corpora.items()}
    values = _first_values(list(text.corpora), list(measures.values()), *_tokenizer_values(folder))
    if key_prefix:
        values["dagster"] = {"key_prefix": list(key_prefix)}
    content, there = config_text(values).encode(), path.exists()
    if there and not (path.is_file() and path.read_bytes() == content):
        raise ConfigError("there is a configuration already", where=path, remedy="edit it, or remove it first")
    for fault in text.faults.values():
        raise fault
    with writing_to(folder):
        write_atomic(folder / SCHEMA_FILE, schema_text().encode())
        if not there:
            write_atomic(path, content)
    return Start(path, text, not there)


def _tokenizer_values(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `tokenizer`, with the file in the folder and its end-of-document token or the most common ones, and
    `tokenization`, with what to do with special tokens that the tokenizer adds itself."""
    from nanoset_core.tokenization.files import tokenizer_path
    from nanoset_core.tokenization.preprocess import end_token
    from nanoset_core.tokenization.tokenizer import tokenizer_facts

    eod, file, added = "<|endoftext|>", folder / "tokenizer.json", ""
    with suppress(NanosetError, OSError):
        file = tokenizer_path(folder)
    with suppress(NanosetError, OSError):
        eod = end_token(file, None)
    with suppress(NanosetError, OSError):
        added = " and ".join(dict.fromkeys(tokenizer_facts(file).template))
    trainers = "megatron-core up to 0.14 and from 0.17 on too, 0.15 and 0.16 do not."
    choice = {"special_tokens": Noted("none", f"The tokenizer's own encode adds {added}: {trainers}")}
    return {"path": file.name, "eod": eod}, choice if added else {}


def _first_values(
    corpora: list[str], measures: Sequence[Measure], tokenizer: dict[str, Any], special_tokens: dict[str, Any]
) -> dict[str, Any]:
    length = _sequence_length(measures)
    few = "There is little text: {}. With more of it, take {}."
    nanoset = {
        "blend": corpora[0] if len(corpora) == 1 else dict.fromkeys(corpora or ["CORPUS"], 1.0),
        "sequence_length": length
        if length == _LENGTH
        else Noted(length, few.format("a longer sample would find no text", f"{_LENGTH:,}")),
        "split": _split(measures, length, few),
        **_defaults(NanosetSpec, "seed"),
        "samples": Noted({"train": 1_000_000}),
        "trainer_path": Noted("/data"),
    }
    tars = _defaults(WebdatasetSpec, "sequence_length", "samples_per_shard", "seed", "member")
    tars["sequence_length"] = min(tars["sequence_length"], length + 1)
    outputs: dict[str, Any] = {
        "nanosets": {"pretrain": nanoset},
        "webdatasets": {"shuffled": {"corpora": corpora or ["CORPUS"]} | tars},
        "packed": Noted(corpora or ["CORPUS"]),
    }
    if not corpora:
        outputs = {key: value if key == "packed" else Noted(value) for key, value in outputs.items()}
    return {
        "raw": "raw",
        "root": "data",
        "tokenizer": tokenizer,
        "documents": _defaults(DocumentsSpec, "text_key", "on_reject", "max_rejected_fraction"),
        "tokenization": _defaults(TokenizationSpec, "append_eod") | special_tokens,
        **outputs,
    }


def _sequence_length(measures: Sequence[Measure]) -> int:
    """Return the usual length, or the power of two that surely leaves each corpus a sample."""
    tokens = [one.text_bytes // _MOST_TOKEN_BYTES + one.documents for one in measures if one.text_bytes]
    least = min(tokens, default=_LENGTH + 1)
    return _LENGTH if least > _LENGTH else 1 << max((least - 1).bit_length() - 1, 0)


def _split(measures: Sequence[Measure], length: int, few: str) -> str | Noted:
    """Return the usual split, or less of it where a part might be left without a sample."""
    documents = min((one.documents * one.whole for one in measures), default=math.inf)
    tokens = min((one.text_bytes * one.whole / _MOST_TOKEN_BYTES for one in measures), default=math.inf)
    room = min(tokens / length, documents) / _LEAST_ROOM  # how often a part may be cut in, and still be large enough
    if room >= 1000:
        return DEFAULT_SPLIT
    if room >= 100:
        return Noted("99,1,0", few.format("a thousandth for a test split might hold no sample", DEFAULT_SPLIT))
    return Noted("1,0,0", few.format("a split for validation might hold no sample", DEFAULT_SPLIT))


def _defaults(section: type[DataclassInstance], *names: str) -> dict[str, Any]:
    return {name: setting(section, name).default for name in names}


def config_text(values: Mapping[str, Any]) -> str:
    """Return a nanoset.yaml with the help of every key above it.

    Args:
        values: key → plain value, or mapping of the keys within it, or Noted; in the order to write.
    """
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}", *_lines(ProjectConfig, values)]
    return "".join(f"{line}\n" for line in lines)


def schema_text() -> str:
    """Return the JSON schema of nanoset.yaml."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": CONFIG_FILE}
    return json.dumps(head | json_schema(ProjectConfig), indent=1, ensure_ascii=False) + "\n"


def _lines(section: type[DataclassInstance], values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        found, mark = setting(section, key), ""
        yield f"{indent}# {found.help}"
        if isinstance(value, Noted):
            if value.note is None:
                mark = "# "
            else:
                yield f"{indent}# {value.note}"
            value = value.value
        yield from (f"{indent}{mark}{line}" for line in _entry(found.hint, key, value))


def _entry(hint: Any, key: str, value: Any) -> Iterator[str]:
    """Yield the lines of one key."""
    inner, suffix = next(inner_sections(hint), (None, ""))
    if inner is None:
        yield f"{key}: {_in_yaml(value)}"
        return
    yield f"{key}:"
    for name, settings in value.items() if suffix else [("", value)]:
        if name:
            yield f"  {_in_yaml(name)}:"
        yield from _lines(inner, settings, "  " * (2 if name else 1))


def _in_yaml(value: object) -> str:
    """Return a plain value on one line, in quotes where it would be read as a number, a date or a truth value."""
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=1 << 20)[1:-2]
