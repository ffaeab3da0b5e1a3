"""Choose the documents of views in one pass over the tables of a corpus.

The steps of a view are applied in two phases:

1. The leading filters, those before all other steps, decide about each document separately. They
   are applied while the tables are read, for all views at once (see `leading_filters`). The
   documents that they keep are the candidates of the view.
2. Tops, budgets and repeats, and the filters after them, change how many copies of each candidate
   the view has. If a view has such steps, or a shuffled order, then a hash and the number of tokens
   of each of its candidates are written to scratch files in phase 1, and phase 2 works on these
   alone. So are the values by which a top ranks the candidates.

For a view with the steps `where lang = 'en'`, `2 documents`, `repeat 2`, for example:

    document              0     1     2     3
    lang                  en    de    en    en
    hash                  52          17    35      of the candidates 0, 2 and 3
    copies, at first      1           1     1
    after 2 documents     0           1     1       the smallest hashes are chosen
    after repeat 2        0           2     2

Documents are named by their numbers in the corpus, such as 3, or by their indices among the
candidates: document 3 is the candidate with the index 2.

An order takes 24 bytes of memory for each document of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition
from nanoset_core.document_tables.scan import ID_COLUMN, TOKENS_COLUMN, DocumentScan
from nanoset_core.stages.scratch_arrays import ScratchArray, create_array
from nanoset_core.stages.views.budgets import (
    CHUNK_DOCUMENTS,
    BudgetGap,
    Candidates,
    apply_budget,
)
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.leading_filters import LeadingFilters
from nanoset_core.stages.views.ranked_column import RankedColumn
from nanoset_core.stages.views.rules import (
    FILTERS,
    Budget,
    DocumentValues,
    Filter,
    HashSplit,
    Listed,
    Repeat,
    Rule,
    ShardDocuments,
    Step,
    StepCount,
    Top,
    Where,
)
from nanoset_core.stages.views.top import TopResult, apply_top
from nanoset_core.statistics.hashing import salted

_MAX_ALTERNATIVES = 8
"""Conditions by which a scan leaves out documents that meet none of them."""


class CopyChunk(NamedTuple):
    """Some documents of a view, one copy of each."""

    copy: int
    """0 for the first copies of documents, 1 for the second ones, …"""
    documents: NDArray[np.int64]
    """Numbers in the corpus, ascending, shape (n_documents,)."""
    candidate_indices: NDArray[np.int64]
    """Their indices among the candidates of the view, ascending, shape (n_documents,)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The documents that a view chooses."""

    step_counts: list[StepCount]
    """What is left after each step, in order; the first entry counts the whole corpus."""
    read_candidates: Callable[[], Iterator[NDArray[np.int64]]]
    """Yields the numbers of the documents that the leading filters kept, ascending, in chunks."""
    copy_counts: NDArray[np.uint32] | None = None
    """Number of copies of each candidate, shape (n_candidates,); None if each has one copy."""
    order: NDArray[np.int64] | None = None
    """Numbers of the documents in the order of the view, each copy listed, shape (n_documents,);
    None if they are ordered as they are stored.
    """
    gaps: list[BudgetGap] = field(default_factory=list)
    """Budgets that use less than FULL_SHARE of their limit, although more documents exist."""
    tops: list[TopResult] = field(default_factory=list)
    """What each step `top` has done, in order."""

    @property
    def documents(self) -> int:
        """Number of documents, counting each copy."""
        return self.step_counts[-1].documents

    @property
    def tokens(self) -> int:
        """Number of tokens of these documents, counting each copy."""
        return self.step_counts[-1].tokens

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all documents of the view in its order, some at a time.

        The order may be set by the user (`self.order`). Otherwise, it is that of the corpus, and a
        document that the view has twice comes a second time after all others. For example, if the
        view has document 3 once and document 5 twice, this yields [3, 5] and then [5].

        Yields:
            Numbers in the corpus, int64, shape (n_documents_in_chunk,).
        """
        if self.order is not None:
            for start in range(0, len(self.order), CHUNK_DOCUMENTS):
                yield self.order[start : start + CHUNK_DOCUMENTS]
        else:
            for copies in self.copies():
                yield copies.documents

    def copies(self) -> Iterator[CopyChunk]:
        """Yield the documents of the view: the first copies of all, then all second copies, …

        A view has documents of a corpus. Its filters keep some documents, the candidates, and later
        steps decide how many copies of each it has. For example, for these candidates

            index of the candidate     0     1     2
            document of the corpus     3     5     8
            copies in the view         1     2     0

        this yields

            CopyChunk(copy=0, documents=[3, 5], candidate_indices=[0, 1])
            CopyChunk(copy=1, documents=[5], candidate_indices=[1])
        """
        max_copies = 1
        if self.copy_counts is not None:
            max_copies = int(self.copy_counts.max(initial=0))  # 0 if there are no candidates
        for copy_number in range(max_copies):
            yield from self._documents_with_copy(copy_number)

    def _documents_with_copy(self, copy_number: int) -> Iterator[CopyChunk]:
        """Yield the documents of which the view has a certain copy.

        Candidates are read in chunks, since memory may not hold all of them. Chunks without such a
        document are left out.

        Args:
            copy_number: 0 for the first copies. A document with two copies has the copies 0 and 1.
        """
        n_read = 0
        for documents in self.read_candidates():
            start = n_read
            n_read += len(documents)
            indices = np.arange(start, n_read)
            if self.copy_counts is not None:
                has_copy = self.copy_counts[start:n_read] > copy_number
                documents = documents[has_copy]
                indices = indices[has_copy]
            if len(documents) > 0:
                yield CopyChunk(copy_number, documents, indices)


