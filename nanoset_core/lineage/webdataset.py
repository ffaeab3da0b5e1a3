"""Find the documents in a context of a webdataset, and the contexts that contain a document.

A webdataset cuts the tokens of its sources, which are datasets, into contexts of one length,
shuffles the contexts, and writes them to tars in this order. The shuffle is a function of a seed,
so the plan of the webdataset is enough to compute which context is where. No tar is read:

    tar and number in it = position ↔ context before the shuffle ↔ tokens of a source ↔ document

For example, with 100 contexts in each tar, context 17 of tar 3 is at position 317 over all tars.
Before the shuffle it was, say, context 42: with a length of 1,000, it has the tokens [42000, 43000)
of the source, which are from the documents 5 and 6.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError, SampleIndexError, one_of, remedy_for_name
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, token_starts
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.lineage.explain import (
    PieceOrigin,
    n_tokens,
    offsets_in_sample,
    piece_origins,
)
from nanoset_core.lineage.positions import Appearance, DocumentPlaces, covered_tokens, unseen
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.webdataset.make import PLAN_FILE
from nanoset_core.stages.webdataset.order import ranks, ranks_of
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan
from nanoset_core.stages.webdataset.recipes import PLANS
from nanoset_core.stages.webdataset.recipes import STAGE as WEBDATASETS
from nanoset_core.stages.webdataset.tars import shard_stem

_BUILD = "run `nanoset build`"
_WAS_DELETED = "an output that the webdataset was made from was deleted"
_KEY = re.compile(r"(?:.*/)?([0-9]+)_([0-9]+)(?:\.npy|\.json\.gz)?")
"""A key or a member of a tar, such as 00000003_00000017.npy: number of the tar, number in it."""
_TAR = re.compile(r"(?:.*/)?(?:shard-)?([0-9]+)(?:\.tar)?")
"""Name or path of a tar, or its number alone."""


@dataclass(frozen=True, slots=True)
class ContextOrigin:
    """The documents that the tokens of one context come from."""

    name: str
    """Name of the webdataset."""
    tar: str
    """Name of the tar that contains it."""
    key: str
    """Its `__key__`: the name of its member in the tar, without the ending."""
    position: int
    """Its number over all tars, from 0."""
    context: int
    """Its number before the shuffle, from 0."""
    corpus: str
    """Name of the dataset that its first token is from."""
    bos_tokens: int
    """1 if it begins with a BOS token, otherwise 0."""
    tokens: int
    """How many tokens of the sources it has."""
    pad_tokens: int
    """How many tokens of padding it has."""
    pieces: tuple[PieceOrigin, ...]
    """The documents in it, in order; those without tokens are left out."""


@dataclass(frozen=True, slots=True, order=True)
class TarAppearance(Appearance):
    """Tokens of a document in one context; `sample` is the context's number over all tars."""

    tar: str
    """Name of the tar."""
    key: str
    """The `__key__` of the context."""


class SourceSpan(NamedTuple):
    """Consecutive tokens of one source of a webdataset."""

    source: int
    """Number of the source in the plan."""
    start: int
    """Position of the first token among the source's tokens."""
    stop: int
    """Position after the last token."""

    @property
    def n_tokens(self) -> int:
        """How many tokens these are."""
        return self.stop - self.start


class _StoredPiece(NamedTuple):
    """Consecutive tokens of a document, and where they are among the tokens of a source."""

    span: SourceSpan
    """Where they are."""
    position_in_document: int
    """Position of the first of them in the document."""


class _Overlap(NamedTuple):
    """Tokens that a context and a document have in common, as ranges [start, stop) of both."""

    context_tokens: tuple[int, int]
    document_tokens: tuple[int, int]


class _TokenCounts(NamedTuple):
    """How many tokens of a document remain after each step to the tars.

    Tokens that are in several contexts count once.
    """

    document: int
    """Tokens of the document."""
    dataset: int
    """Tokens in the dataset that the webdataset is made from; packing may leave some out."""
    planned: int
    """Tokens in contexts of the plan."""
    written: int
    """Tokens in contexts of the tars."""


