"""Tell what stands out in the steps of a loss spike: corpora, documents read again, documents with the same tokens.

Chance is plain: of corpora a binomial by their shares of the blend; of a document read again a Poisson by how many
samples of its corpus the steps hold; and beside both, the same counts in as many other steps of the run.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.explain import sources_of
from nanoset_core.lineage.pieces import spread
from nanoset_core.lineage.run import Part, Run
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import is_packs, packed_from

NEAR, WINDOW, DEVIATIONS = 8, 50, 6.0
COMPARED = NEAR // 2 + WINDOW
"""First rows of a table of losses, of which none can be told to be far above those before it."""
MOST_SAMPLES = 1 << 16
"""Samples that are looked at, of the first steps; about as many again for comparison."""
_CHUNK = 1 << 14
_TO_SIGMA = 1.4826  # of a normal distribution's median deviation


@dataclass(frozen=True, slots=True)
class CorpusShare:
    """What the steps read of a corpus."""

    handoff: str
    """In which handoff."""
    corpus: str
    """Or view."""
    tokens: int
    """Tokens of it."""
    samples: int
    """Samples of it."""
    expected: float
    """Samples that the blend's share lets expect."""
    p: float
    """Probability of a count at least as far from it, on either side, if samples were drawn by the shares."""


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """A document that several samples of the steps hold."""

    origin: DocumentOrigin
    samples: int
    """Samples of the steps that hold it."""
    steps: tuple[int, ...]
    """Those that read it."""
    expected: float
    """Samples of the steps that a document of its length is in on average."""
    p: float
    """Probability of so many by chance, times the documents of these steps, any of which might be; 1 at most."""


@dataclass(frozen=True, slots=True)
class SameTokens:
    """Different documents with the same tokens."""

    tokens: int
    """Of each."""
    documents: tuple[DocumentOrigin, ...]
    steps: tuple[int, ...]
    """Those that read one of them."""


@dataclass(frozen=True, slots=True)
class SpikeReport:
    """What stands out in some steps of a run."""

    spikes: int
    """Steps that were found, or named."""
    steps: tuple[int, ...]
    """Those looked at: the first of them."""
    documents: int
    """Different documents in them."""
    corpora: tuple[CorpusShare, ...]
    """By p."""
    again: tuple[ReadAgain, ...]
    """By p."""
    same: tuple[SameTokens, ...]
    """By number of documents, then tokens."""
    others: tuple[int, ...]
    """Other steps of the run, looked at for comparison."""
    again_in_others: int
    """Documents that several of their samples hold."""
    same_in_others: int
    """Groups of documents with the same tokens in them."""


def spikes_in(file: Path) -> list[int]:
    """Return the steps of the rows of a CSV file (iteration, loss) whose loss is far above that of the rows before.

    A row stands for the steps since the row before, as Megatron-LM's log averages them. Each loss is taken by how far
    it is above the median of the 8 rows before, and that is far where it is more than 6 deviations (1.4826 times the
    median deviation) above what it was in the 50 rows before. A loss that is no number is a spike too.

    Raises:
        MissingError, FormatError: the file cannot be read, or is none of this kind.
    """
    loss_by_step = read_losses(file)
    steps = np.array(sorted(loss_by_step), np.int64)  # (n_rows,)
    losses = np.array([loss_by_step[step] for step in steps.tolist()])  # (n_rows,)
    far = np.flatnonzero(_far(losses)).tolist()
    begins = [0 if row == 0 else int(steps[row - 1]) for row in far]
    return [step for row, begin in zip(far, begins, strict=True) for step in range(begin + 1, int(steps[row]) + 1)]


def read_losses(file: Path) -> dict[int, float]:
    """Return step → loss of a CSV file with the columns iteration and loss; an empty loss is NaN.

    Raises:
        MissingError: The file cannot be read.
        FormatError: It is no table of losses.
    """
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return {int(row["iteration"]): float(row["loss"] or "nan") for row in csv.DictReader(lines)}
    except OSError as error:
        remedy = "name a file with the columns iteration and loss"
        raise MissingError("the losses cannot be read", where=file, found=error, remedy=remedy) from error
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        what, expected = "this is no table of losses", "CSV with a header, and in it the columns iteration and loss"
        raise FormatError(what, where=file, found=repr(error), expected=expected, remedy="write it so") from error


def _far(losses: NDArray[np.float64]) -> NDArray[np.bool_]:
    known = np.where(np.isfinite(losses), losses, np.nan)
    above = known - _median_before(known, NEAR)
    middle = _median_before(above, WINDOW)
    spread = _TO_SIGMA * _median_before(np.abs(above - middle), WINDOW)
    far: NDArray[np.bool_] = above - middle > DEVIATIONS * np.maximum(spread, 1e-3 * np.abs(known))
    return far | ~np.isfinite(losses)