class _LaterFilter(NamedTuple):
    """A filter that follows a top, budget or repeat. It is evaluated while the tables are read."""

    step: Filter
    mask: ScratchArray
    """Whether the filter keeps each candidate."""


@dataclass(frozen=True, slots=True)
class _CandidateFiles:
    """Scratch files about the candidates of a view, which phase 1 writes and phase 2 reads."""

    hashes: ScratchArray
    """Hash of each candidate's id."""
    tokens: ScratchArray
    """Number of tokens of each candidate."""
    later_filters: dict[int, _LaterFilter]
    """Index of the step in the rule of the view → the filter."""
    ranked_columns: dict[str, RankedColumn]
    """Name of each column by which a step `top` ranks candidates → their values."""

    @staticmethod
    def create(rule: Rule, path: Path) -> _CandidateFiles:
        """Choose the temporary files in which values of documents are kept until they are needed.

        Documents are read once. A step such as `1000 documents` can only be applied after all of
        them have been read, so what it needs is written to files:

            file of                 is for
            hashes                  1000 documents              those with the lowest hashes
            tokens                  100000 tokens               and to count the tokens of the view
            quality                 top 10 documents by quality
            True or False           where lang = 'en'           a filter, if it follows such a step

        Args:
            rule: All steps by which documents are chosen.
            path: What the paths of all files begin with: `/tmp/view-0` gives `/tmp/view-0-hashes`.
        """
        return _CandidateFiles(
            hashes=ScratchArray(Path(f"{path}-hashes"), np.uint64),
            tokens=ScratchArray(Path(f"{path}-tokens"), np.int32),
            later_filters=_later_filters(rule, path),
            ranked_columns=_ranked_columns(rule, path),
        )

    def append(self, documents: DocumentValues, candidate_rows: NDArray[np.int64]) -> None:
        """Write values of some documents to the files, for steps that are applied later.

        A view chooses documents by steps. Filters at the beginning are applied at once, and keep
        some documents, the candidates. Other steps follow when all documents have been read. For
        them, this writes for each candidate:

            1000 documents               a hash of its id; the documents with the lowest are taken
            top 10 documents by score    its score
            where lang = 'en'            True or False, if this filter follows such a step
            any                          its number of tokens, to count those of the view

        Args:
            documents: Some documents of a corpus, such as 10,000, with values of their columns.
            candidate_rows: The rows of the candidates, such as [0, 3, 4]; shape (n_candidates,).
        """
        import pyarrow as pa

        if len(candidate_rows) == 0:
            return  # before `documents.hashes()`, which takes time
        self.hashes.append(documents.hashes()[candidate_rows])
        self.tokens.append(documents.tokens[candidate_rows])
        for name, column in self.ranked_columns.items():
            column.append(documents.columns[name].take(pa.array(candidate_rows)))
        for later_filter in self.later_filters.values():
            is_kept = later_filter.step.mask(documents)  # (n_documents,)
            later_filter.mask.append(is_kept[candidate_rows])