@dataclass(frozen=True)
class Tars:
    """The current version of a webdataset, with the plan and the datasets that it was made from."""

    name: str
    """Name of the webdataset."""
    plan: ShufflePlan
    """Says which tokens form a context, and which context is where."""
    datasets: tuple[Dataset, ...]
    """The sources, in the order of the plan."""

    @staticmethod
    def of(context: InspectionContext, name: str) -> Tars:
        """Open a set of tars of training samples, to find out where its samples come from.

        Such a set is called a webdataset. The tars themselves are not read. A plan was made before
        they were written: it says which tokens of which datasets form a sample, and in which order
        the samples are shuffled. The plan and the datasets are enough.

        Args:
            context: The opened outputs, and the settings of the project if they are known.
            name: Name of the webdataset.

        Raises:
            MissingError: There is none with this name; or its plan, or one of its datasets, was
                deleted.
        """
        # Open the version of the plan that the tars were made from. The recipe of an output lists
        # the digests of all that it was made from.
        webdataset = _current_webdataset(context.outputs, name)
        plan_digest = webdataset.recipe["parents"]["plan"]
        plan_manifest = context.outputs.version(
            PLANS, name, digest=plan_digest, what_if_missing=_WAS_DELETED, remedy=_BUILD
        )
        stored_plan = plan_manifest.load(PLAN_FILE, StoredShufflePlan)
        plan = stored_plan.plan()

        # Open the datasets that the plan was made from.
        datasets = _datasets_of_plan(context, plan_manifest, plan)
        return Tars(name, plan, tuple(datasets))

    @cached_property
    def streams(self) -> tuple[Stream | None, ...]:
        """The tokens of each source in the order in which they are cut into contexts.

        This is the order of its sequences. None for a source whose `.bin` has the same order.
        """
        streams: list[Stream | None] = []
        for dataset in self.datasets:
            streams.append(None if dataset.has_bin_order else Stream(dataset.sequences))
        return tuple(streams)

    @property
    def bos_tokens(self) -> int:
        """How many BOS tokens are at the start of every context, 0 or 1."""
        return self.plan.sequence_length - self.plan.settings.row_tokens

    def context_at(self, position: int) -> int:
        """Return which of the contexts, numbered before they were shuffled, is at a position.

        Args:
            position: Number of a context over all tars, from 0.
        """
        settings = self.plan.settings
        contexts = ranks(self.plan.table.contexts, settings.seed, position, position + 1)  # (1,)
        return int(contexts[0])

    def first_source_of(self, context: int) -> str:
        """Return the name of the dataset in which a context, one training sequence, begins.

        Args:
            context: Number of the context before the shuffle.
        """
        table = self.plan.table
        source = int(np.searchsorted(table.first_contexts, context, side="right")) - 1
        return table.sources[source].name

    def position(self, place: str, sample: int | None = None) -> int:
        """Return the number of a training sample over all tars, as a user names it.

        The tars of a webdataset have a number of samples each, which are also called contexts. If
        it is 100, sample 17 of tar 3 has the number 317:

            place                     sample    number
            `shard-00000003.tar`      17        317
            `00000003_00000017.npy`   None      317
            `317`                     None      317

        Args:
            place: The first part of the name that the user gave.
            sample: The second part, if any.

        Raises:
            ConfigError: This names no sample.
            SampleIndexError: There is no such sample.
        """
        plan = self.plan
        tar, number_in_tar = self._tar_and_number(place, sample)
        if tar < plan.shards:  # the plan calls a tar a shard
            # The tar has the contexts [start, stop). The last tar may have fewer than others.
            start, stop = plan.shard_ranks(tar)
            if 0 <= number_in_tar < stop - start:
                return start + number_in_tar

        sizes = (
            f"{plan.contexts:,} contexts, of {plan.shard_size:,} in each of {plan.shards:,} tars"
        )
        raise SampleIndexError(
            "no such context in the webdataset",
            where=self.name,
            found=_as_named(place, sample),
            expected=sizes,
        )

    def _tar_and_number(self, place: str, sample: int | None) -> tuple[int, int]:
        """Return which tar a user means, and which training sample (context) in it.

        The sample 17 of tar 3 has these names if each tar has 100 samples:

            place                     sample
            `shard-00000003.tar`      17         a tar, and a number in it
            `00000003_00000017.npy`   None       a file in a tar
            `00000003_00000017`       None       the same without the ending
            `317`                     None       a number over all tars

        Args:
            place: The first part of the name that the user gave.
            sample: The second part, if any.

        Returns:
            (3, 17)

        Raises:
            ConfigError: This names no sample.
        """
        if sample is not None:
            tar_and_number = _parse_tar(place, sample)
        elif place.isascii() and place.isdigit():
            # A number over all tars: 317 is context 17 of tar 3.
            tar_and_number = divmod(int(place), self.plan.shard_size)
        else:
            tar_and_number = _parse_key(place)
        if tar_and_number is not None:
            return tar_and_number

        ways = f"a key such as {self.key(0)}, a tar and a number such as {self.tar(0)} 0"
        raise ConfigError(
            "this names no context of a webdataset",
            where=self.name,
            found=_as_named(place, sample),
            expected=f"{ways}, or a number over all tars",
        )

    def tar(self, position: int) -> str:
        """Return the name of the tar with the context at a position, such as `shard-00000003.tar`.

        Args:
            position: Number of the context over all tars, from 0.
        """
        return f"{shard_stem(position // self.plan.shard_size)}.tar"

    def key(self, position: int) -> str:
        """Return the key of the context at a position, such as `00000003_00000017`.

        Args:
            position: Number of the context over all tars, from 0.

        Returns:
            The number of the tar, and that of the context in it.
        """
        shard, sample = divmod(position, self.plan.shard_size)
        return f"{shard:08d}_{sample:08d}"

    def spans(self, context: int) -> Iterator[SourceSpan]:
        """Yield the ranges of tokens of which a training sample (a context) consists, in order.

        Samples of 100 tokens are cut from one source of text after another. Usually, a sample is
        one range of one source. At the end of a source, it may continue in the next one. For
        example, web has 950 tokens, and sample 9 begins at its token 900:

            source    start    stop    tokens that remain to be taken
            web       900      950     50
            books     0        50      0

        Args:
            context: Number of the sample before the shuffle.
        """
        # The source in which the context begins, its first token there, and how many tokens it has.
        # `locate` takes and returns arrays for many contexts; these have one.
        sources, starts, lengths = self.plan.table.locate(np.array([context], dtype=np.int64))
        source = int(sources[0])
        start = int(starts[0])
        remaining = int(lengths[0])

        # Take tokens up to the end of the source. If these do not fill the context, it continues
        # with the first tokens of the next source. (Only the setting `tail: carry` allows that.
        # Otherwise, the plan has no such contexts, and the first source is enough.)
        while remaining > 0:
            stop = min(start + remaining, self.plan.table.sources[source].tokens)
            if stop > start:  # a source may have no tokens
                yield SourceSpan(source, start, stop)
            remaining -= stop - start
            source += 1
            start = 0

    def places(self, source: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return in which samples of the tars a document is, and why a part of it is in none.

        A webdataset is a set of tars with training samples, which are called contexts until they
        are written. On the way from the document to the tars, tokens may get lost at three steps.
        They are counted after each, to say where:

            the document, in line 12 of a.jsonl             90 tokens
            dataset: packing may leave out some             90
            planned: contexts are cut from the dataset      83: the last 7 do not fill one
            written: all tars must have as many samples,    83
            so some contexts may be left out

        Args:
            source: Number of the document's dataset in `datasets`.
            origin: The document: its number, file and line.

        Returns:
            The samples; none if no tar has tokens of the document. `reason` then says why.
        """
        # Where are the document's tokens in the dataset, and in which contexts are these?
        pieces = self._stored_pieces(source, origin.dataset_document)
        planned: list[TarAppearance] = []
        for piece in pieces:
            planned += self._appearances(piece)

        # If all tars must be equal, the last contexts of the shuffled order are written to none.
        n_written = self.plan.contexts
        written = sorted(appearance for appearance in planned if appearance.sample < n_written)

        # Count how many tokens remain after each step, which shows where the others were lost.
        counts = _TokenCounts(
            document=origin.tokens,
            dataset=sum(piece.span.n_tokens for piece in pieces),
            planned=_n_document_tokens(planned),
            written=_n_document_tokens(written),
        )
        reason = self._reason(source, counts)
        return DocumentPlaces(origin, tuple(written), counts.written, reason)

    def _reason(self, source: int, counts: _TokenCounts) -> str | None:
        """Return the sentence that says why a document is not completely in the tars.

            it has no tokens at all            "never seen: it has no tokens"
            some tokens got lost on the way    "7 of its 90 tokens are never seen, because …"
            all of them are in the tars        None

        Args:
            source: Number of the document's dataset.
            counts: How many tokens the document has, and how many of them remain after each step to
                the tars: in the dataset, in the plan, and in the tars.
        """
        if counts.dataset == 0:
            return "never seen: it has no tokens"
        why = self._why_unseen(source, counts)
        if why is None:
            return None
        n_unseen = counts.document - counts.written
        return f"{unseen(n_unseen, counts.document)}, because {why}"

    def _why_unseen(self, source: int, counts: _TokenCounts) -> str | None:
        """Return why some tokens of a document are in no tar of training samples; None if all are.

        On the way from the text to the tars, tokens may get lost at three steps:

            step                                     what may be lost
            documents are packed into a dataset      what does not fit
            the dataset is cut into samples          the end, which does not fill a sample
            samples are written to tars              some, if all tars must be equal

        If several steps have lost some, the last one is named.

        Args:
            source: Number of the document's dataset.
            counts: How many tokens of the document remain after each step.
        """
        is_complete = counts.document == counts.planned == counts.written
        if is_complete:
            return None

        # Look at the steps, from the last one to the first one.
        is_lost_by_writing = counts.written < counts.planned
        is_lost_by_cutting = counts.planned != counts.dataset
        if is_lost_by_writing:
            return "they are in contexts that are left out so that all tars are equal (even)"
        if is_lost_by_cutting:
            tail = "they lie in a tail that does not fill a context"
            # The setting may also be to use only some samples of the dataset, such as half of them:
            # frequency 0.5. Then this may be the cause as well.
            if self.plan.table.sources[source].frequency < 1:
                return f"not all contexts of this corpus are taken, or {tail}"
            return tail
        return "packing left them out"

    def _stored_pieces(self, source: int, document: int) -> list[_StoredPiece]:
        """Return where the tokens of a document are among all tokens of its dataset.

        A dataset consists of sequences. Their tokens are counted from the start of the first
        sequence, one sequence after another. Usually, a document is one sequence. But if the
        dataset is packed (documents fill sequences of one length), a document may be in pieces, in
        several sequences:

            the piece                                       number 0       number 1
            is in this sequence (piece.sequence)            2              3
            which has these tokens of the dataset           600 to 900     900 to 1,200
            is at these tokens of the sequence              250 to 300     0 to 40
            begins with this token of the document          0              50       (piece.first)
            so it has these tokens of the dataset           850 to 900     900 to 940

        Args:
            source: Index of the dataset among those that the webdataset is made from.
            document: Number of the document in that dataset.

        Returns:
            One range of tokens for each piece of the document; none for a document without tokens.
        """
        pieces = self.datasets[source].pieces_of(document)
        sequences = np.array([piece.sequence for piece in pieces], np.int64)
        sequence_starts = self._sequence_starts(source, sequences).tolist()

        # Convert positions in a sequence to positions among all tokens of the dataset.
        stored: list[_StoredPiece] = []
        for piece, sequence_start in zip(pieces, sequence_starts, strict=True):
            start = sequence_start + piece.start
            stop = sequence_start + piece.stop
            span = SourceSpan(source, start, stop)
            stored.append(_StoredPiece(span, position_in_document=piece.first))
        return stored

    def _sequence_starts(self, source: int, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens of a dataset are before each of some of its sequences.

        With sequences of 4, 3 and 5 tokens, these are 0, 4 and 7. By these numbers, tokens of a
        sequence are found among all tokens, from which training samples are cut.

        The .bin, the file of the tokens, may have the sequences in this order, or in another one.
        In the first case, the numbers follow from the positions in the file. In the second case, a
        `Stream` was made, which has them.

        Args:
            source: Index of the dataset in `datasets`.
            sequences: Numbers of the sequences, shape (n,).

        Returns:
            Shape (n,).
        """
        stream = self.streams[source]
        if stream is None:  # this is the order of the .bin
            return token_starts(self.datasets[source].sequences, sequences)
        return stream.starts(sequences)

    def _appearances(self, piece: _StoredPiece) -> list[TarAppearance]:
        """Find the training samples that have tokens of a document, and the tars that they are in.

        Samples of 100 tokens are cut from a dataset. At first, each is a *context*, with a number
        in the order of the dataset. Then they are shuffled, which gives each a new number, its
        position (or sample number). They are written to tars in the new order. For example:

            tokens of the document in the dataset    1,200 to 1,250
            context with these tokens                12
            its position after the shuffle           317
            tar with it, if each has 100 samples     3: its sample 17

        Args:
            piece: Consecutive tokens of the document, and their positions among those of its
                dataset.

        Returns:
            The samples, with their tars. A few of them may be written to no tar, so that all tars
            are equal.
        """
        # The contexts with tokens of the piece, and their positions after the shuffle, which can be
        # computed from the seed.
        table = self.plan.table
        span = piece.span
        contexts = table.containing(span.source, span.start, span.stop)  # (n_contexts,) 12
        positions = ranks_of(contexts, table.contexts, self.plan.settings.seed)  # 317

        appearances: list[TarAppearance] = []
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True):
            # The tokens that the context and the piece have in common
            for overlap in self._overlaps(context, piece):
                appearance = TarAppearance(
                    sample=position,
                    sample_tokens=overlap.context_tokens,
                    document_tokens=overlap.document_tokens,
                    tar=self.tar(position),
                    key=self.key(position),
                )
                appearances.append(appearance)
        return appearances

    def _overlaps(self, context: int, piece: _StoredPiece) -> Iterator[_Overlap]:
        """Yield which tokens a training sample and a piece of a document have in common.

        Both are ranges of the tokens of a source of text, such as a dataset. So compare these
        ranges first, and then count the tokens from the start of the sample, and from the start of
        the document:

                                          piece       sample      in common
            tokens of the source          10 to 20    15 to 25    15 to 20
            tokens of the document        0 to 10                 5 to 10
            tokens of the sample                      0 to 10     0 to 5

        A sample may have tokens of several sources, one range (span) after another. Each is
        compared.

        Args:
            context: Number of the sample before the shuffle. (A sample is called a context here.)
            piece: Consecutive tokens of the document, and where they are among those of the source.
        """
        # Token i of the source is token i + document_shift of the document.
        document_shift = piece.position_in_document - piece.span.start  # 0 - 10 in the example

        # A sample begins with a BOS token (`bos_tokens` is 1), or with the first span (it is 0).
        span_in_context = self.bos_tokens  # position of the span's first token in the sample: 0
        for span in self.spans(context):
            # What the span and the piece have in common, in tokens of the source: 15 to 20.
            start = max(span.start, piece.span.start)
            stop = min(span.stop, piece.span.stop)
            if span.source == piece.span.source and start < stop:
                # Token i of the source is token i + context_shift of the sample.
                context_shift = span_in_context - span.start  # 0 - 15
                yield _Overlap(
                    context_tokens=(start + context_shift, stop + context_shift),
                    document_tokens=(start + document_shift, stop + document_shift),
                )
            span_in_context += span.n_tokens


