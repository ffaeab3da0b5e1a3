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
from nanoset_core.sampling.hashing import salted
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
        """Yield the numbers of the documents in the order of the view, in chunks.

        In the order of storage, second copies follow after the first copies of all documents.

        Yields:
            Numbers in the corpus, int64, shape (n_documents_in_chunk,). A document with two copies
            occurs twice.
        """
        if self.order is None:
            for copies in self.copies():
                yield copies.documents
            return
        for start in range(0, len(self.order), CHUNK_DOCUMENTS):
            yield self.order[start : start + CHUNK_DOCUMENTS]

    def copies(self) -> Iterator[CopyChunk]:
        """Yield the documents of the view: the first copies of all, then all second copies, …

        The view chooses among candidates, and can have several copies of each. If the candidates
        are the documents 3, 5 and 8 of the corpus, and have 1, 2 and 0 copies, this yields

            CopyChunk(copy=0, documents=[3, 5], candidate_indices=[0, 1])
            CopyChunk(copy=1, documents=[5], candidate_indices=[1])
        """
        max_copies = 1
        if self.copy_counts is not None:
            max_copies = int(self.copy_counts.max(initial=0))  # 0 if there are no candidates
        for copy_number in range(max_copies):
            # Memory may not hold all candidates, so they are read in chunks, once for each copy.
            n_read = 0
            for documents in self.read_candidates():
                start = n_read
                n_read += len(documents)
                indices = np.arange(start, n_read)
                if self.copy_counts is not None:
                    # A document with two copies has those with the numbers 0 and 1.
                    has_copy = self.copy_counts[start:n_read] > copy_number
                    documents = documents[has_copy]
                    indices = indices[has_copy]
                if len(documents):
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
        """Describe the scratch files of a view, which are created when they are written.

        Args:
            rule: The steps by which the view chooses documents, such as a filter and a budget.
            path: What the paths of all files begin with: `/tmp/view-0` → `/tmp/view-0-hashes`.
        """
        return _CandidateFiles(
            hashes=ScratchArray(Path(f"{path}-hashes"), np.uint64),
            tokens=ScratchArray(Path(f"{path}-tokens"), np.int32),
            later_filters=_later_filters(rule, path),  # results of filters that are applied later
            ranked_columns=_ranked_columns(rule, path),  # values by which steps `top` rank
        )

    def append(self, documents: DocumentValues, candidate_rows: NDArray[np.int64]) -> None:
        """Store what will be needed of some documents when all documents of the corpus were read.

        A view takes its documents in steps. The first filters are applied while the documents are
        read, and what they keep are the *candidates*. Of these, steps that look at all documents
        together need a hash, the number of tokens, or a value of a column to rank by.

        Args:
            documents: Documents of the corpus.
            candidate_rows: Which of them are candidates, ascending, shape (n_candidates,).
        """
        import pyarrow as pa

        if not len(candidate_rows):
            return  # so that the ids of the documents need not be hashed
        self.hashes.append(documents.hashes()[candidate_rows])
        self.tokens.append(documents.tokens[candidate_rows])
        for name, column in self.ranked_columns.items():
            column.append(documents.columns[name].take(pa.array(candidate_rows)))

        # Filters that are applied after such steps are evaluated already now, while the columns
        # that they need are in memory.
        for later_filter in self.later_filters.values():
            is_kept = later_filter.step.mask(documents)  # (n_documents,)
            later_filter.mask.append(is_kept[candidate_rows])


def _later_filters(rule: Rule, path: Path) -> dict[int, _LaterFilter]:
    """Return the filters of a view that follow a step of another kind, such as a budget.

    Args:
        rule: The steps of the view. It begins with its `leading_filters`, if it has any: those
            before all steps of another kind.
        path: The beginning of the paths of the scratch files for their results.

    Returns:
        Index of the step in the rule → the filter.
    """
    later_filters: dict[int, _LaterFilter] = {}
    n_leading_filters = len(rule.leading_filters)
    for index, step in enumerate(rule.steps):
        if index >= n_leading_filters and isinstance(step, FILTERS):
            mask = ScratchArray(Path(f"{path}-{index}"), np.bool_)
            later_filters[index] = _LaterFilter(step, mask)
    return later_filters


