"""packed: a corpus's merged dataset → the .pbin that Modalities trains on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.config.project import ProjectConfig
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.packed.layout import token_size_bytes
from nanoset_core.packed.packing import fitting_vocab_size, pack_indexed_dataset, packing_vocab_size
from nanoset_core.pipeline.indexed import DATASET, current_dataset
from nanoset_core.pipeline.project import Project, holding
from nanoset_core.pipeline.stage import Key, Node, Stage
from nanoset_core.storage.atomic import sha256_file

VERSION = 1
STAGE = "packed"


def packed_recipe(project: Project, corpus: str, dataset_digest: str) -> Recipe:
    """What a .pbin is made from; of the tokenizer, only the size that Modalities gives to a token counts."""
    token_bytes = token_size_bytes(packing_vocab_size(project.config.tokenizer_file))
    return Recipe(STAGE, corpus, VERSION, {"dataset": dataset_digest}, {"token_bytes": token_bytes})


@holding
def pack(project: Project, corpus: str) -> Manifest:
    """Write a corpus's current dataset as `<corpus>.pbin`, and make it the current one.

    Raises:
        MissingError: the corpus has no dataset yet.
    """
    dataset = current_dataset(project, corpus)
    recipe = packed_recipe(project, corpus, dataset.digest)
    prefix = dataset.path(dataset.facts["prefix"])
    name = f"{corpus}.pbin"

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        vocab_size = fitting_vocab_size(prefix, packing_vocab_size(project.config.tokenizer_file))
        packed = pack_indexed_dataset(prefix, folder / name, vocab_size=vocab_size, listener=project.listener)
        facts = {
            "file": name,
            "documents": packed.documents,
            "tokens": packed.tokens,
            "token_bytes": packed.token_bytes,
            "left_out": packed.left_out,
        }
        return facts, {name: sha256_file(folder / name)}

    manifest = project.outputs.publish(recipe, write)
    project.outputs.make_current(manifest)
    return manifest


class PackedStage(Stage):
    """A corpus as one .pbin."""

    folder, kind, asset = STAGE, "packed", "packed_dataset"
    by_corpus = True
    counts = ("documents", "tokens")
    detailed = (("bytes a token", "token_bytes"), ("left out", "left_out"))

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return map(Key, config.packed)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"dataset": Node(DATASET, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return packed_recipe(project, key.subject, parents["dataset"])

    def make(self, project: Project, key: Key) -> Manifest:
        return pack(project, key.subject)

    def named_in(self, key: Key) -> str:
        return "packed"


PACKED = PackedStage()