def _current_webdataset(outputs: OutputRoot, name: str) -> Manifest:
    """Return the record (manifest) of the current version of a webdataset, a set of tars.

    If there is none with this name, the error suggests the most similar name, or says that the user
    may have meant a nanoset: the same command takes both.

    Args:
        outputs: The outputs that contain it.
        name: Name of the webdataset.

    Raises:
        MissingError: There is none with this name.
    """
    current = outputs.live(WEBDATASETS, name)
    if current is not None:
        return current

    folder = outputs.folder / WEBDATASETS
    names = sorted(outputs.access.names(folder))
    # The user may have meant a nanoset: the same command explains its samples.
    remedy = (
        f"{_BUILD}, or correct the name; "
        "if it is a nanoset, name a split as well: train, valid or test"
    )
    raise MissingError(
        "no such webdataset",
        where=outputs.access.url(folder / name),
        expected=one_of(names, "one that was built; there is none yet"),
        remedy=remedy_for_name(name, names, remedy),
    )


def _datasets_of_plan(
    context: InspectionContext, manifest: Manifest, plan: ShufflePlan
) -> Iterator[Dataset]:
    """Yield the datasets that a plan was made from, in the versions that it was made from.

    A dataset may have been rebuilt since. Each version has a digest, and the record of the plan
    lists the digests of its datasets: {"web": "1a2b…", "books": "3c4d…"}.

    Args:
        context: Opens the datasets.
        manifest: The record of the plan.
        plan: The plan, which names the datasets in its order.

    Yields:
        The datasets, in the order of the plan.

    Raises:
        MissingError: One of them was deleted.
    """
    digest_by_source = manifest.recipe["parents"]
    for source in plan.table.sources:
        digest = digest_by_source[source.name]
        yield context.datasets.version(source.name, digest, _WAS_DELETED, remedy=_BUILD)