def _ranked_columns(rule: Rule, path: Path) -> dict[str, RankedColumn]:
    """Return scratch files for the columns by which the steps `top` of a view rank documents.

    Args:
        rule: The rule of the view.
        path: The beginning of the paths of the scratch files.

    Returns:
        Name of each column, such as `quality` → the files for its values.
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
    def needs_candidates(self) -> bool:
        """Whether `add` has to be called after the leading filters were applied."""
        return self.files is not None or self.sort_column is not None

    def add(self, documents: DocumentValues, candidate_rows: NDArray[np.int64]) -> None:
        """Store what is needed of candidates to choose and sort documents after reading.

        Candidates are the documents that the first filters of the view keep. Steps such as budgets
        choose among them when all documents have been read. They need hashes and token counts, for
        example. If the view is sorted by a column, its values are needed.

        Args:
            documents: Documents of the corpus.
            candidate_rows: Which of them are candidates, ascending, shape (n_candidates,).
        """
        import pyarrow as pa

        if self.files is not None:  # the view has such steps
            self.files.append(documents, candidate_rows)
        if self.sort_column is not None and len(candidate_rows):
            values = documents.columns[self.sort_column]
            self.sort_values.append(values.take(pa.array(candidate_rows)))


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
    # 1. Read the tables once. Apply the filters with which views begin, and keep what the other
    # steps need of the documents that these keep.
    views = [_ViewInProgress.of(number, rule, scratch) for number, rule in enumerate(rules)]
    leading_filters = LeadingFilters(rules, scratch)
    reading = _TableReading(
        scan=_scan_for(rules),
        id_sets=_id_sets_of(rules),
        leading_filters=leading_filters,
        views_with_candidates=[view for view in views if view.needs_candidates],
        progress=progress,
    )
    for shard in shards:
        reading.read(shard)

    # 2. Apply the other steps, such as budgets and repeats, and the orders.
    selections = []
    for view in views:
        copies_path = scratch / f"{view.number}-copies"
        selections.append(_apply_later_steps(view, leading_filters, copies_path))
    return selections


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
        """Read the documents of a shard, and apply to them the filters with which views begin.

        Args:
            shard: Consecutive documents of the corpus, which one query reads.
        """
        # Find the documents that are named in files of ids, which views include or exclude.
        listed = {ids: _find_listed(ids, shard) for ids in self.id_sets}

        self.leading_filters.add_totals(shard.n_documents, shard.n_tokens)
        n_reported = 0  # how many documents of the shard `progress` was called for
        for scanned in self.scan.batches(shard.relation):
            documents = DocumentValues(shard.first, scanned, listed)
            self.leading_filters.add(documents)

            # Store what the other steps of views, such as budgets, need of the documents that the
            # filters keep.
            for view in self.views_with_candidates:
                view.add(documents, self.leading_filters.kept_rows(view.number))

            n_read = int(scanned.rows[-1]) + 1
            self.progress(n_read - n_reported)
            n_reported = n_read
        # The scan leaves out documents that no view keeps: count those at the end, too.
        self.progress(shard.n_documents - n_reported)


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
    """Return a query that reads what some views need of the documents of their corpus.

    For example, for `where lang = 'en'` and `top 10 documents by quality`, it evaluates the
    condition, and reads the columns `tokens` and `quality`, and the ids to be hashed.

    Args:
        rules: The rule of each view: steps that choose documents, such as `where`, and an order.
    """
    columns = {TOKENS_COLUMN}  # all views count tokens
    hashed_columns: set[str] = set()
    conditions: dict[Condition, None] = {}  # each once, in order
    for rule in rules:
        if rule.needs_hashes:  # for steps that take documents in the order of a hash of their ids
            hashed_columns.add(ID_COLUMN)
        if rule.order is not None and rule.order.by is not None:
            columns.add(rule.order.by)
        for step in rule.steps:
            if isinstance(step, Where):
                conditions[step.condition] = None
            elif isinstance(step, HashSplit):
                hashed_columns.add(step.by)
            elif isinstance(step, Top):
                columns.add(step.by)
    return DocumentScan(
        columns,
        # These columns are read, too. Of a document without a value, the file and line are read and
        # hashed instead.
        identifying=hashed_columns,
        conditions=list(conditions),
        # Leave out documents for which none of these is true. They are in no view.
        only=_conditions_of_all_documents(rules),
    )


def _conditions_of_all_documents(rules: Sequence[Rule]) -> list[Condition]:
    """Return conditions of which every document of some views meets at least one.

    Documents that meet none of them are in no view, and need not be read. For example, one view
    begins with `where lang = 'en'` and another with `where lang = 'de'`: French documents need not
    be read. If a view begins with another step, there are no such conditions.

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
    view: _ViewInProgress, leading_filters: LeadingFilters, copies_path: Path
) -> Selection:
    """Choose the documents of a view among those that its first filters keep, and order them.

    Args:
        view: The view, with what was stored of the documents while they were read.
        leading_filters: The filters with which views begin. They were applied while the documents
            were read, and know which ones each view keeps, and how many.
        copies_path: A file that is created, for how many copies the view has of each document.

    Returns:
        The documents of the view.
    """
    selection = Selection(
        step_counts=_counts_after_leading_filters(view, leading_filters),
        read_candidates=partial(leading_filters.chunks, view.number),
    )
    # Scratch files were only written if other steps follow the filters, or for a shuffle.
    if view.files is not None:
        selection = _apply_steps(view.rule, view.files, selection, copies_path)
    return _in_order_of(view, selection)


