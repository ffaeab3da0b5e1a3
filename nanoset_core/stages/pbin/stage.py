"""packed: a corpus's merged dataset → the .pbin that Modalities trains on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.pbin.layout import token_size_bytes
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import gates
from nanoset_core.stages.datasets import current_dataset, dataset_node
from nanoset_core.stages.pbin.writing import pack_into_store, packing_vocab_size
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.stage import Estimated, Key, Layout, Node, PerCorpus, Stage, Summary, counted
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import Store

VERSION = 1
STAGE = "packed"


@holding
def pack(project: Project, corpus: str) -> Manifest:
    """Write the current dataset of a corpus, view or packs as `<name>.pbin`; MissingError where there is none."""
    dataset, executor = current_dataset(project, corpus), project.executor
    recipe = packed_recipe(project, corpus, {"dataset": dataset.digest})
    vocab_size = packing_vocab_size(project.config.tokenizer_file)
    listener = project.listener if executor is None else silent
    work = partial(
        _pack,
        recipe=recipe,
        dataset=dataset,
        vocab_size=vocab_size,
        greatest_id=project.tokenizer.max_id,
        listener=listener,
    )
    [(_, made)] = run_tasks(work, [project.outputs], 1, executor)
    return project.outputs.make_current(project.outputs.rebase(made))


def _pack(
    root: OutputRoot,
    recipe: Recipe,
    dataset: Manifest,
    vocab_size: int,
    greatest_id: int,
    listener: ProgressCallback,
) -> Manifest:
    """Write a .pbin, in any process.

    Args:
        root: of the outputs.
        recipe: what the file is made from.
        dataset: the documents.
        vocab_size: what Modalities asks the tokenizer for.
        greatest_id: of the tokenizer's vocabulary, added tokens too.
        listener: takes the progress.
    """
    with root.in_task() as outputs:
        access, file = outputs.access, f"{recipe.name}.pbin"
        prefix = str(outputs.rebase(dataset).folder / dataset.facts["prefix"])

        def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
            store: Store = LocalStore(folder)
            name = file
            if access.has_copies:  # the file goes to the bucket while it is made: it need not fit this machine
                outputs.invalidate(recipe)
                store, name = access.store, access.name(outputs.place(recipe) / file)
            opened = MMapIndexedDataset.below(access, prefix, validate=not access.has_copies)
            packed, fact = pack_into_store(
                opened, store, name, vocab_size=vocab_size, greatest_id=greatest_id, listener=listener
            )
            counts = {name: getattr(packed, name) for name in ("documents", "tokens", "token_bytes", "left_out")}
            return {"file": file, **counts}, {file: fact if access.has_copies else str(fact.sha256)}

        return outputs.commit(recipe, write)


def packed_recipe(project: Project, name: str, parents: Mapping[str, str]) -> Recipe:
    """Return the recipe of a .pbin; of the tokenizer only the size that Modalities gives to a token counts."""
    token_bytes = token_size_bytes(packing_vocab_size(project.config.tokenizer_file))
    return Recipe(STAGE, name, VERSION, parents, {"token_bytes": token_bytes})


class _PbinStage(Stage):
    """A dataset as one .pbin."""

    layout = Layout(STAGE, uploaded_first=(".pbin",))
    kind = "packed"
    version = VERSION

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"dataset": dataset_node(config, key.subject)} | gates(config, [key.subject])

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return packed_recipe(project, key.subject, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        return pack(project, key.subject)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.pbin.verify import verify_packed

        return verify_packed(project, key.subject, deep, run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        facts = manifest.facts
        details = {"bytes a token": f"{facts['token_bytes']:,}", "left out": f"{facts['left_out']:,}"}
        return Summary(counted(manifest, "documents", "tokens"), details)


class PackedStage(_PbinStage, PerCorpus, Estimated):
    """A corpus as one .pbin."""

    estimated_as = "packed"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at="packed") for name in config.packed if name not in config.derived]

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        return int(text_of(key.subject).tokens * project.tokenizer.dtype.itemsize)


class PackedViewsStage(_PbinStage):
    """A view, or packs, as one .pbin: a stage of its own, since its subjects are not corpora."""

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at="packed") for name in config.packed if name in config.derived]


PACKED = PackedStage()
PACKED_VIEWS = PackedViewsStage()
