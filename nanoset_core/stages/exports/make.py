"""Make an export: write the current dataset of a corpus or view in the format of another reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.formats.indexed.stream import Hashed, stream_of
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe, Written
from nanoset_core.project.project import Project, holding
from nanoset_core.stages.dataset.tokens import copy_tokens, open_dataset, write_tokens
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.sample_files import SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import (
    JOINED,
    WRITTEN,
    ExportCounts,
    count_documents,
    put_tokens,
    token_blocks,
    write_beside,
)
from nanoset_core.stages.shards.options import framing
from nanoset_core.storage.atomic import sha256_file, sweep_abandoned, write_atomic

VERSION = 1
"""Version of the algorithm, which is part of every recipe."""
STAGE = "exports"
"""Folder of the exports within the outputs."""


def export_recipe(project: Project, name: str, parents: Mapping[str, str]) -> Recipe:
    """Return the recipe of an export.

    Args:
        project: The project.
        name: Name of the export.
        parents: Name of each parent → its digest.
    """
    spec = project.config.exports[name]
    # The tokenizer's name is part of the recipe only if a file of the format contains it.
    options: dict[str, Any] = {"format": spec.format}
    if spec.format == "datatrove":
        options["tokenizer_name"] = spec.tokenizer_name or project.config.tokenizer.path
    if spec.sequence_length is not None:
        options["sequence_length"] = spec.sequence_length
    return Recipe(STAGE, name, VERSION, parents, options)


def traits_of(project: Project, name: str, dtype: np.dtype, tokens: int) -> DatasetTraits:
    """Return the properties of an export's dataset that its format depends on.

    Args:
        project: The project.
        name: Name of the export.
        dtype: Dtype of the dataset's tokens.
        tokens: Number of its tokens.
    """
    config = project.config
    spec = config.exports[name]
    return DatasetTraits(
        where=f"{config.file}: exports.{name}",
        dtype=dtype,
        tokens=tokens,
        vocab_size=project.tokenizer.max_id + 1,
        has_end=bool(framing(project).after),
        tokenizer=spec.tokenizer_name or config.tokenizer.path,
        sequence_length=spec.sequence_length,
    )


@holding
def make_export(project: Project, name: str) -> Manifest:
    """Write an export of the current dataset of its corpus or view, and make it current.

    Raises:
        MissingError: The dataset has not been built.
        ConfigError: The reader could not read the export.
    """
    spec = project.config.exports[name]
    dataset = current_dataset(project, spec.of)
    export_format = FORMATS[spec.format]
    traits = traits_of(
        project, name, np.dtype(dataset.facts["dtype"]), int(dataset.facts["tokens"])
    )
    export_format.check(traits)

    recipe = export_recipe(project, name, {"dataset": dataset.digest})
    if isinstance(export_format, SampledFormat):
        manifest = _SampledExport(project, dataset, recipe, export_format, traits).make()
    else:
        manifest = _LinkedExport(project, dataset, recipe, export_format, traits).make()
    return project.outputs.make_current(manifest)


def export_facts(
    export_format: ExportFormat,
    dataset: Manifest,
    counts: ExportCounts,
    traits: DatasetTraits,
    made_by: str,
) -> dict[str, Any]:
    """Return the facts that the manifests of all exports have.

    Args:
        export_format: Format of the export.
        dataset: Manifest of the dataset.
        counts: Number of documents.
        traits: Properties of the dataset.
        made_by: How the export got its tokens, such as `LINKED`.
    """
    return {
        "format": export_format.name,
        "of": dataset.name,
        "documents": counts.documents,
        "tokens": traits.tokens,
        "left_out": counts.left_out,
        "dtype": traits.dtype.name,
        "made_by": made_by,
    }


def sample_files(
    project: Project,
    dataset: Manifest,
    place: Path,
    export_format: SampledFormat,
    traits: DatasetTraits,
) -> SampleFiles:
    """Return the files of an export that consists of samples.

    Args:
        project: The project.
        dataset: Manifest of the dataset.
        place: Folder of the export.
        export_format: Format of the export.
        traits: Properties of the dataset.
    """
    access = project.outputs.access
    return SampleFiles(
        format=export_format,
        cut=export_format.cut(traits),
        source=access,
        bin=dataset.folder / f"{dataset.facts['prefix']}.bin",
        target=access.store.below(access.name(place)),
    )


@dataclass(frozen=True, slots=True)
class _SampledExport:
    """An export that consists of samples, for which the tokens are written again."""

    project: Project
    dataset: Manifest
    recipe: Recipe
    format: SampledFormat
    traits: DatasetTraits

    def make(self) -> Manifest:
        """Write the files that do not exist yet, and then the manifest; return the manifest."""
        project = self.project
        outputs = project.outputs
        if not project.rebuild:
            existing = outputs.find(self.recipe)
            if existing is not None:
                return existing

        place = outputs.place(self.recipe)
        place.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(place)
        dataset = open_dataset(self.dataset, is_sampled=True)
        stream = stream_of(dataset)
        files = sample_files(project, self.dataset, place, self.format, self.traits)
        n_bytes = self.traits.tokens * self.traits.dtype.itemsize
        work = project.progress.work("export", self.recipe.name, n_bytes)
        made = files.make(
            stream, project.config.workers, project.executor, work, rewrite=project.rebuild
        )

        # index.json lists all files, so that it is written after them.
        index = files.index(made)
        write_atomic(place / INDEX, index)
        index_fact = FileFact(len(index), sha256_file(place / INDEX))
        file_facts = dict(zip(self.format.names(files.cut), [*made, index_fact], strict=True))

        counts = count_documents(dataset, stream)
        facts = export_facts(self.format, self.dataset, counts, self.traits, WRITTEN)
        facts |= self.format.facts(files.cut)
        return outputs.finalize(self.recipe, facts, file_facts)


@dataclass(frozen=True, slots=True)
class _LinkedExport:
    """An export whose file of tokens has the bytes of the dataset's .bin."""

    project: Project
    dataset: Manifest
    recipe: Recipe
    format: LinkedFormat
    traits: DatasetTraits

    def make(self) -> Manifest:
        """Write the small files, and link, copy or write the tokens; return the manifest."""
        return self.project.outputs.commit(self.recipe, self._write)

    def _write(self, folder: Path) -> Written:
        """Write the files of the export to a folder."""
        dataset = open_dataset(self.dataset, is_sampled=True)
        stream = stream_of(dataset)
        counts = write_beside(self.format, folder, self.recipe.name, dataset, stream, self.traits)
        if stream is None:
            made_by, shared = self._share_tokens(folder)
            files: dict[str, str | FileFact] = {**shared}
        else:
            # The dataset is a view, whose sequences may be anywhere in the .bin. The export has
            # their tokens in the order of the view, so it cannot share the .bin.
            made_by = WRITTEN
            blocks = Hashed(token_blocks(dataset, stream, self.recipe.name, self.project.progress))
            files = write_tokens(
                self.project.outputs, self.recipe, folder, self._tokens_file, blocks
            )
        facts = export_facts(self.format, self.dataset, counts, self.traits, made_by)
        return Written(facts, files)

    @property
    def _tokens_file(self) -> str:
        """Name of the file of tokens."""
        return self.format.files(self.recipe.name)[0]

    def _share_tokens(self, folder: Path) -> tuple[str, Mapping[str, FileFact]]:
        """Link or copy the .bin of the dataset into the export.

        Within a bucket, the bucket copies it, so that tokens are not downloaded.

        Returns:
            (how it was done, such as `LINKED`; name → size and sha256 of the files)
        """
        name = self._tokens_file
        if self.project.outputs.access.has_copies:
            return JOINED, copy_tokens(
                self.project.outputs, self.dataset, self.recipe, folder, name
            )
        bin_name = f"{self.dataset.facts['prefix']}.bin"
        made_by = put_tokens(self.dataset.folder / bin_name, folder / name)
        return made_by, {name: self.dataset.files[bin_name]}