def _later_filters(rule: Rule, path: Path) -> dict[int, _LaterFilter]:
    """Return the filters of a rule that follow a step of another kind, such as `1000 documents`.

    For example, a rule chooses documents by these steps. The result has step 2:

        0    where lang = 'en'       a filter
        1    1000 documents          another kind of step
        2    where quality > 3       a filter that follows it

    Args:
        rule: The steps. The filters before all other steps are its `leading_filters`: step 0.
        path: What the paths of temporary files begin with. Each filter has one, for the results
            that it has for the documents.

    Returns:
        Index of the step → the filter, with its file.
    """
    later_filters: dict[int, _LaterFilter] = {}
    for index, step in enumerate(rule.steps):
        is_leading = index < len(rule.leading_filters)
        if isinstance(step, FILTERS) and not is_leading:
            mask = ScratchArray(Path(f"{path}-{index}"), np.bool_)
            later_filters[index] = _LaterFilter(step, mask)
    return later_filters


def _ranked_columns(rule: Rule, path: Path) -> dict[str, RankedColumn]:
    """Return temporary files for the columns by which a view ranks documents.

    For example, the step `top 10 documents by quality` needs the qualities of all documents. They
    are written to a file while the documents are read.

    Args:
        rule: The steps by which the view chooses documents.
        path: What the paths of the files begin with.

    Returns:
        Name of each column, such as `quality` → the files for its values.
    """
    names = {step.by for step in rule.steps if isinstance(step, Top)}
    ranked_columns: dict[str, RankedColumn] = {}
    for number, name in enumerate(sorted(names)):
        ranked_columns[name] = RankedColumn(Path(f"{path}-column-{number}"))
    return ranked_columns


@dataclass(frozen=True, slots=True)
class _ViewInProgress:
    """One view while its corpus is read."""

    number: int
    """Position among the views."""
    rule: Rule
    files: _CandidateFiles | None
    """None if the leading filters decide everything but the order."""
    sort_values: list[Any] = field(default_factory=list)
    """Values of the column by which candidates are sorted: Arrow arrays, in order."""

    @staticmethod
    def of(number: int, rule: Rule, scratch: Path) -> _ViewInProgress:
        """Prepare to choose the documents of a view while its corpus is read.

        Args:
            number: Position of the view among the views that are made together.
            rule: The steps by which it chooses documents.
            scratch: A folder for temporary files.
        """
        files = None
        if rule.needs_hashes:  # for steps such as budgets, or for a shuffle
            files = _CandidateFiles.create(rule, scratch / str(number))
        return _ViewInProgress(number, rule, files)

    @property
    def sort_column(self) -> str | None:
        """The column by which candidates are sorted, if there is one."""
        return None if self.rule.order is None else self.rule.order.by

    @property
    def needs_candidates(self) -> bool:
        """Whether `add` has to be called after the leading filters were applied."""
        return self.files is not None or self.sort_column is not None

    def add(self, documents: DocumentValues, candidate_rows: NDArray[np.int64]) -> None:
        """Store what is needed of some documents to choose among them, and to sort them, later.

        For example, a view has the 1,000 English documents that come first in the order of their
        hashes, sorted by date. So the hashes and the dates of all English documents are stored.

        Args:
            documents: Some documents of the corpus.
            candidate_rows: Rows of those that the view may have, such as the English ones:
                [0, 3, 4]; shape (n_candidates,).
        """
        import pyarrow as pa

        if self.files is not None:
            self.files.append(documents, candidate_rows)  # hashes, among others
        if self.sort_column is not None and len(candidate_rows):
            values = documents.columns[self.sort_column]  # dates
            self.sort_values.append(values.take(pa.array(candidate_rows)))

    def sort_values_of(self, candidate_indices: NDArray[np.int64]) -> Any:
        """Return the values of the column by which the view is sorted, such as dates.

        Args:
            candidate_indices: The documents of the view, as indices among all documents for which
                `add` was called, shape (n_documents,).

        Returns:
            A pyarrow.Array, shape (n_documents,).
        """
        import pyarrow as pa

        if not self.sort_values:
            return pa.nulls(0)  # there are no documents to sort
        values = pa.chunked_array(self.sort_values).combine_chunks()
        return values.take(pa.array(candidate_indices))


