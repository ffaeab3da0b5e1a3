"""A stage of a few lines: what one folder in nanoset_core/stages contains."""

from __future__ import annotations

import json

from helpers.inspecting import node_at
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.report import run_here
from nanoset_core.stages.stage import Key, Layout, PerCorpus, Summary, counted


class Counts(PerCorpus):
    """How many documents and tokens a corpus has, as JSON."""

    layout = Layout("counts")
    kind = "counts"
    version = 1

    def keys(self, config, corpora):
        return [Key(corpus) for spec in config.webdatasets.values() for corpus in spec.names]

    def inputs(self, config, key):
        return {"dataset": node_at(f"datasets/{key.subject}")}

    def recipe(self, project, key, parents):
        return Recipe(
            self.layout.folder, key.subject, self.version, {"dataset": parents["dataset"]}
        )

    def make(self, project, key):
        dataset = current_dataset(project, key.subject)

        def write(folder):
            counts = {name: dataset.facts[name] for name in ("documents", "tokens")}
            (folder / "counts.json").write_text(json.dumps(counts))
            return counts, {}

        recipe = self.recipe(project, key, {"dataset": dataset.digest})
        return project.outputs.make_current(project.outputs.commit(recipe, write))

    def verify(self, project, key, *, deep=False, run=run_here):
        return check_current(project, self, key, lambda *_: None, "documents", deep=deep)

    def show(self, project, manifest):
        return Summary(counted(manifest, "documents", "tokens"))


COUNTS = Counts()