def _in_order_of(view: _ViewInProgress, selection: Selection) -> Selection:
    """Return a selection whose documents are in the order that the rule of the view demands.

    For example, `order: {by: date}` sorts them by a column, and `order: {seed: 1}` shuffles them.

    Args:
        view: The view. Its order is by a column, shuffled by a seed, or that of the corpus.
        selection: The documents of the view.
    """
    order = view.rule.order
    if order is None:
        return selection
    if order.by is not None:
        documents = _sorted_documents(selection, view.sort_values, descending=order.descending)
    else:
        assert view.files is not None  # since a shuffled order needs hashes
        assert order.seed is not None
        documents = _shuffled_documents(order.seed, selection, view.files.hashes.mapped())
    return replace(selection, order=documents)


def _apply_steps(
    rule: Rule, files: _CandidateFiles, selection: Selection, copies_path: Path
) -> Selection:
    """Apply the steps of a view that follow its first filters, such as budgets and repeats.

    Each step changes how many copies the view has of each document, at first one. 0 copies mean
    that the document is left out.

    Args:
        rule: The rule of the view. It begins with its `leading_filters`, which have been applied.
        files: What is needed of the documents that these filters keep, the candidates.
        selection: These documents.
        copies_path: A file that is created, for the numbers of copies.

    Returns:
        What is left of the selection.
    """
    hashes = files.hashes.mapped()  # (n_candidates,)
    candidates = Candidates(
        hashes,
        tokens=files.tokens.mapped(),
        copy_counts=_ones(len(hashes), copies_path),
    )

    step_counts = list(selection.step_counts)
    gaps: list[BudgetGap] = []  # budgets far from full, since the next document does not fit
    tops: list[TopResult] = []
    for index in range(len(rule.leading_filters), len(rule.steps)):
        step = rule.steps[index]
        gap = None
        if isinstance(step, Repeat):
            candidates.repeat(step)
        elif isinstance(step, Budget):
            gap = apply_budget(step, candidates)
        elif isinstance(step, Top):
            top = apply_top(step, candidates, files.ranked_columns[step.by])
            tops.append(top)
            gap = top.gap
        else:  # a filter, which was evaluated while the documents were read
            candidates.keep(files.later_filters[index].mask.mapped())
        step_counts.append(_count_after(step, candidates))
        if gap is not None:
            gaps.append(_in_corpus(gap, selection.read_candidates()))
    return replace(
        selection,
        step_counts=step_counts,
        copy_counts=candidates.copy_counts,
        gaps=gaps,
        tops=tops,
    )


def _counts_after_leading_filters(
    view: _ViewInProgress, leading_filters: LeadingFilters
) -> list[StepCount]:
    """Return the counts of the corpus, and of what each leading filter of a view leaves of it."""
    corpus_counts, *filter_counts = leading_filters.counts(view.number)
    step_counts = [StepCount("", "all", corpus_counts.documents, corpus_counts.tokens)]
    for step, counts in zip(view.rule.leading_filters, filter_counts, strict=True):
        step_counts.append(StepCount(step.view, step.text, counts.documents, counts.tokens))
    return step_counts


