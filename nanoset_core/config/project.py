"""nanoset.yaml → frozen dataclasses, validated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nanoset_core.config.automation import AutomationSpec
from nanoset_core.config.executor import ExecutorSpec
from nanoset_core.config.nanoset import NanosetSpec, resolved
from nanoset_core.config.validation import check_project
from nanoset_core.config.webdataset import WebdatasetSpec
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution.processes import available_processors
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.serialization.parsing import FrozenDict, parse
from nanoset_core.serialization.yaml_text import read_yaml
from nanoset_core.storage.atomic import local_path
from nanoset_core.storage.location import S3Place, StorageSpec, is_remote, mirror_folder, parse_place
from nanoset_core.storage.remote_folder import RemoteFolder

__all__ = [
    "CONFIG_FILE",
    "SPLITS",
    "DocumentsSpec",
    "ExecutorSpec",
    "NanosetSpec",
    "ProjectConfig",
    "TokenizationSpec",
    "TokenizerSpec",
    "WebdatasetSpec",
    "config_from",
    "load_config",
]

CONFIG_FILE = "nanoset.yaml"


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Which tokenizer makes the tokens."""

    path: str
    """a tokenizer.json of Hugging Face's tokenizers; relative paths start at nanoset.yaml's folder"""
    eod: str | None = None
    """text of the end-of-document token; needed by append_eod"""
    bos: str | None = None
    """text of the begin-of-document token; needed by prepend_bos"""
    pad: str | None = None
    """text of the padding token; needed by `tail: pad`"""


@dataclass(frozen=True, slots=True)
class DocumentsSpec:
    """How lines become documents."""

    text_key: str = "text"
    """key of the text in each JSON object"""
    id_key: str = "id"
    """key of the document's own id, kept beside it"""
    on_reject: Literal["quarantine", "fail"] = "quarantine"
    """what a line that is no document does: it is kept aside, or it ends the build"""
    max_rejected_fraction: float = 0.01
    """share of lines, 0 to 1, above which a corpus is refused"""
    max_line_mib: float = 1024.0
    """a longer line is rejected"""


@dataclass(frozen=True, slots=True)
class TokenizationSpec:
    """How documents become tokens."""

    engine: Literal["auto", "numpy", "tokenizers", "gigatoken"] = "auto"
    """all give the same tokens"""
    preset: Literal["megatron", "nanotron", "nemo", "tokshuf"] = "megatron"
    """whose preprocess_data is matched byte for byte; tokshuf: an end token after every document, empty ones too"""
    append_eod: bool = True
    """end every document with the EOD token (nanotron: those without text too)"""
    prepend_bos: bool = False
    """begin every document with the BOS token"""
    workers: int | None = None
    """processes; absent = the number of processors"""
    range_mib: float = 64.0
    """about how much stored text one task reads; does not change the merged dataset"""


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """All of nanoset.yaml."""

    raw: str
    """folder of raw text: one folder a corpus"""
    root: str
    """folder of outputs"""
    tokenizer: TokenizerSpec
    documents: DocumentsSpec = field(default_factory=DocumentsSpec)
    tokenization: TokenizationSpec = field(default_factory=TokenizationSpec)
    executor: ExecutorSpec = field(default_factory=ExecutorSpec)
    nanosets: Mapping[str, NanosetSpec] = field(default_factory=FrozenDict)
    webdatasets: Mapping[str, WebdatasetSpec] = field(default_factory=FrozenDict)
    packed: tuple[str, ...] = ()
    """corpora that are also written as Modalities' .pbin"""
    automation: AutomationSpec = field(default_factory=AutomationSpec)
    storage: StorageSpec = field(default_factory=StorageSpec)
    """how buckets are reached, where raw or root is s3://…"""
    file: Path = field(default=Path(CONFIG_FILE), init=False)
    """where it was read from; set by load_config"""

    @property
    def raw_folder(self) -> Path | RemoteFolder:
        """The folder of raw text."""
        if is_remote(self.raw):
            place = parse_place(self.raw, self.storage, where=f"{self.file}: raw")
            return RemoteFolder(place, by_etag=self.storage.fingerprint == "etag")
        return local_path(self.raw, base=self.file.parent, where=f"{self.file}: raw")

    @property
    def root_folder(self) -> Path:
        """The folder of outputs; that of their working copies where they live in a bucket."""
        if self.root_place is not None:
            mirror = local_path(self.storage.mirror or ".nanoset/mirror", base=self.file.parent, where=str(self.file))
            return mirror_folder(self.root_place, mirror)
        return local_path(self.root, base=self.file.parent, where=f"{self.file}: root")

    @property
    def root_place(self) -> S3Place | None:
        """Where in a bucket the outputs live; None where they are local."""
        return parse_place(self.root, self.storage, where=f"{self.file}: root") if is_remote(self.root) else None

    @property
    def tokenizer_file(self) -> Path:
        return local_path(self.tokenizer.path, base=self.file.parent, where=f"{self.file}: tokenizer.path")

    @property
    def workers(self) -> int:
        """Worker processes: as many as configured, or as there are processors for this process."""
        return self.tokenization.workers or available_processors()


def load_config(path: str | os.PathLike[str]) -> ProjectConfig:
    """Read and validate a nanoset.yaml. The result cannot be changed, nor can any mapping or list in it.

    Raises:
        MissingError: no such file.
        ConfigError: not YAML, a duplicate, unknown or missing key, a wrong type, or a value that cannot be.
    """
    file = Path(path).expanduser().resolve()
    try:
        value = read_yaml(file, remedy="mend the line; `nanoset init` writes an example")
    except FileNotFoundError as error:
        raise MissingError(
            "no such configuration", where=file, remedy="run `nanoset init` to write one, or `make demo` for an example"
        ) from error
    except OSError as error:
        raise ConfigError(
            "the configuration cannot be read", where=file, found=error.strerror, remedy="give the path of a text file"
        ) from error
    return config_from(value, file)


def config_from(value: object, file: Path) -> ProjectConfig:
    """Validate the parsed content of a nanoset.yaml that lies, or would lie, at `file`."""
    try:
        config = parse(ProjectConfig, value, "", file)
    except RecursionError as error:
        raise ConfigError(
            "a value holds itself", where=file, remedy="remove the YAML alias that makes it so"
        ) from error
    object.__setattr__(config, "file", file)
    check_project(config)
    object.__setattr__(config, "nanosets", resolved(config.nanosets, file))
    return config
