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
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.samples import SampledFormat
from nanoset_core.stages.exports.settings import IN_SAMPLES, STAGE, VERSION
from nanoset_core.stages.exports.show import export_summary
from nanoset_core.stages.report import Report, Run, run_here
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
from nanoset_core.stages.views.settings import base_of
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

    layout = Layout(STAGE, uploaded_first=(*_linked_endings(), PIECES_ENDING))
    kind = "export"
    version = VERSION
    estimated_as = "exports"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{STAGE}.{name}.of") for name in config.exports]

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

        An export has the tokens of a dataset in the files of another program. Whether it needs
        space depends on its format and the dataset:

            the same bytes as the dataset        none: its file of tokens is linked
            samples (formats mds, litdata)       the tokens are written again
            a view: a selection of documents     the tokens are written again

        Args:
            project: Its nanoset.yaml has the settings of the export.
            key: Its `subject` is the name of the export.
            text_of: Returns an estimate of the text of a corpus, such as its number of tokens.
        """
        # Most formats link the file with the tokens, which takes no space. The tokens are written
        # again for formats of samples, and for a view, whose tokens are scattered over that file.
        config = project.config
        spec = config.exports[key.subject]
        if spec.format not in IN_SAMPLES and spec.of not in config.views:
            return 0
        # How many documents a view chooses is not known before it is built: assume all of them.
        text = text_of(base_of(config.derived, spec.of))
        return int(text.tokens * project.tokenizer.dtype.itemsize)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        # Imported here, since the checks import the list of stages.
        from nanoset_core.stages.exports.verify import verify_export

        return verify_export(project, self, key, deep=deep)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return why a build of an export would be useless, judging by the settings alone.

        An export has the tokens of a dataset in the files of another program, such as OLMo-core. If
        that program could not read it, `nanoset status` says so before anything is built:

            OLMo-core cannot read this dataset: …

        Args:
            project: Its nanoset.yaml has the settings of the export.
            key: Its `subject` is the name of the export.
            recipe: What the export would be made from, and the name of its format.
            reading: Not used, since no file is read.

        Returns:
            Why the program could not read the export, in one line; None if it could.
        """
        from nanoset_core.stages.exports.make import traits_of

        # The number of tokens is not known before the dataset is built. With 1, the check takes it
        # for a dataset that is not empty.
        traits = traits_of(project, key.subject, project.tokenizer.dtype, tokens=1)
        export_format = FORMATS[recipe.options["format"]]
        try:
            export_format.check(traits)
        except ConfigError as error:
            return one_line(error)
        return None

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return export_summary(manifest)

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an unfinished export, which `nanoset gc` may delete.

        A finished export has a manifest. Without one, a folder may contain:

            nothing                                    an empty set
            large files that were uploaded first       these files
            shard.00000.mds, shard.00001.mds, …        these files, which are of one format
            anything else                              None: perhaps files of the user

        Args:
            access: Access to the output root.
            folder: The folder.
        """
        uploaded = uploaded_files(self.layout, access, folder)
        if uploaded is not None:
            return uploaded

        names = {name for name in access.names(folder) if not name.startswith(UNFINISHED)}
        for export_format in FORMATS.values():
            if not isinstance(export_format, SampledFormat):
                continue
            if all(export_format.is_file(name) for name in names):
                return names
        return None


EXPORT = ExportStage()
