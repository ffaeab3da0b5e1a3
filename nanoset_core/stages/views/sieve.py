"""The first filters of many views at once: which documents of a corpus they keep, row group by row
group.

Documents that all filters treat alike form a class: they have the same values in columns of few
values, the same outcomes of comparisons of other columns, and the same answers of filters that look
at each document. So conditions are computed of one document of each class, documents and tokens are
counted by class, and two bytes at most are stored of a document, however many views there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.conditions import codes_of
from nanoset_core.stages.views.rules import Filter, Listed, Rows, Rule, Where

_MOST = 4096
"""Classes among which some may have no document."""
_AT_ONCE = 16
"""Row groups whose documents are given together."""
_HELD_BYTES = 1 << 18


class Values:
    """Values of one type, appended to a scratch file and then mapped."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype, self.size, self._waiting = path, np.dtype(dtype), 0, bytearray()

    def add(self, values: NDArray[Any]) -> None:
        """Append some values."""
        self.size += len(values)
        self._waiting += (
            np.ascontiguousarray(values, self.dtype).data.cast("B") if len(values) else b""
        )
        if len(self._waiting) > _HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        with self.path.open("ab") as file:  # of hundreds of views not all can stay open
            file.write(self._waiting)
        self._waiting.clear()

    def mapped(self) -> NDArray[Any]:
        """Return all values."""
        self._flush()
        if not self.path.stat().st_size:
            return np.empty(0, self.dtype)
        return np.memmap(self.path, self.dtype, "r+")


class _Classes:
    """The documents of a row group, divided step by step."""

    def __init__(self, rows: int) -> None:
        self.codes, self.count, self.meaning = np.zeros(rows, np.int64), 1, list[object]()
        """Class of each document; how many there are; what is equal in row groups whose classes are
        the same.
        """
        self._documents: NDArray[np.int64] | None = None

    def divide(self, codes: NDArray[Any], count: int, meaning: object) -> None:
        """Part documents of different codes, 0 to count - 1."""
        self.codes = (
            self.codes * count + codes if self.count > 1 else codes.astype(np.int64, copy=False)
        )
        self.count, self._documents = self.count * count, None
        self.meaning.append(meaning)
        if self.count > _MOST:
            present, self.codes = np.unique(self.codes, return_inverse=True)
            self.count = len(present)
            self.meaning.append(object())

    def documents(self) -> NDArray[np.int64]:
        """Return the documents of each class, int64."""
        if self._documents is None:
            self._documents = np.bincount(self.codes, minlength=self.count)
        return self._documents

    def members(self) -> NDArray[np.int64]:
        """Return a document of each class, int64; any document of a class that has none."""
        found = np.zeros(self.count, np.int64)
        found[self.codes] = np.arange(len(self.codes))
        return found


def _packed(codes: NDArray[np.int64], classes: int) -> NDArray[np.uint8]:
    """Return codes as a bit each, a byte or two."""
    if classes <= 2:
        return np.packbits(codes.astype(np.bool_))
    return codes.astype(np.uint8 if classes <= 256 else np.uint16).view(np.uint8)


