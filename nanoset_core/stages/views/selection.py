"""Choose the documents of views in one pass over the tables of a corpus.

The steps of a view are applied in two phases:

1. The leading filters decide about each document for itself. They are applied while the tables are
   read, for all views at once (see `leading_filters`). What they keep are the candidates of the
   view.
2. Tops, budgets and repeats, and the filters after them, change how many copies of each candidate
   the view has. If a view has such steps, or a shuffled order, then a hash and the number of tokens
   of each of its candidates are written to scratch files in phase 1, and phase 2 works on these
   alone. So are the values by which a top ranks the candidates.

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
from nanoset_core.sampling.hashing import salted
from nanoset_core.stages.views.budgets import (
    CHUNK_DOCUMENTS,
    BudgetGap,
    Candidates,
    budget_end,
    find_gap,
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
    StepCount,
    Top,
    ViewOrder,
    Where,
)
from nanoset_core.stages.views.scratch import ScratchArray
from nanoset_core.stages.views.top import TopResult, apply_top

_MAX_ALTERNATIVES = 8
"""Conditions by which a scan leaves out documents that meet none of them."""


class CopyChunk(NamedTuple):
    """Some documents of a view, one copy of each."""

    copy: int
    """0 for the first copies of documents, 1 for the second ones, …"""
    documents: NDArray[np.int64]
    """Numbers in the corpus, ascending, shape (n_documents,)."""
    positions: NDArray[np.int64]
    """Their positions among the candidates of the view, shape (n_documents,)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The documents that a view chooses."""

    step_counts: list[StepCount]
    """What is left after each step, in order; the first entry counts the whole corpus."""
    candidates: Callable[[], Iterator[NDArray[np.int64]]]
    """Yields the numbers of the documents that the leading filters kept, ascending, in chunks."""
    copy_counts: NDArray[np.uint32] | None = None
    """Number of copies of each candidate, shape (n_candidates,); None if each has one copy."""
    order: NDArray[np.int64] | None = None
    """Numbers of the documents in the order of the view, shape (documents,), each copy listed; None
    if they are ordered as they are stored.
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
        """Yield the numbers of the documents in the order of the view, in chunks.

        In the order of storage, second copies follow after the first copies of all documents.
        """
        if self.order is None:
            for copies in self.copies():
                yield copies.documents
            return
        for start in range(0, len(self.order), CHUNK_DOCUMENTS):
            yield self.order[start : start + CHUNK_DOCUMENTS]

    def copies(self) -> Iterator[CopyChunk]:
        """Yield the documents of the view: the first copies of all, then all second copies, …

        A view can contain a document several times. Candidates are the documents among which it
        chooses. If they are the documents 3, 5 and 8, and have 1, 2 and 0 copies, this yields 3 and
        5, and then 5 once more.
        """
        max_copies = 1
        if self.copy_counts is not None:
            max_copies = int(self.copy_counts.max(initial=0))  # 0 if there are no candidates
        # Read the candidates again for every copy, since memory may not hold all of them.
        for copy_number in range(max_copies):
            for documents, positions in self._numbered_candidates():
                # A document with two copies has those with the numbers 0 and 1.
                if self.copy_counts is not None:
                    has_copy = self.copy_counts[positions] > copy_number
                    documents = documents[has_copy]
                    positions = positions[has_copy]
                if len(documents):
                    yield CopyChunk(copy_number, documents, positions)

    def _numbered_candidates(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the numbers of candidates in the corpus, and their indices among all candidates.

        Yields:
            Chunks of both, ascending, shape (n_chunk,) each.
        """
        n_earlier = 0
        for documents in self.candidates():
            yield documents, n_earlier + np.arange(len(documents))
            n_earlier += len(documents)


class _LaterFilter(NamedTuple):
    """A filter that follows a budget or repeat, computed while the tables are read."""

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
    """Number of the step → the filter."""
    ranked_columns: dict[str, RankedColumn]
    """Name of each column by which a step `top` ranks candidates → their values."""

    @staticmethod
    def create(rule: Rule, path: Path) -> _CandidateFiles:
        """Describe the scratch files of a view, which are created when they are written.

        Args:
            rule: The rule of the view.
            path: The beginning of the paths of all files.
        """
        return _CandidateFiles(
            hashes=ScratchArray(Path(f"{path}-hashes"), np.uint64),
            tokens=ScratchArray(Path(f"{path}-tokens"), np.int32),
            later_filters=_later_filters(rule, path),
            ranked_columns=_ranked_columns(rule, path),
        )

    def append(self, documents: DocumentValues, candidates: NDArray[np.int64]) -> None:
        """Append the hashes and token counts of some candidates to the scratch files.

        Candidates are the documents that the first filters of the view kept. For each filter that
        follows later, it is also stored whether this filter keeps them.

        Args:
            documents: Documents of the corpus.
            candidates: Which of them are candidates: their rows, ascending, shape (n_candidates,).
        """
        import pyarrow as pa

        if not len(candidates):
            return  # so that the ids of the documents need not be hashed
        self.hashes.append(documents.hashes()[candidates])
        self.tokens.append(documents.tokens[candidates])
        for later_filter in self.later_filters.values():
            is_kept = later_filter.step.mask(documents)  # (n_documents,)
            later_filter.mask.append(is_kept[candidates])
        for name, column in self.ranked_columns.items():
            column.append(documents.columns[name].take(pa.array(candidates)))


def _later_filters(rule: Rule, path: Path) -> dict[int, _LaterFilter]:
    """Return the filters of a view that follow a budget or repeat, by the number of their step.

    The steps of a view are filters, budgets and repeats. The filters before all budgets and repeats
    are called leading filters.

    Args:
        rule: The rule of the view.
        path: The beginning of the paths of the scratch files.
    """
    later_filters: dict[int, _LaterFilter] = {}
    for number in range(len(rule.leading_filters), len(rule.steps)):
        step = rule.steps[number]
        if isinstance(step, FILTERS):
            mask = ScratchArray(Path(f"{path}-{number}"), np.bool_)
            later_filters[number] = _LaterFilter(step, mask)
    return later_filters


def _ranked_columns(rule: Rule, path: Path) -> dict[str, RankedColumn]:
    """Return the columns by which steps of a view rank candidates, by their names.

    Args:
        rule: The rule of the view.
        path: The beginning of the paths of the scratch files.
    """
    names = {step.by for step in rule.steps if isinstance(step, Top)}
    return {
        name: RankedColumn(Path(f"{path}-column-{number}"))
        for number, name in enumerate(sorted(names))
    }


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
        """Begin a view.

        Args:
            number: Its position among the views.
            rule: Its rule.
            scratch: A folder for scratch files.
        """
        files = None
        if rule.needs_hashes:
            files = _CandidateFiles.create(rule, scratch / str(number))
        return _ViewInProgress(number, rule, files)

    @property
    def sort_column(self) -> str | None:
        """The column by which candidates are sorted, if there is one."""
        return None if self.rule.order is None else self.rule.order.by

    @property
    def needs_rows(self) -> bool:
        """Whether `add` has to be called after the leading filters were applied."""
        return self.files is not None or self.sort_column is not None

    def add(self, documents: DocumentValues, candidates: NDArray[np.int64]) -> None:
        """Store what is needed of some candidates to choose and sort documents after reading.

        Candidates are the documents that the first filters of the view kept. Its budgets and
        repeats need their hashes and token counts. If the view is sorted by a column, the values of
        this column are needed.

        Args:
            documents: Documents of the corpus.
            candidates: Which of them are candidates: their rows, ascending, shape (n_candidates,).
        """
        import pyarrow as pa

        if self.files is not None:
            self.files.append(documents, candidates)  # to scratch files
        if self.sort_column is not None and len(candidates):
            values = documents.columns[self.sort_column]
            self.sort_values.append(values.take(pa.array(candidates)))


def select(
    shards: Iterable[ShardDocuments],
    rules: Sequence[Rule],
    scratch: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Selection]:
    """Choose the documents of some views of one corpus, in one pass over its tables.

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
    # Phase 1: read the tables once, and apply the leading filters of all views.
    views = [_ViewInProgress.of(number, rule, scratch) for number, rule in enumerate(rules)]
    filters = LeadingFilters(rules, scratch)
    reading = _TableReading(
        scan=_scan_for(rules),
        id_sets=_id_sets_of(rules),
        filters=filters,
        views_with_rows=[view for view in views if view.needs_rows],
        progress=progress,
    )
    for shard in shards:
        reading.read(shard)

    # Phase 2: budgets, repeats, later filters and orders work on what phase 1 kept of each view.
    selections = []
    for view in views:
        selections.append(_apply_later_steps(view, filters, scratch / f"{view.number}-copies"))
    return selections


@dataclass(frozen=True, slots=True)
class _TableReading:
    """The pass over the tables of a corpus, in which the leading filters of views are applied."""

    scan: DocumentScan
    """Reads the columns that the views need."""
    id_sets: list[Ids]
    """The sets of ids that views include or exclude."""
    filters: LeadingFilters
    """The filters with which the views begin; they collect the documents that these keep."""
    views_with_rows: list[_ViewInProgress]
    """Views that need more of the documents that their leading filters keep."""
    progress: Callable[[int], None]
    """Called with the number of documents that were read."""

    def read(self, shard: ShardDocuments) -> None:
        """Read the documents of a shard, and apply the leading filters to them."""
        listed = {ids: _find_listed(ids, shard) for ids in self.id_sets}
        self.filters.add_totals(shard.n_documents, shard.n_tokens)
        n_read = 0
        for scanned in self.scan.batches(shard.relation):
            documents = DocumentValues(shard.first, scanned, listed)
            self.filters.add(documents)
            for view in self.views_with_rows:
                view.add(documents, self.filters.kept(view.number))
            row_stop = int(scanned.rows[-1]) + 1
            self.progress(row_stop - n_read)
            n_read = row_stop
        # The scan leaves out documents that no view keeps.
        self.progress(shard.n_documents - n_read)


def _id_sets_of(rules: Sequence[Rule]) -> list[Ids]:
    """Return the sets of ids that some rules include or exclude, each of them once."""
    id_sets: dict[Ids, None] = {}
    for rule in rules:
        for step in rule.steps:
            if isinstance(step, Listed):
                id_sets[step.ids] = None
    return list(id_sets)


def _find_listed(ids: Ids, shard: ShardDocuments) -> NDArray[np.int64]:
    """Find the documents that have one of some ids, and remember which ids these are.

    Returns:
        Numbers in the corpus, ascending, shape (n_listed,).
    """
    rows = [np.empty(0, np.int64)]
    for scanned in DocumentScan([ID_COLUMN], only_ids=ids.texts).batches(shard.relation):
        rows.append(scanned.rows)
        ids.mark_seen(scanned.columns[ID_COLUMN])
    return shard.first + np.concatenate(rows)


def _scan_for(rules: Sequence[Rule]) -> DocumentScan:
    """Return the scan that reads what the steps and orders of some rules need.

    A scan is a query on the tables of a corpus's documents.

    Args:
        rules: Rules of views, which are all applied in one pass over the tables of a corpus.
    """
    sort_columns: set[str] = set()
    hashed_columns: set[str] = set()
    conditions: dict[Condition, None] = {}  # each of them once, in order
    for rule in rules:
        if rule.needs_hashes:
            hashed_columns.add(ID_COLUMN)
        if rule.order is not None and rule.order.by is not None:
            sort_columns.add(rule.order.by)
        for step in rule.steps:
            if isinstance(step, Where):
                conditions[step.condition] = None
            elif isinstance(step, HashSplit):
                hashed_columns.add(step.by)
            elif isinstance(step, Top):
                sort_columns.add(step.by)
    return DocumentScan(
        {TOKENS_COLUMN, *sort_columns},
        # Of documents without a value in these columns, the file and line are hashed instead.
        identifying=hashed_columns,
        conditions=list(conditions),
        # Only documents that meet one of these are read; all documents if there are none.
        only=_conditions_of_all_documents(rules),
    )


def _conditions_of_all_documents(rules: Sequence[Rule]) -> list[Condition]:
    """Return conditions of which every document of some views meets at least one.

    Documents that meet none of them are in no view, and need not be read. There are such conditions
    only if every rule begins with one.

    Args:
        rules: Rules of views.

    Returns:
        The conditions with which the rules begin, each once. An empty list means that all documents
        have to be read.
    """
    first_conditions: dict[Condition, None] = {}  # each of them once, in order
    for rule in rules:
        if not rule.steps or not isinstance(rule.steps[0], Where):
            return []
        first_conditions[rule.steps[0].condition] = None
    if len(first_conditions) > _MAX_ALTERNATIVES:
        # DuckDB would take longer to evaluate so many conditions than to read all documents.
        return []
    return list(first_conditions)


def _apply_later_steps(
    view: _ViewInProgress, filters: LeadingFilters, copies_path: Path
) -> Selection:
    """Apply the steps of a view that follow its leading filters, and its order.

    These steps are tops, budgets, repeats, and filters after one of these. They change how many
    copies the view has of each candidate, which is a document that the leading filters kept.

    Args:
        view: The view.
        filters: The leading filters, which were applied to all documents.
        copies_path: A file that is created, for the number of copies of each candidate.

    Returns:
        The documents of the view.
    """
    step_counts = _counts_after_leading_filters(view, filters)
    # Called to read the numbers of all candidates, ascending, in chunks.
    candidate_numbers = partial(filters.chunks, view.number)
    selection = Selection(step_counts, candidate_numbers)
    if view.files is None:
        # All candidates are in the view, and nothing else of them was needed.
        hashes = np.empty(0, np.uint64)
    else:
        hashes = view.files.hashes.mapped()  # (n_candidates,)
        candidates = Candidates(
            hashes,
            tokens=view.files.tokens.mapped(),
            copy_counts=_ones(len(hashes), copies_path),  # at first, one copy of each
        )
        selection = _apply_steps(view.rule, candidates, view.files, selection)

    if view.rule.order is None:
        return selection
    order = _ordered_documents(view.rule.order, selection, hashes, view.sort_values)
    return replace(selection, order=order)


def _apply_steps(
    rule: Rule, candidates: Candidates, files: _CandidateFiles, selection: Selection
) -> Selection:
    """Apply the steps of a view that follow its leading filters.

    Args:
        rule: The rule of the view.
        candidates: The documents that the leading filters kept. Their `copy_counts` are changed.
        files: The scratch files about the candidates.
        selection: What the leading filters chose.

    Returns:
        What is left of the selection.
    """
    step_counts = list(selection.step_counts)
    gaps: list[BudgetGap] = []
    tops: list[TopResult] = []
    for number in range(len(rule.leading_filters), len(rule.steps)):
        outcome = _apply(rule, number, candidates, files)
        step_counts.append(_count_step(rule, number, candidates))
        if outcome.gap is not None:
            gaps.append(_in_corpus(outcome.gap, selection.candidates()))
        if outcome.top is not None:
            tops.append(outcome.top)
    return replace(
        selection,
        step_counts=step_counts,
        copy_counts=candidates.copy_counts,
        gaps=gaps,
        tops=tops,
    )


def _counts_after_leading_filters(
    view: _ViewInProgress, filters: LeadingFilters
) -> list[StepCount]:
    """Return the counts of the corpus, and of what each leading filter of a view leaves of it."""
    corpus_counts, *filter_counts = filters.counts(view.number)
    step_counts = [StepCount("", "all", corpus_counts.documents, corpus_counts.tokens)]
    for step, counts in zip(view.rule.leading_filters, filter_counts, strict=True):
        step_counts.append(StepCount(step.view, step.text, counts.documents, counts.tokens))
    return step_counts


def _in_corpus(gap: BudgetGap, candidate_numbers: Iterable[NDArray[np.int64]]) -> BudgetGap:
    """Return the gap of a budget with a document's number in the corpus.

    Args:
        gap: The gap. Its `document` is a position among the candidates.
        candidate_numbers: Numbers of the candidates in the corpus, in chunks.
    """
    return replace(gap, document=_document_at(gap.document, candidate_numbers))


def _ones(count: int, path: Path) -> NDArray[np.uint32]:
    """Return `count` ones, mapped from a file that is created."""
    if count == 0:
        return np.empty(0, np.uint32)  # an empty file cannot be mapped
    ones = np.memmap(path, np.uint32, "w+", shape=(count,))
    ones[:] = 1
    return ones


class _Outcome(NamedTuple):
    """What is reported of a step, except for its counts."""

    gap: BudgetGap | None = None
    """The gap of a budget, if it has one, with a position among the candidates."""
    top: TopResult | None = None


def _apply(rule: Rule, number: int, candidates: Candidates, files: _CandidateFiles) -> _Outcome:
    """Apply one step of a view: change how many copies each of its candidates has.

    Args:
        rule: The rule of the view.
        number: Index of the step in the rule: a repeat, a top, a budget, or a filter after one of
            these.
        candidates: The candidates; their `copy_counts` are changed.
        files: The scratch files, in which the results of such filters are stored.
    """
    step = rule.steps[number]
    if isinstance(step, Repeat):
        candidates.repeat(step)
        return _Outcome()
    if isinstance(step, Top):
        result = apply_top(step, candidates, files.ranked_columns[step.by])
        return _Outcome(result.gap, result)
    if isinstance(step, Budget):
        return _Outcome(_apply_budget(step, candidates))
    # A filter, which was evaluated while the tables were read.
    candidates.keep(files.later_filters[number].mask.mapped())
    return _Outcome()


def _apply_budget(budget: Budget, candidates: Candidates) -> BudgetGap | None:
    """Keep the candidates that fit into a budget.

    Args:
        budget: The budget.
        candidates: The candidates; their `copy_counts` are changed.

    Returns:
        The document that does not fit, if the budget stays far from full because of it. Its field
        `document` is its position among the candidates.
    """
    end = budget_end(budget, candidates)
    if end is None:  # all candidates fit
        return None
    gap = find_gap(budget, end, candidates)  # before the copies of others are removed
    candidates.keep_before(end)
    return gap


def _document_at(position: int, candidate_numbers: Iterable[NDArray[np.int64]]) -> int:
    """Return the number in the corpus of a candidate, by its position among the candidates."""
    for documents in candidate_numbers:
        if position < len(documents):
            return int(documents[position])
        position -= len(documents)
    raise IndexError(position)


def _count_step(rule: Rule, number: int, candidates: Candidates) -> StepCount:
    """Count what is left after a step."""
    step = rule.steps[number]
    count = StepCount(step.view, step.text)
    for chunk in candidates.chunks:
        documents = candidates.amounts(chunk, "documents")
        tokens = candidates.amounts(chunk, "tokens")
        count.add(int(documents.sum()), int(tokens.sum()))
    return count


def _ordered_documents(
    order: ViewOrder,
    selection: Selection,
    hashes: NDArray[np.uint64],
    sort_values: Sequence[Any],
) -> NDArray[np.int64]:
    """Return the documents of a view in the order that nanoset.yaml sets for it.

    Args:
        order: The order: shuffled by a seed, or sorted by a column.
        selection: The documents, which the view chose among candidates.
        hashes: Hash of each candidate's id, if the order is shuffled, shape (n_candidates,).
        sort_values: If it is sorted, the values of the column for all candidates: Arrow arrays.

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    if order.seed is not None:
        return _shuffled_documents(order.seed, selection, hashes)
    return _sorted_documents(selection, sort_values, descending=order.descending)


def _sorted_documents(
    selection: Selection, sort_values: Sequence[Any], *, descending: bool
) -> NDArray[np.int64]:
    """Return the documents of a view, sorted by their values of a column.

    Args:
        selection: The documents.
        sort_values: Values of the column for all candidates: Arrow arrays.
        descending: Whether the largest value comes first.

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    document_parts = [np.empty(0, np.int64)]
    candidate_parts = [np.empty(0, np.int64)]
    for copies in selection.copies():
        document_parts.append(copies.documents)
        candidate_parts.append(copies.positions)  # the index of each among the candidates
    documents = np.concatenate(document_parts)  # (n_documents,)
    candidate_indices = np.concatenate(candidate_parts)  # (n_documents,)
    if not sort_values:  # there are no candidates, and so no documents
        return documents
    return documents[_sorting_order(sort_values, candidate_indices, descending)]


def _shuffled_documents(
    seed: int, selection: Selection, hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the documents of a view in a pseudo-random order.

    They are sorted by a hash of the seed, the document's id and the number of the copy, since a
    view may contain a document several times. The hash does not depend on other documents, so those
    that are appended later do not change the order of the others.

    Args:
        seed: The seed.
        selection: The documents.
        hashes: Hash of the id of each candidate, which is a document that the view could choose,
            shape (n_candidates,).

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    document_parts = [np.empty(0, np.int64)]
    key_parts = [np.empty(0, np.uint64)]
    for copies in selection.copies():
        # All documents of this chunk are copies with the same number, such as first ones.
        id_hashes = hashes[copies.positions]
        document_parts.append(copies.documents)
        key_parts.append(salted(id_hashes, f"order {seed} {copies.copy}"))
    sorted_positions = np.argsort(np.concatenate(key_parts), kind="stable")
    return np.concatenate(document_parts)[sorted_positions]


def _sorting_order(
    sort_values: Sequence[Any], candidate_indices: NDArray[np.int64], descending: bool
) -> NDArray[np.uint64]:
    """Return the order that sorts the documents of a view by their values of a column.

    For the values "b", "c" and "a", it is 2, 0, 1: the last document comes first.

    Args:
        sort_values: Values of all candidates, which are the documents that the view could choose:
            Arrow arrays, to be concatenated.
        candidate_indices: Index of each document among the candidates, shape (n_documents,).
        descending: Whether the greatest values come first. Documents without a value come last in
            either order.

    Returns:
        Indices of the documents in the new order, shape (n_documents,).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    candidate_values = pa.chunked_array(sort_values).combine_chunks()
    values = candidate_values.take(pa.array(candidate_indices))
    direction = "descending" if descending else "ascending"
    order: NDArray[np.uint64] = pc.array_sort_indices(
        values, order=direction, null_placement="at_end"
    ).to_numpy()
    return order
