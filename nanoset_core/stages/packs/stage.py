"""packs: the dataset of a corpus or view → its documents laid whole into sequences of one length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.formats.indexed.stream import Hashed
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.orders import reordering_warnings
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.packing.assignment import document_lengths
from nanoset_core.sampling.packing.plan import Cut
from nanoset_core.sampling.plan import LengthReader
from nanoset_core.stages.dataset.stage import DATASET, opened, write_tokens
from nanoset_core.stages.packs.pieces import PieceTable
from nanoset_core.stages.packs.settings import PacksSpec
from nanoset_core.stages.packs.writing import PackCounts, PackWriter, Rules, planned, write_pack_idx
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.stage import Key, Node
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import VIEW, DerivedStage, corpus_of

VERSION = 1
STAGE = "packs"
PIECES = "pieces.parquet"


def dataset_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that holds the dataset of a corpus or view, or packs."""
    if name not in config.derived:
        return Node(DATASET, Key(name))
    return Node(PACKS if name in config.packs else VIEW, Key(base_of(config.derived, name), name))


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the current dataset of a corpus or view, or packs; MissingError where it was not made yet."""
    node = dataset_node(project.config, name)
    return node.stage.require(project, node.key)


def is_packs(dataset: Manifest) -> bool:
    """Return whether a dataset is packs."""
    return dataset.stage == STAGE


def packed_from(outputs: OutputRoot, dataset: Manifest) -> Manifest:
    """Return the dataset whose documents packs hold, any other one itself; MissingError where it is gone."""
    if not is_packs(dataset):
        return dataset
    of, digest = dataset.facts["of"], dataset.recipe["parents"]["dataset"]
    stage = DATASET if of == dataset.facts["corpus"] else VIEW
    return outputs.version(stage.folder, of, digest, "the dataset that packs were made of is gone")


def pieces_of(packs: Manifest) -> PieceTable:
    """Open the table of the pieces of packs."""
    return PieceTable(packs.path(PIECES))


def padding_of(packs: Manifest) -> NDArray[np.int64]:
    """Return how many tokens of each pack are padding, int64, shape (packs,)."""
    n_packs = int(packs.facts["packs"])
    if not packs.facts["padding"]:
        return np.zeros(n_packs, np.int64)
    return int(packs.facts["length"]) - pieces_of(packs).tokens_by_pack(n_packs)


def rules_of(options: Mapping[str, Any]) -> Rules:
    """Return how documents are packed, by the options of a recipe."""
    cut = Cut(options["length"], options["long"])
    return Rules(cut, options["tail"], options["pad"], options["seed"])


def planned_packs(project: Project, name: str, reader: LengthReader) -> Manifest:
    """Return packs as they will be made from the current dataset: without files, their lengths told to a reader.

    What is there already is returned as it is. MissingError where there is no dataset.
    """
    recipe, dataset, prefix = _recipe(project, name)
    if (made := project.outputs.find(recipe)) is not None:
        return made
    read, rules = opened(dataset, is_sampled=True), rules_of(recipe.options)
    counts, _ = planned(document_lengths(read.sequence_lengths, read.document_indices), rules)
    facts = _facts(recipe, dataset, prefix, counts)
    if rules.tail == "carry":
        facts |= dict.fromkeys(("pieces", "cut_documents", "cut_tokens"))
    folder = project.outputs.place(recipe)
    reader.suppose(str(folder / prefix), np.broadcast_to(np.int32(rules.cut.length), counts.packs))
    facts = dict(sorted(facts.items()))  # as they will be read
    return Manifest(folder, recipe.to_json(), recipe.digest, facts, {}, project.outputs.access)


def _recipe(project: Project, name: str) -> tuple[Recipe, Manifest, str]:
    """Return (recipe of packs of the current dataset, this dataset, prefix of the packs)."""
    dataset = current_dataset(project, project.config.packs[name].of)
    key = Key(base_of(project.config.derived, name), name)
    prefix = pair_name(project.config.tokenization.preset, name, project.config.documents_of(key.subject).text_key)
    return PACKS.recipe(project, key, {"dataset": dataset.digest}), dataset, prefix


def _facts(recipe: Recipe, dataset: Manifest, prefix: str, counts: PackCounts) -> dict[str, Any]:
    length = recipe.options["length"]
    names = {"prefix": prefix, "corpus": corpus_of(dataset), "of": recipe.options["of"], "length": length}
    whole = {"sequences": counts.packs, "tokens": counts.packs * length, "dtype": dataset.facts["dtype"]}
    return names | whole | asdict(counts)


@holding
def make_packs(project: Project, name: str) -> Manifest:
    """Pack the documents of the current dataset of a corpus or view; MissingError where there is none."""
    recipe, dataset, prefix = _recipe(project, name)
    listener = project.listener if project.executor is None else silent
    work = partial(_pack, recipe=recipe, dataset=dataset, prefix=prefix, listener=listener)
    [(_, made)] = run_tasks(work, [project.outputs], 1, project.executor)
    return project.outputs.make_current(project.outputs.rebase(made))


def _pack(root: OutputRoot, recipe: Recipe, dataset: Manifest, prefix: str, listener: ProgressCallback) -> Manifest:
    """Write packs, in any process."""
    with root.in_task() as outputs:
        source = outputs.rebase(dataset)

        def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
            read = MMapIndexedDataset.below(outputs.access, str(source.folder / source.facts["prefix"]))
            rules = rules_of(recipe.options)
            packs = PackWriter(read, rules, recipe.name, listener)
            files = write_tokens(outputs, recipe, folder, f"{prefix}.bin", Hashed(packs.blocks(folder / PIECES)))
            write_pack_idx(idx_path(folder / prefix), read.dtype, packs.counts.packs, rules.cut.length)
            return _facts(recipe, dataset, prefix, packs.counts), files

        return outputs.commit(recipe, write)


class PacksStage(DerivedStage):
    """Documents of a corpus or view, laid whole into packs."""

    folder, kind, asset = STAGE, "pack", "packs"
    job = "{subject}_packs"
    maker = staticmethod(make_packs)
    named_in = "packs.{part}.of"
    counts = ("packs", "documents", "tokens")
    detailed = (
        ("padding", "padding"),
        ("documents cut", "cut_documents"),
        ("tokens dropped", "dropped_tokens"),
    )
    sent_first = (".bin", ".idx", PIECES)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"dataset": dataset_node(config, config.packs[self.name(key)].of)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe: the rules, and the token that fills packs up."""
        spec: PacksSpec = project.config.packs[self.name(key)]
        options: dict[str, Any] = {"of": spec.of, "length": spec.length, "long": spec.long, "tail": spec.tail}
        return Recipe(STAGE, self.name(key), VERSION, parents, options | {"seed": spec.seed, "pad": pad_id(project)})

    def details(self, manifest: Manifest) -> Mapping[str, str]:
        apart = manifest.facts["concatenated"]["cut_documents"]
        return {**super().details(manifest), "cut if concatenated": f"{apart:,}"}

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        source = config.packs[self.name(key)].of
        return reordering_warnings([source], config.views, config.packs, "packs are laid in an order of their own")

    def warnings(self, project: Project, manifest: Manifest) -> Iterable[str]:
        if not manifest.facts["documents"]:
            yield "they hold no document"


def pad_id(project: Project) -> int | None:
    """Return what fills packs up: the padding token, or where nanoset.yaml names none the end-of-document token."""
    found = project.special("pad")
    return project.special("eod") if found is None else found


PACKS = PacksStage()
