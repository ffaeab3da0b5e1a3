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
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import inventory_node
from nanoset_core.project.project import Project
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.inventory.changes import changed_files
from nanoset_core.stages.inventory.corpora import corpus_folder, list_contents
from nanoset_core.stages.inventory.known_files import KnownFiles, recall_files
from nanoset_core.stages.inventory.make import inventory_recipe, pieces_by_file
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node, ReadingBudget
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.notices import Notice
from nanoset_core.text.files.survey import no_text
from nanoset_core.text.inventory.fingerprints import fingerprint, is_known_unread
from nanoset_core.text.inventory.pieces import Inventory, Piece
from nanoset_core.wording import format_count

READ_BYTES = 8 << 20
"""Files without a known digest, such as recently written ones, are read if their sizes add up to no
more than this.
"""
_MAX_NAMED_FILES = 2
"""How many file names the description of a change contains."""
_UNREAD = "copied or written again, which the next build reads to compare"
"""What is said of files that may have changed, in place of "changed"."""


@dataclass(frozen=True, slots=True)
class CorpusFindings:
    """The result of looking at the files of a corpus."""

    failure: str | None = None
    """Why they cannot be read; None if they can."""
    changes: str = ""
    """How they differ from those of the last build; empty if they do not, or cannot be read."""
    notices: tuple[Notice, ...] = ()
    """Notices on the files, such as those that are not read."""
    files: KnownFiles | None = None
    """The files, with those digests that are known; None if the files were not listed."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """How the files of a corpus, as they are now, differ from its stored inventory."""

    recipe: Recipe | None
    """Recipe of an inventory of these files; None if files would have to be read to know it."""
    changes: str
    """How they differ from the stored inventory, in words; empty if they do not."""
    files: KnownFiles
    """The files, with the digests that are known."""

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
        """Find out whether the files of a text collection have changed since the last build.

        The last build has stored an inventory, a list of the files with a hash of each. The files
        are compared with it, without reading most of them. The result is added to the graph of all
        outputs, which then finds out what else is out of date.

        Args:
            corpus: Name of the collection.

        Returns:
            Notices on the files, such as that one is not read; or why they cannot be read.
        """
        node = inventory_node(corpus)  # the inventory is an output of the project, too
        stored_version = self._graph.versions.of(node)
        stored_inventory = stored_version.whole_manifest  # None if missing or damaged
        try:
            contents = self._text_of(corpus)  # the files as they are now
            comparison = self._compare_files(corpus, contents, stored_inventory)
        except (NanosetError, OSError) as error:
            failure = one_line(error)
            self._graph.set_reason(node, failure)
            return CorpusFindings(failure)

        self._add_to_graph(node, comparison)
        notices = corpus_notices(self._graph.versions.project_of(node), corpus, contents)
        return CorpusFindings(None, comparison.changes, tuple(notices), comparison.files)

    def _add_to_graph(self, inventory: Node, comparison: _Comparison) -> None:
        """Add to the graph what an inventory should be made from, and why the stored one is stale.

        An inventory is a list of the files of a text collection, with a hash of each:

            files                                    recipe          reason
            as in the stored inventory               that of it      none: it is up to date
            c.jsonl was added, and has been read     another one     "1 file added (c.jsonl)"
            c.jsonl was added, too large to read     not known       "1 file added (c.jsonl)"

        Args:
            inventory: The inventory, an output of the project.
            comparison: How the present files differ from those in the stored inventory.
        """
        if comparison.recipe is not None:
            self._graph.set_recipe(inventory, comparison.recipe)
        # If the recipe is not known, it is not certain that the inventory is up to date.
        stored_version = self._graph.versions.of(inventory)
        if not comparison.agrees_with(stored_version.whole_manifest):
            reason = _reason_to_list_again(stored_version, comparison)
            self._graph.set_reason(inventory, reason)

    def _text_of(self, corpus: str) -> Contents:
        """List the files of a text collection (corpus), and check that there is any text.

        For example, of a folder with a.jsonl and photo.png:

            files with text             a.jsonl, with its size and time
            files that are not read     photo.png

        Args:
            corpus: Name of the corpus, such as web.

        Returns:
            Both lists.

        Raises:
            NanosetError: The folder cannot be listed, or no file in it has text.
        """
        project = self._graph.project
        contents = list_contents(project, corpus)
        has_text = len(contents.texts) > 0
        if not has_text:
            raise no_text(corpus_folder(project, corpus), contents)
        return contents

    def _compare_files(
        self, corpus: str, contents: Contents, inventory: Manifest | None
    ) -> _Comparison:
        """Compare the files of a text collection (corpus) with the list that the last build stored.

        To read all files would take hours. If a file has the size and time that it had when it was
        last read, it is taken to have the same bytes. For example:

            file       in the list     now                         result
            a.jsonl    digest 3f9c…    same size and time          unchanged
            b.jsonl    digest 81aa…    another size                changed
            c.jsonl    digest c04d…    same size, but a new time   read it to find out
            d.jsonl    not in it       exists                      added

        Args:
            corpus: Name of the corpus.
            contents: Its files as they are now, with their sizes and times.
            inventory: Manifest of the stored list; None if there is none, or it is damaged.

        Returns:
            The differences in words; the recipe of a list of the present files, which is a hash of
            their names and bytes (if it differs from the recipe of the stored list, that is out of
            date); and the files with their digests, except for `b.jsonl` and `d.jsonl`.
        """
        # Both mappings have path → pieces of the file, each with a digest. (Only a large file has
        # several.) In the second one, it is None for a file that was written since it was last
        # read: {"a.jsonl": [3f9c…], "b.jsonl": None, "c.jsonl": None, "d.jsonl": None}.
        recorded_pieces = pieces_by_file(inventory)
        present_pieces = dict(recall_files(self._graph.project, contents).pieces_by_path)

        # Read c.jsonl, but not b.jsonl, which has certainly changed, and not d.jsonl. If this would
        # be too much to read, their pieces remain unknown.
        files_to_read: list[FileStat] = []
        for stat in contents.ordered:
            is_known = present_pieces[stat.path] is not None
            if not is_known and _has_recorded_size(stat, recorded_pieces):
                files_to_read.append(stat)
        present_pieces.update(self._read_pieces(corpus, files_to_read))

        paths_with_same_size = {stat.path for stat in files_to_read}
        changes = _describe_changes(present_pieces, recorded_pieces, paths_with_same_size)
        files = KnownFiles(contents, present_pieces)

        # If nothing has changed, the recipe of the list is still that of the stored one. But an
        # older version of nanoset may have written the list in another format. Then it has to be
        # written again, by a recipe of the present format.
        if inventory is not None and not changes and _has_present_format(inventory):
            return _Comparison(from_plain(Recipe, inventory.recipe), changes, files)
        return _Comparison(_recipe_of_file_list(corpus, present_pieces), changes, files)

    def _read_pieces(self, corpus: str, files: Sequence[FileStat]) -> dict[str, list[Piece]]:
        """Read some files of a text collection to find their digests, unless they are too large.

        `nanoset status` has to be quick, so it reads 8 MiB (READ_BYTES) of all collections
        together. Either all of these files are read, or none. If only some were, the others would
        seem to have changed.

        Args:
            corpus: Name of the collection.
            files: The files.

        Returns:
            Path of each file → its pieces, each with a digest. A large file has several. The result
            is empty if the files are too large.
        """
        folder = self._graph.project.config.corpus_folder(corpus)
        bytes_to_read = sum(stat.size for stat in files)
        if is_known_unread(folder):
            bytes_to_read = 0  # the files are in a bucket, which has stored checksums of them

        # This returns False, and takes nothing from the budget, if not so many bytes are left.
        is_small_enough = self._budget.spend(bytes_to_read)
        if not is_small_enough:
            return {}
        return {stat.path: fingerprint(folder, stat) for stat in files}


def _reason_to_list_again(stored_version: CurrentVersion, comparison: _Comparison) -> str:
    """Return why the stored list of a text collection's files has to be made again.

    Args:
        stored_version: The list that the last build has stored, and what is wrong with it.
        comparison: How the files differ from the list.
    """
    if stored_version.problem:
        return stored_version.problem  # such as "not built yet"
    if comparison.changes:
        return comparison.changes  # such as "1 file added (c.jsonl)"
    # The files are the same, but an older version of nanoset wrote the list.
    return "the inventory's format changed"


def _has_present_format(inventory: Manifest) -> bool:
    """Return whether this version of nanoset would describe the same files in the same way."""
    return bool(inventory.recipe["version"] == INVENTORY.version)


def _describe_changes(
    present: Mapping[str, list[Piece] | None],
    recorded: Mapping[str, list[Piece]],
    same_size: Collection[str],
) -> str:
    """Describe how the files of a text collection differ from those of the last build. For example:

        1 file added (c.jsonl); 2 files changed (a.jsonl, b.jsonl)

    Args:
        present: Path of each file → its pieces, each with a digest; None if the file would have to
            be read to know them.
        recorded: Path of each file in the last build → its pieces.
        same_size: Files that were written again, but have the size that they had.

    Returns:
        The description; empty if nothing differs.
    """
    # The description has the changes in this order.
    paths_by_change: dict[str, list[str]] = {"added": [], "removed": [], "changed": [], _UNREAD: []}
    for path, change in changed_files(recorded, present).items():
        is_unread = path in same_size and present[path] is None
        if is_unread:
            paths_by_change[_UNREAD].append(path)  # it may be unchanged
        else:
            paths_by_change[change].append(path)
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


def _recipe_of_file_list(
    corpus: str, pieces_by_path: Mapping[str, list[Piece] | None]
) -> Recipe | None:
    """Return what identifies the present files of a text collection: one hash of all of them.

    If it differs from that of the last build, a build has work to do.

    Args:
        corpus: Name of the collection.
        pieces_by_path: Path of each file → its pieces with their hashes; None for a file that was
            not read since it was written.

    Returns:
        The hash, as the recipe of a list of the files; None if the hash of any file is not known.
    """
    all_pieces: list[Piece] = []
    for pieces in pieces_by_path.values():
        if pieces is None:
            return None
        all_pieces += pieces
    list_of_files = Inventory(corpus, tuple(all_pieces))
    return inventory_recipe(list_of_files)


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
    findings: Mapping[str, CorpusFindings]
    """Corpus → what was found in its files, such as why they cannot be read."""


def survey_project(project: Project, corpora: Iterable[str]) -> ProjectSurvey:
    """Find out what a build would have to do, without reading the raw text.

    A file that has the size and time that it had when it was last read is taken to be unchanged.

    Args:
        project: The project, whose folder of raw text is listed.
        corpora: Names of its collections of texts.

    Returns:
        All outputs, with what each should be made from and why it is not up to date; and what was
        found in the files of each collection.
    """
    names = tuple(corpora)
    graph = Graph(project, known={}, corpora=names)  # all outputs; it does not know the files yet
    survey = CorpusSurvey(graph)
    # This also adds what is found to the graph.
    findings = {corpus: survey.look_at(corpus) for corpus in names}
    return ProjectSurvey(graph, findings)


def text_changes(project: Project, corpora: Iterable[str]) -> dict[str, str]:
    """Return which collections of texts differ now from what the last build has read of them.

    It may take hours from the moment when a build lists the files of a corpus to its end, and text
    may arrive meanwhile. Then its outputs are those of the earlier text.

    Args:
        project: The project, whose folder of raw text is listed.
        corpora: Names of the collections, whose inventories were up to date when they were listed.

    Returns:
        Corpus → its changes, such as {"web": "1 file added (c.jsonl)"}. Corpora whose files cannot
        be listed any more are left out.
    """
    names = tuple(corpora)
    survey = CorpusSurvey(Graph(project, known={}, corpora=names))
    changes_by_corpus: dict[str, str] = {}
    for corpus in names:
        changes = survey.look_at(corpus).changes
        if changes:
            changes_by_corpus[corpus] = changes
    return changes_by_corpus
