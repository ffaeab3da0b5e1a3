"""Read nanoset.yaml into frozen dataclasses, and check it.

`ProjectConfig` has a field for each key of nanoset.yaml; sections of stages are declared in the
`settings.py` of the stage. A configuration is checked in two steps: each value on its own, by its
type and range, and then values together, by the rules that are defined next to their keys. All
mistakes are reported at once, each with its line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from nanoset_core.errors import ConfigError, MissingError, combined, raised
from nanoset_core.execution.resources import available_processors
from nanoset_core.outputs.names import check_corpora
from nanoset_core.project.running import (
    AutomationSpec,
    DagsterSpec,
    ExecutorSpec,
    automation_errors,
    executor_errors,
)
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.parsing import CONFIG_FILE, Parser, broken
from nanoset_core.records.settings import NOT_A_KEY, Range
from nanoset_core.records.yaml_text import located, read_yaml
from nanoset_core.stages.contamination.settings import ContaminationSpec, contamination_errors
from nanoset_core.stages.exports.settings import ExportSpec, export_errors, reader_errors
from nanoset_core.stages.mappings.rules import end_token_errors, nanoset_errors
from nanoset_core.stages.mappings.settings import NanosetSpec, resolved
from nanoset_core.stages.packs.packing_key import pack_errors, pack_reader_errors, resolve_packing
from nanoset_core.stages.packs.settings import PacksSpec
from nanoset_core.stages.pbin.settings import pbin_errors, warn_of_former_key
from nanoset_core.stages.shards.settings import (
    AttributesSpec,
    CorpusSpec,
    DocumentsSpec,
    TokenizationSpec,
    TokenizerSpec,
    column_errors,
    corpus_errors,
    tokenization_errors,
)
from nanoset_core.stages.views.settings import Derived, ViewSpec, base_of, view_errors
from nanoset_core.stages.webdataset.settings import WebdatasetSpec, webdataset_errors
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import (
    RemoteFolder,
    StorageSpec,
    copies_folder,
    is_remote,
    local_path,
    remote_location,
)
from nanoset_core.storage.paths import check_utf_8, expanded
from nanoset_core.storage.store import Store
from nanoset_core.text.choice import FileChoice
from nanoset_core.tokenizers.files import TokenizerFile, TokenizerPath, as_source, local_tokenizer

_TEXTS = {
    "inside": (
        "the outputs would be inside the raw text, and be taken for it",
        "give root a folder of its own, such as data",
    ),
    "file": ("a file is where the folder of outputs should be", "name a folder"),
    "name": (
        "two things share a name",
        "rename one of them",
        "names that differ in more than '-' and '_'",
    ),
}
"""Name of a rule → what is wrong, the remedy, and what is expected; see `broken`."""


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The settings of a project: the content of nanoset.yaml."""

    raw: str = field(metadata={"example": "raw"})
    """Folder of raw text, one folder a corpus; or s3://bucket/prefix, or a gs://, hf://, abfs:// or
    https:// URL.
    """
    root: str = field(metadata={"example": "data"})
    """Folder of outputs, outside of raw; or s3://bucket/prefix."""
    tokenizer: TokenizerSpec = field(metadata={"example": "{path: tokenizer.json, eod: </s>}"})
    """Which tokenizer makes the tokens."""
    documents: DocumentsSpec = field(default_factory=DocumentsSpec)
    """How lines become documents."""
    corpora: Mapping[str, CorpusSpec] = field(default_factory=FrozenDict)
    """Name → how a corpus differs from the others; a second corpus of the same folder has another
    name and text key.
    """
    attributes: Mapping[str, AttributesSpec | str] = field(default_factory=FrozenDict)
    """Corpus → tables of others whose columns are joined to its documents by id, to choose by; or
    their files alone.
    """
    tokenization: TokenizationSpec = field(default_factory=TokenizationSpec)
    """How documents become tokens."""
    executor: ExecutorSpec = field(default_factory=ExecutorSpec)
    """What tokenizes, writes tars and verifies deeply."""
    nanosets: Mapping[str, NanosetSpec] = field(default_factory=FrozenDict)
    """Name → a training set: a blend of corpora, cut into samples, in a fixed order."""
    webdatasets: Mapping[str, WebdatasetSpec] = field(default_factory=FrozenDict)
    """Name → a set of shuffled tar shards."""
    views: Mapping[str, ViewSpec] = field(default_factory=FrozenDict)
    """Name → a dataset of documents that are chosen from a corpus; it can be named wherever a
    corpus can.
    """
    packs: Mapping[str, PacksSpec] = field(default_factory=FrozenDict)
    """Name → the documents of a corpus or view, put unbroken into packs of one length; it can be
    named wherever a corpus can, if samples are as long. The key `packing` of a nanoset or
    webdataset makes them.
    """
    contamination: Mapping[str, ContaminationSpec] = field(default_factory=FrozenDict)
    """Name → evaluation files whose texts are searched for in the corpora."""
    exports: Mapping[str, ExportSpec] = field(default_factory=FrozenDict)
    """Name → the dataset of a corpus or view as files of another reader, over the same tokens."""
    pbin: tuple[str, ...] = ()
    """Datasets that are also written as Modalities' .pbin: corpora, views and packs."""
    packed: tuple[str, ...] = ()
    """Deprecated: the former name of `pbin`."""
    token_target: Annotated[int, Range(1)] | None = None
    """Tokens that are wanted in all; the UI's `overview` shows how far the corpora are. Changes no
    output.
    """
    automation: AutomationSpec = field(default_factory=AutomationSpec)
    """When the platform looks for new text, and builds what is missing or stale."""
    storage: StorageSpec = field(default_factory=StorageSpec)
    """How buckets are reached, if raw or root is s3://…"""
    dagster: DagsterSpec = field(default_factory=DagsterSpec)
    """What the project is called in Dagster."""
    history: str = ".dagster"
    """Folder of Dagster's history, which needs a disk with file locks; DAGSTER_HOME takes
    precedence.
    """
    file: Path = field(default=Path(CONFIG_FILE), kw_only=True, metadata=NOT_A_KEY)
    """Path of the nanoset.yaml. Relative paths in it start in its folder."""

    @property
    def raw_folder(self) -> Path | RemoteFolder:
        """The folder of raw text."""
        if not is_remote(self.raw):
            return self.local(self.raw, "raw")
        return RemoteFolder(
            self._remote(self.raw, "raw", only_read=True).place,
            by_etag=self.storage.fingerprint != "content",
            in_pieces=self.storage.fingerprint == "etag-pieces",
        )

    def folder_name(self, corpus: str) -> str:
        """Return the folder below `raw` that a corpus is read from."""
        return self._corpus_spec(corpus).folder or corpus

    def corpus_folder(self, corpus: str) -> Path | RemoteFolder:
        """Return the folder that a corpus is read from, whether it exists or not."""
        return self.raw_folder / self.folder_name(corpus)

    def choice_of(self, corpus: str) -> FileChoice:
        """Return which files of its folder a corpus is made from."""
        return self._corpus_spec(corpus).choice

    def _corpus_spec(self, corpus: str) -> CorpusSpec:
        """Return the settings of a corpus: defaults if nanoset.yaml does not name it."""
        return self.corpora.get(corpus, CorpusSpec())

    def trains_on(self, corpus: str) -> bool:
        """Return whether an output for training reads a corpus, or a view or packs of it.

        These outputs are webdatasets, exports, .pbin files, and the train splits of nanosets.
        """
        # The corpus, and the views and packs that are made from it.
        names = {corpus}
        for name in self.derived:
            if base_of(self.derived, name) == corpus:
                names.add(name)

        sources = [*self.pbin]
        sources += [export.of for export in self.exports.values()]
        for webdataset in self.webdatasets.values():
            sources += webdataset.corpora
        if not names.isdisjoint(sources):
            return True
        for nanoset in self.nanosets.values():
            for name in names:
                if nanoset.trains_on(name):
                    return True
        return False

    def repeats(self, name: str) -> bool:
        """Return whether a name is that of a view which repeats documents."""
        view = self.views.get(name)
        return view is not None and view.repeat != 1

    @property
    def derived(self) -> Mapping[str, Derived]:
        """The views and packs by name.

        They are made from the dataset of a corpus, and can be named wherever a corpus can.
        """
        if not self.packs:
            return self.views
        return {**self.views, **self.packs}

    def section_of(self, name: str) -> str:
        """Return the section of nanoset.yaml in which a view or packs is configured."""
        return "packs" if self.is_packed(name) else "views"

    def is_packed(self, name: str) -> bool:
        """Return whether a name is that of packs."""
        return name in self.packs

    def unpacked_name(self, name: str) -> str:
        """Return the name of the dataset that packs are made from; other names are returned."""
        if self.is_packed(name):
            return self.packs[name].of
        return name

    def documents_of(self, corpus: str) -> DocumentsSpec:
        """Return how a corpus's lines become documents.

        Keys in the corpus's own section override those in `documents`.
        """
        spec = self._corpus_spec(corpus)
        overrides: dict[str, Any] = {
            "text_key": spec.text_key,
            "id_key": spec.id_key,
            "columns": spec.columns,
        }
        given = {key: value for key, value in overrides.items() if value is not None}
        return replace(self.documents, **given)

    def attributes_of(self, corpus: str) -> AttributesSpec | None:
        """Return which tables are joined to a corpus's documents, or None."""
        spec = self.attributes.get(corpus)
        if isinstance(spec, str):
            return AttributesSpec(spec)
        return spec

    @property
    def root_folder(self) -> Path:
        """The folder of outputs; if they are in a bucket, the folder with local copies of them."""
        place = self.root_place
        if place is not None:
            return copies_folder(place, self._mirror)
        return self.local(self.root, "root")

    @property
    def root_access(self) -> FileAccess:
        """Access to the files of the outputs, on a disk or in a bucket."""
        place = self.root_place
        if place is None:
            return FileAccess(self.root_folder)
        return FileAccess(self.root_folder, place, capacity=self.storage.capacity)

    @property
    def root_place(self) -> Store | None:
        """The location of the outputs in a bucket, or None if they are on a disk."""
        if not is_remote(self.root):
            return None
        return self._remote(self.root, "root").place

    @property
    def history_folder(self) -> Path:
        """The folder of Dagster's history."""
        return self.local(self.history, "history")

    @property
    def tokenizer_file(self) -> TokenizerPath:
        """The path of the tokenizer, with its settings."""
        spec = self.tokenizer
        merges = None if spec.merges is None else self._tokenizer_path(spec.merges, "merges")
        file = TokenizerFile(
            self._tokenizer_path(spec.path, "path"),
            merges,
            spec.pattern,
            spec.special_tokens,
            spec.num_special_tokens,
            spec.vocab_size,
            spec.legacy,
        )
        # If the path is a folder, the source is the file in it that is the tokenizer.
        source = as_source(file)
        return source if source.settings else source.path

    def _tokenizer_path(self, location: str, key: str) -> Path:
        """Return the local path of a tokenizer file, of which a copy is downloaded from a bucket.

        Args:
            location: Path or URL of the file.
            key: The key below `tokenizer` that names it, for errors.
        """
        if not is_remote(location):
            return self.local(location, f"tokenizer.{key}")
        from nanoset_core.tokenizers.files.source import tokenizer_here

        return tokenizer_here(self._remote(location, f"tokenizer.{key}"), self._mirror)

    def _remote(self, url: str, key: str, *, only_read: bool = False) -> RemoteFolder:
        """Return the location in a bucket that a key names.

        Args:
            url: The value of the key.
            key: The key, for errors.
            only_read: Whether nothing will be written there.
        """
        return remote_location(
            url, where=f"{self.file}: {key}", storage=self.storage, only_read=only_read
        )

    @property
    def _mirror(self) -> Path:
        """The folder for local copies of files in buckets."""
        return self.local(self.storage.mirror or ".nanoset/mirror", "storage.mirror")

    def local(self, path: str, key: str) -> Path:
        """Return the absolute path on this machine that a key names.

        Args:
            path: The value of the key.
            key: The key, for errors.

        Raises:
            ConfigError: It is not a path.
        """
        return local_path(path, base=self.file.parent, where=f"{self.file}: {key}")

    def with_copies_in(self, folder: Path) -> ProjectConfig:
        """Return the same settings with another folder for local copies of files in buckets."""
        return replace(self, storage=replace(self.storage, mirror=str(folder)))

    def below(self, folder: Path) -> ProjectConfig:
        """Return the settings for a worker of a cluster, which cannot see this machine's files.

        Args:
            folder: The worker's folder for local copies. The tokenizer was sent to the worker.
        """
        config = self.with_copies_in(folder)
        if is_remote(self.tokenizer.path):
            return config
        received = as_source(local_tokenizer(config.tokenizer_file))
        merges = None if received.merges is None else str(received.merges)
        return replace(
            config, tokenizer=replace(self.tokenizer, path=str(received.path), merges=merges)
        )

    @property
    def workers(self) -> int:
        """How many worker processes there are; by default one for each available processor."""
        return self.tokenization.workers or available_processors()


