"""Find out what changed in the files of corpora, for `nanoset status` and dry runs.

Text is only read if a size and time cannot tell.

Earlier surveys stored the digest of every file by its size, time and inode. A file that matches is
not read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.inventory.corpora import corpus_folder, list_contents
from nanoset_core.stages.inventory.make import fingerprint_memory, inventory_recipe, pieces_by_file
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import ReadingBudget
from nanoset_core.text.contents import Contents
from nanoset_core.text.fingerprints import fingerprint, is_known_unread
from nanoset_core.text.notices import Notice
from nanoset_core.text.pieces import Inventory, Piece
from nanoset_core.text.survey import no_text

READ_BYTES = 8 << 20
"""Files without a known digest, such as recently written ones, are read if they have at most this
size together.
"""
_MAX_NAMED_FILES = 2


@dataclass(frozen=True, slots=True)
class CorpusFindings:
    """What was found out of the files of a corpus."""

    failure: str | None = None
    """Why they cannot be read, or None."""
    notices: tuple[Notice, ...] = ()
    """Notices on the files, such as those that are not read."""


@dataclass(frozen=True, slots=True)
class _PresentFiles:
    """The files of a corpus as they are now, compared with its current inventory."""

    recipe: Recipe | None
    """Recipe of their inventory; None if files would have to be read."""
    changes: str
    """How they differ from the current inventory, in words; empty if they do not."""


class CorpusSurvey:
    """Adds the present inventories of corpora to a graph.

    All corpora share one budget of bytes to read.

    Args:
        graph: Receives the recipes of the inventories, and the reasons why they are stale.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._budget = ReadingBudget(READ_BYTES)

    def look_at(self, corpus: str) -> CorpusFindings:
        """Add the present inventory of a corpus to the graph."""
        graph = self._graph
        project = graph.project
        node = inventory_node(corpus)
        current = graph.current(node)
        whole = current.manifest if current.problem is None else None
        try:
            contents = list_contents(project, corpus)
            if not contents.texts:
                raise no_text(corpus_folder(project, corpus), contents)
            present = self._present_files(corpus, contents, whole)
        except (NanosetError, OSError) as error:
            failure = one_line(error)
            graph.set_reason(node, failure)
            return CorpusFindings(failure)

        if present.recipe is not None:
            graph.set_recipe(node, present.recipe)
        is_current = (
            present.recipe is not None
            and whole is not None
            and present.recipe.digest == whole.digest
        )
        if not is_current:
            graph.set_reason(
                node, current.problem or present.changes or "the inventory's format changed"
            )
        return CorpusFindings(
            notices=tuple(corpus_notices(graph.project_of(node), corpus, contents))
        )

    def _present_files(
        self, corpus: str, contents: Contents, current: Manifest | None
    ) -> _PresentFiles:
        """Compare the files of a corpus with its current inventory, if it has one that is whole."""
        project = self._graph.project
        folder = project.config.corpus_folder(corpus)
        memory = fingerprint_memory(project, folder)
        recorded = pieces_by_file(current)
        present: dict[str, list[Piece] | None] = {}  # file → its pieces; None if they are not known
        for stat in contents.ordered:
            present[stat.path] = memory.recall(stat)

        # Files of unknown content that have the size they had: only reading them tells whether they
        # changed.
        recorded_sizes = {path: pieces[-1].end for path, pieces in recorded.items()}
        unread = []
        for stat in contents.ordered:
            if present[stat.path] is None and recorded_sizes.get(stat.path) == stat.size:
                unread.append(stat)
        unread_bytes = 0 if is_known_unread(folder) else sum(stat.size for stat in unread)
        # Read all of them or none: if only some were read, the others would look as if they
        # differed.
        if self._budget.spend(unread_bytes):
            for stat in unread:
                present[stat.path] = fingerprint(folder, stat)

        changes = _describe_changes(present, recorded, {stat.path for stat in unread})
        if current is not None and not changes and current.recipe["version"] == INVENTORY.version:
            return _PresentFiles(Recipe(**current.recipe), changes)
        pieces: list[Piece] = []
        for file_pieces in present.values():
            if file_pieces is None:
                return _PresentFiles(None, changes)
            pieces += file_pieces
        return _PresentFiles(inventory_recipe(Inventory(corpus, tuple(pieces))), changes)


def _describe_changes(
    present: Mapping[str, list[Piece] | None],
    recorded: Mapping[str, list[Piece]],
    same_size: Collection[str],
) -> str:
    """Describe how files differ from the inventory that recorded them.

    Args:
        present: File → its pieces, or None if they are not known without reading it.
        recorded: File → its pieces in the inventory.
        same_size: Files that were not known, but have the size that they had.
    """
    added = [path for path in present if path not in recorded]
    removed = [path for path in recorded if path not in present]
    changed = []
    copied = []
    for path, pieces in present.items():
        if path not in recorded or pieces == recorded[path]:
            continue
        if pieces is None and path in same_size:
            copied.append(path)
        else:
            changed.append(path)
    clauses = [
        _describe_files(added, "added"),
        _describe_files(removed, "removed"),
        _describe_files(changed, "changed"),
        _describe_files(copied, "copied or written again, which the next build reads to compare"),
    ]
    return "; ".join(clause for clause in clauses if clause)


def _describe_files(paths: list[str], what: str) -> str:
    """Return a phrase on some files: how many, what happened to them, and the first names.

    Empty without files.
    """
    if not paths:
        return ""
    names = ", ".join(paths[:_MAX_NAMED_FILES])
    if len(paths) > _MAX_NAMED_FILES:
        names += ", …"
    return f"{format_count(len(paths), 'file')} {what} ({names})"


@dataclass(frozen=True, slots=True)
class ProjectSurvey:
    """The outputs of a project, as far as they are known without reading text."""

    graph: Graph
    failures: Mapping[str, str]
    """Corpus that cannot be read → what is wrong."""


def survey_project(project: Project, corpora: Iterable[str]) -> ProjectSurvey:
    """Look at the files of corpora by size and time, as `nanoset status` does."""
    names = tuple(corpora)
    graph = Graph(project, {}, names)
    survey = CorpusSurvey(graph)
    failures: dict[str, str] = {}
    for corpus in names:
        findings = survey.look_at(corpus)
        if findings.failure is not None:
            failures[corpus] = findings.failure
    return ProjectSurvey(graph, failures)