def _median_before(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the median of the known ones of the `window` values before each; nan where half are not known."""
    padded, found = np.concatenate([np.full(window, np.nan), values]), np.full(len(values), np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)
    for begin in range(0, len(values), _CHUNK):
        before = windows[begin : min(begin + _CHUNK, len(values))]
        usable = np.flatnonzero(2 * np.isfinite(before).sum(axis=1) >= window)
        found[begin + usable] = np.nanmedian(before[usable], axis=1)
    return found


def spike_report(
    project_or_root: Project | str | os.PathLike[str], run_file: Path, steps: Sequence[int]
) -> SpikeReport:
    """Return what stands out in some steps of a run.

    Raises:
        MissingError, ConfigError: as `Run.open`.
        SampleIndexError: no handoff of the run has the samples of a step.
    """
    context = InspectionContext.of(project_or_root)
    run, asked = Run.open(context.outputs, run_file), np.unique(np.array(steps, np.int64))
    _, batch = run.steps.samples(asked)
    taken = asked[: max(int(np.searchsorted(np.cumsum(batch), MOST_SAMPLES, "right")), 1)]
    seen, others = _Seen(context, run, taken), _Seen(context, run, chosen := _others(run, asked, len(taken)))
    return SpikeReport(
        spikes=len(asked),
        steps=tuple(taken.tolist()),
        documents=len(seen.documents),
        corpora=tuple(sorted(seen.shares(context), key=lambda share: share.p)),
        again=tuple(seen.again(context)),
        same=tuple(seen.same(context)),
        others=tuple(chosen.tolist()),
        again_in_others=int((others.samples > 1).sum()),
        same_in_others=len(others.groups()),
    )


def _others(run: Run, steps: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return as many other steps, evenly over the run's handoffs; fewer where there are no more."""
    last = run.parts[-1]
    end = last.base + len(last.loaded) if last.end is None else last.end
    first, after = run.steps.of(np.array([run.parts[0].begin, end])).tolist()
    left = np.setdiff1d(np.linspace(first, max(after - 1, first), 3 * count + 2).astype(np.int64), steps)
    return left[:: max(len(left) // max(count, 1), 1)][:count]


class _Seen:
    """What some steps read: documents, and which samples and steps hold them."""

    def __init__(self, context: InspectionContext, run: Run, steps: NDArray[np.int64]) -> None:
        self.datasets: list[Nanoset] = []
        """One for each prefix."""
        self.texts: list[MMapIndexedDataset] = []
        """The datasets of the documents: of packs, what was packed."""
        self.members: dict[Nanoset, tuple[int, int]] = {}
        """Samples and tokens of each dataset of each handoff."""
        self.parts: list[tuple[Part, int]] = []
        """Each handoff, and its samples."""
        rows, ids, count = [np.empty((0, 4), np.int64)], dict[str, int](), 0
        reads = [run.samples(step) for step in steps.tolist()]
        for part, group in groupby(reads, lambda read: read.part):
            own = list(group)
            of_step = np.repeat([read.step.step for read in own], [len(read.samples) for read in own])
            for nanoset, sources in sources_of(
                part.loaded, np.concatenate([read.samples for read in own]).tolist()
            ).items():
                if (dataset := ids.setdefault(nanoset.member.prefix, len(ids))) == len(self.datasets):
                    self.datasets.append(nanoset)
                    self.texts.append(_documents(context, nanoset))
                pieces = np.concatenate([pieces for _, _, pieces in sources])
                sample = np.repeat([row for row, _, _ in sources], [len(pieces) for _, _, pieces in sources])
                is_filled = pieces[:, 2] > pieces[:, 1]
                pieces, sample = pieces[is_filled], sample[is_filled]
                parts = spread(context.dataset_at(nanoset.member.prefix), nanoset.dataset, pieces)
                sample, number = sample[parts[:, 0]], parts[:, 5]
                rows.append(np.column_stack([np.full(len(parts), dataset), number, sample + count, of_step[sample]]))
                self.members[nanoset] = len(sources), int((pieces[:, 2] - pieces[:, 1]).sum())
            self.parts.append((part, len(of_step)))
            count += len(of_step)
        whole = np.unique(np.concatenate(rows), axis=0)  # a sample may hold a document twice
        self._read = np.bincount(np.unique(whole[:, [0, 2]], axis=0)[:, 0]).tolist()  # samples of each dataset
        self.documents, self._begins, self.samples = np.unique(
            whole[:, :2], axis=0, return_index=True, return_counts=True
        )
        """(dataset, number), shape (documents, 2); how many samples hold each, shape (documents,)."""
        self._steps = whole[:, 3]
        self.tokens = np.zeros(len(self.documents), np.int64)
        for dataset, texts in enumerate(self.texts):
            own_rows = self.documents[:, 0] == dataset
            begins, ends = texts.document_indices[self.documents[own_rows, 1] + np.array([[0], [1]])]
            offsets = np.cumsum(ends - begins) - (ends - begins)
            sequences = np.repeat(begins - offsets, ends - begins) + np.arange((ends - begins).sum())
            lengths = texts.sequence_lengths[sequences].astype(np.int64)
            self.tokens[own_rows] = np.add.reduceat(lengths, offsets)

    def shares(self, context: InspectionContext) -> Iterator[CorpusShare]:
        """Yield what was read of each corpus of each handoff."""
        for part, count in self.parts:
            for nanoset, share in _shares(part).items():
                samples, tokens = self.members.get(nanoset, (0, 0))
                least = min(binomial_tail(count, share, samples), binomial_tail(count, 1 - share, count - samples))
                corpus, p = context.dataset_at(nanoset.member.prefix).name, min(2 * least, 1.0)
                yield CorpusShare(part.manifest.url(), corpus, tokens, samples, count * share, p)

    def again(self, context: InspectionContext) -> Iterator[ReadAgain]:
        """Yield the documents that several samples hold, by p."""
        found = []
        for row in np.flatnonzero(self.samples > 1).tolist():
            dataset, count = int(self.documents[row, 0]), int(self.samples[row])
            length, epoch = self.datasets[dataset].config.sequence_length, self.datasets[dataset].member.tokens
            # Of an epoch's samples, how many hold it; of these, how many were read.
            expected = self._read[dataset] * min((length + int(self.tokens[row]) - 1) / max(epoch, 1), 1.0)
            found.append((min(poisson_tail(expected, count) * len(self.documents), 1.0), -count, row, expected))
        found.sort()
        origins = self._origins(context, [row for _, _, row, _ in found])
        for p, count, row, expected in found:
            yield ReadAgain(origins[row], -count, self._steps_of([row]), expected, p)

    def groups(self) -> list[list[int]]:
        """Return the documents that have the same tokens as another, together, the largest groups first."""
        lengths, counts = np.unique(self.tokens, return_counts=True)
        hashed: dict[bytes, list[int]] = {}
        for row in np.flatnonzero(np.isin(self.tokens, lengths[counts > 1])).tolist():
            hashed.setdefault(self._hash(row), []).append(row)
        alike = [rows for rows in hashed.values() if len(rows) > 1]
        return sorted(alike, key=lambda rows: (-len(rows), -self.tokens[rows[0]]))

    def same(self, context: InspectionContext) -> Iterator[SameTokens]:
        """Yield the groups of documents with the same tokens."""
        groups = self.groups()
        origins = self._origins(context, [row for rows in groups for row in rows])
        for rows in groups:
            yield SameTokens(int(self.tokens[rows[0]]), tuple(origins[row] for row in rows), self._steps_of(rows))

    def _steps_of(self, rows: Sequence[int]) -> tuple[int, ...]:
        spans = [self._steps[self._begins[row] : self._begins[row] + self.samples[row]] for row in rows]
        return tuple(np.unique(np.concatenate(spans)).tolist())

    def _hash(self, row: int) -> bytes:
        dataset, found = self.texts[self.documents[row, 0]], hashlib.blake2b(digest_size=16)
        for sequence in range(*dataset.document_indices[self.documents[row, 1] :][:2].tolist()):
            found.update(dataset.get(sequence).astype("<i4").tobytes())
        return found.digest()

    def _origins(self, context: InspectionContext, rows: Sequence[int]) -> dict[int, DocumentOrigin]:
        found: dict[int, DocumentOrigin] = {}
        for number, nanoset in enumerate(self.datasets):
            if not (own := [row for row in rows if self.documents[row, 0] == number]):
                continue
            lineage = Lineage(context.outputs, context.dataset_at(nanoset.member.prefix))
            found |= zip(own, lineage.origins(self.documents[own, 1].tolist()), strict=True)
        return found


def _documents(context: InspectionContext, nanoset: Nanoset) -> MMapIndexedDataset:
    manifest = context.dataset_at(nanoset.member.prefix)
    if not is_packs(manifest):
        return nanoset.dataset
    return open_dataset(packed_from(context.outputs, manifest), is_sampled=True)


def _shares(part: Part) -> Mapping[Nanoset, float]:
    if isinstance(part.loaded, Nanoset):
        return {part.loaded: 1.0}
    weights = np.array(part.loaded.plan.blend.weights if part.loaded.plan.blend else (), np.float64)
    return dict(zip(part.loaded.datasets, (weights / weights.sum()).tolist(), strict=True))


def binomial_tail(count: int, share: float, least: int) -> float:
    """Return the probability of `least` or more hits in `count` draws that hit with probability `share`."""
    if least <= 0 or share >= 1:
        return 1.0
    if share <= 0 or least > count:
        return 0.0
    choose = math.lgamma(count + 1) - math.lgamma(least + 1) - math.lgamma(count - least + 1)
    first = choose + least * math.log(share) + (count - least) * math.log1p(-share)
    hits = np.arange(least, count)
    ratios = np.log((count - hits) / (hits + 1)) + math.log(share) - math.log1p(-share)
    return min(float(np.exp(first + np.concatenate([[0.0], np.cumsum(ratios)])).sum()), 1.0)


def poisson_tail(mean: float, least: int) -> float:
    """Return the probability of `least` or more events where `mean` are expected."""
    if least <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    events = np.arange(least + 1, least + 101 + int(4 * mean))
    first = least * math.log(mean) - mean - math.lgamma(least + 1)
    return min(float(np.exp(first + np.concatenate([[0.0], np.cumsum(math.log(mean) - np.log(events))])).sum()), 1.0)
