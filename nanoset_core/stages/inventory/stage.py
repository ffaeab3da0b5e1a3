"""The stage `inventory`: lists the files of a corpus, from which all other outputs are made.

If a file is added or changed, the list has another digest, so that all outputs of the corpus are
stale.
"""

from __future__ import annotations

from collections.abc import Mapping

from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import inventory_recipe, make_inventory, survey_corpus
from nanoset_core.stages.inventory.names import FOLDER, VERSION
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import CorpusStage, Key, Layout, Summary


class InventoryStage(CorpusStage):
    """Lists the files of each corpus, with digests of their content."""

    layout = Layout(FOLDER)
    version = VERSION
    reads_raw_text = True

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe of the present files; files that changed are read to hash them.

        Args:
            project: The project.
            key: The corpus.
            parents: Empty, since an inventory is made from no other output.
        """
        return inventory_recipe(survey_corpus(project, key.subject, executor=project.executor))

    def make(self, project: Project, key: Key) -> Manifest:
        return make_inventory(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.inventory.verify import verify_inventory

        return verify_inventory(project, key.subject)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return Summary({"files": int(manifest.facts["files"])})


INVENTORY = InventoryStage()
