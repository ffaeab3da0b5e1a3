"""Make an export: write the current dataset of a corpus or view in the format of another reader.

There are two kinds of formats. The file of tokens of some formats has the same bytes as the .bin of
the dataset, so that it can be a link, with small files next to it. Others consist of many files of
samples, for which the tokens are written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Hashed, Stream, stream_of
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.stages.dataset.tokens import (
    bin_name,
    copy_tokens,
    fetch_tokens,
    open_dataset,
    write_tokens,
)
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.names import FOLDER, VERSION
from nanoset_core.stages.exports.sample_files import SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import (
    COPIED_IN_BUCKET,
    WRITTEN,
    LinkedExport,
    TokensFile,
    count_documents,
    export_facts,
    put_tokens,
)
from nanoset_core.stages.shards.options import framing
from nanoset_core.storage.atomic import sha256_file, sweep_abandoned, write_atomic


def export_recipe(project: Project, name: str, parents: Mapping[str, str]) -> Recipe:
    """Return the recipe of an export: everything that decides the bytes of its files.

    An export has the tokens of a dataset in the file format of another library, for example

        {"format": "mds", "sequence_length": 2048}

    Args:
        project: Its settings of the export and the tokenizer are read.
        name: Name of the export.
        parents: "dataset" → the digest of the dataset that is exported.

    Returns:
        The recipe, whose digest names the version of the export.
    """
    spec = project.config.exports[name]
    # The tokenizer's name is part of the recipe only if a file of the format contains it.
    options: dict[str, Any] = {"format": spec.format}
    if spec.format == "datatrove":
        options["tokenizer_name"] = spec.tokenizer_name or project.config.tokenizer.path
    if spec.sequence_length is not None:
        options["sequence_length"] = spec.sequence_length
    return Recipe(FOLDER, name, VERSION, parents, options)


def traits_of(project: Project, name: str, dtype: np.dtype, tokens: int) -> DatasetTraits:
    """Return the properties of a dataset by which a program can read its export, or cannot.

    An export has the tokens of a dataset in the files of another program. For example, OLMo-core
    reads tokens of 2 bytes only if the vocabulary has up to 65,536 ids.

    Args:
        project: Its settings of the export and the tokenizer are read.
        name: Name of the export in nanoset.yaml.
        dtype: Dtype of the dataset's tokens.
        tokens: Number of its tokens.
    """
    config = project.config
    spec = config.exports[name]
    end_tokens = framing(project).after  # the tokens that are put after each document
    return DatasetTraits(
        where=f"{config.file}: exports.{name}",  # for error messages
        dtype=dtype,
        tokens=tokens,
        vocab_size=project.tokenizer.max_id + 1,  # ids start with 0
        has_end=len(end_tokens) > 0,
        tokenizer=spec.tokenizer_name or config.tokenizer.path,
        sequence_length=spec.sequence_length,
    )


@holding
def make_export(project: Project, name: str) -> Manifest:
    """Write the tokens of a dataset to files that another library can read.

    A library such as MosaicML's streaming reads its own format only. For

        exports: {web-mds: {of: web, format: mds, sequence_length: 2048}}

    in nanoset.yaml, the tokens of `web` are written as samples of 2,048 tokens. Other formats have
    all tokens in one file, like the dataset. Then this file is linked.

    Args:
        project: Its nanoset.yaml has the settings of the export.
        name: Name of the export, such as "web-mds".

    Returns:
        Manifest of the export, which is its current version now.

    Raises:
        MissingError: The dataset has not been built.
        ConfigError: The library could not read the export.
    """
    spec = project.config.exports[name]
    dataset = current_dataset(project, spec.of)
    dtype = np.dtype(dataset.facts["dtype"])
    traits = traits_of(project, name, dtype, int(dataset.facts["tokens"]))

    # Check that the library could read the tokens, before they are written.
    export_format = FORMATS[spec.format]
    export_format.check(traits)

    recipe = export_recipe(project, name, {"dataset": dataset.digest})
    if isinstance(export_format, SampledFormat):
        manifest = _SampledExport(project, dataset, recipe, export_format, traits).make()
    else:
        manifest = _SharingExport(project, dataset, recipe, export_format, traits).make()
    return project.outputs.make_current(manifest)


def sample_files(
    project: Project,
    dataset: Manifest,
    place: Path,
    export_format: SampledFormat,
    traits: DatasetTraits,
) -> SampleFiles:
    """Describe the files of an export that consists of samples: sequences of one length.

    The tokens of a dataset are divided into samples, and these into files. For example, 10,000
    tokens in samples of 100, and files of 40 samples:

        file 0    tokens 0 to 4,000
        file 1    tokens 4,000 to 8,000
        file 2    tokens 8,000 to 10,000

    Args:
        project: Its outputs contain the dataset and the export.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
        place: Folder of the export.
        export_format: Format of the export, such as that of MosaicML's streaming.
        traits: Properties of the dataset that the format depends on.

    Returns:
        Which tokens each file gets, and where it is written. Nothing is written yet.

    Raises:
        ConfigError: The length of samples is not set, or the reader needs more tokens.
    """
    access = project.outputs.access
    return SampleFiles(
        format=export_format,
        cut=export_format.cut(traits),  # which tokens each file gets
        source=access,
        bin=dataset.folder / bin_name(dataset),
        target=access.store.below(access.name(place)),  # the store, from this folder on
    )


@dataclass(frozen=True, slots=True)
class _SampledExport:
    """An export that consists of samples, for which the tokens are written again."""

    project: Project
    dataset: Manifest
    """Manifest of the dataset that is exported."""
    recipe: Recipe
    """Recipe of the export."""
    format: SampledFormat
    traits: DatasetTraits
    """Properties of the dataset."""

    def make(self) -> Manifest:
        """Write the files of an export that do not exist yet, and then its manifest.

        If the build is killed after 3 of 10 files, the next one keeps these, and writes the other
        7.

        Returns:
            The manifest of the export.
        """
        if not self.project.rebuild:
            existing = self.project.outputs.find(self.recipe)
            if existing is not None:
                return existing

        # Files are written to their final places. Without a manifest, nobody reads them.
        place = self.project.outputs.place(self.recipe)
        place.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(place)  # incomplete files of a build that was killed
        return self._write(place)

    def _write(self, place: Path) -> Manifest:
        """Write the files of an export to its folder: first the tokens, and last the manifest.

            shard.00000.mds, shard.00001.mds, …    samples: sequences of tokens of one length
            index.json                             lists these files; the library reads it first
            manifest.json                          says that all files are complete

        Args:
            place: The folder.
        """
        self._fetch_tokens_of_this_machine()
        # In this process, only the lengths of documents are read, so download small blocks.
        dataset = open_dataset(self.dataset, is_sampled=True)
        stream = stream_of(dataset)  # where the tokens are, if a view chooses some documents
        samples = sample_files(self.project, self.dataset, place, self.format, self.traits)

        sample_facts = self._write_samples(samples, stream)
        index_fact = _write_index(place, samples.index(sample_facts))

        names = self.format.names(samples.cut)  # shard.00000.mds, shard.00001.mds, …, index.json
        fact_by_name = dict(zip(names, [*sample_facts, index_fact], strict=True))
        facts = self._facts(samples, dataset, stream)
        return self.project.outputs.finalize(self.recipe, facts, fact_by_name)

    def _fetch_tokens_of_this_machine(self) -> None:
        """Download the tokens of a dataset in a bucket at once, if they are few and all read here.

        On a cluster, each machine reads only the tokens of its files, and downloads these itself.
        """
        has_cluster = self.project.executor is not None
        if not has_cluster:
            fetch_tokens(self.dataset)

    def _facts(
        self, samples: SampleFiles, dataset: MMapIndexedDataset, stream: Stream | None
    ) -> dict[str, Any]:
        """Return what the manifest records about the export, such as the number of its documents.

        Args:
            samples: The files, and which tokens each of them has.
            dataset: The dataset that is exported, opened.
            stream: Where its tokens are in the .bin; None if they are all of it, in order.
        """
        n_documents = count_documents(dataset, stream)
        return {
            "format": self.format.name,
            "of": self.dataset.name,
            **export_facts(dataset, n_documents, self.traits, made_by=WRITTEN),
            **self.format.facts(samples.cut),
        }

    def _write_samples(self, samples: SampleFiles, stream: Stream | None) -> list[FileFact]:
        """Write the files of samples with several processes, which show how many bytes they wrote.

        Args:
            samples: The files, and which tokens each of them gets.
            stream: Where the tokens are in the .bin; None if they are all of it, in order.

        Returns:
            Size and checksum of each file, in order.
        """
        project = self.project
        n_bytes = self.traits.tokens * self.traits.dtype.itemsize
        return samples.make(
            stream,
            project.config.workers,
            project.executor,
            project.progress.work("export", self.recipe.name, n_bytes),
            rewrite=project.rebuild,  # otherwise files that exist are kept
        )


def _write_index(place: Path, index: bytes) -> FileFact:
    """Write index.json, and return its size and digest.

    Args:
        place: Folder of the export.
        index: Contents of the file.
    """
    write_atomic(place / INDEX, index)
    return FileFact(len(index), sha256_file(place / INDEX))


@dataclass(frozen=True, slots=True)
class _SharingExport:
    """An export in a format whose file of tokens has the bytes of the dataset's .bin.

    So this file can be a link to the .bin, and takes no disk space.
    """

    project: Project
    dataset: Manifest
    """Manifest of the dataset that is exported."""
    recipe: Recipe
    """Recipe of the export."""
    format: LinkedFormat
    traits: DatasetTraits
    """Properties of the dataset."""

    def make(self) -> Manifest:
        """Write the files of the export, unless they exist, and return its manifest."""
        return self.project.outputs.commit(self.recipe, self._write)

    def _write(self, folder: Path) -> Written:
        """Write the files of an export: one file with all tokens, and small files next to it.

        The tokens are those of the dataset, so their file is usually a link to the dataset's .bin.
        The small files say where documents end.

        Args:
            folder: A folder of this machine. The tokens may be in a bucket instead.

        Returns:
            The facts of the export, and the checksum of its file of tokens.
        """
        # Usually little of the dataset is read, so download small blocks.
        dataset = open_dataset(self.dataset, is_sampled=True)
        export = LinkedExport(
            format=self.format,
            name=self.recipe.name,
            dataset=dataset,
            stream=stream_of(dataset),
            traits=self.traits,
            progress=self.project.progress,
        )
        # `export` writes the small files. It has `tokens_file` link, copy or write the tokens.
        tokens_file = self._tokens_output(folder)
        counts = export.write(folder, tokens_file)
        facts = {"format": self.format.name, "of": self.dataset.name, **counts}
        return Written(facts, files=tokens_file.file_facts)

    def _tokens_output(self, folder: Path) -> _TokensOutput:
        """Return the file of tokens of the export, such as web.ds, which is not written yet.

        Args:
            folder: The folder of the export on this machine.
        """
        name_of_tokens, *_names_of_small_files = self.format.files(self.recipe.name)
        return _TokensOutput(
            outputs=self.project.outputs,
            dataset=self.dataset,
            recipe=self.recipe,
            folder=folder,
            name=name_of_tokens,
        )


@dataclass(frozen=True, slots=True)
class _TokensOutput(TokensFile):
    """The file of tokens of an export below the output root."""

    outputs: OutputRoot
    dataset: Manifest
    """Manifest of the dataset that is exported."""
    recipe: Recipe
    """Recipe of the export."""
    folder: Path
    """Folder on this machine that the files of the export are written to."""
    name: str
    """Name of the file."""
    file_facts: dict[str, str | FileFact] = field(default_factory=dict)
    """Name of each file that was made → its size and sha256, for the manifest.

    In a bucket, there may be a list of pieces next to the tokens.
    """

    def link_or_copy(self) -> str:
        """Make the export's file of tokens from the dataset's .bin, which has the same bytes.

            outputs are in a bucket        the bucket copies the .bin
            they are on this machine       a link to the .bin, which takes no disk space; or a copy,
                                           if the disk has no links

        Returns:
            Which of these it is: `COPIED_IN_BUCKET`, `LINKED` or `COPIED`.
        """
        is_bucket = self.outputs.access.takes_requests
        if is_bucket:
            copies = copy_tokens(self.outputs, self.dataset, self.recipe, self.folder, self.name)
            self.file_facts.update(copies)
            return COPIED_IN_BUCKET

        source_name = bin_name(self.dataset)
        link_or_copy = put_tokens(self.dataset.folder / source_name, self.folder / self.name)
        self.file_facts[self.name] = self.dataset.files[source_name]  # same size, same checksum
        return link_or_copy

    def write(self, blocks: Iterator[bytes]) -> None:
        """Write the file, or upload it, and compute its sha256 meanwhile."""
        hashed_blocks = Hashed(blocks)
        written = write_tokens(self.outputs, self.recipe, self.folder, self.name, hashed_blocks)
        self.file_facts.update(written)
