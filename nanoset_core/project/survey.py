"""Find out which files of the corpora have changed, for `nanoset status` and dry runs.

Reading all raw text again would take hours. Instead, the digest of every file is remembered with
the size, times and inode that the file had. A file that still has them is taken to be unchanged.
Only files that were written again with the same size are read, if they are small. The result is,
for example, "1 file added (c.jsonl); 2 files changed (a.jsonl, b.jsonl)".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.records.json_records import from_plain
from nanoset_core.records.text import format_count
from nanoset_core.stages.inventory.corpora import corpus_folder, list_contents
from nanoset_core.stages.inventory.make import fingerprint_memory, inventory_recipe, pieces_by_file
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node, ReadingBudget
from nanoset_core.text.contents import Contents
from nanoset_core.text.fingerprints import fingerprint, is_known_unread
from nanoset_core.text.listing import FileStat
from nanoset_core.text.notices import Notice
from nanoset_core.text.pieces import Inventory, Piece
from nanoset_core.text.survey import no_text

READ_BYTES = 8 << 20
"""Files without a known digest, such as recently written ones, are read if their sizes add up to no
more than this.
"""
_MAX_NAMED_FILES = 2
"""How many file names the description of a change contains."""
_ADDED = "added"
_REMOVED = "removed"
_CHANGED = "changed"
_UNREAD = "copied or written again, which the next build reads to compare"


@dataclass(frozen=True, slots=True)
class CorpusFindings:
    """The result of looking at the files of a corpus."""

    failure: str | None = None
    """Why they cannot be read; None if they can."""
    notices: tuple[Notice, ...] = ()
    """Notices on the files, such as those that are not read."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """How the files of a corpus, as they are now, differ from its stored inventory."""

    recipe: Recipe | None
    """Recipe of an inventory of these files; None if files would have to be read to know it."""
    changes: str
    """How they differ from the stored inventory, in words; empty if they do not."""

    def agrees_with(self, inventory: Manifest | None) -> bool:
        """Return whether an inventory certainly describes these files.

        Args:
            inventory: Manifest of the inventory; None if there is none.
        """
        if self.recipe is None or inventory is None:
            return False
        return bool(self.recipe.digest == inventory.digest)


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

        The inventory is a stored list of the corpus's files, with their digests.

        Args:
            corpus: Name of the corpus.

        Returns:
            Notices on its files; or why they cannot be read, which is also added to the graph.
        """
        node = inventory_node(corpus)
        stored_inventory = self._graph.current(node)
        try:
            contents = self._text_of(corpus)
            comparison = self._compare_files(corpus, contents, _intact_manifest(stored_inventory))
        except (NanosetError, OSError) as error:
            failure = one_line(error)
            self._graph.set_reason(node, failure)
            return CorpusFindings(failure)

        # Tell the graph how the inventory of the present files differs from the stored one.
        self._update_graph(node, stored_inventory, comparison)
        notices = corpus_notices(self._graph.project_of(node), corpus, contents)
        return CorpusFindings(notices=tuple(notices))

    def _update_graph(
        self, node: Node, stored_inventory: CurrentVersion, comparison: _Comparison
    ) -> None:
        """Tell the graph which inventory a build would make, and why the stored one is stale.

        Args:
            node: The inventory of a corpus.
            stored_inventory: Its current version, if it has one.
            comparison: How the files of the corpus differ from it.
        """
        if comparison.recipe is not None:  # None: too much would have to be read to know it
            self._graph.set_recipe(node, comparison.recipe)

        if comparison.agrees_with(_intact_manifest(stored_inventory)):
            return  # the stored inventory is up to date
        if stored_inventory.problem:
            reason = stored_inventory.problem  # it is missing or damaged
        elif comparison.changes:
            reason = comparison.changes  # such as "1 file added (c.jsonl)"
        else:
            reason = "the inventory's format changed"  # another version of nanoset wrote it
        self._graph.set_reason(node, reason)

    def _text_of(self, corpus: str) -> Contents:
        """Return the files of a corpus, with their sizes and times.

        Args:
            corpus: Name of the corpus, whose folder is listed.

        Raises:
            NanosetError: They cannot be listed, or none of them is text.
        """
        project = self._graph.project
        contents = list_contents(project, corpus)
        if not contents.texts:
            raise no_text(corpus_folder(project, corpus), contents)
        return contents

    def _compare_files(
        self, corpus: str, contents: Contents, inventory: Manifest | None
    ) -> _Comparison:
        """Compare the files of a corpus with its stored inventory, a list of files with digests.

        Args:
            corpus: Name of the corpus.
            contents: Its files as they are now, with their sizes and times.
            inventory: Manifest of the inventory; None if there is none, or it is damaged.
        """
        # A file is listed as pieces: stretches of it, each with a digest. Both mappings say which
        # pieces a file has: `recorded` in the inventory, `present` now. `present` has None for a
        # file that was written since it was last read.
        recorded = pieces_by_file(inventory)
        present = self._known_pieces(corpus, contents)

        # If such a file has the size that it had, its bytes may be the same: read it to find out.
        files_to_read: list[FileStat] = []
        for stat in contents.ordered:
            if present[stat.path] is None and _has_recorded_size(stat, recorded):
                files_to_read.append(stat)
        present |= self._read_pieces(corpus, files_to_read)

        changes = _describe_changes(present, recorded, {stat.path for stat in files_to_read})
        # Without a change, an inventory of these files would be the stored one again.
        if inventory is not None and not changes and _has_present_format(inventory):
            return _Comparison(from_plain(Recipe, inventory.recipe), changes)
        return _Comparison(_recipe_of(corpus, present), changes)

    def _known_pieces(self, corpus: str, contents: Contents) -> dict[str, list[Piece] | None]:
        """Return the pieces of each file of a corpus that are known without reading the file.

        Pieces are stretches of a file, each with a digest. They are known if the file has the size,
        times and inode that it had when it was last read.

        Args:
            corpus: Name of the corpus.
            contents: Its files.

        Returns:
            Path of each file → its pieces, or None.
        """
        project = self._graph.project
        folder = project.config.corpus_folder(corpus)
        memory = fingerprint_memory(project, folder)  # the pieces of all files that were ever read
        return {stat.path: memory.recall(stat) for stat in contents.ordered}

    def _read_pieces(self, corpus: str, files: Sequence[FileStat]) -> dict[str, list[Piece]]:
        """Read files completely to find their digests, if all of them together are small enough.

        Either all or none are read: with only some digests, the other files would look changed.

        Args:
            corpus: Name of the corpus.
            files: Files of it.

        Returns:
            Path of each file → its pieces, with their digests; empty if the files are too large.
        """
        folder = self._graph.project.config.corpus_folder(corpus)
        # In a bucket, the listing may have the digests already: as ETags, with the setting
        # `storage.fingerprint: etag`.
        bytes_to_read = 0
        if not is_known_unread(folder):
            bytes_to_read = sum(stat.size for stat in files)

        is_small_enough = self._budget.spend(bytes_to_read)
        if not is_small_enough:
            return {}
        return {stat.path: fingerprint(folder, stat) for stat in files}


