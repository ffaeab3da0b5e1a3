"""The lines in which `nanoset explain` prints samples, documents and training steps.

A sample is a row of tokens that a trainer reads. It is made of pieces of documents, so its lines
name each document with its file and line in the raw text, and the range of tokens that the sample
has of it: `tokens 0 to 80 of the sample are tokens 12 to 92 of the document …`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nanoset_core.records.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.excerpts import SourceExcerpt
    from nanoset_core.lineage.explain import PieceOrigin, SampleOrigin
    from nanoset_core.lineage.positions import Appearance, DocumentPlaces
    from nanoset_core.lineage.run import DocumentSteps, Reading, StepOrigin
    from nanoset_core.lineage.webdataset import ContextOrigin, TarAppearance


def sample_lines(sample: SampleOrigin) -> Iterator[str]:
    """Yield lines that describe a sample of a nanoset: its origin, and each document in it.

    Args:
        sample: The sample, with the documents that it was made from.

    Yields:
        A line on the sample, and a paragraph on each document, with an empty line before it.
    """
    tokens = f"{sample.tokens:,} tokens"
    if sample.pad_tokens:
        tokens += f", {sample.pad_tokens:,} of padding"
    documents = format_count(len(sample.pieces), "document")
    yield (
        f"{sample.name} {sample.split} sample {sample.sample:,}, "
        f"which is sample {sample.corpus_sample:,} of {sample.corpus}: "
        f"{tokens} from {documents}"
    )
    yield from _piece_lines(sample.pieces)


def context_lines(context: ContextOrigin) -> Iterator[str]:
    """Yield lines that describe a sample of a webdataset: its origin, and each document in it.

    A webdataset stores samples in tars, after they were shuffled.

    Args:
        context: The sample, with the documents that it was made from.

    Yields:
        A line on the sample, and a paragraph on each document, with an empty line before it.
    """
    tokens = f"{context.tokens:,} tokens"
    if context.bos_tokens:  # tokens that begin a sample
        tokens += f", {context.bos_tokens:,} BOS"
    if context.pad_tokens:
        tokens += f", {context.pad_tokens:,} of padding"
    documents = format_count(len(context.pieces), "document")
    yield (
        f"{context.name} sample {context.key} (number {context.position:,} of all) "
        f"in {context.tar}, context {context.context:,} before the shuffle, "
        f"of {context.corpus}: {tokens} from {documents}"
    )
    yield from _piece_lines(context.pieces)


def _piece_lines(pieces: Sequence[PieceOrigin]) -> Iterator[str]:
    """Yield an empty line and a paragraph for each document of a sample.

    Args:
        pieces: The documents, with the range of tokens that the sample has of each.

    Yields:
        Lines such as "tokens 0 to 80 of the sample are tokens 12 to 92 of the document …".
    """
    for piece in pieces:
        yield ""
        yield f"{_ranges_text(piece)} {document_line(piece.origin)}"
        if piece.text is not None:
            yield f"  tokens: {piece.text!r}"
        if piece.source is not None:
            yield f"  source: {_source_text(piece.source)}"


def _ranges_text(piece: PieceOrigin | Appearance) -> str:
    """Return a clause that says which tokens of a sample are which tokens of a document."""
    sample_start, sample_stop = piece.sample_tokens
    document_start, document_stop = piece.document_tokens
    return (
        f"tokens {sample_start:,} to {sample_stop:,} of the sample "
        f"are tokens {document_start:,} to {document_stop:,} of the document"
    )


def _source_text(source: SourceExcerpt) -> str:
    """Return the raw text of some tokens, and whether it is still what was tokenized.

    Args:
        source: The excerpt. Its text is None if it was changed or not read; its note says why.
    """
    if source.text is None:
        return f"{source.state}: {source.note}"
    if source.state == "unchanged":
        return repr(source.text)
    return f"{source.text!r} ({source.note})"


def document_line(origin: DocumentOrigin) -> str:
    """Return a line that names a document: its place in the raw text, id, number and length.

    Args:
        origin: Where the document comes from.

    Returns:
        A line such as "web/a.jsonl:3 (byte 812), id 'x7': document 2 of corpus web, 64 tokens".
    """
    # The number in the corpus comes first: it is the one by which users join this document with the
    # rows of Parquet tables, such as those of its columns. A view has numbers of its own.
    number = f"document {origin.document:,} of corpus {origin.corpus}"
    if origin.view is not None:
        number += f" (document {origin.view_document:,} of view {origin.view})"
    return f"{_raw_place(origin)}: {number}, {origin.tokens:,} tokens"


def _raw_place(origin: DocumentOrigin) -> str:
    """Return where a document is in the raw text, and its id if it has one."""
    place = f"{origin.corpus}/{origin.file}:{origin.line}"
    if origin.byte_offset >= 0:
        place += f" (byte {origin.byte_offset:,})"
    else:  # a table has rows instead of lines
        place += " (row)"
    if origin.id is not None:
        place += f", id {origin.id!r}"
    return place


def places_lines(
    documents: Sequence[DocumentPlaces], split: str | None, show: int
) -> Iterator[str]:
    """Yield lines that list the samples of each document, with an empty line between documents.

    Args:
        documents: The documents, with the samples that hold them.
        split: The split of a nanoset that was searched; None for a webdataset.
        show: How many samples of each document to list.

    Yields:
        The number of documents, and then lines on each of them; none without documents.
    """
    if documents:
        yield f"{format_count(len(documents), 'document')} found"
    for index, document in enumerate(documents):
        if index > 0:
            yield ""
        yield from _document_places_lines(document, split, show)


def _document_places_lines(document: DocumentPlaces, split: str | None, show: int) -> Iterator[str]:
    """Yield a line for a document, and one for each of its samples; or why it is in none.

    Args:
        document: The document, with the samples that hold it.
        split: The split that was searched; None for a webdataset.
        show: How many samples to list.
    """
    yield document_line(document.origin)
    if document.reason is not None:
        yield f"  {document.reason}"
    for appearance in document.appearances[:show]:
        yield f"  {_appearance_text(appearance, split)}: {_ranges_text(appearance)}"
    n_unlisted = len(document.appearances) - show
    if n_unlisted > 0:
        yield f"  … and {format_count(n_unlisted, 'more sample')} (--show)"


def _appearance_text(appearance: Appearance | TarAppearance, split: str | None) -> str:
    """Return the name of a sample that holds a document, such as "train sample 1,024".

    Args:
        appearance: The sample, of a nanoset or of a webdataset, which stores samples in tars.
        split: The split of a nanoset; None for a webdataset.
    """
    from nanoset_core.lineage.webdataset import TarAppearance

    number = f"{appearance.sample:,}"
    if isinstance(appearance, TarAppearance):
        return f"sample {appearance.key} (number {number} of all) in {appearance.tar}"
    return f"{split} sample {number}"


def step_lines(steps: Sequence[StepOrigin]) -> Iterator[str]:
    """Yield lines on what training steps read: each sample, with its rank and micro-batch.

    Args:
        steps: The steps, each with all of its samples or some of them.

    Yields:
        For each step a sentence, and then a paragraph for each of its samples.
    """
    from nanoset_core.lineage.sentences import step_sentence

    for index, step in enumerate(steps):
        if index > 0:
            yield ""
        yield step_sentence(step)
        for sample in step.samples:
            yield ""
            headline, *document_lines = sample_lines(sample)
            yield f"rank {sample.rank}, micro-batch {sample.micro_batch}: {headline}"
            yield from document_lines

        # Not all samples may have been looked up.
        n_shown = len(step.samples)
        if n_shown < step.batch_size:
            yield ""
            yield (
                f"{n_shown:,} of its {step.batch_size:,} samples are shown (--rank, --show, --json)"
            )


def reading_lines(documents: Sequence[DocumentSteps], show: int) -> Iterator[str]:
    """Yield lines that list the training steps which read each document.

    Args:
        documents: The documents, with the steps that read them.
        show: Largest number of steps to list for each document.

    Yields:
        For each document a line that names it, the number of its steps, and a line for each step.
    """
    for document in documents:
        yield document_line(document.origin)
        summary = f"{format_count(len(document.steps), 'time')} in a step of {document.handoff}"
        if document.reason is not None:
            summary += f"; {document.reason}"
        yield f"  {summary}"
        for reading in document.steps[:show]:
            yield f"  {_reading_text(reading)}"
        n_unlisted = len(document.steps) - show
        if n_unlisted > 0:
            yield f"  … and {n_unlisted:,} more (--show)"


def _reading_text(reading: Reading) -> str:
    """Return the step, sample, rank and micro-batch that read a document."""
    text = (
        f"step {reading.step:,}: sample {reading.sample:,}, "
        f"rank {reading.rank}, micro-batch {reading.micro_batch}"
    )
    if reading.skipped:
        text += ", skipped"
    return text
