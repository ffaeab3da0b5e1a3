"""Look at the outputs of a project before a build: which exist, and which are up to date.

This does not need Dagster. If every output is up to date, and Dagster's history is known to have
them all (see `complete_history.py`), `nanoset build` ends after this survey.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nanoset_core.errors import ConfigError, NanosetError, one_of, remedy_for_name
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.outputs.root import SEEN_SECONDS
from nanoset_core.project.graph.graph import Graph, graph_over
from nanoset_core.project.graph.nodes import inventory_node
from nanoset_core.project.graph.step import Step
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.stages.inventory.corpora import scan_names
from nanoset_core.stages.inventory.shared_files import check_all_files
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import sweep
from nanoset_core.stages.stage import Node, is_of_corpora


@dataclass(frozen=True, slots=True)
class OutputSurvey:
    """The outputs of a project, and their state before a build."""

    graph: Graph
    """All outputs, and what each is made from."""
    steps: list[Step]
    """The steps of the outputs that the build considers: of all outputs, or of those that belong to
    corpora if `--corpus` is given. They say which outputs are up to date.
    """
    all_corpora: tuple[str, ...]
    """The corpora of the raw folder, also those that were not examined."""
    unread_entries: Mapping[str, str]
    """Entry of the raw folder that is no corpus → why it is not read."""
    unreadable: Mapping[Node, Exception]
    """Inventory of a corpus that cannot be read → the error."""

    @property
    def is_up_to_date(self) -> bool:
        """Whether nothing has to be made: all corpora are readable, all outputs up to date."""
        return not self.unreadable and all(step.is_up_to_date for step in self.steps)


def survey_outputs(project: Project, corpora: Sequence[str] = ()) -> OutputSurvey:
    """Find out what a build has to do: compare the outputs that exist with raw text and settings.

    For example, a file was added to the folder of the text collection (corpus) `web`:

        output                          state
        list of files of `web`          out of date
        dataset of `web`                out of date, since it is made from the list
        dataset of `books`              up to date

    This also deletes the temporary files of processes that were killed.

    Args:
        project: The project that is built.
        corpora: Only these are examined; empty: all.

    Raises:
        ConfigError: The settings are invalid, or name a corpus that does not exist.
        MissingError: There is no raw folder.
    """
    sweep(project)  # deletes temporary files
    text = scan_names(project)
    examined_corpora = corpora_to_examine(project, text.corpora, corpora)

    # List the files of each corpus, and derive from the lists which outputs there should be. If a
    # corpus cannot be read, the graph of the outputs has the error in its place.
    inventories = _inventories(project, examined_corpora)
    graph = graph_over(project, inventories.recipes, examined_corpora)
    graph.set_failures(inventories.errors)

    # Compare the outputs that exist with those that there should be. Each has a step to make it.
    steps = graph.steps()
    if corpora:
        # A data mixture or webdataset may need corpora that were not examined: leave it out.
        steps = [step for step in steps if is_of_corpora(step.node.stage)]
    return OutputSurvey(
        graph=graph,
        steps=steps,
        all_corpora=tuple(text.corpora),
        unread_entries=text.unread_entries,
        unreadable=inventories.errors,
    )


def corpora_to_examine(
    project: Project, existing: Iterable[str], requested: Sequence[str]
) -> list[str]:
    """Return the corpora (text collections) that a build looks at.

    For example, the raw folder has web, books and code:

        command                                   result
        nanoset build                             web, books, code
        nanoset build --corpus web                web
        nanoset build --corpus wbe                ConfigError: there is no such corpus

    Args:
        project: Its settings may name corpora, which must exist.
        existing: The corpora of the raw folder.
        requested: The corpora that `--corpus` names; empty: all.

    Raises:
        ConfigError: A corpus that is named does not exist, or two corpora of one split contain the
            same file.
    """
    corpora = list(existing)
    check_requested_corpora(project.config, corpora)  # that those of nanoset.yaml exist
    check_all_files(project)  # that no two corpora of a split contain the same file
    _check_named_corpora(requested, corpora)  # that those of `--corpus` exist
    if not requested:
        return corpora
    return [corpus for corpus in corpora if corpus in requested]


def _check_named_corpora(corpora: Iterable[str], existing: Sequence[str]) -> None:
    """Check that the corpora (text collections) that `--corpus` names exist.

    If not, the error suggests the name that the user probably meant.

    Args:
        corpora: The names, such as ["web"].
        existing: The corpora of the raw folder.

    Raises:
        ConfigError: A name is not that of a corpus in the raw folder.
    """
    for name in corpora:
        if name not in existing:
            raise ConfigError(
                "this corpus is not in the raw folder",
                where="--corpus",
                found=repr(name),
                expected=one_of(existing, "none: there are no corpora"),
                remedy=remedy_for_name(name, existing, "name one of these"),
            )


@dataclass(frozen=True, slots=True)
class _Inventories:
    """The lists of files of corpora, as they are now."""

    recipes: dict[str, Recipe] = field(default_factory=dict)
    """Corpus → recipe of its inventory, which changes with any of its files."""
    errors: dict[Node, Exception] = field(default_factory=dict)
    """Inventory of a corpus that cannot be read → the error."""


def _inventories(project: Project, corpora: Iterable[str]) -> _Inventories:
    """Look which files each text collection (corpus) has now, to see what has changed.

    The first output of a corpus is its inventory, a list of its files. The recipe of an output says
    what it would be made from now. That of an inventory has a digest of all files, so it differs
    from the recipe of the last build if a file has changed.

    A corpus whose folder cannot be read does not stop the others. For `web` and `books`, of which
    only `web` can be read:

        recipes    {"web": the recipe of its inventory}
        errors     {the inventory of books: PermissionError(…)}

    Args:
        project: Its folder of raw text contains the corpora.
        corpora: Names of the corpora.
    """
    inventories = _Inventories()
    listed_project = _ListedProject(project)  # renews a listing of the bucket when it gets old
    for corpus in corpora:
        inventory = inventory_node(corpus)
        try:
            # It is made from raw files. So it has no digests of other outputs in its recipe.
            recipe = inventory.stage.recipe(listed_project.get(), inventory.key, parents={})
        except (NanosetError, OSError) as error:
            inventories.errors[inventory] = error
        else:
            inventories.recipes[corpus] = recipe
    return inventories


class _ListedProject:
    """A project that has a listing of its inventories in a bucket, which is never an old one.

    An inventory is a list of the files of a corpus. Next to it, a machine that has read the files
    stores their digests, so that other machines need not read them. The listing shows for which
    corpora there are such digests.
    """

    def __init__(self, project: Project) -> None:
        """Begin without a listing.

        Args:
            project: The project.
        """
        self._project = project
        self._listed_at = -math.inf  # by the monotonic clock, in seconds

    def get(self) -> Project:
        """Return the project with the present listing, or with a new one if that is old."""
        now = time.monotonic()
        if now - self._listed_at >= SEEN_SECONDS:  # reading the files of a corpus may take long
            self._project = self._project.with_listing(INVENTORY.layout.folder)
            self._listed_at = now
        return self._project
