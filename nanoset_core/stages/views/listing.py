"""Write the ids of the documents that a view chooses to a file, which other views can read.

The file has one id on each line, in the order of the corpus. A view with many copies of a document
lists its id once. For example, the views `run` and `ablation` choose documents of one corpus. With
the list of `ablation`, a third view has the documents that only `run` has:

    only-run: {of: run, exclude: ablation.txt}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.scan import ID_COLUMN
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.views.choosing import ChosenView
from nanoset_core.stages.views.ids import can_be_listed
from nanoset_core.stages.views.selection import Selection
from nanoset_core.stages.views.settings import STAGE
from nanoset_core.stages.views.tables import document_values
from nanoset_core.storage.atomic import atomic_file


@dataclass(slots=True)
class ListedDocuments:
    """How many documents of a view are in a list of their ids, and which are not."""

    listed: int = 0
    """Documents whose id is in the list."""
    without_id: int = 0
    """Documents that have no id."""
    not_listable: int = 0
    """Documents with an id that no list can have, such as one with a line end."""
    first_not_listable: str | None = None
    """The first of these ids."""

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each reason why the list lacks documents of the view."""
        if self.without_id > 0:
            documents = format_count(self.without_id, "document")
            yield f"{documents} without an id cannot be listed"
        if self.not_listable > 0:
            documents = format_count(self.not_listable, "document")
            yield (
                f"{documents} cannot be listed, because a list of ids would not be read as it was "
                f"written, such as {self.first_not_listable!r}"
            )


def write_ids(project: Project, view: ChosenView, file: Path) -> ListedDocuments:
    """Write the ids of the documents of a view to a text file, one on each line.

    Memory does not depend on the number of documents: the tables of the corpus are read in parts.

    Args:
        project: The project, whose output folder has the tables of the documents.
        view: What the view has chosen. Its scratch files must still exist.
        file: The file. If it exists, it is replaced once all ids are written. If it is a link, the
            file is replaced to which it leads.

    Returns:
        How many documents the list has and lacks.

    Raises:
        FormatError: A table is damaged.
        OSError: The file cannot be written.
    """
    import pyarrow as pa

    dataset = view.dataset
    counts = ListedDocuments()
    chosen_documents = _AscendingNumbers(_documents_once(view.selection))
    work = project.progress.work(STAGE, dataset.name, int(dataset.facts["documents"]))

    with atomic_file(file.resolve()) as output:
        for documents in document_values(project, dataset.name, dataset, [ID_COLUMN]):
            # Find the chosen documents among those that were just read.
            numbers = documents.numbers  # (n_documents,) ascending
            chosen = chosen_documents.below(int(numbers[-1]) + 1)  # (n_chosen,) ascending
            rows = np.searchsorted(numbers, chosen)  # (n_chosen,)
            ids = documents.strings(ID_COLUMN).take(pa.array(rows))

            output.write(_lines_of(ids, counts))
            work.advance(len(numbers))
    return counts


def _lines_of(ids: Any, counts: ListedDocuments) -> bytes:
    """Return the lines of a list for the ids of some documents, and count these documents.

    Args:
        ids: Arrow array of texts; null for a document without an id.
        counts: The documents are added to these counts.
    """
    existing_ids = ids.drop_null()
    is_listable = can_be_listed(existing_ids)  # Arrow array of booleans
    listable_ids = existing_ids.filter(is_listable)

    counts.without_id += len(ids) - len(existing_ids)
    counts.listed += len(listable_ids)
    n_not_listable = len(existing_ids) - len(listable_ids)
    counts.not_listable += n_not_listable
    if n_not_listable > 0 and counts.first_not_listable is None:
        first = is_listable.index(False).as_py()
        counts.first_not_listable = existing_ids[first].as_py()

    lines = [f"{identity}\n" for identity in listable_ids.to_pylist()]
    return "".join(lines).encode()


def _documents_once(selection: Selection) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the documents of a view in the corpus, ascending, in chunks.

    A document that the view repeats occurs once.
    """
    for copies in selection.copies():
        if copies.copy > 0:
            return  # the first copies of all documents come first
        yield copies.documents


class _AscendingNumbers:
    """Ascending numbers, of which the next ones are requested up to a limit.

    The numbers come in chunks, which are read one after another. For example, with the chunks
    [3, 5] and [8, 9]:

        below(4)    [3]
        below(9)    [5, 8]
    """

    def __init__(self, chunks: Iterator[NDArray[np.int64]]) -> None:
        self._chunks = chunks
        self._next = np.empty(0, np.int64)  # numbers that were read, but not returned

    def below(self, limit: int) -> NDArray[np.int64]:
        """Return the numbers below a limit that no earlier call has returned, shape (n,)."""
        parts = [np.empty(0, np.int64)]
        while True:
            n_below = int(np.searchsorted(self._next, limit))
            parts.append(self._next[:n_below])
            self._next = self._next[n_below:]
            if len(self._next):
                break
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._next = chunk
        return np.concatenate(parts)
