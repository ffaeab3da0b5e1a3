"""The lines in which `nanoset explain` prints samples, documents and training steps.

A sample is a row of tokens that a trainer reads. It is made of pieces of documents, so its lines
name each document with its file and line in the raw text, and the range of tokens that the sample
has of it: `tokens 0 to 80 of the sample are tokens 12 to 92 of the document …`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.excerpts import SourceExcerpt
    from nanoset_core.lineage.explain import PieceOrigin, SampleOrigin
    from nanoset_core.lineage.positions import Appearance, DocumentPlaces
    from nanoset_core.lineage.run import DocumentSteps, Reading, StepOrigin
    from nanoset_core.lineage.webdataset import ContextOrigin, TarAppearance


def sample_lines(sample: SampleOrigin) -> Iterator[str]:
    """Describe a training sample in lines: which documents its tokens were taken from.

    For example, sample 1,024 of the mixture `pretrain` is sample 7 of one of its datasets, `web`:

        pretrain train sample 1,024, which is sample 7 of web: 512 tokens from 2 documents

        tokens 0 to 80 of the sample are tokens 12 to 92 of the document web/a.jsonl:3 (byte 812), …

    Args:
        sample: The sample, with the documents that it was made from.

    Yields:
        A line on the sample, and then an empty line and some lines on each document.
    """
    tokens = f"{sample.tokens:,} tokens"
    if sample.pad_tokens:
        tokens += f", {sample.pad_tokens:,} of padding"
    documents = format_count(len(sample.pieces), "document")
    yield (  # one line
        f"{sample.name} {sample.split} sample {sample.sample:,}, "
        f"which is sample {sample.corpus_sample:,} of {sample.corpus}: "
        f"{tokens} from {documents}"
    )
    yield from _piece_lines(sample.pieces)


def context_lines(context: ContextOrigin) -> Iterator[str]:
    """Describe a training sample that is stored in a tar: from which documents its tokens come.

    The samples were made from the documents in their order, shuffled, and then written to tars. So
    each has two numbers, after and before the shuffle. The first line names both:

        shuffled sample 00000003_00000017 (number 6,161 of all) in shard-00000003.tar, context 97
        before the shuffle, of web: 513 tokens from 2 documents

    Here `shuffled` is the name of all the tars, 00000003_00000017 that of the sample in its tar,
    and `web` that of the dataset with the documents.

    Args:
        context: The sample, with the documents that it was made from.

    Yields:
        This line, and then an empty line and some lines on each document.
    """
    tokens = f"{context.tokens:,} tokens"
    if context.bos_tokens:  # tokens that begin a sample
        tokens += f", {context.bos_tokens:,} BOS"
    if context.pad_tokens:
        tokens += f", {context.pad_tokens:,} of padding"
    documents = format_count(len(context.pieces), "document")
    yield (  # one line
        f"{context.name} sample {context.key} (number {context.position:,} of all) "
        f"in {context.tar}, context {context.context:,} before the shuffle, "
        f"of {context.corpus}: {tokens} from {documents}"
    )
    yield from _piece_lines(context.pieces)


def _piece_lines(pieces: Sequence[PieceOrigin]) -> Iterator[str]:
    """Describe the documents of a training sample in lines.

        tokens 0 to 80 of the sample are tokens 12 to 92 of the document web/a.jsonl:3 (byte 812), …
          tokens: ' sat on the mat. …'
          source: 'sat on the mat. …'

    The last two lines are left out if they were not looked up: the text of these tokens according
    to the tokenizer, and the text in the raw file, which may have been changed since.

    Args:
        pieces: The documents, with the range of tokens that the sample has of each.

    Yields:
        An empty line, and then such a paragraph, for each document.
    """
    for piece in pieces:
        yield ""
        yield f"{_ranges_text(piece)} {document_line(piece.origin)}"
        if piece.text is not None:
            yield f"  tokens: {piece.text!r}"
        if piece.source is not None:
            yield f"  source: {_source_text(piece.source)}"


def _ranges_text(piece: PieceOrigin | Appearance) -> str:
    """Say which tokens of a training sample are which tokens of a document.

    For example: "tokens 0 to 80 of the sample are tokens 12 to 92 of the document".

    Args:
        piece: The document's part in the sample. It has both ranges, such as (0, 80) and (12, 92).
    """
    sample_start, sample_stop = piece.sample_tokens
    document_start, document_stop = piece.document_tokens
    return (
        f"tokens {sample_start:,} to {sample_stop:,} of the sample "
        f"are tokens {document_start:,} to {document_stop:,} of the document"
    )


def _source_text(source: SourceExcerpt) -> str:
    """Return the raw text of some tokens, to print it below them.

    The raw file may have been changed or deleted since it was tokenized. Then a note says so.

    Args:
        source: The excerpt of the raw file. Its state is a word such as "unchanged" or "gone".
    """
    if source.text is None:
        # gone: /data/raw/a.jsonl does not exist any more
        return f"{source.state}: {source.note}"
    if source.state == "unchanged":
        # 'sat on the mat.'
        return repr(source.text)
    # 'sat on the mat.' (from the document's beginning)
    return f"{source.text!r} ({source.note})"


def document_line(origin: DocumentOrigin) -> str:
    """Say in a line where a document is: its place in the raw text, its id, number and length.

        web/a.jsonl:3 (byte 812), id 'x7': document 2 of corpus web, 64 tokens

    A corpus is a collection of texts. If the document was reached through a view, which is a
    selection of the corpus's documents, the line also has its number in the view.

    Args:
        origin: Where the document comes from.
    """
    # The number in the corpus comes first: it is the one by which users join this document with the
    # rows of Parquet tables, such as those of its columns. A view has numbers of its own.
    number = f"document {origin.document:,} of corpus {origin.corpus}"
    if origin.view is not None:
        number += f" (document {origin.view_document:,} of view {origin.view})"
    return f"{_raw_place(origin)}: {number}, {origin.tokens:,} tokens"


def _raw_place(origin: DocumentOrigin) -> str:
    """Return where a document is in the raw text, and its id if it has one.

        web/a.jsonl:3 (byte 812), id 'x7'     line 3 of a file of text, which starts at byte 812
        web/a.parquet:3 (row)                 row 3 of a table; the document has no id

    Args:
        origin: Where the document comes from. Its byte is negative for a table.
    """
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
    """List the training samples that contain given documents, in lines.

        2 documents found
        web/a.jsonl:3 (byte 812), id 'x7': document 2 of corpus web, 64 tokens
          train sample 1,024: tokens 0 to 64 of the sample are tokens 0 to 64 of the document

        web/b.jsonl:9 …

    Args:
        documents: The documents, with the samples that contain them.
        split: The split that was searched, such as "train"; None if the samples are stored in tars.
        show: How many samples of each document to list.

    Yields:
        The lines; none without documents.
    """
    if documents:
        yield f"{format_count(len(documents), 'document')} found"
    for index, document in enumerate(documents):
        if index > 0:
            yield ""
        yield from _document_places_lines(document, split, show)


def _document_places_lines(document: DocumentPlaces, split: str | None, show: int) -> Iterator[str]:
    """List the training samples that contain one document, in lines.

        web/a.jsonl:3 (byte 812), id 'x7': document 2 of corpus web, 64 tokens
          train sample 1,024: tokens 0 to 64 of the sample are tokens 0 to 64 of the document
          … and 3 more samples (--show)

    If no sample contains the document, the second line says why.

    Args:
        document: The document, with the samples that contain it.
        split: The split that was searched, such as "train"; None if the samples are stored in tars.
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
    """Return the name of a training sample that contains a document.

        train sample 1,024                                                    of an index file
        sample 00000003_00000017 (number 6,161 of all) in shard-00000003.tar  of a tar

    Args:
        appearance: The sample.
        split: The split to which a sample of an index file belongs; None for one of a tar.
    """
    from nanoset_core.lineage.webdataset import TarAppearance

    number = f"{appearance.sample:,}"
    if isinstance(appearance, TarAppearance):
        return f"sample {appearance.key} (number {number} of all) in {appearance.tar}"
    return f"{split} sample {number}"


