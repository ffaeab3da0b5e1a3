"""The settings that a nanoset.yaml contains, as a user writes them, and the rules across sections.

`WrittenConfig` has a field for each key of nanoset.yaml. Sections of stages are declared in the
`settings.py` of the stage. Stages do not see these settings, but those to which
`nanoset_core/project/settings.py` resolves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import PACKS_JOB, PBIN_JOB, VIEWS_JOB, AssetName, CorpusName
from nanoset_core.project.run_settings import (
    AutomationSpec,
    DagsterSpec,
    ExecutorSpec,
)
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.rules import Section
from nanoset_core.records.settings import NOT_A_KEY, Range
from nanoset_core.stages.attributes.settings import AttributesSpec
from nanoset_core.stages.contamination.settings import ContaminationSpec, contamination_errors
from nanoset_core.stages.exports.settings import ExportSpec, reader_errors
from nanoset_core.stages.mappings.rules import end_token_errors
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.packs.rules import pack_errors, pack_reader_errors
from nanoset_core.stages.packs.settings import PacksSpec
from nanoset_core.stages.pbin.settings import pbin_errors
from nanoset_core.stages.shards.settings import (
    CorpusSpec,
    DocumentsSpec,
    TokenizationSpec,
    TokenizerSpec,
    missing_token_errors,
)
from nanoset_core.stages.views.settings import Derived, ViewSpec, base_of, view_errors
from nanoset_core.stages.webdataset.settings import WebdatasetSpec, webdataset_errors
from nanoset_core.storage.location import copies_folder, is_remote, local_path, remote_location
from nanoset_core.storage.places import is_here
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class WrittenConfig(Section):
    """The settings of a project: the content of nanoset.yaml."""

    raw: str = field(metadata={"example": "raw"})
    """Folder of raw text, one folder a corpus; or s3://bucket/prefix, or a gs://, hf://, abfs:// or
    https:// URL.
    """
    root: str = field(metadata={"example": "data"})
    """Folder of outputs, outside of raw; or s3://bucket/prefix, or a gs:// or abfs:// URL."""
    tokenizer: TokenizerSpec = field(metadata={"example": "{path: tokenizer.json, eod: </s>}"})
    """Which tokenizer makes the tokens."""
    documents: DocumentsSpec = field(default_factory=DocumentsSpec)
    """How lines become documents."""
    corpora: Mapping[CorpusName, CorpusSpec] = field(default_factory=FrozenDict)
    """Name → how a corpus differs from the others; a second corpus of the same folder has another
    name and text key.
    """
    attributes: Mapping[CorpusName, AttributesSpec | str] = field(default_factory=FrozenDict)
    """Corpus → tables of others whose columns are joined to its documents by id, to choose by; or
    their files alone.
    """
    tokenization: TokenizationSpec = field(default_factory=TokenizationSpec)
    """How documents become tokens."""
    executor: ExecutorSpec = field(default_factory=ExecutorSpec)
    """What tokenizes, writes tars and verifies deeply."""
    nanosets: Mapping[AssetName, NanosetSpec] = field(default_factory=FrozenDict)
    """Name → a nanoset: a blend of corpora, cut into samples of one length, in a fixed order,
    and divided into train, valid and test.
    """
    webdatasets: Mapping[AssetName, WebdatasetSpec] = field(default_factory=FrozenDict)
    """Name → a set of shuffled tar shards."""
    views: Mapping[CorpusName, ViewSpec] = field(default_factory=FrozenDict)
    """Name → a dataset of documents that are chosen from a corpus; it can be named wherever a
    corpus can.
    """
    packs: Mapping[CorpusName, PacksSpec] = field(default_factory=FrozenDict)
    """Name → the documents of a corpus or view, put unbroken into packs of one length; it can be
    named wherever a corpus can, if samples are as long. The key `packing` of a nanoset or
    webdataset makes them.
    """
    contamination: Mapping[AssetName, ContaminationSpec] = field(default_factory=FrozenDict)
    """Name → evaluation files whose texts are searched for in the corpora."""
    exports: Mapping[AssetName, ExportSpec] = field(default_factory=FrozenDict)
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
    """How buckets are reached, if raw or root is in one."""
    dagster: DagsterSpec = field(default_factory=DagsterSpec)
    """What the project is called in Dagster."""
    history: str = ".dagster"
    """Folder of Dagster's history, which needs a disk with file locks; DAGSTER_HOME takes
    precedence.
    """
    file: Path = field(default=Path(CONFIG_FILE), kw_only=True, metadata=NOT_A_KEY)
    """Path of the nanoset.yaml. Relative paths in it start in its folder."""

    @property
    def raw_folder(self) -> Path | RemotePath:
        """The folder of raw text."""
        if not is_remote(self.raw):
            return self.local(self.raw, "raw")
        return RemotePath(
            self._remote(self.raw, "raw", only_read=True).place,
            by_etag=self.storage.fingerprint != "content",
            in_pieces=self.storage.fingerprint == "etag-pieces",
        )

    @property
    def derived(self) -> Mapping[str, Derived]:
        """The views and packs by name.

        They are made from the dataset of a corpus, and can be named wherever a corpus can.
        """
        if not self.packs:
            return self.views
        return {**self.views, **self.packs}

    def is_packed(self, name: str) -> bool:
        """Return whether a name is that of packs: documents in sequences of one length.

        Args:
            name: Name of any dataset.
        """
        return name in self.packs

    def attributes_of(self, corpus: str) -> AttributesSpec | None:
        """Return the settings of tables with further values of a text collection's documents.

        Another team may have computed values, such as a score of each document, and stored them in
        Parquet files. There are two ways to write the setting, the second of which is short:

            attributes: {web: {files: "scores/*.parquet", …}}
            attributes: {web: "scores/*.parquet"}

        Args:
            corpus: Name of the text collection (corpus), such as web.

        Returns:
            The settings; None if there are no such tables.
        """
        spec = self.attributes.get(corpus)
        if isinstance(spec, str):
            return AttributesSpec(spec)
        return spec

    @property
    def root_folder(self) -> Path:
        """The folder of outputs; if they are in a bucket, the folder with local copies of them."""
        bucket_place = self.root_place
        if bucket_place is not None:
            return copies_folder(bucket_place, self._mirror)
        return self.local(self.root, "root")

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

    def _remote(self, url: str, key: str, *, only_read: bool = False) -> RemotePath:
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

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each contradiction between several sections of the settings.

        For example, in these settings, a training (nanoset) reads a selection of documents (view)
        that no section describes:

            nanosets:
              pretrain: {blend: {best-web: 1.0}}
            views: {}

        Mistakes within one section are found by the class of the section.

        Args:
            where: The nanoset.yaml; its path is also `file`.
        """
        yield from self._location_errors()
        yield from self._tokenizer_errors()
        yield from self._reference_errors()
        yield from self._name_errors()

    def _tokenizer_errors(self) -> Iterator[ConfigError]:
        """Yield an error for each special token that is needed, but that the tokenizer lacks."""
        yield from missing_token_errors(self.file, self.tokenizer, self.tokenization)
        yield from end_token_errors(self.file, self.nanosets, self.tokenization)
        for name, webdataset in self.webdatasets.items():
            yield from webdataset_errors(
                self.file, name, webdataset, self.tokenizer, self.tokenization
            )

    def _reference_errors(self) -> Iterator[ConfigError]:
        """Yield an error for each dataset that a section names, but that is not described.

        This includes datasets of the wrong kind, such as a selection of documents where only a
        collection of texts is accepted.
        """
        yield from view_errors(self.file, self.views, self.corpora)
        yield from self.broken_pack_rules()
        yield from contamination_errors(self.file, self.contamination, self.views)
        yield from reader_errors(self.file, self.nanosets, self.exports)
        yield from pbin_errors(self.file, self.pbin, self.packed)  # `packed`: its former name

    def broken_pack_rules(self) -> Iterator[ConfigError]:
        """Yield an error for each of the packs that cannot be made, or whose readers cannot use it.

        Packs are datasets whose sequences have one length. Their readers are nanosets, webdatasets
        and exports, which need packs of their own sample length.
        """
        source_of_view = {name: view.of for name, view in self.views.items()}
        yield from pack_errors(self.file, self.packs, source_of_view, self.corpora)
        yield from pack_reader_errors(
            self.file, self.packs, self.tokenizer, self.nanosets, self.webdatasets, self.exports
        )

    def _location_errors(self) -> Iterator[ConfigError]:
        """Yield an error for each invalid path or URL, and for outputs inside the raw folder."""
        yield from self._tokenizer_location_errors()
        try:
            raw_folder = self.raw_folder
            root_folder = self.root_folder
            self.local(self.history, "history")
        except ConfigError as error:  # one of these is neither a path nor a URL
            yield error
            return
        yield from self._root_errors(raw_folder, root_folder)

    def _tokenizer_location_errors(self) -> Iterator[ConfigError]:
        """Yield an error for each invalid name of a tokenizer's file; the files are not read."""
        for key, location in (("path", self.tokenizer.path), ("merges", self.tokenizer.merges)):
            if location is None:
                continue
            try:
                self._check_location(location, f"tokenizer.{key}")
            except ConfigError as error:
                yield error

    def _root_errors(
        self, raw_folder: Path | RemotePath, root_folder: Path
    ) -> Iterator[ConfigError]:
        """Yield an error if the folder of outputs cannot be used. There are two mistakes:

            raw: text, root: text/out    outputs are inside the raw text, and would be read as text
            root: notes.txt              a file, not a folder

        Args:
            raw_folder: The folder of raw text.
            root_folder: The folder of outputs. If outputs are in a bucket, this is a folder on this
                machine with copies of them, which is never a user's file.
        """
        is_in_bucket = is_remote(self.root)
        if self._is_root_inside_raw(raw_folder, root_folder):
            yield ConfigError(
                "the outputs would be inside the raw text, and be taken for it",
                where=f"{self.file}: root",
                found=self.root if is_in_bucket else root_folder,
                remedy="give root a folder of its own, such as data",
            )
        if not is_in_bucket and root_folder.is_file():
            yield ConfigError(
                "a file is where the folder of outputs should be",
                where=f"{self.file}: root",
                found=root_folder,
                remedy="name a folder",
            )

    def _is_root_inside_raw(self, raw_folder: Path | RemotePath, root_folder: Path) -> bool:
        """Return whether the outputs would be in the folder of raw text, and be read as text.

        Args:
            raw_folder: The folder of raw text.
            root_folder: The folder of outputs, if they are on a disk.
        """
        is_raw_on_disk = is_here(raw_folder)
        is_root_on_disk = not is_remote(self.root)
        if is_raw_on_disk and is_root_on_disk:
            return root_folder == raw_folder or raw_folder in root_folder.parents

        # Compare URLs. The slash at the end shows that s3://b/text-2 is not inside s3://b/text.
        raw_url = self.raw.rstrip("/") + "/"
        root_url = self.root.rstrip("/") + "/"
        return root_url.startswith(raw_url)

    def _check_location(self, location: str, key: str) -> None:
        """Check that a setting is a path (gemma/tokenizer.json) or a URL (s3://bucket/file).

        Whether the file exists is not checked.

        Args:
            location: The value of the setting.
            key: The key of nanoset.yaml that has it, for the error.

        Raises:
            ConfigError: It is neither.
        """
        if is_remote(location):
            remote_location(location, where=f"{self.file}: {key}", storage=self.storage)
        else:
            self.local(location, key)

    def _name_errors(self) -> Iterator[ConfigError]:
        """Yield an error for each name that is used twice in the settings, in any sections.

        Names become names in Dagster, the program that runs builds. There, '-' is not allowed, and
        is replaced by '_'. So these two have the same name:

            nanosets:
              my-set: …
            webdatasets:
              my_set: …
        """
        first_path_by_name: dict[str, str] = {}
        for path in self._named_things():  # such as webdatasets.my-set
            _, _, name = path.partition(".")
            dagster_name = name.replace("-", "_")
            first_path = first_path_by_name.setdefault(dagster_name, path)
            if first_path != path:
                yield ConfigError(
                    "two things share a name",
                    where=f"{self.file}: {path}",
                    found=f"{first_path} has the same",
                    expected="names that differ in more than '-' and '_'",
                    remedy="rename one of them",
                )

    def _named_things(self) -> Iterator[str]:
        """Yield what gets a name in Dagster, the program that runs builds.

        The caller checks that no two of these have the same name.

        Yields:
            The section of nanoset.yaml, and the name, such as "webdatasets.shuffled".
        """
        for name, nanoset in self.nanosets.items():
            # A training in two phases becomes two: nanosets.pretrain-phase-1 and -2.
            yield from nanoset.resolved_names(f"nanosets.{name}")
        for name in self.webdatasets:
            yield f"webdatasets.{name}"
        # Of some outputs, only the jobs that make them have names in Dagster.
        yield from self._jobs_of_views_and_packs()
        yield from self._jobs_of_pbin_files()
        for name in self.exports:
            yield f"exports.{name}"
        for name in self.contamination:
            yield f"contamination.{name}"

    def _jobs_of_views_and_packs(self) -> Iterator[str]:
        """Yield the names of the jobs that make views (selections) and packs (joined documents).

        All views of a collection of texts (corpus) are made by one job, and so are all packs. For
        example, the views `best` and `short` of the corpus `web` give "views.web_views".
        """
        # A view may select from another view, and packs may be made of a view: `base_of` follows
        # these to the corpus.
        corpora_with_views = dict.fromkeys(base_of(self.views, name) for name in self.views)
        for corpus in corpora_with_views:
            yield "views." + VIEWS_JOB.format(subject=corpus)
        corpora_with_packs = dict.fromkeys(base_of(self.derived, name) for name in self.packs)
        for corpus in corpora_with_packs:
            yield "packs." + PACKS_JOB.format(subject=corpus)

    def _jobs_of_pbin_files(self) -> Iterator[str]:
        """Yield the name of each job that makes a .pbin file, a file of tokens for some trainers.

        Only selections of documents (views), and packs of them, have jobs of their own, such as
        "pbin.short_packed" for the view `short`.
        """
        # `packed` is the former name of the key `pbin`. Both are allowed.
        for name in (*self.pbin, *self.packed):
            is_view_or_packs = name in self.derived
            if is_view_or_packs:
                yield "pbin." + PBIN_JOB.format(subject=name)
