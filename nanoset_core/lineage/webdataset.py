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
from nanoset_core.stages.webdataset.names import FOLDER as WEBDATASETS
from nanoset_core.stages.webdataset.names import PLANS_FOLDER
from nanoset_core.stages.webdataset.order import ranks, ranks_of
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan
from nanoset_core.stages.webdataset.tars import tar_name

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

    def shared_with(self, other: SourceSpan) -> SourceSpan | None:
        """Return the tokens that are also in another span; None if there are none.

        For example, 15 to 25 and 10 to 20 share the tokens 15 to 20, if they are of one source.

        Args:
            other: The other span.
        """
        start = max(self.start, other.start)
        stop = min(self.stop, other.stop)
        if self.source != other.source or start >= stop:
            return None
        return SourceSpan(self.source, start, stop)


class _DocumentPart(NamedTuple):
    """Consecutive tokens of a document, and where they are among the tokens of a source."""

    span: SourceSpan
    """Where they are."""
    position_in_document: int
    """Position of the first of them in the document."""


class _Overlap(NamedTuple):
    """Tokens that a context and a document have in common, as ranges [start, stop) of both."""

    context_tokens: tuple[int, int]
    document_tokens: tuple[int, int]


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
        """Open a webdataset, a set of tars, to find where its training samples come from.

        The tars are not read. They were written by a plan, which says which tokens of which
        datasets form a sample, and in which order the samples are.

        Args:
            context: The opened outputs, and the settings of the project if they are known.
            name: Name of the webdataset.

        Raises:
            MissingError: There is none with this name; or its plan, or one of its datasets, was
                deleted.
        """
        # The plan may have been made again since. Open the version that these tars were made from.
        webdataset = _current_webdataset(context.outputs, name)
        plan_digest = webdataset.recipe["parents"]["plan"]
        plan_manifest = context.outputs.version(
            PLANS_FOLDER, name, digest=plan_digest, what_if_missing=_WAS_DELETED, remedy=_BUILD
        )
        stored_plan = plan_manifest.load(PLAN_FILE, StoredShufflePlan)
        plan = stored_plan.plan()

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

        For example, if each tar has 100 samples, these are sample 317:

            place                     sample
            `shard-00000003.tar`      17        sample 17 of tar 3
            `00000003_00000017.npy`   None      the name of its file in the tar
            `317`                     None

        Args:
            place: The first part of the name that the user gave.
            sample: The second part, if any.

        Raises:
            ConfigError: This names no sample.
            SampleIndexError: There is no such sample.
        """
        plan = self.plan  # it calls a tar a shard, and a sample a context
        tar, number_in_tar = self._tar_and_number(place, sample)
        if tar < plan.shards:
            # The samples of the tar; the last one may have fewer.
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
        """Return which tar a user means, and which training sample in it, such as (3, 17).

        Args:
            place: The first part of the name that the user gave.
            sample: The second part, if any.

        Raises:
            ConfigError: This names no sample.
        """
        if sample is not None:
            tar_and_number = _parse_tar(place, sample)  # shard-00000003.tar 17
        elif place.isascii() and place.isdigit():
            # A number over all tars: 317, if each tar has 100 samples.
            tar_and_number = divmod(int(place), self.plan.shard_size)
        else:
            tar_and_number = _parse_key(place)  # 00000003_00000017.npy
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
        return tar_name(position // self.plan.shard_size)

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
        one range of one source. At the end of a source, it may continue in the next one, if the
        setting `tail: carry` allows that. For example, web has 950 tokens, and sample 9 begins at
        its token 900:

            source    start    stop    tokens that remain to be taken
            web       900      950     50
            books     0        50      0

        Args:
            context: Number of the sample before the shuffle.
        """
        start_of_context = self._start_of_context(context)
        source = start_of_context.source
        start = start_of_context.start
        remaining = start_of_context.n_tokens
        while remaining > 0:
            stop = min(start + remaining, self.plan.table.sources[source].tokens)
            if stop > start:  # a source may have no tokens
                yield SourceSpan(source, start, stop)
            remaining -= stop - start
            source += 1
            start = 0

    def _start_of_context(self, context: int) -> SourceSpan:
        """Return in which source a context begins, at which of its tokens, and how long it is.

        Args:
            context: Number of the context before the shuffle.

        Returns:
            The tokens of the context as if the source had no end: for a source of 950 tokens,
            perhaps 900 to 1,000.
        """
        # `locate` takes and returns arrays for many contexts; these have one.
        sources, starts, lengths = self.plan.table.locate(np.array([context], dtype=np.int64))
        start = int(starts[0])
        return SourceSpan(int(sources[0]), start, start + int(lengths[0]))

    def places(self, source: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Find the training samples in the tars that contain a document.

        Tokens of a document can get lost on the way from its dataset to the tars. For example, of a
        document of 100 tokens:

            in the dataset           90    packing left out 10
            in training samples      83    7 lie at the end of the dataset, and fill no sample
            in samples in the tars   83

        Args:
            source: Number of the document's dataset in `datasets`.
            origin: The document: its number, file and line.

        Returns:
            The samples. If some tokens of the document are in none, `reason` says why, such as "17
            of its 100 tokens are never seen, because they lie in a tail that does not fill a
            context".
        """
        # The dataset stores the document in one part, or a long one in several.
        parts = self._document_parts(source, origin.dataset_document)
        dataset_tokens = sum(part.span.n_tokens for part in parts)
        planned = self._appearances_of_parts(parts)
        planned_tokens = _n_document_tokens(planned)

        # If all tars must have the same number of samples, the last ones were not written.
        n_written = self.plan.contexts
        written = sorted(appearance for appearance in planned if appearance.sample < n_written)
        written_tokens = _n_document_tokens(written)

        n_unseen = origin.tokens - written_tokens
        reason = None
        if dataset_tokens == 0:
            reason = "never seen: it has no tokens"
        elif n_unseen > 0:
            why = self._why_unseen(source, dataset_tokens, planned_tokens, written_tokens)
            reason = f"{unseen(n_unseen, origin.tokens)}, because {why}"
        return DocumentPlaces(origin, tuple(written), written_tokens, reason)

    def _appearances_of_parts(self, parts: Iterable[_DocumentPart]) -> list[TarAppearance]:
        """Find the training samples that were planned with tokens of a document.

        Args:
            parts: All parts in which the dataset stores the document.
        """
        appearances: list[TarAppearance] = []
        for part in parts:
            appearances += self._appearances(part)
        return appearances

    def _why_unseen(
        self, source: int, dataset_tokens: int, planned_tokens: int, written_tokens: int
    ) -> str:
        """Return why some tokens of a document are in no tar, for the end of a sentence.

        Tokens can be lost at three steps. If they are at several, the last one is named:

            document → dataset            packing may leave some out
            dataset → training samples    a sample has a fixed length, and not all may be taken
            samples → tars                some samples may be left out, so that all tars are equal

        Args:
            source: Number of the document's dataset.
            dataset_tokens: How many tokens of the document are in the dataset.
            planned_tokens: How many of these are in training samples.
            written_tokens: How many of these are in samples that were written to the tars.
        """
        if written_tokens < planned_tokens:
            return "they are in contexts that are left out so that all tars are equal (even)"
        if planned_tokens < dataset_tokens:
            tail = "they lie in a tail that does not fill a context"
            # How often the dataset is read: with 0.5, only half of the samples are taken.
            frequency = self.plan.table.sources[source].frequency
            if frequency < 1:
                return f"not all contexts of this corpus are taken, or {tail}"
            return tail
        return "packing left them out"

    def _document_parts(self, source: int, document: int) -> list[_DocumentPart]:
        """Return where the tokens of a document are among all tokens of its dataset.

        A dataset consists of sequences, one after another. For example, sequence 3 has the tokens
        900 to 1,200 of the dataset. A document at the tokens 10 to 40 of this sequence is at 910 to
        940.

        Args:
            source: Number of the dataset in `datasets`.
            document: Number of the document in the dataset.

        Returns:
            A range of tokens; several if the document was cut, so that each piece is in another
            sequence; none if it has no tokens.
        """
        pieces = self.datasets[source].pieces_of(document)
        sequences = np.array([piece.sequence for piece in pieces], np.int64)  # (n_pieces,): [3]
        sequence_starts = self._sequence_starts(source, sequences)  # (n_pieces,): [900]

        document_parts: list[_DocumentPart] = []
        for piece, sequence_start in zip(pieces, sequence_starts.tolist(), strict=True):
            span = SourceSpan(source, sequence_start + piece.start, sequence_start + piece.stop)
            document_parts.append(_DocumentPart(span, position_in_document=piece.first))
        return document_parts

    def _sequence_starts(self, source: int, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens of a dataset precede each of some of its sequences.

        Args:
            source: Number of the dataset in `datasets`.
            sequences: Numbers of the sequences, shape (n_sequences,).

        Returns:
            Shape (n_sequences,).
        """
        stream = self.streams[source]
        if stream is None:  # the token file has the sequences in the order of their numbers
            return token_starts(self.datasets[source].sequences, sequences)
        return stream.starts(sequences)

    def _appearances(self, part: _DocumentPart) -> list[TarAppearance]:
        """Find the training samples, and the tars, that contain tokens of a document.

        Samples are cut from a dataset in order, then shuffled, and written to tars in the new
        order. So each has two numbers. The first one is called its *context*. For example, with
        samples of 100 tokens and 100 samples in each tar:

            tokens in the dataset    context    after the shuffle    in the tars
            1,200 to 1,250           12         sample 317           sample 17 of tar 3

        Args:
            part: Consecutive tokens of the document, with their positions in the dataset.

        Returns:
            The samples in the plan of the tars. The last ones may not have been written, so that
            all tars have the same number.
        """
        table = self.plan.table  # says which tokens of which dataset each context has
        span = part.span
        contexts = table.containing(span.source, span.start, span.stop)  # (n_contexts,): [12]
        # Where the shuffle, which is random by a seed, has put them: (n_contexts,): [317]
        positions = ranks_of(contexts, table.contexts, self.plan.settings.seed)

        appearances: list[TarAppearance] = []
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True):
            for overlap in self._overlaps(context, part):
                appearance = TarAppearance(
                    sample=position,
                    sample_tokens=overlap.context_tokens,
                    document_tokens=overlap.document_tokens,
                    tar=self.tar(position),
                    key=self.key(position),
                )
                appearances.append(appearance)
        return appearances

    def _overlaps(self, context: int, part: _DocumentPart) -> Iterator[_Overlap]:
        """Yield the tokens that a training sample and a part of a document have in common.

        For example, a sample has the tokens 15 to 25 of a dataset, and a document has 10 to 20.
        They share the tokens 15 to 20, which are 0 to 5 of the sample, and 5 to 10 of the document.

        Args:
            context: Number of the sample before the shuffle. It has a range of tokens (a span) of a
                dataset, or one of each of several datasets.
            part: Consecutive tokens of the document, and where they are in its dataset.
        """
        position = self.bos_tokens  # where the span begins in the sample: after a BOS token, if any
        for span in self.spans(context):
            shared = span.shared_with(part.span)
            if shared is not None:
                context_start = position + (shared.start - span.start)
                document_start = part.position_in_document + (shared.start - part.span.start)
                yield _Overlap(
                    context_tokens=(context_start, context_start + shared.n_tokens),
                    document_tokens=(document_start, document_start + shared.n_tokens),
                )
            position += span.n_tokens


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
    current = outputs.current_even_if_damaged(WEBDATASETS, name)
    if current is not None:
        return current

    names = outputs.names(WEBDATASETS)
    # The user may have meant a nanoset: the same command explains its samples.
    remedy = (
        f"{_BUILD}, or correct the name; "
        "if it is a nanoset, name a split as well: train, valid or test"
    )
    raise MissingError(
        "no such webdataset",
        where=outputs.access.url(outputs.folder / WEBDATASETS / name),
        expected=one_of(names, "one that was built; there is none yet"),
        remedy=remedy_for_name(name, names, remedy),
    )


