"""The stage `attributes`: columns of tables that are not part of the corpus, joined by document id.

Such tables hold for example scores that a classifier gave to the documents. As in the stage
`columns`, the result is a table for each shard with one row for each of its documents.

What joins tables is imported in the methods that need it. Every command imports this module,
but few of them join tables, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.aligned import AlignedStage
from nanoset_core.stages.attributes.given_tables import attributes_spec, files_setting
from nanoset_core.stages.attributes.names import FOLDER, TABLES_FOLDER, VERSION
from nanoset_core.stages.attributes.policies import violations
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    InternalStage,
    Key,
    Layout,
    Planned,
    ReadingBudget,
    Summary,
)


class AttributesStage(AlignedStage, Planned):
    """Columns of external tables, joined to documents by id."""

    layout = Layout(FOLDER)
    kind = FOLDER
    version = VERSION
    tables_folder = TABLES_FOLDER

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(corpus, requested_at=f"{FOLDER}.{corpus}") for corpus in config.attributes]

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        from nanoset_core.stages.attributes.make import attributes_recipe

        return attributes_recipe(project, key.subject, parents["tokenized"])

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.attributes.make import join_attributes

        return join_attributes(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.attributes.verify import verify_attributes

        return verify_attributes(project, key.subject, deep=deep)

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return what is wrong with the stored attributes of documents, in words, or None.

            a file is missing or damaged
            nanoset.yaml has `on_missing: fail` now, and 3 documents have no score

        Args:
            project: The project.
            key: The corpus, which is the collection of these documents.
            manifest: The record of the attributes, which lists the files and has such counts.
        """
        fault_of_files = super().fault(project, key, manifest)
        if fault_of_files is not None:
            return fault_of_files
        return _first_violation(project.config, manifest)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why a build of attributes would fail, if that is known without reading them.

        Attributes are values that other tables have for documents, such as scores. For example, the
        tables do not exist; or they were read before, 3 documents had no score, and nanoset.yaml
        does not allow that any more (`on_missing: fail`).

        Args:
            project: The project.
            key: The corpus, which is the collection of these documents.
            recipe: What the attributes would be made from; None if this is not known yet.
            reading: Limits how much may be read to find out. Nothing is read here.

        Returns:
            The reason in words; None if none is known.
        """
        try:
            spec = attributes_spec(project.config, key.subject)
            # Raises an error if no file matches the settings.
            tables = given_files(project, spec.files, files_setting(key.subject))
            if recipe is None:
                return None
            tables.check_readable()
            # The attributes, if they were made from these tables and documents before.
            existing = project.outputs.find(recipe)
        except NanosetError as error:
            return one_line(error)
        if existing is None:
            return None  # the tables were never read, so nothing is known of their values
        return _first_violation(project.config, existing)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        from nanoset_core.stages.attributes.show import attributes_summary

        return attributes_summary(project.config.attributes_of(manifest.name), manifest)


def _first_violation(config: ProjectConfig, attributes: Manifest) -> str | None:
    """Return the first policy that joined attributes violate, in words, or None.

    Args:
        config: The settings of nanoset.yaml, with the policies.
        attributes: Manifest of the joined attributes, with the counts.
    """
    for violation in violations(config, attributes):
        return violation.what
    return None


ATTRIBUTES = AttributesStage()
ATTRIBUTE_TABLES = InternalStage(Layout(TABLES_FOLDER), ATTRIBUTES)
"""Tables of single shards."""
