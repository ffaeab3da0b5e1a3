"""Write a `.pbin` from a .bin/.idx pair or from text, without a project: `nanoset pbin write`.

For example, `nanoset pbin write texts/*.jsonl --output web.pbin --tokenizer gpt2` tokenizes the
texts. A receipt next to web.pbin says what it was made from, so that the same call does nothing the
next time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import is_pair, pair_files
from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.outputs.deliver import Delivery
from nanoset_core.outputs.receipts import describe_call, hidden_receipt_name, read_command_receipt
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.dataset.named_pair import check_all_listed
from nanoset_core.stages.pbin.conversion import (
    fitting_vocab_size,
    model_vocab_size,
    write_dataset_as_pbin,
)
from nanoset_core.stages.shards.standalone.inputs import InputFiles, resolve_inputs
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.copies.temporary import downloaded, work_folder
from nanoset_core.storage.location import Location, location, on_this_machine
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_files, tokenizer_path
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

if TYPE_CHECKING:
    from nanoset_core.stages.shards.standalone.options import Preprocessed, PreprocessOptions

_COMMAND = "pack write"
"""Name of the command in receipts. It is the former name, so that existing files are recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinOptions(RejectOptions):
    """Settings of one call. Those from `key` on are for text only."""

    tokenizer: TokenizerPath | None = None
    """File of the tokenizer, or the folder that contains it. It is required for text."""
    vocab_size: int | None = None
    """Size of the vocabulary, which decides the bytes of a token.

    By default, that of the tokenizer. Without a tokenizer, tokens keep their size in the pair.
    """
    eod: str | None = None
    """End-of-document token; by default the eos_token in tokenizer_config.json."""
    append_eod: bool = False
    """Whether that token is added to documents of a pair that lack it. For text, it always is."""
    key: str = "text"
    """Key of the text in each line's JSON object."""
    workers: int | None = None
    """Number of processes; by default one for each processor."""
    engine: EngineName = "auto"
    """Engine of the tokenizer; all engines give the same bytes."""
    scratch: Path | None = None
    """Where to create a folder for unfinished work, which has another copy of the tokens.

    By default, it is next to the output.
    """


@dataclass(frozen=True, slots=True)
class PbinResult:
    """The result of a call."""

    counts: PbinCounts
    """The numbers of documents and tokens in the file."""
    rejected: int = 0
    """Number of rejected lines of text, and of files that could not be read to their end."""
    rejects: Location | None = None
    """The list of rejected lines, if there are any."""
    lost: str = ""
    """Message about files that could not be read to their end, or "" if there are none."""
    notices: tuple[str, ...] = ()
    """Messages about other files in folders of text, which are not read."""
    faults: int = 0
    """How many of `rejected` are files."""


def make_pbin_once(
    inputs: Sequence[str | os.PathLike[str]],
    output: Location,
    options: PbinOptions,
    progress: Progress = SILENT,
    *,
    overwrite: bool = False,
) -> tuple[PbinResult, bool]:
    """Write a `.pbin` of layout D from a .bin/.idx pair or from text, unless it exists already.

    From text, the bytes are those of Modalities' `pack_encoded_data`, unless lines are rejected:
    documents have the special tokens that the tokenizer adds, and end in the end-of-document token.
    Lines that are not documents, and documents without tokens, are left out. Rejected lines are
    listed in `<stem>_rejects.jsonl` next to the output. If a call on text is killed, the next one
    resumes it.

    Args:
        inputs: Prefix of a pair, or files, folders and patterns of text.
        output: The file to write.
        options: The settings.
        progress: Shows how far the work has come.
        overwrite: Whether a file that was made from something else may be replaced.

    Returns:
        (the result, whether this call made it)

    Raises:
        ConfigError: The inputs are not one dataset or text; no tokenizer is named; or the output
            exists, and was made from something else.
        InputError: A token is not in the vocabulary, there are no tokens, or too much text is
            rejected.
    """
    call = _PbinCall.of([os.fspath(name) for name in inputs], output, options, progress)

    # If an earlier call has made the file, keep it, unless it left out rejected lines under other
    # limits: whether these lines are too many is decided while the text is read.
    delivery = call.delivery()
    receipt = delivery.find(overwrite=overwrite)
    if receipt is not None and options.accept(receipt["facts"]):
        return call.result(receipt["facts"]), False
    with delivery.drafting(overwrite=overwrite) as draft:
        facts = call.write(draft.folder)
        draft.facts = facts
    return call.result(facts), True


# What a call reads.