def _parse_key(key: str) -> tuple[int, int] | None:
    """Return the number of a tar and the number in it that the key of a context contains.

    Args:
        key: The key, or the member of the tar with an ending: (3, 17) for `00000003_00000017.npy`.

    Returns:
        Both numbers; None if this is no key.
    """
    numbers = _KEY.fullmatch(key)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def _parse_tar(place: str, number: int) -> tuple[int, int] | None:
    """Return the number of a tar that is named by its file, together with the number in it.

    Args:
        place: Name or path of the tar, such as `shard-00000003.tar`, or its number.
        number: Number of a context within the tar.

    Returns:
        (3, number) in the example; None if this does not name a tar.
    """
    tar = _TAR.fullmatch(place)
    return None if tar is None else (int(tar[1]), number)


def _as_named(place: str, sample: int | None) -> str:
    """Return how a user named a context, for messages.

    Args:
        place: The first part of the name, such as a tar.
        sample: The second part, a number within the tar, if any.
    """
    return place if sample is None else f"{place} {sample}"


def _n_document_tokens(appearances: Iterable[TarAppearance]) -> int:
    """Return how many tokens of a document are in contexts; those in several count once.

    Args:
        appearances: The tokens of the document in each context, by their positions in the document.
    """
    return covered_tokens([appearance.document_tokens for appearance in appearances])