def _in_corpus(gap: BudgetGap, candidate_chunks: Iterable[NDArray[np.int64]]) -> BudgetGap:
    """Return a gap, an unused rest of a budget, with the number of its document in the corpus.

    For example, the candidates are the documents 3, 5 and 8 of the corpus. The candidate with the
    index 2 is the document 8.

    Args:
        gap: The gap. Its `document` is an index among all candidates.
        candidate_chunks: Numbers of the candidates in the corpus, in chunks.
    """
    index = gap.document
    for documents in candidate_chunks:
        if index < len(documents):
            return replace(gap, document=int(documents[index]))
        index -= len(documents)  # the candidate is in a later chunk
    raise IndexError(gap.document)


def _ones(count: int, path: Path) -> NDArray[np.uint32]:
    """Return `count` ones, mapped from a file that is created."""
    if count == 0:
        return np.empty(0, np.uint32)  # an empty file cannot be mapped
    ones = np.memmap(path, np.uint32, "w+", shape=(count,))
    ones[:] = 1
    return ones


def _count_after(step: Step, candidates: Candidates) -> StepCount:
    """Count what is left after a step."""
    count = StepCount(step.view, step.text)
    for chunk in candidates.chunks:
        documents = candidates.amounts(chunk, "documents")
        tokens = candidates.amounts(chunk, "tokens")
        count.add(int(documents.sum()), int(tokens.sum()))
    return count


def _sorted_documents(
    selection: Selection, sort_values: Sequence[Any], *, descending: bool
) -> NDArray[np.int64]:
    """Return the documents of a view, sorted by their values of a column.

    If the view chooses the documents 3, 5 and 8, and their values are "b", "c" and "a", then this
    returns 8, 3, 5. Documents without a value come last in either order.

    Args:
        selection: The documents, which the view chooses among candidates.
        sort_values: Values of the column for all candidates: Arrow arrays.
        descending: Whether the greatest value comes first.

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not sort_values:  # there are no candidates, and so no documents
        return np.empty(0, np.int64)
    candidate_values = pa.chunked_array(sort_values).combine_chunks()

    # Look up the value of each document among those of all candidates, and sort by these values.
    chosen = _all_copies(selection)
    values = candidate_values.take(pa.array(chosen.candidate_indices))
    direction = "descending" if descending else "ascending"
    order = pc.array_sort_indices(values, order=direction, null_placement="at_end").to_numpy()
    sorted_documents: NDArray[np.int64] = chosen.documents[order]
    return sorted_documents


class _AllCopies(NamedTuple):
    """All documents of a view, each copy listed; shape (n_documents,) each."""

    documents: NDArray[np.int64]
    """Numbers in the corpus."""
    candidate_indices: NDArray[np.int64]
    """Indices among the candidates of the view."""


def _all_copies(selection: Selection) -> _AllCopies:
    """Return all documents of a view together, which it yields in chunks."""
    document_parts = [np.empty(0, np.int64)]
    index_parts = [np.empty(0, np.int64)]
    for copies in selection.copies():
        document_parts.append(copies.documents)
        index_parts.append(copies.candidate_indices)
    return _AllCopies(np.concatenate(document_parts), np.concatenate(index_parts))


def _shuffled_documents(
    seed: int, selection: Selection, hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the documents of a view in a pseudo-random order.

    They are sorted by a hash of the seed, the document's id and the number of the copy, since a
    view may contain a document several times. The hash does not depend on other documents, so those
    that are appended later do not change the order of the others.

    Args:
        seed: The seed.
        selection: The documents, which the view chooses among candidates.
        hashes: Hash of each candidate's id, shape (n_candidates,).

    Returns:
        Numbers in the corpus, shape (n_documents,), each copy listed.
    """
    document_parts = [np.empty(0, np.int64)]
    sort_key_parts = [np.empty(0, np.uint64)]
    for copies in selection.copies():  # first copies of documents, then second ones, …
        id_hashes = hashes[copies.candidate_indices]
        document_parts.append(copies.documents)
        sort_key_parts.append(salted(id_hashes, f"order {seed} {copies.copy}"))
    documents = np.concatenate(document_parts)  # (n_documents,)
    sort_keys = np.concatenate(sort_key_parts)  # (n_documents,)
    return documents[np.argsort(sort_keys, kind="stable")]
