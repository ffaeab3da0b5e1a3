"""exports: the dataset of a corpus or view → files of another reader, over the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import ConfigError, one_line
from nanoset_core.exits.formats import FORMATS, Tokens
from nanoset_core.exits.writing import JOINED, WRITTEN, Hashed, put_tokens, stream_of, token_blocks, write_beside
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.pipeline import tokenization
from nanoset_core.pipeline.contamination import gates
from nanoset_core.pipeline.indexed import PIECES, copy_tokens, opened
from nanoset_core.pipeline.project import Project, holding
from nanoset_core.pipeline.stage import Budget, Key, Node, Stage, size_bytes
from nanoset_core.pipeline.views import current_dataset, dataset_node
from nanoset_core.storage.access import FileAccess

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

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
        read = opened(dataset, is_sampled=True)
        stream, own = stream_of(read), f"{name}{exit_format.endings[0]}"
        ends = write_beside(exit_format, folder, name, read, stream, tokens)
        if stream is None:
            how, shared = _shared(project, dataset, recipe, folder, own)
            files: dict[str, str | FileFact] = {**shared}
        else:
            blocks = Hashed(token_blocks(read, stream, name, project.listener))
            how, files = WRITTEN, _written(project, recipe, folder, own, blocks)
        counts = {"documents": ends.documents, "tokens": tokens.tokens, "left_out": ends.left_out}
        return {"format": spec.format, "of": spec.of, **counts, "dtype": tokens.dtype.name, "made_by": how}, files

    return project.outputs.make_current(project.outputs.commit(recipe, write))


def _shared(
    project: Project, dataset: Manifest, recipe: Recipe, folder: Path, own: str
) -> tuple[str, Mapping[str, FileFact]]:
    """Let the .bin of a dataset be a file of an export, too: no token passes through this process."""
    if project.outputs.access.has_copies:
        return JOINED, copy_tokens(project.outputs, dataset, recipe, folder, own)
    name = f"{dataset.facts['prefix']}.bin"
    return put_tokens(dataset.folder / name, folder / own), {own: dataset.files[name]}


def _written(project: Project, recipe: Recipe, folder: Path, own: str, blocks: Hashed) -> dict[str, str | FileFact]:
    outputs = project.outputs
    if outputs.access.has_copies:
        outputs.invalidate(recipe)
        outputs.access.store.put_parts(f"{outputs.access.name(outputs.place(recipe))}/{own}", iter(blocks))
        return {own: FileFact(blocks.size, blocks.sha256)}
    with (folder / own).open("xb") as file:
        file.writelines(blocks)
    return {own: blocks.sha256}


class ExportStage(Stage):
    """A dataset as files of another reader."""

    folder, subjects, kind, asset = STAGE, "exports", "export", "export"
    named_in = "exports.{subject}.of"
    maker = staticmethod(export)
    counts = ("documents", "tokens")

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        of = config.exports[key.subject].of
        return {"dataset": dataset_node(config, of)} | gates(config, [of])

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe: a name of the tokenizer counts for a format that holds one."""
        spec = project.config.exports[key.subject]
        named = {"tokenizer_name": spec.tokenizer_name or project.config.tokenizer.path}
        options = {"format": spec.format, **(named if spec.format == "datatrove" else {})}
        return Recipe(STAGE, key.subject, VERSION, parents, options)

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: Budget) -> str | None:
        """Return why the reader could not read the dataset, as far as settings tell."""
        try:
            FORMATS[wanted.options["format"]].check(tokens_of(project, key.subject, project.tokenizer.dtype, 1))
        except ConfigError as error:
            return one_line(error)
        return None

    def figures(self, manifest: Manifest) -> Mapping[str, int]:
        """Return counts, and the bytes that it takes beside the tokens of its dataset."""
        size, facts = size_bytes(manifest), manifest.facts
        own = facts["tokens"] * np.dtype(facts["dtype"]).itemsize if facts["made_by"] not in (WRITTEN, JOINED) else 0
        return {name: int(facts[name]) for name in self.counts} | {"bytes": size - own}

    def details(self, manifest: Manifest) -> Mapping[str, str]:
        return {"format": manifest.facts["format"], "tokens by": manifest.facts["made_by"]}

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an export in a bucket, whose tokens are there before its manifest."""
        ours = (*(ending for one in FORMATS.values() for ending in one.endings), PIECES)
        names = set(access.names(folder))
        return names if access.has_copies and all(name.endswith(ours) for name in names) else None


EXPORT = ExportStage()