def select(
    shards: Iterable[ShardDocuments],
    rules: Sequence[Rule],
    scratch: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Selection]:
    """Choose the documents of some views, which are selections of documents of one corpus.

    For example, the views `english` and `sample` have these rules:

        english    where lang = 'en'
        sample     where lang = 'en', 1000 documents, sorted by date

    The columns of all documents are read only once, for all views together.

    Args:
        shards: The documents of the corpus, in order.
        rules: Rules of the views.
        scratch: An empty folder for scratch files, which the selections need as long as they are
            used. They take a bit for each document and view, and 12 bytes for each candidate of a
            view that has budgets, repeats or a shuffled order.
        progress: Called with the number of documents that were read.

    Returns:
        A selection for each rule.

    Raises:
        ConfigError: A condition names a column that is missing, or compares it with a value of
            another type.
    """
    views = [_ViewInProgress.of(number, rule, scratch) for number, rule in enumerate(rules)]
    leading_filters = LeadingFilters(rules, scratch)
    views_with_candidates = [view for view in views if view.needs_candidates]
    reading = _TableReading(
        _scan_for(rules), _id_sets_of(rules), leading_filters, views_with_candidates, progress
    )
    for shard in shards:
        reading.read(shard)
    return [_selection_of(view, leading_filters, scratch) for view in views]


@dataclass(frozen=True, slots=True)
class _TableReading:
    """The pass over the tables of a corpus, in which the leading filters of views are applied."""

    scan: DocumentScan
    """Reads the columns that the views need."""
    id_sets: list[Ids]
    """The sets of ids that views include or exclude."""
    leading_filters: LeadingFilters
    """The filters with which the views begin; they collect the documents that these keep."""
    views_with_candidates: list[_ViewInProgress]
    """Views that need more of the documents that their leading filters keep."""
    progress: Callable[[int], None]
    """Called with the number of documents that were read."""

    def read(self, shard: ShardDocuments) -> None:
        """Apply the first filters of all views to some documents, which are read from their table.

        Args:
            shard: Consecutive documents of the corpus, such as the numbers 30,000 to 59,999. Each
                has a row in the table.
        """
        self.leading_filters.add_totals(shard.n_documents, shard.n_tokens)
        numbers_by_ids = {ids: _find_listed(ids, shard) for ids in self.id_sets}

        # The scan leaves out rows that no view keeps, such as French ones if all views choose
        # English ones. For the progress, they count as done.
        n_done = 0
        for scanned in self.scan.batches(shard.relation):  # some ten thousand rows
            self._filter(DocumentValues(shard.first, scanned, numbers_by_ids))
            stop_row = int(scanned.rows[-1]) + 1
            self.progress(stop_row - n_done)
            n_done = stop_row
        self.progress(shard.n_documents - n_done)

    def _filter(self, documents: DocumentValues) -> None:
        """Apply the first filters of all views to some documents, and store values for later steps.

        Views choose documents by steps. For example:

            view    begins with the filter    later step
            0       where lang = 'en'
            1       where lang = 'de'         1000 documents

        For both views, it is noted which documents the filter keeps. View 1 chooses among these
        when all documents have been read. So it also stores their hashes and tokens.

        Args:
            documents: The documents, with the values of their columns.
        """
        self.leading_filters.add(documents)  # notes which documents are kept, for all views
        for view in self.views_with_candidates:  # view 1
            kept_rows = self.leading_filters.kept_rows(view.number)
            view.add(documents, kept_rows)  # stores hashes and tokens