def _find_source(
    inputs: Sequence[str], output: Location, rejects: Location
) -> Location | InputFiles:
    """Find out whether the inputs of a command are a dataset of tokens, or text.

        data/web.bin, or data/web      a dataset, if data/web.bin and data/web.idx exist
        raw/*.jsonl, raw/a.txt         text
        web.pbin                       an error: this is what the command writes

    Args:
        inputs: What the user has named: paths, folders and patterns.
        output: The file to write.
        rejects: The list of rejected lines of text, which the command writes.

    Returns:
        The path of the dataset without an ending, or the files of text.

    Raises:
        ConfigError: The inputs name a `.pbin`, or several datasets.
    """
    for name in inputs:
        if name.endswith(".pbin"):
            raise _pbin_already_error(name)
    dataset = _find_dataset(inputs)
    if dataset is not None:
        return dataset

    # Everything else is text. The list of rejected lines is not, even if it is in the same folder.
    # It is known to be this list if an earlier call has left a receipt next to its output.
    receipt = read_command_receipt(output.with_name(hidden_receipt_name(output.name)))
    if receipt is None:
        return resolve_inputs(inputs)
    rejects_path = rejects.absolute()
    return resolve_inputs(inputs, leave_out=lambda path: path == rejects_path)


def _pbin_already_error(name: str) -> ConfigError:
    """Return the error for an input that is a `.pbin` itself.

    Args:
        name: The input.
    """
    return ConfigError(
        "this is a .pbin already",
        where=name,
        remedy="name the operation: `nanoset pbin merge`, shuffle, filter, repair or describe",
    )


def _find_dataset(inputs: Sequence[str]) -> Location | None:
    """Return the path of the dataset of tokens that a user has named, or None if it is something
    else.

    A dataset has two files, data/web.bin and data/web.idx. The user may name either of them, both,
    or `data/web`. All of these return `data/web`.

    Args:
        inputs: What the user has named.

    Raises:
        ConfigError: The inputs name a dataset and something else.
    """
    prefixes = [location(name.removesuffix(".bin").removesuffix(".idx")) for name in inputs]
    datasets = [prefix for prefix in prefixes if is_pair(prefix)]
    if not datasets:
        return None
    # Both files of one dataset have the same path without their endings.
    if len(set(prefixes)) > 1:
        raise ConfigError(
            "one dataset is converted at a time",
            where=datasets[0],
            found=", ".join(inputs),
            remedy=(
                "join the datasets with `nanoset merge`, "
                "or the .pbin files with `nanoset pbin merge`"
            ),
        )
    return datasets[0]


def _end_id(options: PbinOptions, *, is_text: bool) -> int | None:
    """Return the id of the end-of-document token, or None if no document gets one.

        text                          the id, such as 50,256: text always gets it
        a .bin, with --append-eod     the id
        a .bin, without it            None

    Args:
        options: The settings of the call.
        is_text: Whether the input is text.

    Raises:
        ConfigError: The tokenizer is not named, or does not have the token.
    """
    if not is_text and not options.append_eod:
        return None
    if options.tokenizer is None:
        raise ConfigError(
            "no tokenizer is named",
            where="--tokenizer",
            expected=(
                "its file, or the folder that holds it: for text, and for the end-of-document token"
            ),
            remedy="name it",
        )
    return token_id(options.tokenizer, end_token(options.tokenizer, options.eod), "--eod")


# What a call writes.