def _datasets_of_plan(
    context: InspectionContext, manifest: Manifest, plan: ShufflePlan
) -> Iterator[Dataset]:
    """Yield the datasets that a plan was made from, in the versions that it was made from.

    Args:
        context: Opens the datasets.
        manifest: The record of the plan, which has the digests of these versions.
        plan: The plan, which names the datasets in its order.

    Raises:
        MissingError: One of them was deleted.
    """
    digest_by_source = manifest.recipe["parents"]  # {"web": "1a2b…", "books": "3c4d…"}
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

    Args:
        project_or_root: A project; or its output root alone, to read no raw text and decode no
            tokens.
        name: Name of a webdataset, which is a set of tars. Its current version is read.
        place: The sample, by its key in the tar ("00000003_00000017.npy") or its number over all
            tars (317). If `sample` is given, the tar instead ("shard-00000003.tar").
        sample: Number of the sample within the tar, from 0.

    Returns:
        The documents, each with its file and line and the tokens of the sample that are from it.

    Raises:
        MissingError: There is no such webdataset; or its plan, or a dataset of it, was deleted.
        ConfigError: `place` and `sample` do not name a sample.
        SampleIndexError: There is no such sample.
    """
    inspection = InspectionContext.of(project_or_root)
    tars = Tars.of(inspection, name)
    position = tars.position(str(place), sample)  # number over all tars

    # The documents depend on where the sample was before the samples were shuffled.
    context = tars.context_at(position)
    pieces = _pieces_of_context(inspection, tars, context)
    return _context_origin(tars, position, pieces)


def _context_origin(tars: Tars, position: int, pieces: Sequence[PieceOrigin]) -> ContextOrigin:
    """Describe one training sample of a set of tars: where it is, and what is in it.

    For example, with 100 samples in each tar:

        position    317                 its number over all tars
        tar, key    shard-00000003.tar, 00000003_00000017
        context     12                  its number before the samples were shuffled

    Args:
        tars: The tars, a webdataset.
        position: Number of the sample over all tars.
        pieces: The documents that its tokens come from, in order.
    """
    context = tars.context_at(position)
    n_document_tokens = n_tokens(pieces)
    # Padding fills a sample up if its documents are too short. `row_tokens` is the length of a
    # sample, without a BOS token at its start.
    n_pad_tokens = tars.plan.settings.row_tokens - n_document_tokens
    return ContextOrigin(
        name=tars.name,
        tar=tars.tar(position),
        key=tars.key(position),
        position=position,
        context=context,
        corpus=tars.first_source_of(context),  # a sample may continue in another corpus
        bos_tokens=tars.bos_tokens,
        tokens=n_document_tokens,
        pad_tokens=n_pad_tokens,
        pieces=tuple(pieces),
    )


def _pieces_of_context(
    inspection: InspectionContext, tars: Tars, context: int
) -> list[PieceOrigin]:
    """Return the documents that the tokens of one training sample come from, in order.

    A sample has a range of tokens of a dataset (a span), or one of each of several datasets. The
    dataset consists of sequences, usually with one document each. For example, a sample of 101
    tokens:

        BOS token                         position 0 in the sample
        tokens 950 to 1,000 of web
            the end of sequence 7         positions 1 to 20
            the start of sequence 8       positions 21 to 50
        tokens 0 to 50 of books
            the start of sequence 0       positions 51 to 100

    Args:
        inspection: The opened outputs, and the settings of the project if they are known.
        tars: The opened webdataset.
        context: Number of the sample before the shuffle.

    Returns:
        The pieces of documents, each with its position in the sample.
    """
    pieces: list[PieceOrigin] = []
    position = tars.bos_tokens  # where the next span begins in the sample: 1 if there is a BOS
    for span in tars.spans(context):  # such as the tokens 950 to 1,000 of web
        dataset = tars.datasets[span.source]
        stream = tars.streams[span.source]  # the order of its sequences, if it is unusual

        # Divide the span at the ends of sequences. Then find the documents of each part.
        parts = _sequence_parts(dataset.sequences, stream, span.start, span.stop)
        part_positions = position + offsets_in_sample(parts)  # (n_parts,): [1, 21]
        for documents in piece_origins(inspection, dataset, parts, part_positions):
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
    sequences = _sequences_in_range(dataset, stream, start, stop)
    numbers = sequences.numbers  # [0, 1, 2]

    # Cut each sequence to the range, and count its tokens from its own start. The sequence ends
    # where it does, or where the range does.
    first_tokens = np.maximum(start - sequences.starts, 0)  # [2, 0, 0]
    lengths = dataset.sequence_lengths[numbers]
    stop_tokens = np.minimum(stop - sequences.starts, lengths)  # [4, 3, 2]
    parts = np.stack([numbers, first_tokens, stop_tokens], axis=1)  # (n_sequences, 3)

    has_tokens = stop_tokens > first_tokens  # sequences without tokens may be among them
    filled_parts: NDArray[np.int64] = parts[has_tokens].astype(np.int64)
    return filled_parts


class _Sequences(NamedTuple):
    """Consecutive sequences of a dataset."""

    numbers: NDArray[np.int64]
    """int64, shape (n_sequences,): their numbers."""
    starts: NDArray[np.int64]
    """Shape (n_sequences,): position of each one's first token among the tokens of the dataset."""


def _sequences_in_range(
    dataset: MMapIndexedDataset, stream: Stream | None, start: int, stop: int
) -> _Sequences:
    """Find the sequences of a dataset that have tokens in a range.

    The index of a `.bin` has the starts of all sequences in bytes: 0, 8, 14 for sequences of 4 and
    3 tokens of 2 bytes. There may be millions, so they are searched as they are, and only those
    that are found are converted.

    Args:
        dataset: The dataset.
        stream: Its tokens in the order of its sequences; None if its `.bin` has that order.
        start: Position of the first token.
        stop: Position after the last token.

    Returns:
        The sequences from the one on that contains `start`, which begin before `stop`. Some may
        have no tokens.
    """
    if stream is None:
        unit = dataset.dtype.itemsize
        positions = dataset.sequence_pointers
    else:
        unit = 1
        positions = stream.starts(np.arange(len(dataset)))
    first = bisect_right(positions, start * unit) - 1
    after_last = bisect_left(positions, stop * unit)
    return _Sequences(np.arange(first, after_last), positions[first:after_last] // unit)
