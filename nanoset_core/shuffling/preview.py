"""Compute what a call of `nanoset shuffle` would write and need, without writing it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.raw.documents import read_documents
from nanoset_core.raw.endings import is_cuttable
from nanoset_core.raw.fingerprints import fingerprint
from nanoset_core.raw.pieces import Piece, SourceRange
from nanoset_core.shuffling.inputs import ShuffleInput, ShuffleInputs, survey_sources
from nanoset_core.shuffling.options import ShuffleOptions, plan_settings, text_options
from nanoset_core.shuffling.plan import ShufflePlan, plan_lengths
from nanoset_core.shuffling.shards import output_bytes
from nanoset_core.shuffling.sizing import EngineChoice, choose_engine
from nanoset_core.storage.working_copies import any_remote, temporary_folder
from nanoset_core.tokenization.bpe import make_engine
from nanoset_core.tokenization.inputs import InputFiles, files_of
from nanoset_core.tokenization.preprocess import PreprocessOptions
from nanoset_core.tokenization.tokenizer import tokenizer_facts

SAMPLE_FILES = 8
SAMPLE_BYTES = 1 << 20
"""Bytes of text read from each of the files that are sampled."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan and what it takes."""

    plan: ShufflePlan
    """Of sources as they are, or as they are estimated."""
    estimated: bool
    """Whether tokens were estimated from a sample of the text."""
    output_bytes: int
    """Bytes of all tars."""
    output_exact: bool
    """Whether that is no estimate."""
    token_bytes: int
    """Bytes of scratch for tokens of text or tars, at the most."""
    engine: EngineChoice
    """How the shards would be written."""


def preview(inputs: ShuffleInputs, options: ShuffleOptions) -> Preview:
    """Plan a call: exactly for pairs and tars, by a sample for text.

    Raises:
        NanosetError: as `shuffle` does before it writes.
    """
    options.check(inputs.kind)
    streams: dict[str, Sequence[int]] = {}
    length = None
    if inputs.kind == "datasets":
        pairs = [
            MMapIndexedDataset(str(source.files[0]).removesuffix(".bin"), validate=False) for source in inputs.sources
        ]
        counts, dtype = [pair.token_count for pair in pairs], np.result_type(*(pair.dtype for pair in pairs)).name
    elif inputs.kind == "tars":
        with temporary_folder("tars") if any_remote(inputs.files) else nullcontext(Path()) as room:
            surveys = survey_sources(inputs.here(room), options)
        counts, dtype, length = [found.tokens for found in surveys], surveys[-1].dtype, surveys[-1].sequence_length
    else:
        settings = text_options(options)
        streams = {source.name: _estimated(source, settings) for source in inputs.sources}
        counts, dtype = [sum(files) for files in streams.values()], tokenizer_facts(settings.tokenizer).dtype.name
        streams = streams if settings.count_by_file else {}
    lengths = [(source.name, count) for source, count in zip(inputs.sources, counts, strict=True)]
    plan = plan_lengths(lengths, dtype, plan_settings(options, inputs.frequencies, streams, length))
    size, exact = output_bytes(plan)
    # text is tokenized into parts that are then joined, so that it is there twice for a while
    scratch = {"datasets": 0, "tars": 1, "text": 2}[inputs.kind] * sum(counts) * np.dtype(dtype).itemsize
    choice = choose_engine(plan, engine=options.engine, memory_bytes=options.memory_bytes, workers=options.processes)
    return Preview(plan, inputs.kind == "text", size, exact and inputs.kind != "text", scratch, choice)


def _estimated(source: ShuffleInput, settings: PreprocessOptions) -> list[int]:
    """Estimate the tokens of each file: its bytes times the tokens per byte of a few files."""
    files = files_of(source.files)
    order = sorted(range(len(files.files)), key=lambda number: files.files[number].size)
    spread = {order[i * (len(order) - 1) // max(SAMPLE_FILES - 1, 1)] for i in range(SAMPLE_FILES)}
    read = tokens = 0
    for number in sorted(spread):
        one_read, one_tokens = _sample(files, number, settings)
        read, tokens = read + one_read, tokens + one_tokens
    return [round(file.size * tokens / max(read, 1)) for file in files.files]


def _sample(files: InputFiles, number: int, settings: PreprocessOptions) -> tuple[int, int]:
    """Return (stored bytes read, their tokens) of a file's beginning; of all of it if it is compressed or a table."""
    file = files.files[number]
    whole = not is_cuttable(file.path)
    pieces: Sequence[Piece] = fingerprint(files.folder, file) if whole else (Piece(file.path, 0, file.size, 1, ""),)
    batches = read_documents(
        files.folder,
        SourceRange(tuple(pieces)),
        text_key=settings.keys[0],
        id_key="id",
        batch_bytes=SAMPLE_BYTES,
        verify=False,
    )
    engine = make_engine(settings.tokenizer, "tokenizers")
    read = tokens = 0
    extra = (settings.eod is not None) + (settings.bos is not None)
    for batch in batches if whole else islice(batches, 1):
        tokens += len(engine.encode(batch.texts).ids) + extra * len(batch.texts)
        read += batch.read_bytes
    return (file.size if whole else read), tokens