def step_lines(steps: Sequence[StepOrigin]) -> Iterator[str]:
    """Describe in lines what steps of a training run have read: each sample, and who has read it.

    In each step, a trainer reads a batch of samples, divided among its processes (ranks) and,
    within each of them, among micro-batches. For example, after a sentence on the step:

        rank 1, micro-batch 0: pretrain train sample 1,024, which is sample 7 of web: 512 tokens …

        tokens 0 to 80 of the sample are tokens 12 to 92 of the document web/a.jsonl:3 (byte 812), …

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
    """List in lines which steps of a training run have read given documents.

        web/a.jsonl:3 (byte 812), id 'x7': document 2 of corpus web, 64 tokens
          in 2 samples that steps of pretrain read
          step 7: sample 1,024, rank 1, micro-batch 0
          step 508: sample 8,113, rank 0, micro-batch 3

    Args:
        documents: The documents, with the steps that have read them.
        show: Largest number of steps to list for each document.
    """
    for document in documents:
        yield document_line(document.origin)
        # A document that is read once may be in several samples, so samples are counted, not times.
        samples = format_count(len(document.steps), "sample")
        summary = f"in {samples} that steps of {document.handoff} read"
        if document.reason is not None:
            summary += f"; {document.reason}"
        yield f"  {summary}"
        for reading in document.steps[:show]:
            yield f"  {_reading_text(reading)}"
        n_unlisted = len(document.steps) - show
        if n_unlisted > 0:
            yield f"  … and {n_unlisted:,} more (--show)"


def _reading_text(reading: Reading) -> str:
    """Say which step of a training run has read a document, and which process of the trainer.

    For example: "step 7: sample 1,024, rank 1, micro-batch 0". If the user told the trainer to skip
    the step, ", skipped" follows.

    Args:
        reading: The step, with the sample that contains the document.
    """
    text = (
        f"step {reading.step:,}: sample {reading.sample:,}, "
        f"rank {reading.rank}, micro-batch {reading.micro_batch}"
    )
    if reading.skipped:
        text += ", skipped"
    return text
