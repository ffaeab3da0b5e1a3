"""The stage `exports`: the dataset of a corpus or view in the format of another reader.

For example, `exports: {web-mds: {of: web, format: mds, sequence_length: 2048}}` in nanoset.yaml
requests the tokens of `web` as files of MosaicML's streaming library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from nanoset_core.errors import ConfigError, one_line
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import searches_before_training
from nanoset_core.stages.dataset.tokens import PIECES_ENDING
from nanoset_core.stages.dataset_estimate import estimated_dataset_bytes
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.names import FOLDER, VERSION
from nanoset_core.stages.exports.samples import SampledFormat
from nanoset_core.stages.exports.settings import IN_SAMPLES
from nanoset_core.stages.exports.show import export_summary
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    Estimated,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Resumable,
    Summary,
    uploaded_files,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED


def _linked_endings() -> list[str]:
    """Return the endings of the files of formats that share the dataset's tokens."""
    endings: list[str] = []
    for export_format in FORMATS.values():
        if isinstance(export_format, LinkedFormat):
            endings += export_format.endings
    return endings


class ExportStage(Planned, Resumable, Estimated):
    """A dataset in the layout of another reader."""

    layout = Layout(FOLDER, uploaded_first=(*_linked_endings(), PIECES_ENDING))
    kind = "export"
    version = VERSION
    estimated_as = "exports"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{FOLDER}.{name}.of") for name in config.exports]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the dataset, and the contamination reports that may forbid training on it."""
        source = config.exports[key.subject].of
        return {
            "dataset": dataset_node(config, source),
            **searches_before_training(config, [source]),
        }

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        from nanoset_core.stages.exports.make import export_recipe

        return export_recipe(project, key.subject, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.exports.make import make_export

        return make_export(project, key.subject)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate the disk space that an export takes in addition to its dataset.

        An export has the tokens of a dataset in the files of another program. Usually its file of
        tokens is a link to that of the dataset, which takes no space. In two cases, the tokens are
        written once more:

            samples of one length (formats mds, litdata)
            a view, which is a selection of a corpus's documents

        Args:
            project: Its nanoset.yaml has the settings of the export.
            key: Its `subject` is the name of the export.
            text_of: Returns an estimate of the text of a corpus, such as its number of tokens.
        """
        config = project.config
        spec = config.exports[key.subject]
        has_samples = spec.format in IN_SAMPLES
        is_of_view = spec.of in config.views
        if not has_samples and not is_of_view:
            return 0

        return estimated_dataset_bytes(project, spec.of, text_of)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        # Imported here: every command imports this module, but few of them verify outputs.
        from nanoset_core.stages.exports.verify import verify_export

        return verify_export(project, self, key, deep=deep)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why another program could not read an export, before anything is built.

        An export has the tokens of a dataset in the files of another program. For example,
        OLMo-core finds documents by the token that ends each of them. If `nanoset.yaml` asks for no
        such tokens:

            OLMo-core cannot read this dataset: …

        Args:
            project: Its nanoset.yaml has the settings of the export.
            key: Its `subject` is the name of the export.
            recipe: Not used.
            reading: How many bytes may be read to find out. No files are read here.

        Returns:
            The reason in one line, or None if the program could read the export.
        """
        export_format = FORMATS[project.config.exports[key.subject].format]
        try:
            export_format.check(_expected_traits(project, key.subject))
        except ConfigError as error:
            return one_line(error)
        return None

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return export_summary(manifest)

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an unfinished export, which `nanoset gc` may delete.

        A build that was killed may have left such files in a folder. If the folder also has a file
        that no build writes, it may be the user's: then nothing is deleted.

        Args:
            access: Access to the output root.
            folder: The folder.

        Returns:
            Names of the files, perhaps none; or None if nothing must be deleted.
        """
        # One large file of tokens, which is uploaded to a bucket before the small files.
        uploaded = uploaded_files(self.layout, access, folder)
        if uploaded is not None:
            return uploaded
        names = {name for name in access.names(folder) if not name.startswith(UNFINISHED)}
        return names if _are_sample_files(names) else None


def _are_sample_files(names: Iterable[str]) -> bool:
    """Return whether all files have names of one format of samples, such as shard.00000.mds.

    Args:
        names: Names of the files.
    """
    for export_format in FORMATS.values():
        if isinstance(export_format, SampledFormat):
            is_of_format = all(export_format.is_file(name) for name in names)
            if is_of_format:
                return True
    return False


def _expected_traits(project: Project, export_name: str) -> DatasetTraits:
    """Return the properties that the dataset of an export is going to have, before it is built.

    Args:
        project: Its settings decide the type of the tokens, and whether there are end tokens.
        export_name: Name of the export.
    """
    from nanoset_core.stages.exports.make import traits_of

    # The number of tokens is not known yet. Formats only need to know whether there are any.
    return traits_of(project, export_name, project.tokenizer.dtype, tokens=1)


EXPORT = ExportStage()