def _id_sets_of(rules: Sequence[Rule]) -> list[Ids]:
    """Return the sets of ids that some rules include or exclude, each of them once."""
    id_sets: dict[Ids, None] = {}
    for rule in rules:
        for step in rule.steps:
            if isinstance(step, Listed):
                id_sets.update(dict.fromkeys(step.id_sets))
    return list(id_sets)


def _find_listed(ids: Ids, shard: ShardDocuments) -> NDArray[np.int64]:
    """Return which documents have ids that are listed in a file.

    For example, the file lists the documents that authors want to be removed. Also note which ids
    were found, since a warning names those that no document has.

    Args:
        ids: The ids in the file, such as "web-17".
        shard: Some documents of a corpus: a table with a row for each of them.

    Returns:
        Numbers in the corpus, ascending, shape (n_listed,).
    """
    scan = DocumentScan([ID_COLUMN], only_ids=ids.texts)
    rows = [np.empty(0, np.int64)]  # of the table
    for scanned in scan.batches(shard.relation):
        rows.append(scanned.rows)
        ids.mark_seen(scanned.columns[ID_COLUMN])
    # The first row of the table is not document 0 of the corpus, but `shard.first`.
    return shard.first + np.concatenate(rows)


def _scan_for(rules: Sequence[Rule]) -> DocumentScan:
    """Describe the query that reads what some views need to choose documents of a corpus.

    Args:
        rules: How each view chooses documents: steps such as `where lang = 'en'`, and an order.
    """
    return DocumentScan(
        _columns_to_read(rules),
        identifying=_columns_to_hash(rules),
        conditions=_conditions_to_evaluate(rules),
        only=_conditions_of_all_documents(rules),  # documents that meet none of these are skipped
    )


def _columns_to_read(rules: Sequence[Rule]) -> set[str]:
    """Return the columns whose values views need: "date", for documents that are sorted by date."""
    columns = {TOKENS_COLUMN}  # all views count tokens
    for rule in rules:
        if rule.order is not None and rule.order.by is not None:
            columns.add(rule.order.by)
        for step in rule.steps:
            if isinstance(step, Top):  # top 10 documents by quality
                columns.add(step.by)
    return columns


def _columns_to_hash(rules: Sequence[Rule]) -> set[str]:
    """Return the columns by whose hashes views choose documents pseudo-randomly.

    For example, `1000 documents` takes the documents with the smallest hashes of their ids. A
    document without an id is hashed by its file and line number instead.
    """
    columns: set[str] = set()
    for rule in rules:
        if rule.needs_hashes:  # such as for `1000 documents`, or to shuffle documents
            columns.add(ID_COLUMN)
        for step in rule.steps:
            if isinstance(step, HashSplit):  # split by url
                columns.add(step.by)
    return columns


def _conditions_to_evaluate(rules: Sequence[Rule]) -> list[Condition]:
    """Return the conditions of all steps such as `where lang = 'en'`, each of them once."""
    conditions: dict[Condition, None] = {}  # a dict keeps their order
    for rule in rules:
        for step in rule.steps:
            if isinstance(step, Where):
                conditions[step.condition] = None
    return list(conditions)


