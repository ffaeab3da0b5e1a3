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
from nanoset_core.stages.views.choosing import ChosenView
from nanoset_core.stages.views.ids import can_be_listed
from nanoset_core.stages.views.names import FOLDER
from nanoset_core.stages.views.selection import Selection
from nanoset_core.stages.views.tables import document_values
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.wording import format_count


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

    def add(self, ids: Any) -> Any:
        """Count some documents by their ids, and return the ids that a list can have.

            ids       "doc-17", null, "two\\nlines"
            counts    1 listed, 1 without an id, 1 that no list can have
            result    "doc-17"

        Args:
            ids: Arrow array of texts; null for a document without an id.

        Returns:
            An Arrow array.
        """
        existing_ids = ids.drop_null()
        is_listable = can_be_listed(existing_ids)  # Arrow array of booleans
        listable_ids = existing_ids.filter(is_listable)

        self.listed += len(listable_ids)
        self.without_id += len(ids) - len(existing_ids)
        n_not_listable = len(existing_ids) - len(listable_ids)
        self.not_listable += n_not_listable
        if n_not_listable > 0 and self.first_not_listable is None:
            first = is_listable.index(False).as_py()
            self.first_not_listable = existing_ids[first].as_py()
        return listable_ids

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
        file: The file, or a link to it. If it exists, it is replaced once all ids are written.

    Returns:
        How many documents the list has and lacks.

    Raises:
        FormatError: A table is damaged.
        OSError: The file cannot be written.
    """
    import pyarrow as pa

    dataset = view.dataset
    counts = ListedDocuments()
    chosen_documents = _ChosenDocuments(view.selection)
    work = project.progress.work(FOLDER, dataset.name, int(dataset.facts["documents"]))

    with atomic_file(file.resolve()) as output:  # a link remains, and its target is replaced
        for documents in document_values(project, dataset.name, dataset, [ID_COLUMN]):
            rows = chosen_documents.rows_among(documents.numbers)  # (n_chosen,)
            ids_of_chosen = documents.strings(ID_COLUMN).take(pa.array(rows))
            listable_ids = counts.add(ids_of_chosen)
            output.write(_as_lines(listable_ids))
            work.advance(len(documents.numbers))
    return counts


def _as_lines(ids: Any) -> bytes:
    """Return ids as lines of a text file in UTF-8.

    Args:
        ids: A pyarrow.Array of large_string.
    """
    lines = [f"{identity}\n" for identity in ids.to_pylist()]
    return "".join(lines).encode()


class _ChosenDocuments:
    """The documents of a view, which are looked up in the order of the corpus.

    There may be billions of them. So their numbers are read in chunks, such as [3, 5] and [8, 9].
    """

    def __init__(self, selection: Selection) -> None:
        """Start with the first document of a view.

        Args:
            selection: The documents of the view.
        """
        self._chunks = _documents_once(selection)
        self._rest = next(self._chunks, None)
        """The numbers of the current chunk that were not found yet; None after the last chunk."""

    def rows_among(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of the next documents of the corpus belong to the view.

            the view                       3 5 8 9
            the next documents             0 1 2 3 4 5        the rows 3 and 5
            in the next call               6 7 8              the row 2

        Args:
            numbers: Numbers of these documents, ascending, at least one, shape (n_documents,). They
                include all documents of the view after those of the last call, up to the last one
                of these.

        Returns:
            Their rows in `numbers`, shape (n_rows,).
        """
        parts = [np.empty(0, np.int64)]
        last_number = numbers[-1]  # 5
        while self._rest is not None:
            n_found = int(np.searchsorted(self._rest, last_number, side="right"))
            parts.append(self._rest[:n_found])
            if n_found < len(self._rest):
                self._rest = self._rest[n_found:]  # later documents, for the next call
                break
            self._rest = next(self._chunks, None)
        chosen = np.concatenate(parts)  # [3, 5]
        return np.searchsorted(numbers, chosen)


def _documents_once(selection: Selection) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the documents of a view in the corpus, ascending, in chunks.

    A document that the view repeats occurs once.
    """
    for copies in selection.copies():
        if copies.copy > 0:
            return  # the first copies of all documents come first
        yield copies.documents