def config_file(path: Path) -> Path:
    """Return the nanoset.yaml that a path names: the file itself, or the one in a folder."""
    return path / CONFIG_FILE if path.is_dir() else path


def load_config(path: str | os.PathLike[str]) -> ProjectConfig:
    """Read and check a nanoset.yaml.

    Args:
        path: The file, or the folder that contains it.

    Returns:
        The settings. They are immutable, as are all mappings and sequences in them.

    Raises:
        MissingError: There is no such file.
        ConfigError: It is not YAML, or has mistakes. The error lists all of them, each with its
            line.
    """
    file = config_file(expanded(path, "the configuration")).resolve()
    check_utf_8(file)
    try:
        value, text = read_yaml(file, remedy="correct the line; `nanoset init` writes an example")
    except FileNotFoundError as error:
        raise MissingError(
            "no such configuration",
            where=file,
            remedy="run `nanoset init` to write one, or `nanoset demo` for an example",
        ) from error
    except OSError as error:
        raise ConfigError(
            "the configuration cannot be read",
            where=file,
            found=error.strerror,
            remedy="give the path of a text file",
        ) from error
    return config_from(value, file, text)


def config_from(value: object, file: Path, text: str | None = None) -> ProjectConfig:
    """Return the configuration that the plain values of a nanoset.yaml describe.

    Args:
        value: The content of the file.
        file: Its path. Relative paths in it start in its folder.
        text: Its text, from which errors take the lines of mistakes; None if there is no file.

    Raises:
        ConfigError: There are mistakes. The error lists all of them.
    """
    config, errors = check_config(value, file)
    if config is not None:
        return config
    if text is None:
        raise combined(errors, file)
    raise located(file, text, errors)


