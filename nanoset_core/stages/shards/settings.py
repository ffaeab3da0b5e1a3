"""The sections `tokenizer`, `documents`, `tokenization` and `corpora` of nanoset.yaml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import CorpusName, TextKey
from nanoset_core.records.rules import Section
from nanoset_core.records.settings import Range
from nanoset_core.stages.shards.framing import SpecialTokens, WriterPreset
from nanoset_core.stages.shards.repeats import LEAST_SHARE, MAX_DUPLICATE_FRACTION
from nanoset_core.text.files.choice import FileChoice
from nanoset_core.text.files.endings import CsvValues
from nanoset_core.text.rejects import (
    MAX_REJECTED_FRACTION,
    MAX_UNREADABLE_FRACTION,
    OnReject,
    RejectedFraction,
    UnreadableFraction,
)
from nanoset_core.tokenizers.audit import DEFAULT_SHARE
from nanoset_core.tokenizers.engines import EngineName

TAKEN_COLUMNS = ("file", "line", "byte_offset", "id", "tokens")
"""Names that columns of documents cannot have: those of documents.parquet."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """The tokenizer that turns text into tokens, and the names of its special tokens."""

    path: str = field(metadata={"example": "tokenizer.json"})
    """A tokenizer.json, SentencePiece .model, tekken.json, .tiktoken, vocab.json or Megatron-LM's
    tiktoken JSON, or the folder that contains one; relative paths start at nanoset.yaml's folder;
    or s3://bucket/path."""
    eod: str | None = None
    """Text of the end-of-document token; needed by append_eod."""
    bos: str | None = None
    """Text of the begin-of-document token; needed by prepend_bos."""
    pad: str | None = None
    """Text of the padding token, which `tail: pad` adds. Webdatasets need it; absent = packs are
    filled with the end-of-document token, which the loss then counts as text.
    """
    merges: str | None = None
    """The merges of a vocab.json; absent = the merges.txt next to it."""
    pattern: str | None = None
    """How tiktoken's ranks split text: gpt2, r50k, p50k, cl100k, o200k, o200k_harmony, llama3,
    qwen2, tekken, or a regular expression; Megatron-LM's tiktoken JSON: v1 or v2."""
    special_tokens: tuple[str, ...] | None = None
    """Names of the special tokens, if the file does not contain them; absent = those published
    with the file.
    """
    num_special_tokens: Annotated[int, Range(0, 1 << 24)] | None = None
    """Megatron-LM's tiktoken JSON: ids that are kept for special tokens; absent = 1,000."""
    vocab_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Megatron-LM's tiktoken JSON: ids in all; absent = 131,072."""
    legacy: bool = False
    """SentencePiece: split text at the special tokens first, as Megatron-LM's
    --tokenizer-sentencepiece-legacy.
    """


@dataclass(frozen=True, slots=True)
class DocumentsSpec(Section):
    """Where files contain text and ids, and what happens to invalid lines."""

    text_key: TextKey = "text"
    """Key of the text in each JSON object, or its column in tables; .txt files need none."""
    id_key: str = "id"
    """Key of the document's id. Ids are stored as text; views, `nanoset explain` and `nanoset
    purge` name documents by them.
    """
    on_reject: OnReject = "quarantine"
    """What happens to a line that is not a document: kept in rejects.jsonl (quarantine), or the run
    fails.
    """
    max_rejected_fraction: RejectedFraction = MAX_REJECTED_FRACTION
    """Share of lines that may be rejected; with more, the run fails."""
    max_line_mib: Annotated[float, Range(0.001, 2047)] = 1024.0
    """Longest line, text of a row, or .txt file, in MiB of 2**20 bytes; a longer one is rejected.
    """
    max_unreadable_fraction: UnreadableFraction = MAX_UNREADABLE_FRACTION
    """Share of bytes that may be in files that cannot be read to their end; 0: every file must be
    complete.
    """
    max_duplicate_fraction: Annotated[float, Range(LEAST_SHARE, 1)] = MAX_DUPLICATE_FRACTION
    """Share of a corpus's documents that may repeat others before reports warn."""
    columns: tuple[str, ...] = ()
    """Keys of other values that are stored for each document, so that views can choose by them."""
    csv_values: CsvValues = "text"
    """What the values of `columns` in CSV files are: texts, or what they are in JSON, such as
    numbers.
    """

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each column that documents cannot have."""
        yield from column_errors(f"{where}.columns", self.columns)


@dataclass(frozen=True, slots=True)
class TokenizationSpec:
    """How the tokenizer is applied to documents, and by how many processes."""

    engine: EngineName = "auto"
    """Which program tokenizes; all give the same tokens."""
    audit: Annotated[float, Range(0, 1)] = DEFAULT_SHARE
    """Share of documents that are also tokenized by the tokenizer's reference, the library that it
    was made for, to find a wrong engine; does not change the output."""
    preset: WriterPreset = "megatron"
    """Tool whose output is matched byte for byte; tokshuf: EOD after every document, empty ones
    too.
    """
    append_eod: bool = True
    """End every document with the EOD token (nanotron: those without text too)."""
    prepend_bos: bool = False
    """Begin every document with the BOS token."""
    workers: Annotated[int, Range(1, 4096)] | None = None
    """Worker processes; absent = one for each processor."""
    range_mib: Annotated[float, Range(0.001, 1 << 20)] = 64.0
    """About how much stored text one task reads, in MiB; does not change the merged dataset."""
    special_tokens: SpecialTokens | None = None
    """Whether to add the special tokens of the tokenizer's own template, such as Llama's BOS;
    absent = as the preset's tool does: only nanotron adds them."""