def _intact_manifest(version: CurrentVersion) -> Manifest | None:
    """Return the manifest of a current version; None if there is none, or it is damaged."""
    return version.manifest if version.problem is None else None


def _has_present_format(inventory: Manifest) -> bool:
    """Return whether this version of nanoset would describe the same files in the same way."""
    return bool(inventory.recipe["version"] == INVENTORY.version)


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
    paths_by_change: dict[str, list[str]] = {
        _ADDED: [],
        _REMOVED: [path for path in recorded if path not in present],
        _CHANGED: [],
        _UNREAD: [],
    }
    for path, pieces in present.items():
        if path not in recorded:
            paths_by_change[_ADDED].append(path)
        elif pieces is None and path in same_size:
            paths_by_change[_UNREAD].append(path)  # it may have the same bytes as before
        elif pieces != recorded[path]:
            paths_by_change[_CHANGED].append(path)
    clauses = [_describe_files(paths, change) for change, paths in paths_by_change.items() if paths]
    return "; ".join(clauses)


def _has_recorded_size(stat: FileStat, recorded: Mapping[str, list[Piece]]) -> bool:
    """Return whether a file has the size that it has in an inventory.

    Args:
        stat: Path and size of the file.
        recorded: File → its pieces in the inventory. The last one ends with the file.
    """
    pieces = recorded.get(stat.path)
    return pieces is not None and pieces[-1].end == stat.size


def _recipe_of(corpus: str, pieces_of_file: Mapping[str, list[Piece] | None]) -> Recipe | None:
    """Return the recipe of an inventory of files; None if the pieces of a file are not known.

    Args:
        corpus: Name of the corpus.
        pieces_of_file: Path of each file → its pieces.
    """
    pieces: list[Piece] = []
    for file_pieces in pieces_of_file.values():
        if file_pieces is None:
            return None
        pieces += file_pieces
    return inventory_recipe(Inventory(corpus, tuple(pieces)))


def _describe_files(paths: Sequence[str], what: str) -> str:
    """Return a phrase about some files, such as `2 files changed (a.jsonl, b.jsonl)`.

    Args:
        paths: The files, at least one. The phrase names the first two.
        what: What happened to them.
    """
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
        project: The project, whose raw folder is listed.
        corpora: Names of the corpora.

    Returns:
        The graph of all outputs, with what each should be made from, and the corpora that cannot be
        read.
    """
    names = tuple(corpora)
    graph = Graph(project, known={}, corpora=names)
    survey = CorpusSurvey(graph)
    failures: dict[str, str] = {}
    for corpus in names:
        findings = survey.look_at(corpus)
        if findings.failure is not None:
            failures[corpus] = findings.failure
    return ProjectSurvey(graph, failures)