def check_config(value: object, file: Path) -> tuple[ProjectConfig | None, list[ConfigError]]:
    """Return the configuration that plain values describe, or None and all mistakes in them.

    Args:
        value: The content of a nanoset.yaml.
        file: Its path.
    """
    if value is None:
        error = ConfigError(
            "the configuration is empty",
            where=file,
            expected="raw, root and tokenizer at the least",
            remedy="remove it, and run `nanoset init` here to write one to start from",
        )
        return None, [error]

    # Check each value on its own: its type, its range, its choices.
    parser = Parser(file)
    parsed = parser.read(ProjectConfig, value, "")
    if parser.errors:
        return None, parser.errors
    config: ProjectConfig = replace(parsed, file=file)

    # Check values together. The rules are about what nanoset.yaml says, so they come before phases
    # and `packing` are expanded to nanosets and packs.
    errors = _distinct(_broken_rules(config))
    if errors:
        return None, errors
    try:
        nanosets = resolved(config.nanosets, file)
        packing = resolve_packing(file, nanosets, config.webdatasets, config.packs)
    except ConfigError as error:
        return None, [error]
    config = replace(config, **packing._asdict())

    # Check the packs that `packing` added, too.
    errors = _distinct(_broken_rules_of_packs(config))
    if errors:
        return None, errors

    if config.packed:
        warn_of_former_key(file)
        config = replace(config, pbin=config.packed)
    return config, []


