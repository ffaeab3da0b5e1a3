"""The example of docs/architecture.md: a complete stage, which writes the size of each corpus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.datasets import current_dataset, dataset_node
from nanoset_core.stages.report import BUILD, CheckRunner, Report, run_here
from nanoset_core.stages.stage import CorpusStage, Key, Layout, Node, Stage, Summary, counted


class Counts(CorpusStage):
    """Writes how many documents and tokens each corpus has to `counts.json`."""

    # Outputs are stored in <root>/document_counts/<corpus>/<digest>/.
    layout = Layout("document_counts")
    # The name of its rows in `nanoset status`, and of its job in Dagster.
    kind = "counts"
    version = 1

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the dataset of the corpus, which must be built first."""
        return {"dataset": dataset_node(config, key.subject)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe: no setting decides the file's bytes, only the dataset does."""
        return Recipe(self.layout.folder, key.subject, self.version, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        return _make(project, key.subject, self)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        """Check that the file exists, has its recorded size and sha256, and is up to date."""
        report = Report(self.report_name(key))
        # If the output has not been built, `current_manifest` raises an exception. `catching` adds
        # it to the report.
        with report.catching(remedy=BUILD):
            manifest = current_manifest(project, self, key)
            report.copy_facts(manifest, ["documents"])
            check_files(report, manifest, deep=deep)
            check_freshness(report, project, self, key, manifest)
        return report

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return the figures of a row of `nanoset status`: documents, tokens and bytes."""
        return Summary(figures=counted(manifest, "documents", "tokens"))


@holding
def _make(project: Project, corpus: str, stage: Stage) -> Manifest:
    """Write the size of the current dataset of a corpus, and make the new version current.

    `holding` protects the dataset from `nanoset gc` while this function runs. It needs the project
    and the name of the corpus as the first two arguments. It may call the function several times.
    """
    dataset = current_dataset(project, corpus)
    recipe = stage.recipe(project, Key(corpus), {"dataset": dataset.digest})

    def write(folder: Path) -> Written:
        facts = {name: dataset.facts[name] for name in ("documents", "tokens")}
        (folder / "counts.json").write_text(json.dumps(facts))
        return Written(facts)

    manifest = project.outputs.commit(recipe, write)
    return project.outputs.make_current(manifest)


COUNTS = Counts()
