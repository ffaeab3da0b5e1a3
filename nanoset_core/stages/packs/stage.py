"""The stage `packs`: the documents of a corpus or view → sequences of one length.

For example, packs of 2,048 tokens hold documents of 1,500 and 540 tokens, and 8 tokens of padding.
Documents are kept in one piece if they fit, in contrast to concatenating and cutting them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset_estimate import estimated_dataset_bytes
from nanoset_core.stages.derived import DerivedStage
from nanoset_core.stages.order_warnings import reordering_warnings
from nanoset_core.stages.packs.names import FOLDER, VERSION
from nanoset_core.stages.packs.pieces import PIECES_FILE
from nanoset_core.stages.packs.show import packs_summary
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import PART, Advising, Estimated, Key, Layout, Node, Summary
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.stages.views.stage import unpacked_node


class PacksStage(DerivedStage, Advising, Estimated):
    """Documents of a corpus or view, packed unbroken into sequences of one length."""

    section = "packs"
    layout = Layout(FOLDER, (PART,), uploaded_first=(".bin", ".idx", PIECES_FILE))
    kind = "pack"
    version = VERSION
    estimated_as = "packs"

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        spec = config.packs[key.required_part]
        return {"dataset": unpacked_node(config, spec.of)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides the bytes of packs: if it changes, they are made again.

        Packs are samples of one length, filled with documents of a dataset.

        Args:
            project: The project, with its settings and its tokenizer.
            key: Which packs. A project can have several.
            parents: {"dataset": version of the dataset whose documents are packed}.

        Returns:
            The settings, such as a length of 2,048 tokens, and the token that is used as padding.
        """
        name = key.required_part
        spec = project.config.packs[name]
        options = {
            "of": spec.of,  # name of the dataset
            "length": spec.length,  # tokens of a pack
            "long": spec.long,  # whether longer documents are cut or truncated
            "tail": spec.tail,  # what fills the room at the end of a pack
            "seed": spec.seed,  # decides the order of the packs
            "pad": pad_id(project),  # the token that is used as padding
        }
        return Recipe(FOLDER, name, VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.packs.make import make_packs

        return make_packs(project, key.required_part)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate how many bytes packs will have, to warn of a disk that is too small.

        Args:
            project: The project, whose settings say which corpus or view is packed.
            key: Its `part` is the name of the packs.
            text_of: Returns an estimate of a corpus's text by name.
        """
        return estimated_dataset_bytes(project, self.layout.name_of(key), text_of)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.packs.verify import verify_packs

        return verify_packs(project, key, deep=deep)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return packs_summary(manifest)

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        source = config.packs[key.required_part].of
        return reordering_warnings(config.views, [source], "packs have an order of their own")


PACKS = PacksStage()


def pad_id(project: Project) -> int | None:
    """Return the token that fills packs up: the padding token of the tokenizer, if it has one.

    Packs are samples of one length that are filled with documents. Without a padding token, what is
    left of a pack is filled with the token that marks the end of a document.

    Args:
        project: The project. The section `tokenizer` of its nanoset.yaml names these tokens.

    Returns:
        The id of the token, or None if the tokenizer has neither.
    """
    padding = project.special("pad")
    if padding is not None:
        return padding
    return project.special("eod")