def _distinct(errors: Iterable[ConfigError]) -> list[ConfigError]:
    """Return errors without repetitions, since a rule may be broken once for several names."""
    return list({str(error): error for error in errors}.values())


def _broken_rules(config: ProjectConfig) -> Iterator[ConfigError]:
    """Yield an error for each setting that is impossible or contradicts another one."""
    file = config.file
    tokenizer = config.tokenizer
    tokenization = config.tokenization

    yield from _place_errors(config)
    yield from tokenization_errors(file, tokenizer, config.documents, tokenization)
    for name, corpus in config.corpora.items():
        yield from corpus_errors(file, name, corpus)
    if config.attributes:
        yield from raised(check_corpora, file, "attributes", tuple(config.attributes))
    for name in config.attributes:
        attributes = config.attributes_of(name)
        if attributes is not None:
            yield from column_errors(file, f"attributes.{name}.columns", attributes.columns or ())
    yield from executor_errors(file, config.executor)
    for name, nanoset in config.nanosets.items():
        yield from nanoset_errors(file, name, nanoset)
    yield from end_token_errors(file, config.nanosets, tokenization)
    for name, webdataset in config.webdatasets.items():
        yield from webdataset_errors(file, name, webdataset, tokenizer, tokenization)
    yield from view_errors(file, config.views, config.corpora)
    yield from _broken_rules_of_packs(config)
    yield from contamination_errors(file, config.contamination, config.views)
    yield from export_errors(file, config.exports)
    yield from reader_errors(file, config.nanosets, config.exports)
    yield from pbin_errors(file, config.pbin, config.packed)
    yield from automation_errors(file, config.automation)
    yield from _name_errors(config)


