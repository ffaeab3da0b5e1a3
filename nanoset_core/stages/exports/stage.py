"""exports: the dataset of a corpus or view → files of another reader, over the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, one_line
from nanoset_core.execution.progress import Meter
from nanoset_core.formats.indexed.stream import Hashed, stream_of
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import gates
from nanoset_core.stages.dataset.tokens import PIECES_ENDING, copy_tokens, open_dataset, write_tokens
from nanoset_core.stages.datasets import current_dataset, dataset_node
from nanoset_core.stages.exports.base import Tokens
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.sample_files import SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.settings import IN_SAMPLES
from nanoset_core.stages.exports.writing import (
    JOINED,
    WRITTEN,
    count_documents,
    put_tokens,
    token_blocks,
    write_beside,
)
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.stage import (
    Estimated,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Resumable,
    Summary,
    counted,
    uploaded_files,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.stages.views.settings import base_of
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED, sha256_file, sweep_abandoned, write_atomic

VERSION = 1
STAGE = "exports"


def tokens_of(project: Project, name: str, dtype: np.dtype, count: int) -> Tokens:
    """Return what the format of an export must know of its dataset."""
    spec, config = project.config.exports[name], project.config
    return Tokens(
        where=f"{config.file}: exports.{name}",
        dtype=dtype,
        tokens=count,
        vocab_size=project.tokenizer.max_id + 1,
        has_end=bool(tokenization.framing(project).after),
        tokenizer=spec.tokenizer_name or config.tokenizer.path,
        sequence_length=spec.sequence_length,
    )


@holding
def export(project: Project, name: str) -> Manifest:
    """Write the current dataset of an export's corpus or view in its format, and make it current.

    MissingError without a dataset; ConfigError where the reader could not read it.
    """
    spec = project.config.exports[name]
    dataset, exit_format = current_dataset(project, spec.of), FORMATS[spec.format]
    recipe = EXPORT.recipe(project, Key(name), {"dataset": dataset.digest})
    tokens = tokens_of(project, name, np.dtype(dataset.facts["dtype"]), int(dataset.facts["tokens"]))
    exit_format.check(tokens)
    if isinstance(exit_format, SampledFormat):
        return project.outputs.make_current(_in_samples(project, dataset, recipe, exit_format, tokens))
    return project.outputs.make_current(_linked(project, dataset, recipe, exit_format, tokens))


def sample_files(
    project: Project, dataset: Manifest, place: Path, exit_format: SampledFormat, tokens: Tokens
) -> SampleFiles:
    """Return the files of an export in samples; place: its folder."""
    access = project.outputs.access
    tokens_file = dataset.folder / f"{dataset.facts['prefix']}.bin"
    return SampleFiles(
        exit_format, exit_format.cut(tokens), access, tokens_file, access.store.below(access.name(place))
    )


def _in_samples(
    project: Project, dataset: Manifest, recipe: Recipe, exit_format: SampledFormat, tokens: Tokens
) -> Manifest:
    """Write the files that are not there yet, and then what names them."""
    outputs, place = project.outputs, project.outputs.place(recipe)
    if not project.rebuild and (done := outputs.find(recipe)) is not None:
        return done
    place.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(place)
    read = open_dataset(dataset, is_sampled=True)
    stream, files = stream_of(read), sample_files(project, dataset, place, exit_format, tokens)
    meter = Meter(project.listener, "export", recipe.name, tokens.tokens * tokens.dtype.itemsize)
    made = files.make(stream, project.config.workers, project.executor, meter, anew=project.rebuild)
    write_atomic(place / INDEX, index := files.index(made))
    names = dict(zip(exit_format.names(files.cut), made, strict=False))
    names[INDEX] = FileFact(len(index), sha256_file(place / INDEX))
    counts = {"format": exit_format.name, "of": dataset.name} | count_documents(read, stream)._asdict()
    more = {"tokens": tokens.tokens, "dtype": tokens.dtype.name, "made_by": WRITTEN}
    return outputs.finalize(recipe, counts | more | exit_format.facts(files.cut), names)


def _linked(project: Project, dataset: Manifest, recipe: Recipe, exit_format: LinkedFormat, tokens: Tokens) -> Manifest:
    name = recipe.name

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
        read = open_dataset(dataset, is_sampled=True)
        stream, own = stream_of(read), f"{name}{exit_format.endings[0]}"
        ends = write_beside(exit_format, folder, name, read, stream, tokens)
        if stream is None:
            how, shared = _shared(project, dataset, recipe, folder, own)
            files: dict[str, str | FileFact] = {**shared}
        else:
            blocks = Hashed(token_blocks(read, stream, name, project.listener))
            how, files = WRITTEN, write_tokens(project.outputs, recipe, folder, own, blocks)
        counts = {"documents": ends.documents, "tokens": tokens.tokens, "left_out": ends.left_out}
        facts = {"format": exit_format.name, "of": dataset.name, **counts, "dtype": tokens.dtype.name, "made_by": how}
        return facts, files

    return project.outputs.commit(recipe, write)


def _shared(
    project: Project, dataset: Manifest, recipe: Recipe, folder: Path, own: str
) -> tuple[str, Mapping[str, FileFact]]:
    """Let the .bin of a dataset be a file of an export, too: no token passes through this process."""
    if project.outputs.access.has_copies:
        return JOINED, copy_tokens(project.outputs, dataset, recipe, folder, own)
    name = f"{dataset.facts['prefix']}.bin"
    return put_tokens(dataset.folder / name, folder / own), {own: dataset.files[name]}


_LINKED_ENDINGS = [
    ending
    for export_format in FORMATS.values()
    if isinstance(export_format, LinkedFormat)
    for ending in export_format.endings
]
"""Endings of the files of formats that share the dataset's tokens."""


