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
from nanoset_core.lineage.excerpts import MAX_CHARACTERS
from nanoset_core.lineage.explain import (
    PieceOrigin,
    SampleOrigin,
    explain_samples,
    piece_origins,
)
from nanoset_core.lineage.run import Run, explain_step
from nanoset_core.lineage.sentences import place_of
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import current_split, open_version
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.dataset.tokens import bin_name, fetch_tokens
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.one_shard import REJECTS
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.storage.store import RANGE_BYTES
from nanoset_core.text.rejects import Reject
from nanoset_core.untrusted import shortened
from nanoset_core.wording import format_count

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


def first_documents(
    project: Project, dataset: Manifest, *, fetches_small: bool = False
) -> dg.MarkdownMetadataValue:
    """Return the first documents of a dataset as text, so that users can see whether it is right.

    A dataset is stored as numbers, the ids of its tokens. Here, the first 96 tokens of up to three
    documents are decoded. Each document is shown with the file and line that it comes from:

        **`web/part-0.jsonl:5`**: 300 tokens

        > `It was a dark and stormy night …`

    Args:
        project: Has the tokenizer that decodes the tokens.
        dataset: The record of a dataset that is complete.
        fetches_small: Whether to download all tokens of a dataset in a bucket if a request or two
            are enough. The check of a small dataset reads them all, so this saves the requests for
            the first ones.

    Returns:
        Markdown with the documents; or with the reason why they cannot be shown.
    """
    try:
        if fetches_small and dataset.files[bin_name(dataset)].size <= RANGE_BYTES:
            fetch_tokens(dataset)
        texts = _document_texts(_inspection(project), dataset)
        return markdown(*islice(texts, SHOWN))
    except _PREVIEW_ERRORS as error:
        return _error_text(error)


def first_rejects(shards: Sequence[Manifest], numbers: LineNumbers) -> dg.MarkdownMetadataValue:
    """Return the first lines of raw text that could not be read, each with the reason.

    A line that is no valid JSON, for example, is rejected when the text is tokenized. Up to three
    lines are shown, so that users see what is wrong with their files:

        **`web/part-0.jsonl:7`**: invalid_json, `unexpected end of data`

        > `{"text": "It was`

    Args:
        shards: The records of the tokenized parts of a corpus, in the order of its documents. Each
            part has a list of the lines that were rejected.
        numbers: How lines of this corpus are counted.

    Returns:
        Markdown with the lines; or with the reason why they cannot be shown.
    """
    try:
        return markdown(*islice(_reject_texts(shards, numbers), SHOWN))
    except _PREVIEW_ERRORS as error:
        return _error_text(error)


def first_samples(project: Project, name: str, split: str) -> dg.MarkdownMetadataValue:
    """Return the first samples that a trainer reads, so that users can see whether they are right.

    A sample may have tokens of several documents. Up to three samples are shown, each with the
    files and lines that its documents come from, and the first of its tokens as text:

        **sample 0** of `web`: `web/part-0.jsonl:5` tokens 0–300, `web/part-0.jsonl:9` tokens 12–80

        > `It was a dark and stormy night …`

    Args:
        project: Gives access to the samples, and has the tokenizer that decodes the tokens.
        name: Name of the mixture of training data (a nanoset), such as "pretrain".
        split: train, valid or test. Its index files must exist.

    Returns:
        Markdown with the samples; or with the reason why they cannot be shown.
    """
    try:
        return markdown(*_sample_texts(project, name, split))
    except _PREVIEW_ERRORS as error:
        return _error_text(error)


def first_step(
    project: Project, handoff: Manifest
) -> dg.MarkdownMetadataValue | dg.TableMetadataValue:
    """Return a table of what a trainer reads in its first step, so that users can check it.

    It has a row for each of the first eight samples:

        sample    corpus    documents                            text
        17        web       web/part-0.jsonl:5 tokens 0–300      It was a dark …
        4         books     books/part-2.jsonl:1 tokens 0–300    Chapter one …

    Args:
        project: Gives access to the samples, and has the tokenizer that decodes the tokens.
        handoff: The manifest of a *handoff*: the folder with the settings and the list of data with
            which a trainer is started.

    Returns:
        The table; or a text that says why it cannot be shown.
    """
    try:
        # Imagine a training run on a single GPU, which reads the data of this handoff only.
        run = Run.example(project.outputs, handoff, default_batch_size=STEP_SAMPLES)
        n_to_shuffle = _count_of_shuffled(run)
        if n_to_shuffle > MAX_SHUFFLED:  # this would take too long
            return markdown(
                f"The trainer's sampler shuffles all {n_to_shuffle:,} samples. "
                "The job `explain_step` shows what a step reads."
            )
        step = explain_step(project, run, step=1, most=STEP_SAMPLES)
    except _PREVIEW_ERRORS as error:
        return _error_text(error)
    return table(map(sample_row, step.samples), step.batch_size)