def _broken_rules_of_packs(config: ProjectConfig) -> Iterator[ConfigError]:
    """Yield an error for each setting of packs, or of what reads them, that is impossible."""
    source_of_view = {name: view.of for name, view in config.views.items()}
    yield from pack_errors(config.file, config.packs, source_of_view, config.corpora)
    yield from pack_reader_errors(
        config.file,
        config.packs,
        config.tokenizer,
        config.nanosets,
        config.webdatasets,
        config.exports,
    )


def _place_errors(config: ProjectConfig) -> Iterator[ConfigError]:
    """Yield an error for each invalid path or URL, and for outputs inside the raw folder."""
    tokenizer = config.tokenizer
    for key, location in (("path", tokenizer.path), ("merges", tokenizer.merges)):
        if location is not None:
            yield from raised(_check_location, config, location, f"tokenizer.{key}")
    try:
        raw = config.raw_folder
        root = config.root_folder
        _ = config.history_folder
    except ConfigError as error:
        yield error
        return

    is_remote_root = config.root_place is not None
    if isinstance(raw, RemoteFolder) or is_remote_root:
        is_inside = f"{config.root.rstrip('/')}/".startswith(f"{config.raw.rstrip('/')}/")
    else:
        is_inside = root == raw or raw in root.parents
    is_file = not is_remote_root and root.is_file()
    yield from broken(
        f"{config.file}: ",
        _TEXTS,
        (is_inside, "inside", "root", config.root if is_remote_root else root),
        (is_file, "file", "root", root),
    )


def _check_location(config: ProjectConfig, location: str, key: str) -> None:
    """Check that the value of a key is a path or a URL.

    Raises:
        ConfigError: It is neither.
    """
    if is_remote(location):
        remote_location(location, where=f"{config.file}: {key}", storage=config.storage)
    else:
        config.local(location, key)


def _name_errors(config: ProjectConfig) -> Iterator[ConfigError]:
    """Yield an error for each name that is used twice.

    Names of nanosets, webdatasets and so on become names of Dagster's jobs and groups of assets, in
    which '-' is replaced by '_'.
    """
    first_by_name: dict[str, str] = {}  # name as Dagster compares it → the first key with that name
    for path in _named_things(config):
        _, _, name = path.partition(".")
        first = first_by_name.setdefault(name.replace("-", "_"), path)
        yield from broken(
            f"{config.file}: ", _TEXTS, (first != path, "name", path, f"{first} has the same")
        )


def _named_things(config: ProjectConfig) -> Iterator[str]:
    """Yield `<section>.<name>` of everything that becomes a job or a group of assets."""
    for name, nanoset in config.nanosets.items():
        phases = [f"{name}-phase-{number}" for number in range(1, len(nanoset.phases) + 1)]
        yield from [f"nanosets.{part}" for part in phases or [name]]
    yield from [f"webdatasets.{name}" for name in config.webdatasets]
    # One job makes all views of a corpus, and one all its packs.
    corpora_with_views = dict.fromkeys(base_of(config.views, name) for name in config.views)
    for corpus in corpora_with_views:
        yield f"views.{corpus}_views"
    corpora_with_packs = dict.fromkeys(base_of(config.derived, name) for name in config.packs)
    for corpus in corpora_with_packs:
        yield f"packs.{corpus}_packs"
    for name in (*config.pbin, *config.packed):
        if name in config.derived:
            yield f"pbin.{name}_packed"
    yield from [f"exports.{name}" for name in config.exports]
    yield from [f"contamination.{name}" for name in config.contamination]