def _unpacked(data: NDArray[np.uint8], rows: int, classes: int) -> NDArray[Any]:
    if classes <= 2:
        return np.unpackbits(data[: -(-rows // 8)], count=rows)
    return data[:rows] if classes <= 256 else data[: 2 * rows].view(np.uint16)


class _Kept(NamedTuple):
    """What is known of a row group that was added."""

    rows: int
    classes: int
    codes: int
    """Where the classes of its documents begin, in bytes."""
    bits: int
    """Where the bits of its classes begin, in bytes: those of one view after those of another."""


class Sieve:
    """The leading filters of some views, and which documents of the row groups that were added they
    keep.
    """

    def __init__(self, rules: Sequence[Rule], folder: Path) -> None:
        """Take the rules of the views, and a folder for what is kept beside memory."""
        steps, nodes = dict[Filter, int](), dict[tuple[int, int], int]()
        self._paths: list[list[int]] = []
        """Of each view the nodes that its documents pass: 0, which keeps all, and one for each
        leading filter.
        """
        for rule in rules:
            self._paths.append([0])
            for step in rule.leading:
                node = self._paths[-1][-1], steps.setdefault(step, len(steps))
                self._paths[-1].append(nodes.setdefault(node, len(nodes) + 1))
        self._nodes, self._ends = [*nodes], [path[-1] for path in self._paths]
        """Of each node but the first (the node before it, number of its filter)."""
        self._conditions = [
            (number, step.condition, step.condition.columns)
            for number, step in enumerate(steps)
            if isinstance(step, Where)
        ]
        self._others = [
            (number, step) for number, step in enumerate(steps) if not isinstance(step, Where)
        ]
        self._comparisons = list(
            dict.fromkeys(part for _, one, _ in self._conditions for part in one.comparisons)
        )
        self._meaning, self._present = list[object](), np.zeros(0, np.bool_)
        """Of the classes by conditions that were looked at last, and which of them had documents."""
        self._answers = self._by_conditions = np.ones((len(steps), 0), np.bool_)
        """Which of these classes each filter keeps, and each node; filters that are no conditions
        keep all.
        """
        self._left, self._sums = np.zeros((len(nodes) + 1, 2), np.int64), np.zeros((0, 2), np.int64)
        """Documents and tokens that each node left; of each class, those of row groups that are not
        in `_left` yet.
        """
        self._codes, self._passed = np.zeros(0, np.int64), np.zeros((len(nodes) + 1, 0), np.bool_)
        """The class of each document of the last row group; which classes each node keeps."""
        self._groups, self._place = list[_Kept](), 0
        self._all_codes, self._bits = (
            Values(folder / "classes", np.uint8),
            Values(folder / "bits", np.uint8),
        )

    def add(self, rows: Rows) -> None:
        """Take a row group that has documents."""
        classes = _Classes(rows.group.rows)
        passed = self._look_at_columns(rows, classes)
        if self._others:
            passed = self._look_at_documents(rows, classes, passed)
        if passed is not self._passed:
            self._settle()
            self._passed, self._sums = passed, np.zeros((classes.count, 2), np.int64)
            self._place = self._bits.size
            self._bits.add(np.packbits(passed[self._ends], axis=1).reshape(-1))
        self._groups.append(
            _Kept(rows.group.rows, classes.count, self._all_codes.size, self._place)
        )
        self._codes = classes.codes
        self._all_codes.add(_packed(self._codes, classes.count))
        self._sums[:, 0] += classes.documents()
        self._sums[:, 1] += np.bincount(self._codes, rows.tokens, classes.count).astype(np.int64)

    def _look_at_columns(self, rows: Rows, classes: _Classes) -> NDArray[np.bool_]:
        """Divide documents by what conditions ask of them; return which classes each node keeps by
        conditions alone.
        """
        columns = frozenset[str]()
        for _, condition, asked in self._conditions:
            if not asked <= columns and condition.may_hold(rows.statistics):
                columns |= asked
        table = rows.table(columns | {"tokens"})
        table = table.select([name for name in table.schema.names if name in columns])
        classes.meaning.append(columns)
        for name in table.schema.names:
            found = codes_of(table.column(name))
            if found is not None:
                classes.divide(*found)
                continue
            for one in self._comparisons:
                if one.columns == {name}:
                    classes.divide(one.mask(table, rows.known), 2, object())
        present = classes.documents() > 0
        if classes.meaning != self._meaning or (present > self._present).any():
            self._meaning, self._present = classes.meaning, present
            members, known = table.take(classes.members()), dict[object, Any]()
            self._answers = np.ones(
                (len(self._conditions) + len(self._others), classes.count), np.bool_
            )
            for number, condition, asked in self._conditions:
                self._answers[number] = (
                    condition.mask(members, known) if asked <= columns else False
                )
            self._by_conditions = self._through(self._answers)
        return self._by_conditions

    def _look_at_documents(
        self, rows: Rows, classes: _Classes, passed: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Divide documents by all other filters, too; return which classes each node keeps."""
        before, present, everyone = (
            classes.codes,
            classes.documents() > 0,
            np.ones(rows.group.rows, np.bool_),
        )
        masks = dict[int, NDArray[np.bool_]]()
        for number, step in self._others:
            nodes = [node for node, filter_ in self._nodes if filter_ == number]
            if isinstance(step, Listed) or passed[nodes][:, present].any():
                masks[number] = step.mask(rows, everyone)
                classes.divide(masks[number], 2, None)
        members = classes.members()
        answers = self._answers[:, before[members]]
        for number, mask in masks.items():
            answers[number] = mask[members]
        return self._through(answers)

    def _through(self, answers: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which classes each node keeps, given which each filter keeps."""
        passed = np.ones((len(self._nodes) + 1, answers.shape[1]), np.bool_)
        for node, (before, number) in enumerate(self._nodes, 1):
            np.logical_and(passed[before], answers[number], out=passed[node])
        return passed

    def _settle(self) -> None:
        """Add up what each node left of the row groups that have the same classes."""
        if self._sums.any():
            self._left += [passed @ self._sums for passed in self._passed]
            self._sums[:] = 0

    def alive(self, view: int) -> NDArray[np.bool_]:
        """Return which documents of the last row group a view keeps."""
        kept: NDArray[np.bool_] = self._passed[self._ends[view]][self._codes]
        return kept

    def left(self, view: int) -> Iterator[tuple[int, int]]:
        """Yield documents and tokens of the corpus, and what each leading filter of a view left of
        them.
        """
        self._settle()
        for node in self._paths[view]:
            documents, tokens = self._left[node].tolist()
            yield documents, tokens

    def chunks(self, view: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents that a view keeps, int64, by ranges of 16 row groups."""
        codes, bits, first = self._all_codes.mapped(), self._bits.mapped(), 0
        for begin in range(0, len(self._groups), _AT_ONCE):
            found = list[NDArray[np.int64]]()
            for rows, classes, own_codes, own_bits in self._groups[begin : begin + _AT_ONCE]:
                width = -(-classes // 8)
                kept = np.unpackbits(bits[own_bits + view * width :][:width], count=classes)
                if kept.any():
                    own = _unpacked(codes[own_codes:], rows, classes)
                    found.append(first + np.flatnonzero(kept.take(own, mode="clip")))
                first += rows
            yield np.concatenate(found) if found else np.empty(0, np.int64)