class ExportStage(Planned, Resumable, Estimated):
    """A dataset in the layout of another reader."""

    layout = Layout(STAGE, uploaded_first=(*_LINKED_ENDINGS, PIECES_ENDING))
    kind = "export"
    version = VERSION
    estimated_as = "exports"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{STAGE}.{name}.of") for name in config.exports]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        of = config.exports[key.subject].of
        return {"dataset": dataset_node(config, of)} | gates(config, [of])

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe: a name of the tokenizer counts for a format that holds one."""
        spec = project.config.exports[key.subject]
        options: dict[str, Any] = {"format": spec.format}
        if spec.format == "datatrove":
            options["tokenizer_name"] = spec.tokenizer_name or project.config.tokenizer.path
        if spec.sequence_length is not None:
            options["sequence_length"] = spec.sequence_length
        return Recipe(STAGE, key.subject, VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return export(project, key.subject)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Return the size of the tokens, unless the export is a link to those of a corpus."""
        config = project.config
        spec = config.exports[key.subject]
        if spec.format not in IN_SAMPLES and spec.of not in config.views:
            return 0
        return int(text_of(base_of(config.derived, spec.of)).tokens * project.tokenizer.dtype.itemsize)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.exports.verify import verify_export

        return verify_export(project, key.subject, deep)

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget) -> str | None:
        """Return why the reader could not read the dataset, as far as settings tell."""
        try:
            FORMATS[wanted.options["format"]].check(tokens_of(project, key.subject, project.tokenizer.dtype, 1))
        except ConfigError as error:
            return one_line(error)
        return None

    def show(self, project: Project, manifest: Manifest) -> Summary:
        facts = manifest.facts
        figures = counted(manifest, "documents", "tokens")
        if facts["made_by"] not in (WRITTEN, JOINED):
            # The tokens are a hard link to the dataset's, and take no room of their own.
            figures["bytes"] -= facts["tokens"] * np.dtype(facts["dtype"]).itemsize
        return Summary(figures, {"format": facts["format"], "tokens by": facts["made_by"]})

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an export whose tokens are written before its manifest: in a bucket, or in samples."""
        uploaded = uploaded_files(self.layout, access, folder)
        if uploaded is not None:
            return uploaded
        names = {name for name in access.names(folder) if not name.startswith(UNFINISHED)}
        sampled = [one for one in FORMATS.values() if isinstance(one, SampledFormat)]
        return names if any(all(one.is_file(name) for name in names) for one in sampled) else None


EXPORT = ExportStage()
