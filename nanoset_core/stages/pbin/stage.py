"""The stage `pbin`, which converts a dataset to a `.pbin`, the file that Modalities trains on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from nanoset_core.formats.pbin.layout import token_size_bytes
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import searches_before_training
from nanoset_core.stages.dataset_estimate import estimated_dataset_bytes
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.pbin.show import pbin_summary
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import Estimated, Key, Layout, Node, PerCorpus, Summary
from nanoset_core.stages.text_estimate import TextEstimate

FOLDER = "packed"
"""Folder within the outputs. It has the former name of the stage, so that outputs stay current."""


class PbinStage(Estimated):
    """A derived dataset as one `.pbin`."""

    layout = Layout(FOLDER, uploaded_first=(".pbin",))
    kind = "packed"
    version = 1
    estimated_as = "packed"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the outputs that the key `pbin` of nanoset.yaml requests."""
        return [Key(name, requested_at="pbin") for name in config.pbin if name in config.derived]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the dataset, and the contamination reports that may forbid training on it."""
        return {
            "dataset": dataset_node(config, key.subject),
            **searches_before_training(config, [key.subject]),
        }

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe of a `.pbin`.

        The only part of the tokenizer that matters is its size, which decides the bytes of a token.
        """
        # Imported here: every command imports this module, but few of them convert datasets.
        from nanoset_core.stages.pbin.conversion import model_vocab_size

        vocab_size = model_vocab_size(project.config.tokenizer_file)
        options = {"token_bytes": token_size_bytes(vocab_size)}
        return Recipe(FOLDER, key.subject, self.version, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        # Imported here: every command imports this module, but few of them convert datasets.
        from nanoset_core.stages.pbin.make import make_pbin

        return make_pbin(project, key.subject, self)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        return estimated_dataset_bytes(project, key.subject, text_of)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        # Imported here: every command imports this module, but few of them verify outputs.
        from nanoset_core.stages.pbin.verify import verify_pbin

        return verify_pbin(project, self, key, deep=deep, run=run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return pbin_summary(manifest)


class CorpusPbinStage(PbinStage, PerCorpus):
    """The dataset of a corpus as one `.pbin`.

    It is a separate stage, because its keys are corpora. Those of `PbinStage` are derived datasets,
    such as views.
    """

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [
            Key(name, requested_at="pbin") for name in config.pbin if name not in config.derived
        ]


PBIN = CorpusPbinStage()
PBIN_DERIVED = PbinStage()
