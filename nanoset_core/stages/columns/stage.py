"""The stage `columns`: values of the raw text, such as a language or a score, for each document.

They are stored in a table for each shard, which has one row for each of its documents, in their
order.

What reads the text again is imported in the methods that need it. Every command imports this
module, but few of them do that, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.aligned import AlignedStage
from nanoset_core.stages.columns.names import FOLDER, TABLES_FOLDER, VERSION
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    InternalStage,
    Key,
    Layout,
    Summary,
)


class ColumnsStage(AlignedStage):
    """Values of the raw text, stored for each document."""

    layout = Layout(FOLDER)
    kind = "columns"
    version = VERSION
    reads_raw_text = True
    tables_folder = TABLES_FOLDER

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the corpora for which nanoset.yaml requests further values of each document.

            documents: {columns: [language]}         for every corpus, which is a folder of texts
            corpora: {web: {columns: [language]}}    for web

        Args:
            config: The settings of nanoset.yaml.
            corpora: Names of the corpora that exist. Those that are only named in the settings are
                included, too.

        Returns:
            A key for each corpus, with the setting that requests it.
        """
        corpora_in_settings = [name for name, spec in config.corpora.items() if spec.columns]
        keys = []
        for name in dict.fromkeys([*corpora, *corpora_in_settings]):  # each name once
            if config.documents_of(name).columns:
                keys.append(Key(name, requested_at=f"corpora.{name}.columns"))
        return keys

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        from nanoset_core.stages.columns.make import columns_recipe

        return columns_recipe(project, key.subject, parents["tokenized"])

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.columns.make import keep_columns

        return keep_columns(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.columns.verify import verify_columns

        return verify_columns(self, project, key.subject, deep=deep)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        from nanoset_core.stages.columns.show import text_columns_summary

        return text_columns_summary(manifest)


COLUMNS = ColumnsStage()
COLUMN_TABLES = InternalStage(Layout(TABLES_FOLDER), COLUMNS)
"""Tables of single shards."""