def _count_of_shuffled(run: Run) -> int:
    """Return how many samples have to be shuffled to find out which ones a trainer reads first.

    Some trainers read the samples in the order in which they are stored, or in one that can be
    computed for a single step: then it is 0. Others shuffle all samples by a seed. The same has to
    be done here.

    Args:
        run: The training run, with a single handoff.
    """
    dealer = run.handoffs[0].dealer  # knows the order in which the trainer reads the samples
    if dealer.seed is None:
        return 0
    return dealer.total


def sample_row(sample: SampleOrigin) -> dict[str, object]:
    """Return the row of a training sample in a table: where its text comes from, and how it starts.

    For example:

        {
            "sample": 17,
            "corpus": "web",
            "documents": "web/part-0.jsonl:5 tokens 0–300",
            "text": "It was a dark and stormy night",
        }

    Args:
        sample: The sample. It knows the documents that its tokens come from.
    """
    return {
        "sample": sample.sample,
        "corpus": sample.corpus,
        "documents": _pieces_text(sample),
        "text": _first_text(sample) or "",
    }


def _error_text(error: Exception) -> dg.MarkdownMetadataValue:
    """Return what a page shows in place of documents or samples that cannot be read.

    Args:
        error: Why they cannot be read. The output itself was made, so the run does not fail.

    Returns:
        Such as "`cannot be shown: the tokenizer is missing`".
    """
    return markdown(code(f"cannot be shown: {error}"))


def _inspection(project: Project) -> InspectionContext:
    """Return an object that finds out where tokens come from, and decodes them.

    It does not read raw text: to find a line in a compressed file, everything before this line
    would have to be decompressed.

    Args:
        project: Gives access to the outputs, and has the tokenizer.
    """
    return InspectionContext.of_root(project.outputs, tokenizer_file=project.config.tokenizer_file)


def _document_texts(context: InspectionContext, manifest: Manifest) -> Iterator[str]:
    """Yield the first documents of a dataset as Markdown, each with its origin and some text.

    Args:
        context: Opens the dataset, decodes its tokens, and finds the file and line of a document.
        manifest: The record of the dataset.
    """
    dataset = context.datasets.open(manifest)
    # A dataset has sequences of tokens. Usually, each is a document; it may also have several.
    starts_of_sequences = _first_spans(dataset)  # the first tokens of each of the first sequences
    for documents_of_sequence in piece_origins(context, dataset, starts_of_sequences):
        for document in documents_of_sequence:
            yield _document_text(document)


def _first_spans(dataset: Dataset) -> NDArray[np.int64]:
    """Return which tokens are read to show how the first sequences of a dataset begin.

    A sequence is a document, for example. At most 96 tokens of it are shown. For sequences of 500,
    12 and 200 tokens:

        sequence    first token    end
        0           0              97
        1           0              12      (all of its tokens)
        2           0              97

    One token more is read than is shown. If there is one, the text is shown with an "…" at its end.

    Returns:
        The three columns of this table, shape (n_sequences, 3).
    """
    n_sequences = min(SHOWN, len(dataset.sequences))
    sequences = np.arange(n_sequences)  # [0, 1, 2]
    starts = np.zeros_like(sequences)  # [0, 0, 0]
    lengths = dataset.sequences.sequence_lengths[sequences]  # [500, 12, 200] tokens
    stops = np.minimum(lengths, _TOKENS_DECODED + 1)  # [97, 12, 97]
    return np.stack([sequences, starts, stops], axis=1)


def _document_text(piece: PieceOrigin) -> str:
    """Return a document as Markdown: where it comes from, how long it is, and how it starts.

    For example:

        **`web/part-0.jsonl:5`**, id `doc-17`: 300 tokens

        > `It was a dark and stormy night …`

    Args:
        piece: The tokens at the start of the document, decoded, and their origin.
    """
    origin = piece.origin
    text = bold_code(place_of(origin))
    if origin.id is not None:
        text += f", id {code(origin.id)}"
    return f"{text}: {format_count(origin.tokens, 'token')}{_quoted(piece.text)}"