def explain_context(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    place: str | int,
    sample: int | None = None,
) -> ContextOrigin:
    """Return the documents that the tokens of one training sample in a tar come from.

    A webdataset is a set of tars. Each tar has a number of samples, which are called contexts. A
    user may name a context in several ways. If each tar has 100 contexts, these are the same:

        place                         sample
        "00000003_00000017.npy"       None      its name in the tar
        "shard-00000003.tar"          17        the tar, and the number in it
        317                           None      its number over all tars

    Args:
        project_or_root: A project; or its output root alone, to read no raw text and decode no
            tokens.
        name: Name of a webdataset. Its current version is read.
        place: Without `sample`, the key or member of the context, or its number over all tars, from
            0. With `sample`, the tar or its number.
        sample: Number of the context within the tar, from 0.

    Returns:
        The documents, each with its file and line and the tokens of the context that are from it.

    Raises:
        MissingError: There is no such webdataset; or its plan, or a dataset of it, was deleted.
        ConfigError: `place` and `sample` do not name a context.
        SampleIndexError: There is no such context.
    """
    inspection = InspectionContext.of(project_or_root)
    tars = Tars.of(inspection, name)
    position = tars.position(str(place), sample)
    pieces = _pieces_of_context(inspection, tars, tars.context_at(position))
    return _context_origin(tars, position, pieces)


