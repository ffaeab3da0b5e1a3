"""packed: a corpus's merged dataset → the .pbin that Modalities trains on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nanoset_core.config.project import ProjectConfig
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.packed.layout import token_size_bytes
from nanoset_core.packed.writing import PackedFacts, pack_into_store, packing_vocab_size
from nanoset_core.pipeline.indexed import DATASET, current_dataset
from nanoset_core.pipeline.project import Project, holding
from nanoset_core.pipeline.stage import Key, Node, Stage
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import Store

VERSION = 1
STAGE = "packed"


@holding
def pack(project: Project, corpus: str) -> Manifest:
    """Write a corpus's current dataset as `<corpus>.pbin`, and make it the current one.

    Raises:
        MissingError: the corpus has no dataset yet.
    """
    dataset, executor = current_dataset(project, corpus), project.executor
    recipe = PACKED.recipe(project, Key(corpus), {"dataset": dataset.digest})
    task = _PackTask(project.outputs, recipe, dataset, packing_vocab_size(project.config.tokenizer_file))
    work = _pack if executor is not None else partial(_pack, listener=project.listener)
    [(_, made)] = run_tasks(work, [task], 1, executor)
    return project.outputs.make_current(project.outputs.rebase(made))


@dataclass(frozen=True, slots=True)
class _PackTask:
    """Everything that a worker needs to make one .pbin."""

    outputs: OutputRoot
    recipe: Recipe
    dataset: Manifest
    vocab_size: int
    """What Modalities asks the tokenizer for."""

    @property
    def file(self) -> str:
        return f"{self.recipe.name}.pbin"


def _pack(task: _PackTask, listener: ProgressCallback = silent) -> Manifest:
    with task.outputs.in_task() as outputs:
        dataset = outputs.rebase(task.dataset)

        def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
            access, prefix = outputs.access, str(dataset.folder / dataset.facts["prefix"])
            store: Store = LocalStore(folder)
            name = task.file
            if access.has_copies:  # the file goes to the bucket while it is made: it need not fit this machine
                outputs.invalidate(task.recipe)
                store, name = access.store, access.name(outputs.place(task.recipe) / task.file)
            opened = MMapIndexedDataset.below(access, prefix, validate=not access.has_copies)
            packed, fact = pack_into_store(opened, store, name, vocab_size=task.vocab_size, listener=listener)
            return _facts(task, packed), {task.file: fact if access.has_copies else str(fact.sha256)}

        return outputs.commit(task.recipe, write)


def _facts(task: _PackTask, packed: PackedFacts) -> dict[str, Any]:
    return {
        "file": task.file,
        "documents": packed.documents,
        "tokens": packed.tokens,
        "token_bytes": packed.token_bytes,
        "left_out": packed.left_out,
    }


class PackedStage(Stage):
    """A corpus as one .pbin."""

    folder, kind, asset = STAGE, "packed", "packed_dataset"
    by_corpus = True
    maker = staticmethod(pack)
    counts = ("documents", "tokens")
    detailed = (("bytes a token", "token_bytes"), ("left out", "left_out"))

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return map(Key, config.packed)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"dataset": Node(DATASET, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe; of the tokenizer only the size that Modalities gives to a token counts."""
        token_bytes = token_size_bytes(packing_vocab_size(project.config.tokenizer_file))
        return Recipe(STAGE, key.subject, VERSION, parents, {"token_bytes": token_bytes})

    def named_in(self, key: Key) -> str:
        return "packed"

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the file, which in a bucket is there before its manifest."""
        return {f"{folder.parent.name}.pbin"} if access.has_copies else None


PACKED = PackedStage()