def _reject_texts(shards: Sequence[Manifest], numbers: LineNumbers) -> Iterator[str]:
    """Yield the lines of raw text that were rejected, as Markdown, in the order of the files.

    Args:
        shards: The records of the tokenized parts of a corpus. `reasons` counts the rejected lines
            of a part by reason, such as `{"invalid_json": 2}`. A list of these lines is in a file
            next to its tokens.
        numbers: How lines of this corpus are counted.
    """
    for shard in shards:
        if not shard.facts["reasons"]:
            continue  # no line was rejected
        for reject in read_rejects(shard.path(REJECTS), numbers):
            yield _reject_text(shard.name, reject)


def _reject_text(corpus: str, reject: Reject) -> str:
    """Return a rejected line of raw text as Markdown: where it is, what is wrong, and its text.

    For example:

        **`web/part-0.jsonl:7`**: invalid_json, `unexpected end of data`

        > `{"text": "It was`

    Args:
        corpus: Name of the collection of documents, such as "web".
        reject: The line, with the reason and the start of its text.
    """
    place = bold_code(f"{corpus}/{reject.file}:{reject.line}")
    detail = code(shortened(reject.detail, MAX_CHARACTERS))
    excerpt = code(shortened(reject.excerpt, MAX_CHARACTERS) or "(nothing)")
    return f"{place}: {reject.reason}, {detail}\n\n> {excerpt}"


def _sample_texts(project: Project, name: str, split: str) -> Iterator[str]:
    """Yield the first samples that a trainer reads, as Markdown: their origin and some text.

    Args:
        project: Gives access to the samples, and has the tokenizer that decodes the tokens.
        name: Name of the mixture of training data (a nanoset), such as "pretrain".
        split: train, valid or test.
    """
    outputs = project.outputs
    with outputs.access.named():
        # Open the samples without masks, which are not shown.
        nanoset = open_version(outputs, current_split(outputs, f"{name}/{split}"))
    numbers = _first_samples_read(nanoset, split)
    for sample in explain_samples(_inspection(project), nanoset, name, split, numbers):
        yield _sample_text(sample)


def _first_samples_read(nanoset: Nanoset | BlendedNanoset, split: str) -> range:
    """Return the numbers of the first samples that a trainer reads, usually 0, 1 and 2.

    If the training continues an earlier one, that has read the first samples of train already.

    Args:
        nanoset: The samples of the split.
        split: train, valid or test.
    """
    start = nanoset.config.consumed_samples if split == "train" else 0
    stop = min(start + SHOWN, len(nanoset))
    return range(start, stop)


def _sample_text(sample: SampleOrigin) -> str:
    """Return the origin of a sample and the start of its text, as Markdown.

    For example:

        **sample 0** of `web`: `web/a.jsonl:5` tokens 0–300

        > `It was a dark and stormy night`

    Args:
        sample: The sample. The tokens of its first document have been decoded.
    """
    corpus = code(sample.corpus)
    documents = _pieces_text(sample, format_place=code)
    quotation = _quoted(_first_text(sample))
    return f"**sample {sample.sample}** of {corpus}: {documents}{quotation}"


def _pieces_text(sample: SampleOrigin, format_place: Callable[[str], str] = str) -> str:
    """Say which documents a training sample has tokens of, and which of their tokens.

    At most three documents are named:

        web/a.jsonl:5 tokens 0–300, web/a.jsonl:9 tokens 12–80, web/a.jsonl:2 tokens 0–40, 4 more
        documents

    Args:
        sample: The sample, divided into the pieces of its documents.
        format_place: Formats the file and line of a document: `code` for Markdown; by default, they
            remain plain text.
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
    """Return how a training sample starts, as text.

    Args:
        sample: The sample. The tokens of its first document have been decoded.

    Returns:
        The text; None if there is no tokenizer to decode the tokens, or if the sample is empty.
    """
    return sample.pieces[0].text if sample.pieces else None


def _quoted(text: str | None) -> str:
    """Return a text as a Markdown quotation, which a page shows below the origin of the text.

    Args:
        text: The text, or None if there is no tokenizer that could decode it.

    Returns:
        The quotation with an empty line before it; "" if there is no text.
    """
    if text is None:
        return ""
    shown = text if text.strip() else "(empty)"
    return f"\n\n> {code(shown)}"