@dataclass(frozen=True, slots=True)
class CorpusSpec(Section):
    """How one corpus differs from the others. Every folder of `raw` is a corpus, listed or not."""

    folder: CorpusName | None = None
    """Folder below `raw` that it is read from; absent = the one of its own name."""
    text_key: TextKey | None = None
    """Key of its text; absent = `documents.text_key`."""
    id_key: str | None = None
    """Key of the ids of its documents; absent = `documents.id_key`."""
    columns: tuple[str, ...] | None = None
    """Keys of other values that are stored for its documents; absent = `documents.columns`."""
    csv_values: CsvValues | None = None
    """What values in its CSV files are; absent = `documents.csv_values`."""
    files: tuple[str, ...] | None = None
    """Patterns of the files that it is made of, such as "train-*.parquet" or "part/**/*.jsonl";
    absent = all that are read. Without a slash a pattern fits names in every folder; with one it
    begins in the corpus's folder."""
    exclude: tuple[str, ...] = ()
    """Patterns of files and folders that are left out."""

    @property
    def choice(self) -> FileChoice:
        """Which files of its folder it is made of."""
        return FileChoice(self.files, self.exclude)

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield the mistakes in the settings of a corpus, which is a folder of texts.

            corpora:
              web: {columns: [language], files: ["*.jsonl"]}      fine
              code: {files: []}                                   an error: no file would be read
              books: {columns: [language, language]}              an error: named twice

        Args:
            where: Place of the settings, such as "nanoset.yaml: corpora.web".
        """
        yield from column_errors(f"{where}.columns", self.columns or ())
        if self.files == ():
            yield ConfigError(
                "no files are named",
                where=f"{where}.files",
                remedy=(
                    'name a pattern, such as ["*.jsonl.gz"], or remove the key to take all files'
                ),
            )
        yield from _pattern_errors(f"{where}.files", self.files or ())
        yield from _pattern_errors(f"{where}.exclude", self.exclude)


def column_errors(where: str, columns: Iterable[str]) -> Iterator[ConfigError]:
    """Yield the mistakes in a list of columns, which are values to keep of each document.

    Lines of raw text may have more than the text, such as `{"text": "…", "language": "en"}`. The
    key `columns` of nanoset.yaml says which of these values are kept:

        columns: [language]               fine
        columns: [language, tokens]       an error: every document has a column of this name
        columns: [language, language]     an error: named twice

    Args:
        where: Place of the list in nanoset.yaml, for the errors.
        columns: Names of the columns.
    """
    counts = Counter(columns)
    for name in counts:
        if not name or name in TAKEN_COLUMNS:
            yield ConfigError(
                "every document has a column of this name already",
                where=f"{where}.{name}",
                found=repr(name),
                expected="a key of the raw text's own",
                remedy="leave it out",
            )
    for name, count in counts.items():
        if count > 1:
            yield ConfigError(
                "a column is named twice", where=f"{where}.{name}", remedy="name it once"
            )


def missing_token_errors(
    file: Path, tokenizer: TokenizerSpec, tokenization: TokenizationSpec
) -> Iterator[ConfigError]:
    """Yield an error for each special token that documents should get, but that has no name.

    The section `tokenization` says which tokens are added to each document, and `tokenizer` which
    tokens these are:

        tokenizer: {eod: "<|endoftext|>", …}
        tokenization: {append_eod: true}                         fine
        tokenization: {append_eod: true, prepend_bos: true}      an error: `tokenizer` has no `bos`

    Args:
        file: nanoset.yaml, for messages.
        tokenizer: The section `tokenizer`.
        tokenization: The section `tokenization`.
    """
    if tokenization.append_eod and tokenizer.eod is None:
        yield _unnamed_token(file, "append_eod", "eod", "end-of-document", "<|endoftext|>")
    if tokenization.prepend_bos and tokenizer.bos is None:
        yield _unnamed_token(file, "prepend_bos", "bos", "begin-of-document", "<s>")


def _unnamed_token(file: Path, option: str, key: str, token: str, example: str) -> ConfigError:
    """Return the error for an option that needs a token which nanoset.yaml does not name."""
    return ConfigError(
        f"{option} needs an {token} token",
        where=f"{file}: tokenizer.{key}",
        remedy=f'name it, for example {key}: "{example}", or set tokenization.{option} to false',
    )


def _pattern_errors(where: str, patterns: tuple[str, ...]) -> Iterator[ConfigError]:
    """Yield an error for each pattern that cannot match any file of a corpus.

    A corpus is a folder of texts. Patterns say which of its files are read:

        train-*.parquet    fine
        /                  an error: it is empty
        ../code/*.jsonl    an error: it leaves the folder

    Args:
        where: Place of the list of patterns in nanoset.yaml, for the errors.
        patterns: The patterns.
    """
    for number, pattern in enumerate(patterns):
        is_empty = pattern.strip("/") == ""
        leaves_folder = ".." in pattern.split("/")
        if is_empty or leaves_folder:
            yield ConfigError(
                "this pattern fits no file",
                where=f"{where}[{number}]",
                found=repr(pattern),
                expected="a pattern of paths below the corpus's folder",
                remedy="write it as a name or path there, such as train-*.parquet",
            )