def _conditions_of_all_documents(rules: Sequence[Rule]) -> list[Condition]:
    """Return conditions that say which documents need not be read, since no view keeps them.

    A document is skipped if it meets none of the conditions. For example:

        view 1    where lang = 'en', …
        view 2    where lang = 'de', …          French documents are skipped

    Views apply their steps in order, so the first step of each view decides. If some view begins
    with a step that is no condition, all documents have to be read.

    Args:
        rules: The steps of each view.

    Returns:
        The conditions, each once. An empty list means that all documents have to be read.
    """
    conditions: list[Condition] = []
    for rule in rules:
        first_step = rule.steps[0] if rule.steps else None
        if not isinstance(first_step, Where):
            return []  # this view may keep any document
        if first_step.condition not in conditions:
            conditions.append(first_step.condition)
    if len(conditions) > _MAX_ALTERNATIVES:
        # DuckDB would take longer to evaluate so many conditions than to read all documents.
        return []
    return conditions


def _selection_of(
    view: _ViewInProgress, leading_filters: LeadingFilters, scratch: Path
) -> Selection:
    """Return the documents that a view chooses, once all documents have been read.

    Its leading filters were applied while they were read. Now the other steps follow, such as
    `1000 documents`, and the order.

    Args:
        view: The view.
        leading_filters: The filters, which have been applied to all documents.
        scratch: The folder for scratch files.
    """
    selection = _selection_by_leading_filters(view, leading_filters)
    if view.files is not None:  # the view has further steps, or a shuffled order
        copies_path = scratch / f"{view.number}-copies"
        selection = _apply_steps(view.rule, view.files, selection, copies_path)
    return _in_order_of(view, selection)


def _selection_by_leading_filters(
    view: _ViewInProgress, leading_filters: LeadingFilters
) -> Selection:
    """Return the documents that the first filters of a view keep, with their number and tokens.

    For example, `where lang = 'en'` keeps 700 of 1,000 documents. Then the counts are:

        all                     1,000 documents    400,000 tokens
        where lang = 'en'         700 documents    310,000 tokens

    Args:
        view: The view.
        leading_filters: The filters, which have been applied to all documents.
    """
    counts_of_corpus, *counts_of_filters = leading_filters.counts(view.number)
    step_counts = [StepCount("", "all", counts_of_corpus.documents, counts_of_corpus.tokens)]
    for step, counts in zip(view.rule.leading_filters, counts_of_filters, strict=True):
        step_counts.append(StepCount(step.view, step.text, counts.documents, counts.tokens))
    # A function, which reads the numbers of documents from a file: there may be billions of them.
    read_documents = partial(leading_filters.chunks, view.number)
    return Selection(step_counts=step_counts, read_candidates=read_documents)


def _in_order_of(view: _ViewInProgress, selection: Selection) -> Selection:
    """Put the documents of a view into the order that its settings demand.

        without `order`            the order of the corpus
        order: {by: date}          sorted by a column
        order: {seed: 1}           shuffled: sorted by a hash of the seed and the document's id

    Args:
        view: The view. While the documents were read, it has stored their dates, or the hashes of
            their ids. These are of all documents among which it has chosen, the candidates.
        selection: The documents that it has chosen, in the order of the corpus, with their indices
            among the candidates.
    """
    order = view.rule.order
    if order is None:
        return selection

    if order.by is not None:
        documents = _documents_by_column(view, selection, descending=order.descending)
    else:
        assert order.seed is not None
        assert view.files is not None  # they have the hashes
        id_hashes = view.files.hashes.mapped()  # (n_candidates,) those of all candidates
        documents = _shuffled_documents(order.seed, selection, id_hashes)
    return replace(selection, order=documents)


