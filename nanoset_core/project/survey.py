"""Find out which files of the corpora have changed, for `nanoset status` and dry runs.

Reading all raw text again would take hours. Instead, the digest of every file is remembered with
the size, times and inode that the file had. A file that still has them is taken to be unchanged.
Only files that were written again with the same size are read, if they are small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.records.json_records import from_plain
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
"""Files without a known digest, such as recently written ones, are read if their sizes add up to no
more than this.
"""
_MAX_NAMED_FILES = 2
"""How many file names the description of a change contains."""


@dataclass(frozen=True, slots=True)
class CorpusFindings:
    """The result of looking at the files of a corpus."""

    failure: str | None = None
    """Why they cannot be read; None if they can."""
    notices: tuple[Notice, ...] = ()
    """Notices on the files, such as those that are not read."""


@dataclass(frozen=True, slots=True)
class _PresentFiles:
    """How the files of a corpus differ now from its current inventory."""

    recipe: Recipe | None
    """Recipe of an inventory of these files; None if files would have to be read to know it."""
    changes: str
    """How they differ from the current inventory, in words; empty if they do not."""


class CorpusSurvey:
    """Looks at the files of corpora, and adds to a graph what their inventories should be.

    All corpora share one budget of bytes to read.
    """

    def __init__(self, graph: Graph) -> None:
        """Prepare to look at corpora.

        Args:
            graph: Receives the recipes of the inventories, and the reasons why they are stale.
        """
        self._graph = graph
        self._budget = ReadingBudget(READ_BYTES)

    def look_at(self, corpus: str) -> CorpusFindings:
        """Look at the files of a corpus, and add what its inventory should be to the graph.

        Args:
            corpus: Name of the corpus.

        Returns:
            Notices on its files; or why they cannot be read, which is also added to the graph.
        """
        # Compare the files with the current inventory, which is the list of files that the corpus
        # was last built from. A damaged inventory counts as none.
        graph = self._graph
        project = graph.project
        node = inventory_node(corpus)
        inventory = graph.current(node)
        intact_manifest = inventory.manifest if inventory.problem is None else None
        try:
            contents = list_contents(project, corpus)
            if not contents.texts:
                raise no_text(corpus_folder(project, corpus), contents)
            present = self._present_files(corpus, contents, intact_manifest)
        except (NanosetError, OSError) as error:
            failure = one_line(error)
            graph.set_reason(node, failure)
            return CorpusFindings(failure)

        # Tell the graph what the inventory should be, if that is known without reading all files.
        is_up_to_date = False
        if present.recipe is not None:
            graph.set_recipe(node, present.recipe)
            if intact_manifest is not None:
                is_up_to_date = present.recipe.digest == intact_manifest.digest

        # Tell it why the current inventory is not up to date: it is missing or damaged, files have
        # changed, or else an upgrade of this program changed how inventories describe files.
        if not is_up_to_date:
            reason = inventory.problem or present.changes or "the inventory's format changed"
            graph.set_reason(node, reason)

        # Notices need no action of the graph: they are only shown.
        notices = corpus_notices(graph.project_of(node), corpus, contents)
        return CorpusFindings(notices=tuple(notices))

    def _present_files(
        self, corpus: str, contents: Contents, current: Manifest | None
    ) -> _PresentFiles:
        """Compare the files of a corpus with its current inventory.

        Args:
            corpus: Name of the corpus.
            contents: Its files, with their sizes and times.
            current: Manifest of its current inventory; None if there is none, or it is damaged.
        """
        project = self._graph.project
        folder = project.config.corpus_folder(corpus)

        # A file's pieces are stretches of it, each with a digest. The memory knows them if the file
        # has the size, times and inode that it had when it was last read.
        memory = fingerprint_memory(project, folder)
        recorded = pieces_by_file(current)
        present: dict[str, list[Piece] | None] = {}  # file → its pieces; None if they are not known
        for stat in contents.ordered:
            present[stat.path] = memory.recall(stat)

        # A file of another size has changed. One that was written again with the size that it had
        # may have the same bytes as before: only reading it can show this.
        recorded_sizes = {path: pieces[-1].end for path, pieces in recorded.items()}
        same_size = []
        for stat in contents.ordered:
            if present[stat.path] is None and recorded_sizes.get(stat.path) == stat.size:
                same_size.append(stat)

        # Read all of them or none: if only some were read, the others would look as if they had
        # changed. Of some folders the digests of files are known without reading them.
        bytes_to_read = 0
        if not is_known_unread(folder):
            bytes_to_read = sum(stat.size for stat in same_size)
        if self._budget.spend(bytes_to_read):
            for stat in same_size:
                present[stat.path] = fingerprint(folder, stat)

        # Compare the files with the inventory, and derive the recipe that it would have now.
        changes = _describe_changes(present, recorded, {stat.path for stat in same_size})
        if current is not None and not changes and current.recipe["version"] == INVENTORY.version:
            return _PresentFiles(from_plain(Recipe, current.recipe), changes)
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
    """Describe in words how files differ from the inventory that recorded them.

    Args:
        present: File → its pieces; None if they are not known without reading the file.
        recorded: File → its pieces in the inventory.
        same_size: Files that were written again, but have the size that they had.

    Returns:
        For example `1 file added (c.jsonl); 2 files changed (a.jsonl, b.jsonl)`; empty if they do
        not differ.
    """
    # Sort the files by what happened to them.
    added = [path for path in present if path not in recorded]
    removed = [path for path in recorded if path not in present]
    changed = []
    perhaps_changed = []
    for path, pieces in present.items():
        if path not in recorded or pieces == recorded[path]:
            continue
        if pieces is None and path in same_size:
            perhaps_changed.append(path)
        else:
            changed.append(path)

    # Describe each group, if there is one.
    clauses = [
        _describe_files(added, "added"),
        _describe_files(removed, "removed"),
        _describe_files(changed, "changed"),
        _describe_files(
            perhaps_changed, "copied or written again, which the next build reads to compare"
        ),
    ]
    return "; ".join(clause for clause in clauses if clause)


def _describe_files(paths: list[str], what: str) -> str:
    """Return a phrase about some files, such as `2 files changed (a.jsonl, b.jsonl)`.

    Args:
        paths: The files; without any, the phrase is empty.
        what: What happened to them.
    """
    if not paths:
        return ""
    names = ", ".join(paths[:_MAX_NAMED_FILES])
    if len(paths) > _MAX_NAMED_FILES:
        names += ", …"
    return f"{format_count(len(paths), 'file')} {what} ({names})"


@dataclass(frozen=True, slots=True)
class ProjectSurvey:
    """The state of a project's outputs, without having read the raw text."""

    graph: Graph
    """What each output should be made from, and why it is stale."""
    failures: Mapping[str, str]
    """Corpus that cannot be read → what is wrong."""


def survey_project(project: Project, corpora: Iterable[str]) -> ProjectSurvey:
    """Look at the files of corpora by their sizes and times, as `nanoset status` does.

    Args:
        project: The project.
        corpora: Names of the corpora.
    """
    names = tuple(corpora)
    graph = Graph(project, {}, names)
    survey = CorpusSurvey(graph)
    failures: dict[str, str] = {}
    for corpus in names:
        findings = survey.look_at(corpus)
        if findings.failure is not None:
            failures[corpus] = findings.failure
    return ProjectSurvey(graph, failures)