def _context_origin(tars: Tars, position: int, pieces: Sequence[PieceOrigin]) -> ContextOrigin:
    """Return the description of a context: where it is in the tars, and the documents in it.

    Args:
        tars: The opened webdataset.
        position: Number of the context over all tars.
        pieces: The documents that its tokens come from, in order.
    """
    context = tars.context_at(position)
    tokens = n_tokens(pieces)
    return ContextOrigin(
        name=tars.name,
        tar=tars.tar(position),
        key=tars.key(position),
        position=position,
        context=context,
        corpus=tars.first_source_of(context),
        bos_tokens=tars.bos_tokens,
        tokens=tokens,
        pad_tokens=tars.plan.settings.row_tokens - tokens,
        pieces=tuple(pieces),
    )


def _pieces_of_context(
    inspection: InspectionContext, tars: Tars, context: int
) -> list[PieceOrigin]:
    """Return the documents that the tokens of one training sample, a context, come from.

    Three levels lead from a context to documents. It consists of ranges of tokens (spans) of one or
    several datasets. A dataset consists of sequences, and a span may go over several of them. A
    sequence has one document, or several:

        context      BOS    tokens 950 to 1,000 of web    tokens 0 to 50 of books
        position     0      1 to 51                       51 to 101
        sequences           7         8                   0
        documents           A         B                   C, D

    The result is A, B, C and D, each with its position in the context.

    Args:
        inspection: The opened outputs, and the settings of the project if they are known.
        tars: The opened webdataset.
        context: Number of the context before the shuffle.

    Returns:
        The pieces of documents, in the order of the context.
    """
    pieces: list[PieceOrigin] = []
    # Position of the span's first token in the context: 1 after a BOS token, otherwise 0.
    position = tars.bos_tokens
    for span in tars.spans(context):
        dataset = tars.datasets[span.source]
        stream = tars.streams[span.source]

        # Divide the span into the parts that are in different sequences, here 7 and 8. Then find
        # the documents of each part.
        parts = _sequence_parts(dataset.sequences, stream, span.start, span.stop)
        offsets = position + offsets_in_sample(parts)  # where each part is in the context
        for documents in piece_origins(inspection, dataset, parts, offsets):
            pieces += documents
        position += span.n_tokens
    return pieces