def _documents_by_column(
    view: _ViewInProgress, selection: Selection, *, descending: bool
) -> NDArray[np.int64]:
    """Return the documents of a view, sorted by a column such as their date.

    Args:
        view: The view, with the dates of all candidates among which it has chosen.
        selection: The documents that it has chosen.
        descending: Whether the latest date comes first.

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    chosen = _all_copies(selection)
    dates = view.sort_values_of(chosen.candidate_indices)  # of the chosen documents
    return _sorted_documents(chosen.documents, dates, descending=descending)


def _apply_steps(
    rule: Rule, files: _CandidateFiles, selection: Selection, copies_path: Path
) -> Selection:
    """Apply the steps of a view that look at all its documents together, such as `1000 documents`.

    The filters with which the view begins keep some documents, the candidates: 3, 5 and 8 here.
    Each later step changes how many copies of a candidate the view has:

        candidate                  3     5     8
        copies, at first           1     1     1
        after `2 documents`        0     1     1      0: the document is left out
        after `repeat 2`           0     2     2

    Args:
        rule: All steps of the view. They begin with the `leading_filters`, which have been applied.
        files: Hashes, token counts and other values of the candidates.
        selection: The candidates.
        copies_path: A file that is created, for the numbers of copies.

    Returns:
        The selection after all steps.
    """
    candidates = _one_copy_of_each(files, copies_path)
    step_counts = list(selection.step_counts)
    gaps: list[BudgetGap] = []
    tops: list[TopResult] = []
    for index in range(len(rule.leading_filters), len(rule.steps)):
        step = rule.steps[index]
        report = _apply_step(index, step, candidates, files)  # changes the numbers of copies
        step_counts.append(_count_after(step, candidates))
        if report.top is not None:
            tops.append(report.top)
        if report.gap is not None:
            gaps.append(_in_corpus(report.gap, selection.read_candidates()))
    return replace(
        selection,
        step_counts=step_counts,
        copy_counts=candidates.copy_counts,
        gaps=gaps,
        tops=tops,
    )


def _one_copy_of_each(files: _CandidateFiles, copies_path: Path) -> Candidates:
    """Return the candidates of a view before its steps are applied, with one copy of each.

    Args:
        files: Their hashes and token counts.
        copies_path: A file that is created, for the numbers of copies.
    """
    hashes = files.hashes.mapped()  # (n_candidates,)
    copy_counts = create_array(copies_path, np.uint32, len(hashes))  # (n_candidates,)
    copy_counts[:] = 1
    return Candidates(hashes, files.tokens.mapped(), copy_counts)


class _StepReport(NamedTuple):
    """What users are told about a step, in addition to what is left after it."""

    top: TopResult | None = None
    """What a step `top` has done; None for other steps."""
    gap: BudgetGap | None = None
    """The document that does not fit into a budget, such as 1,000 tokens, if much of the budget
    stays unused because of it.
    """


def _apply_step(
    index: int, step: Step, candidates: Candidates, files: _CandidateFiles
) -> _StepReport:
    """Apply one step of a view, which changes how many copies of each document it has.

        document                             3    5    8
        copies before                        1    1    1
        after `repeat 2`                     2    2    2
        or after `2 documents`               0    1    1      a budget: the 2 lowest hashes
        or after `top 1 document by …`       0    0    1
        or after `where lang = 'en'`         1    0    1      a filter

    Args:
        index: Number of the step among all steps of the view.
        step: The step.
        candidates: The documents, with their numbers of copies, which are changed.
        files: Values of the documents that were stored while they were read.

    Returns:
        What users are told about the step.
    """
    if isinstance(step, Repeat):
        candidates.repeat(step)
        return _StepReport()
    if isinstance(step, Budget):
        gap = apply_budget(step, candidates)
        return _StepReport(gap=gap)
    if isinstance(step, Top):
        top = apply_top(step, candidates, files.ranked_columns[step.by])
        return _StepReport(top=top, gap=top.gap)

    # A filter was evaluated while the documents were read, since its columns are not stored.
    is_kept = files.later_filters[index].mask.mapped()  # (n_candidates,)
    candidates.keep(is_kept)
    return _StepReport()


def _in_corpus(gap: BudgetGap, candidate_chunks: Iterable[NDArray[np.int64]]) -> BudgetGap:
    """Replace the number of the document that a warning names by its number in the corpus.

    The warning says that a document does not fit into a budget, and that much of the budget stays
    unused because of it. The budget chooses among candidates, so it knows the document as a number
    of these. For example, candidate 2 is document 8 of the corpus:

        candidate                  0     1     2
        document of the corpus     3     5     8

    Args:
        gap: What the warning says. Its `document` is an index among all candidates.
        candidate_chunks: Numbers of the candidates in the corpus, in chunks such as [3, 5] and [8].
    """
    index_in_chunk = gap.document  # counted from the start of the first chunk
    for documents in candidate_chunks:
        if index_in_chunk < len(documents):
            return replace(gap, document=int(documents[index_in_chunk]))
        index_in_chunk -= len(documents)  # count from the start of the next chunk
    raise IndexError(gap.document)


def _count_after(step: Step, candidates: Candidates) -> StepCount:
    """Count the documents and tokens that are left after a step, with each copy of a document."""
    count = StepCount(step.view, step.text)
    for chunk in candidates.chunks:
        documents = candidates.amounts(chunk, "documents")
        tokens = candidates.amounts(chunk, "tokens")
        count.add(int(documents.sum()), int(tokens.sum()))
    return count


def _sorted_documents(
    documents: NDArray[np.int64], values: Any, *, descending: bool
) -> NDArray[np.int64]:
    """Return documents sorted by a value of each, such as its date.

    Documents without a value come last, also if the greatest value comes first.

    Args:
        documents: Numbers of the documents in the corpus, shape (n_documents,).
        values: The value of each, as an Arrow array.
        descending: Whether the greatest value comes first.

    Returns:
        The sorted numbers, shape (n_documents,).
    """
    import pyarrow.compute as pc

    direction = "descending" if descending else "ascending"
    order = pc.array_sort_indices(values, order=direction, null_placement="at_end").to_numpy()
    sorted_documents: NDArray[np.int64] = documents[order]
    return sorted_documents


class _AllCopies(NamedTuple):
    """All documents of a view, each copy listed; shape (n_documents,) each."""

    documents: NDArray[np.int64]
    """Numbers in the corpus."""
    candidate_indices: NDArray[np.int64]
    """Indices among the candidates of the view."""


def _all_copies(selection: Selection) -> _AllCopies:
    """Return all documents of a view in one array, each as often as the view has it."""
    document_parts = [np.empty(0, np.int64)]
    index_parts = [np.empty(0, np.int64)]
    for copies in selection.copies():
        document_parts.append(copies.documents)
        index_parts.append(copies.candidate_indices)
    return _AllCopies(np.concatenate(document_parts), np.concatenate(index_parts))


def _shuffled_documents(
    seed: int, selection: Selection, hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the documents of a view in a pseudo-random order, that of a hash for each document.

    The hash is made from the seed, the document's id, and the number of the copy, since a view may
    have a document several times:

        document     3     5     5 (second copy)
        hash         52    81    17                  in the order of hashes: 5, 3, 5

    So documents that are added to the corpus later do not change the order of the others.

    Args:
        seed: The seed, which the user chooses.
        selection: The documents of the view. They are chosen among candidates.
        hashes: Hash of each candidate's id, shape (n_candidates,).

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    document_parts = [np.empty(0, np.int64)]
    hash_parts = [np.empty(0, np.uint64)]
    for copies in selection.copies():  # first copies of documents, then second ones, …
        id_hashes = hashes[copies.candidate_indices]
        document_parts.append(copies.documents)
        # Hash them again, together with the seed and the number of the copy.
        hash_parts.append(salted(id_hashes, f"order {seed} {copies.copy}"))
    documents = np.concatenate(document_parts)  # (n_documents,) [3, 5, 5]
    document_hashes = np.concatenate(hash_parts)  # (n_documents,) [52, 81, 17]
    return documents[np.argsort(document_hashes, kind="stable")]  # [5, 3, 5]