@dataclass(frozen=True, slots=True)
class _PbinCall:
    """One call of `nanoset pbin write`."""

    source: Location | InputFiles
    """Prefix of a pair, or the text files."""
    output: Location
    """The file to write."""
    rejects: Location
    """The list of rejected lines, which is written only if text has some."""
    options: PbinOptions
    """The settings of the call."""
    end_id: int | None
    """Id of the token that is added to documents which do not end in it; None: nothing is added."""
    progress: Progress
    """Shows how far the work has come."""

    @staticmethod
    def of(
        inputs: Sequence[str], output: Location, options: PbinOptions, progress: Progress
    ) -> _PbinCall:
        """Find out what a call of `nanoset pbin write` has to do, and check its settings.

        Args:
            inputs: What the user has named: a dataset, such as data/web.bin; or files, folders and
                patterns of text, such as raw/*.jsonl.
            output: The file to write, such as web.pbin.
            options: The settings.
            progress: Shows how far the work has come.

        Raises:
            ConfigError: The inputs are not one dataset or text, or no tokenizer is named.
        """
        rejects = output.with_name(f"{output.stem}_rejects.jsonl")  # for lines that are no text
        source = _find_source(inputs, output, rejects)
        if options.tokenizer is not None:
            options = replace(options, tokenizer=tokenizer_path(options.tokenizer))
        end_id = _end_id(options, is_text=isinstance(source, InputFiles))  # ends each document
        return _PbinCall(source, output, rejects, options, end_id, progress)

    def delivery(self) -> Delivery:
        """Describe the files that this call writes, and what they are made from.

        This is stored next to the file, as a receipt. If the same call is made again, it finds the
        receipt, and has nothing to do.
        """
        source_files = self._source_files()
        made_from = describe_call(
            command=_COMMAND, output=self.output, sources=source_files, options=self._settings()
        )

        # A list of rejected lines is written next to the file if text has any.
        is_text = isinstance(self.source, InputFiles)
        optional_files = [self.rejects.name] if is_text else []
        return Delivery.of_file(
            target=self.output,
            made_from=made_from,
            optional=optional_files,
            inputs=[*source_files, *tokenizer_files(self.options.tokenizer)],
        )

    def _settings(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of the file.

            {"tokenizer": "9a3f…", "vocab_size": None, "append_eod": True, "eod": 50256, "json_key":
            "text"}

        They are recorded next to the file. If one of them changes, a later call of the command has
        to write the file again.
        """
        options = self.options
        is_text = isinstance(self.source, InputFiles)
        fingerprint: str | None = None  # of the tokenizer
        if options.tokenizer is not None:
            fingerprint = tokenizer_facts(options.tokenizer).fingerprint
        return {
            "tokenizer": fingerprint,
            "vocab_size": options.vocab_size,
            # Documents of text always end in the end-of-document token.
            "append_eod": is_text or options.append_eod,
            "eod": self.end_id,
            "json_key": options.key if is_text else None,
        }

    def _source_files(self) -> Sequence[Location]:
        """Return the files that are read: the .bin and .idx of a dataset, or all text files."""
        if isinstance(self.source, InputFiles):
            return self.source.paths
        return pair_files(self.source)

    def result(self, facts: Mapping[str, Any]) -> PbinResult:
        """Return what was written, for the user: counts of documents, and what was left out.

        Args:
            facts: What was recorded when the file was written, by this call or an earlier one:
                `{"packed": {"documents": 997, "tokens": 812000, …}, "rejected": 3, …}`.
        """
        n_rejected = facts["rejected"]
        return PbinResult(
            counts=from_plain(PbinCounts, facts["packed"]),
            rejected=n_rejected,
            rejects=self.rejects if n_rejected > 0 else None,
            # Receipts of older versions lack these two.
            lost=facts.get("lost", ""),
            faults=facts.get("faults", 0),
            notices=self._notices(),
        )

    def _notices(self) -> tuple[str, ...]:
        """Return what the user may not expect: files that are not read, or an unused option.

        Documents of text always get the end-of-document token. Those of a .bin get the token of
        --eod only if the user also says --append-eod.
        """
        if isinstance(self.source, InputFiles):
            return tuple(self.source.notices)  # other files in the folders of text
        if self.options.eod is None or self.options.append_eod:
            return ()
        return (
            f"--eod {self.options.eod!r} has no effect without --append-eod: the documents of "
            "the .bin/.idx pair stay as they are; to end each with this token, add "
            "--append-eod",
        )

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the `.pbin`, the file of tokens and their index with which Modalities trains.

        If lines of text are rejected, a list of them is written, too.

        Args:
            folder: The folder for both files.

        Returns:
            Counts of what was written, which are stored next to the file.

        Raises:
            InputError: A token is not in the vocabulary, there are no tokens, or too much text is
                rejected.
            FormatError: The .bin and its .idx are damaged, or do not belong together.
            StorageError: A bucket cannot be reached.
        """
        if isinstance(self.source, InputFiles):
            return self._write_text(self.source, folder)

        # The source is a .bin and its .idx. From a bucket, they are downloaded first.
        with downloaded(pair_files(self.source)) as (bin_file, _):
            prefix = bin_file.with_suffix("")
            check_all_listed(MMapIndexedDataset(prefix, validate=False), self.source)
            counts = self._convert(prefix, folder)
        return self._facts(counts)

    def _write_text(self, inputs: InputFiles, folder: Path) -> dict[str, Any]:
        """Tokenize text, and write it as a `.pbin`, with a list of rejected lines if there are any.

        Args:
            inputs: The text files.
            folder: The folder for both files.

        Returns:
            Counts of what was written.
        """
        with self._tokenized(inputs) as dataset:  # a .bin and .idx in a temporary folder
            counts = self._convert(on_this_machine(dataset.prefix), folder)
            self._copy_rejects(dataset, folder)
            return self._facts(
                counts,
                n_rejected=dataset.n_rejected,
                lost=dataset.lost,
                n_faults=dataset.facts.faults,
            )

    def _copy_rejects(self, dataset: Preprocessed, folder: Path) -> None:
        """Copy the list of rejected lines, such as web_rejects.jsonl, if there are any.

        Args:
            dataset: The tokenized text, with the path of the list in a temporary folder.
            folder: The folder to which the list is copied.
        """
        if dataset.rejects is not None:
            rejected_lines = on_this_machine(dataset.rejects).read_bytes()
            write_atomic(folder / self.rejects.name, rejected_lines)

    def _facts(
        self, counts: PbinCounts, n_rejected: int = 0, lost: str = "", n_faults: int = 0
    ) -> dict[str, Any]:
        """Return counts of what was written, which are stored next to the file.

        A later call that finds the file prints these counts, without writing it again. With
        stricter limits for rejected lines, it can also refuse the file.

        Args:
            counts: Numbers of documents and tokens.
            n_rejected: Number of rejected lines and of unreadable files together.
            lost: Which files are unreadable, as a message; empty if none is.
            n_faults: Number of unreadable files: those that could not be read to their end.
        """
        return {
            "packed": asdict(counts),  # {"documents": 997, "tokens": 812000, …}
            "rejected": n_rejected,
            "policy": self.options.recorded,  # how much may be rejected
            "lost": lost,
            "faults": n_faults,
        }

    @contextmanager
    def _tokenized(self, inputs: InputFiles) -> Iterator[Preprocessed]:
        """Tokenize text, and yield a .bin and .idx with its tokens in a temporary folder.

        The folder is removed after the `with` block. If the call is killed or the block fails, it
        remains, and the next call continues with the tokens in it.

        Args:
            inputs: The text files.
        """
        # Slow to import, and only needed for text: the conversion of an existing .bin would take a
        # third longer.
        from nanoset_core.stages.shards.standalone.preprocess import preprocess

        settings = self._preprocess_options()
        folder = work_folder(self.output, f".{self.output.name}.packing", self.options.scratch)
        [pair] = preprocess(inputs, folder / "tokens", settings, progress=self.progress)
        yield pair
        shutil.rmtree(folder)

    def _preprocess_options(self) -> PreprocessOptions:
        """Return the settings with which text is tokenized.

        A preset says which special tokens are added to each document, as some trainer does it.
        There is none for Modalities, the trainer that reads a `.pbin`. It needs the same tokens as
        the trainer nanotron.
        """
        from nanoset_core.stages.shards.standalone.options import PreprocessOptions

        options = self.options
        if options.tokenizer is None:
            raise ValueError("text needs a tokenizer")  # `_end_id` has refused this
        return PreprocessOptions(
            tokenizer=options.tokenizer,
            keys=(options.key,),
            preset="nanotron",
            workers=options.workers,
            engine=options.engine,
            **options.limits,
        )

    def _convert(self, prefix: Path, folder: Path) -> PbinCounts:
        """Convert a .bin and its .idx to a `.pbin`: the tokens and their index in one file.

        Args:
            prefix: Path of the .bin and .idx without an ending.
            folder: Where to write the `.pbin`.

        Returns:
            The numbers of documents and tokens that were written.
        """
        # If a tokenizer is named, a greater id than those of its vocabulary is an error.
        max_id: int | None = None
        if self.options.tokenizer is not None:
            max_id = tokenizer_facts(self.options.tokenizer).max_id
        return write_dataset_as_pbin(
            prefix,
            folder / self.output.name,
            vocab_size=self._vocab_size(prefix),
            end_token=self.end_id,  # added to each document that does not end in it; or None
            max_id=max_id,
            progress=self.progress,
        )

    def _vocab_size(self, prefix: Path) -> int | None:
        """Return the size of the vocabulary, which decides how many bytes each token takes.

        A vocabulary of up to 65,536 tokens needs 2 bytes for the number (id) of a token.

        Args:
            prefix: Path of the .bin and .idx without an ending.

        Returns:
            The size, or None to store tokens with as many bytes as in the .bin.
        """
        if self.options.vocab_size is not None:
            return self.options.vocab_size  # the user has set it
        if self.options.tokenizer is None:
            return None

        # The size of the tokenizer may be too small: with ids up to 70,000 in the .bin, or for the
        # token at the end of documents, it must be 70,001.
        dataset = MMapIndexedDataset(prefix)
        vocab_size = model_vocab_size(self.options.tokenizer)
        return fitting_vocab_size(dataset, vocab_size, self.end_id)