def _sequence_parts(
    dataset: MMapIndexedDataset, stream: Stream | None, start: int, stop: int
) -> NDArray[np.int64]:
    """Divide a range of a dataset's tokens into the parts that are in different sequences.

    For example, sequences 0, 1 and 2 have 4, 3 and 5 tokens. The tokens from 2 on, before 9, are in
    all of them:

        sequence                         0         1         2
        its tokens of the dataset        0 to 4    4 to 7    7 to 12
        in the range                     2 to 4    4 to 7    7 to 9
        counted from its own start       2 to 4    0 to 3    0 to 2

    Args:
        dataset: The dataset.
        stream: Its tokens in the order of its sequences; None if its `.bin` has that order.
        start: Position of the first token.
        stop: Position after the last token.

    Returns:
        Sequence, first token in it and stop, int64, shape (n_parts, 3): [[0, 2, 4], [1, 0, 3],
        [2, 0, 2]]. No part is empty.
    """
    # Where each sequence begins among all tokens, shape (n_sequences,): 0, 4, 7 in the example. The
    # index of a .bin has these positions in bytes: 0, 8, 14 for tokens of 2 bytes. They are not
    # converted, since there may be millions. Instead, `start` and `stop` are converted: 4 and 18.
    if stream is None:
        unit = dataset.dtype.itemsize
        positions = dataset.sequence_pointers
    else:
        unit = 1
        positions = stream.starts(np.arange(len(dataset)))

    # The sequences that begin before `stop`, from the one on that contains `start`.
    first = bisect_right(positions, start * unit) - 1
    after_last = bisect_left(positions, stop * unit)
    numbers = np.arange(first, after_last)  # [0, 1, 2]
    sequence_starts = positions[first:after_last] // unit  # [0, 4, 7], in tokens

    # Cut each sequence to the range, and count its tokens from its own start.
    first_tokens = np.maximum(start - sequence_starts, 0)  # [2, 0, 0]
    # The sequence ends where it does, or where the range does: [4, 3, 2]
    stop_tokens = np.minimum(stop - sequence_starts, dataset.sequence_lengths[numbers])
    parts = np.stack([numbers, first_tokens, stop_tokens], axis=1)  # (n_sequences, 3)

    # Sequences without tokens may be among them: leave these out.
    filled_parts: NDArray[np.int64] = parts[stop_tokens > first_tokens].astype(np.int64)
    return filled_parts
