"""Previews of outputs: first documents, rejected lines and samples, and where they come from.

A preview reads only a few documents or samples, however large the output is. It shows a document,
for example, as its file and line `web/part-0.jsonl:5` and the start of its text. If a preview
fails, the page shows its error instead: a preview must not let a run fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import dagster as dg
import numpy as np
from numpy.typing import NDArray

from nanoset_assets.ui.metadata import bold_code, code, markdown, table
from nanoset_core.errors import NanosetError
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.excerpts import shorten
from nanoset_core.lineage.explain import (
    PieceOrigin,
    SampleOrigin,
    explain_samples,
    piece_origins,
)
from nanoset_core.lineage.run import Run, explain_step
from nanoset_core.lineage.sentences import place_of
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.make import REJECTS
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.text.rejects import Reject

SHOWN = 3
"""How many documents, rejected lines or samples a preview shows."""
_PIECES_SHOWN = 3
"""How many documents are listed for each sample."""
_TOKENS_DECODED = 96
"""How many tokens of a document are decoded and shown."""
MAX_SHUFFLED = 1 << 20
"""How many samples a sampler may shuffle for a preview.

This takes half a second without torch. Ten times as many would take a gigabyte of memory.
"""
STEP_SAMPLES = 8
"""How many samples of a handoff's first step are shown. It is also the size of the step if the
nanoset has no schedule of batch sizes.
"""
_PREVIEW_ERRORS = (NanosetError, OSError, ValueError)
"""Errors that a page shows in place of a preview."""


def first_documents(project: Project, dataset: Manifest) -> dg.MarkdownMetadataValue:
    """Return the first documents of a dataset as text, each with its file and line.

    Args:
        project: Its outputs are read, and its tokenizer decodes the tokens.
        dataset: Manifest of a corpus's dataset, a view or packs.

    Returns:
        Markdown of up to SHOWN documents, such as "**`web/part-0.jsonl:5`**: 300 tokens" and the
        start of the text; or a text that says why they cannot be shown.
    """
    return _preview(lambda: _document_texts(_inspection(project), dataset))


def first_rejects(shards: Sequence[Manifest], numbers: LineNumbers) -> dg.MarkdownMetadataValue:
    """Return the first lines of a corpus that were rejected, each with its file, line and reason.

    Args:
        shards: The shards of a corpus, in document order.
        numbers: How lines of this corpus are numbered.

    Returns:
        Markdown of up to SHOWN lines; or a text that says why they cannot be shown.
    """
    return _preview(lambda: _reject_texts(shards, numbers))


def first_samples(project: Project, name: str, split: str) -> dg.MarkdownMetadataValue:
    """Return the first samples of a split, each with its documents and its first tokens as text.

    Args:
        project: Its outputs are read, and its tokenizer decodes the tokens.
        name: Name of the nanoset, a data mixture for training.
        split: train, valid or test. Its index files must be built.

    Returns:
        Markdown of up to SHOWN samples; or a text that says why they cannot be shown.
    """
    return _preview(lambda: _sample_texts(project, name, split))


def first_step(
    project: Project, handoff: Manifest
) -> dg.MarkdownMetadataValue | dg.TableMetadataValue:
    """Return a table of the samples that the first training step reads, with documents and text.

    Args:
        project: Its outputs are read, and its tokenizer decodes the tokens.
        handoff: Manifest of the files with which the training is started.

    Returns:
        The table; or a text that says why it cannot be shown.
    """
    try:
        # As an example, let a run read the handoff from its start, on one rank.
        run = Run.example(project.outputs, handoff, default_batch_size=STEP_SAMPLES)
        # Some trainers shuffle the samples themselves, with a seed. For many samples, it would take
        # too long for a page to find out which are the first.
        sampler = run.handoffs[0].dealer  # deals the samples to the steps, as the trainer does
        is_shuffled = sampler.seed is not None
        if is_shuffled and sampler.total > MAX_SHUFFLED:
            return markdown(
                f"The trainer's sampler shuffles all {sampler.total:,} samples. "
                "The job `explain_step` shows what a step reads."
            )
        step = explain_step(project, run, step=1, most=STEP_SAMPLES)
    except _PREVIEW_ERRORS as error:
        return _error_text(error)
    return table(map(sample_row, step.samples), step.batch_size)


def sample_row(sample: SampleOrigin) -> dict[str, object]:
    """Return a row of a table of samples: its documents, and its first tokens as text.

    Args:
        sample: The sample, and the documents that its tokens come from.

    Returns:
        Column → value, such as `{"sample": 0, "corpus": "web", "documents": "web/part-0.jsonl:5
        tokens 0–300", "text": "It was …"}`.
    """
    return {
        "sample": sample.sample,
        "corpus": sample.corpus,
        "documents": _pieces_text(sample),
        "text": _first_text(sample) or "",
    }


def _preview(texts: Callable[[], Iterator[str]]) -> dg.MarkdownMetadataValue:
    """Return the first of some texts as Markdown, or the error that prevents it.

    Args:
        texts: Returns an iterator of the texts. It is called here, so that its errors are caught.
    """
    try:
        return markdown(*islice(texts(), SHOWN))
    except _PREVIEW_ERRORS as error:
        return _error_text(error)


def _error_text(error: Exception) -> dg.MarkdownMetadataValue:
    """Return the text that takes the place of a preview."""
    return markdown(code(f"cannot be shown: {error}"))


def _inspection(project: Project) -> InspectionContext:
    """Return a context that reads outputs, but not raw text.

    To find a line in a compressed raw file, everything before it would have to be read.
    """
    return InspectionContext.of_root(project.outputs, tokenizer_file=project.config.tokenizer_file)


def _document_texts(context: InspectionContext, manifest: Manifest) -> Iterator[str]:
    """Yield the first documents of a dataset as Markdown: place, id, length and text.

    They are the documents at the start of its first sequences of tokens.

    Args:
        context: Opens the dataset, and decodes its tokens.
        manifest: Manifest of the dataset, the record of its files and counts.
    """
    dataset = context.datasets.open(manifest)
    spans = _first_spans(dataset)  # the tokens at the start of each of the first sequences
    for documents_of_span in piece_origins(context, dataset, spans):
        # A sequence is one document, or is packed from pieces of several.
        for document in documents_of_span:
            yield _document_text(document)


def _first_spans(dataset: Dataset) -> NDArray[np.int64]:
    """Return which tokens to read, to show how the first sequences of a dataset begin.

    Args:
        dataset: The dataset, which has sequences of tokens, such as documents or packs.

    Returns:
        Columns sequence, first token in it and stop, shape (n_sequences, 3). For example,
        `[[0, 0, 97], [1, 0, 12]]`: 97 tokens of sequence 0, and all 12 of sequence 1.
    """
    n_sequences = min(SHOWN, len(dataset.sequences))
    sequences = np.arange(n_sequences)
    starts = np.zeros_like(sequences)
    lengths = dataset.sequences.sequence_lengths[sequences]  # in tokens
    # Read one token more than is shown: if there is one, the text gets an "…" at its end.
    stops = np.minimum(lengths, _TOKENS_DECODED + 1)
    return np.stack([sequences, starts, stops], axis=1)


def _document_text(piece: PieceOrigin) -> str:
    """Return a document as Markdown: its file and line, id, number of tokens, and text.

    Args:
        piece: The tokens at the start of the document, and where they come from.
    """
    origin = piece.origin
    text = bold_code(place_of(origin))
    if origin.id is not None:
        text += f", id {code(origin.id)}"
    return f"{text}: {format_count(origin.tokens, 'token')}{_quoted(piece.text)}"


def _reject_texts(shards: Sequence[Manifest], numbers: LineNumbers) -> Iterator[str]:
    """Yield rejected lines as Markdown, in document order.

    Args:
        shards: The shards of a corpus. Each stores a list of its rejected lines.
        numbers: How lines of this corpus are numbered.
    """
    for shard in shards:
        if not shard.facts["reasons"]:
            continue
        for reject in read_rejects(shard.path(REJECTS), numbers):
            yield _reject_text(shard.name, reject)


def _reject_text(corpus: str, reject: Reject) -> str:
    """Return a rejected line as Markdown: where it is, why it was rejected, and its text.

    Args:
        corpus: Name of the corpus.
        reject: The line, with the reason and an excerpt of its text.
    """
    place = bold_code(f"{corpus}/{reject.file}:{reject.line}")
    detail = code(shorten(reject.detail, False))
    excerpt = code(shorten(reject.excerpt, False) or "(nothing)")
    return f"{place}: {reject.reason}, {detail}\n\n> {excerpt}"


def _sample_texts(project: Project, name: str, split: str) -> Iterator[str]:
    """Yield the first samples of a split as Markdown, each with its documents and first tokens.

    Args:
        name: The name of a nanoset, a data mixture for training.
        split: train, valid or test.
    """
    nanoset = load_nanoset(project.outputs, name, split)
    # A training run that continues an earlier one skips the samples that the earlier one has read.
    # The other splits are read from their start again.
    start = nanoset.config.consumed_samples if split == "train" else 0
    stop = min(start + SHOWN, len(nanoset))
    numbers = range(start, stop)
    for sample in explain_samples(_inspection(project), nanoset, name, split, numbers):
        corpus = code(sample.corpus)  # as code in Markdown
        documents = _pieces_text(sample, format_place=code)
        quotation = _quoted(_first_text(sample))
        yield f"**sample {sample.sample}** of {corpus}: {documents}{quotation}"


def _pieces_text(sample: SampleOrigin, format_place: Callable[[str], str] = str) -> str:
    """Return the first documents of a sample, and which of their tokens the sample contains.

    Args:
        sample: The sample. A piece of it is the tokens of one document.
        format_place: Formats the file and line of a document, such as `code`.

    Returns:
        Such as "web/part-0.jsonl:5 tokens 0–300, web/part-0.jsonl:9 tokens 12–80".
    """
    texts: list[str] = []
    for piece in sample.pieces[:_PIECES_SHOWN]:
        start, stop = piece.document_tokens
        place = format_place(place_of(piece.origin))
        texts.append(f"{place} tokens {start:,}–{stop:,}")
    n_more = len(sample.pieces) - len(texts)
    if n_more:
        texts.append(format_count(n_more, "more document"))
    return ", ".join(texts)


def _first_text(sample: SampleOrigin) -> str | None:
    """Return the decoded start of a sample, or None if it cannot be decoded."""
    return sample.pieces[0].text if sample.pieces else None


def _quoted(text: str | None) -> str:
    """Return a text as a Markdown quotation, or "" if there is no tokenizer to decode it."""
    if text is None:
        return ""
    shown = text if text.strip() else "(empty)"
    return f"\n\n> {code(shown)}"
