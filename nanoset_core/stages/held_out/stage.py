"""The stage `held_out`: documents of valid and test that train reads, too, themselves or as a copy.

A validation loss says little about a model that has seen the validation documents. Documents that
several splits read are found by the `.idx` files alone. Copies are found by a hash of each
document's tokens, which is stored for each shard.

What compares documents is imported in the methods that need it. Every command imports this module,
but few of them compare any, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nanoset_core.loading.layout import NANOSETS_FOLDER
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.held_out.may_share import may_share_documents
from nanoset_core.stages.held_out.names import FOLDER, HASHES, HASHES_FOLDER, VERSION
from nanoset_core.stages.held_out.show import held_out_summary
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    SUBJECT,
    Forbidding,
    InternalStage,
    Key,
    Layout,
    Node,
    Summary,
)


class HeldOutStage(Forbidding):
    """Documents of valid and test that train reads, too."""

    layout = Layout(NANOSETS_FOLDER, (SUBJECT, FOLDER))
    kind = "nanoset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [
            Key(name, requested_at=f"nanosets.{name}")
            for name, spec in config.nanosets.items()
            if may_share_documents(config, spec)
        ]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        corpora = config.nanosets[key.subject].corpora
        return {corpus: dataset_node(config, corpus) for corpus in corpora}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        from nanoset_core.stages.held_out.make import held_out_recipe

        return held_out_recipe(project, key.subject, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.held_out.make import compare_held_out

        return compare_held_out(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.held_out.verify import verify_held_out

        return verify_held_out(project, key.subject, deep=deep)

    def check_allowed(self, project: Project, key: Key, manifest: Manifest) -> None:
        """Check that train reads no document of valid and test, and no copy of one.

        If the nanoset sets `held_out: block`, its index files of train are only made if this check
        passes.

        Args:
            project: Not used here; other stages need it for their checks.
            key: Not used here.
            manifest: The result of comparing the documents of train, valid and test.

        Raises:
            ForbiddenError: Train reads such a document. The error names it.
        """
        from nanoset_core.stages.held_out.verify import check_not_leaked

        check_not_leaked(manifest)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return held_out_summary(manifest)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        return [str(digest) for digest in manifest.facts[HASHES]]


HELD_OUT = HeldOutStage()
TOKEN_HASHES = InternalStage(Layout(HASHES_FOLDER), HELD_OUT)
"""Hashes of the documents of single shards."""


def must_compare_before_training(config: ProjectConfig, name: str) -> bool:
    """Return whether train must be compared with valid and test before training can start.

    This is so with the setting `held_out: block`: if train has documents that valid or test has,
    too, there is an error instead of files for training.

    Args:
        config: The settings of nanoset.yaml.
        name: Name of the training data, such as "pretrain".
    """
    spec = config.nanosets[name]
    return spec.held_out == "block" and may_share_documents(config, spec)
