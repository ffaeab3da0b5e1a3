"""Tokenize files into pairs of .bin and .idx, as the preprocess_data.py of other tools does.

A call that was killed is continued by the next one: finished ranges of the input are kept as shards
in a scratch folder until all are done. Lines that are not documents are written to a file of
rejects, so that every line is accounted for.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.execution.resources import available_processors
from nanoset_core.formats.indexed.builder import deal_documents, merge_indexed_datasets
from nanoset_core.outputs.apart import check_apart
from nanoset_core.outputs.deliver import Delivery
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.names import MOST_KEY_BYTES, check_text_key
from nanoset_core.outputs.receipts import (
    PAIR_RECEIPT_ENDING,
    RECEIPT_VERSION,
    Receipt,
    read_command_receipt,
)
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.json_records import to_plain
from nanoset_core.stages.shards.document_counts import counts_by_file, tokens_by_file
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.framing import Framing, make_framing, pair_name
from nanoset_core.stages.shards.job import TokenizeJob
from nanoset_core.stages.shards.losses import Losses, RejectsOfCall, stored_sizes, sum_losses
from nanoset_core.stages.shards.one_shard import DOCUMENTS, REJECTS, TOKENS, ShardSettings
from nanoset_core.stages.shards.reject_policy import RejectPolicy
from nanoset_core.stages.shards.standalone.inputs import InputFiles
from nanoset_core.stages.shards.standalone.options import (
    REJECTS_ENDING,
    Preprocessed,
    PreprocessOptions,
)
from nanoset_core.stages.shards.standalone.ranges import InputRanges
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.copies.temporary import work_folder
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.places import real_path
from nanoset_core.storage.writing.drafts import writing_into
from nanoset_core.tokenizers.encoders import encoders_of
from nanoset_core.tokenizers.files import as_source
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, token_id, tokenizer_facts

_FLAG_BY_SETTING = {
    "keys": "--json-keys",
    "framing.before": "--bos",
    "framing.after": "--append-eod, --eod",
}
"""Setting in a receipt → flag of the command that sets it, for messages."""
_MAX_NAME_BYTES = 255 - 64
"""Limit for the name of an output in bytes.

File systems allow 255 bytes. While a file is being written, its name is up to 64 bytes longer.
"""
_EXPECTED_ROOM = "room for the tokens twice, or once here and once in --scratch"


class NoDocumentsError(InputError):
    """The input holds nothing: neither documents nor lines that were rejected."""


def preprocess(
    inputs: InputFiles,
    output_prefix: Location,
    options: PreprocessOptions,
    *,
    scratch: Path | None = None,
    progress: Progress = SILENT,
    overwrite: bool = True,
    executor: Executor | None = None,
    may_be_empty: bool = False,
) -> list[Preprocessed]:
    """Tokenize files into `<output_prefix>_<key>_document.bin/.idx`, one pair for each key.

    The preset nanotron names a pair `<output_prefix>_<key>`. The bytes are those of the preset's
    tool for the same lines, with any number of workers. A pair that exists and was made from the
    same lines and settings is not made again. Finished shards are kept in `.<prefix>.scratch` until
    all are done, so that a call that was killed can be continued; then that folder is removed.

    Args:
        inputs: The files, in order.
        output_prefix: The start of the names of all outputs.
        options: The settings.
        scratch: Where to create the folder for unfinished work; by default next to the output.
        progress: Shows how far the work has come.
        overwrite: Whether pairs and rejects that were made from other lines or settings, or by
            another program, may be replaced. A call that is killed while it replaces a pair leaves
            the old pair, the new one, or a .bin without an .idx.
        executor: Runs the tasks instead of `options.workers` processes of this call.
        may_be_empty: Whether an input without any documents, such as an empty file, is no error.
            Then no pair is written. It still is an error if an earlier call has written one.

    Returns:
        The pair of each key, in the order of the keys; none if the input is empty.

    Raises:
        ConfigError: The tokenizer lacks a token, an option is out of range, an output is an input,
            or one exists that may not be replaced.
        StorageError: The folder cannot be written to, or is full.
        InputError: There are no documents, or too many rejects.
        SourceChangedError: A file changed while it was read.
    """
    _check_options(options)
    _check_names(output_prefix, options)
    prefix_by_key = _prefix_by_key(output_prefix, options)
    _check_apart_from_inputs(inputs, output_prefix, list(prefix_by_key.values()), options)
    framing = _framing_of(options)

    folder = work_folder(output_prefix, f".{output_prefix.name}.scratch", scratch)
    with (
        writing_into(output_prefix.parent, expected=_EXPECTED_ROOM),
        writing_to(folder.parent, expected=_EXPECTED_ROOM),
    ):
        root = OutputRoot(FileAccess(folder))
        root.sweep()  # removes incomplete files that a killed call left
        call = _Call(
            inputs=inputs,
            output_prefix=output_prefix,
            options=options,
            root=root,
            progress=progress,
            overwrite=overwrite,
            executor=executor,
            ranges=InputRanges(inputs, progress),
            tokenizer=tokenizer_facts(options.tokenizer),
            framing=framing,
        )
        try:
            pairs = _find_or_make_pairs(call, prefix_by_key)
        except NoDocumentsError:
            if not may_be_empty:
                raise
            _check_no_earlier_output(call, list(prefix_by_key.values()))
            pairs = []
        shutil.rmtree(folder, ignore_errors=True)
    return pairs


def _prefix_by_key(output_prefix: Location, options: PreprocessOptions) -> dict[str, Location]:
    """Return where the pair of each key is written: `{"text": out/web_text_document, …}`.

    Args:
        output_prefix: The start of the names of all outputs, such as out/web.
        options: The settings, with the keys.
    """
    prefix_by_key = {}
    for key in options.keys:
        name = pair_name(options.preset, output_prefix.name, key)
        prefix_by_key[key] = output_prefix.with_name(name)
    return prefix_by_key


def _find_or_make_pairs(call: _Call, prefix_by_key: Mapping[str, Location]) -> list[Preprocessed]:
    """Return a .bin and .idx for each key of the texts, which are made unless an earlier call did.

    A line may have several texts, such as `{"text": "the cat", "summary": "cat"}`. Each of the keys
    `text` and `summary` gets a .bin, which has the tokens, and an .idx, which says where documents
    start:

        out/web_text_document.bin, .idx
        out/web_summary_document.bin, .idx

    Args:
        call: The call: its inputs and settings.
        prefix_by_key: Key of the texts → path of its two files, without the endings .bin and .idx.

    Raises:
        ConfigError: A file with the name of an output may not be replaced.
        InputError: There are no documents, or too many rejected lines.
    """
    # Look for all pairs first: if one of them may not be replaced, none is made.
    existing_pairs = {key: _find_pair(call, key, prefix) for key, prefix in prefix_by_key.items()}
    pairs = []
    for key, pair in existing_pairs.items():
        if pair is None:
            pair = _make_pair(call, key, prefix_by_key[key])
        pairs.append(pair)
    return pairs


def is_rejects_of_call(path: Location, output_prefix: Location) -> bool:
    """Return whether a file is a list of rejected lines that `preprocess` wrote earlier.

    Inputs may be a pattern such as `out/*.jsonl`, which matches such lists, too. They are not text,
    so they are left out. If this call writes to out/web:

        out/web_rejects.jsonl        a list, if an earlier call has written to out/web
        out/web2_rejects.jsonl       a list, if an earlier call has written to out/web2
        out/web_part.jsonl           text: it is not named like a list
        other/web_rejects.jsonl      text: it is in another folder

    Args:
        path: The file.
        output_prefix: The start of the names of all outputs of this call, such as out/web.
    """
    if not path.name.endswith(REJECTS_ENDING):
        return False
    earlier_prefix = path.name.removesuffix(REJECTS_ENDING)  # web or web2
    if not earlier_prefix.startswith(output_prefix.name):
        return False
    if real_path(path.parent) != real_path(output_prefix.parent):
        return False
    # Another program may use the same names. Only `preprocess` writes a receipt next to them.
    return _has_receipt(path.parent, earlier_prefix)


def _has_receipt(folder: Location, prefix_name: str) -> bool:
    """Return whether an earlier call of `preprocess` has written to a folder, by its receipt.

    A receipt is a file next to a .bin and .idx that says what these were made from. For the prefix
    `web`, it is named `web_text_document.manifest.json`.

    Args:
        folder: The folder, on this machine or in a bucket.
        prefix_name: Start of the names of all outputs of that call.
    """
    _folder_names, file_names = store_of(folder).level()  # what is directly in the folder
    for name in file_names:
        has_prefix = name.startswith(f"{prefix_name}_")
        is_named_like_receipt = has_prefix and name.endswith(PAIR_RECEIPT_ENDING)
        if is_named_like_receipt and read_command_receipt(folder / name):
            return True
    return False


# Checks of settings.


def _check_options(options: PreprocessOptions) -> None:
    """Check the number of partitions, and that keys are not repeated.

    `--json-keys text text` would write the same file twice.

    Args:
        options: The settings of the call.

    Raises:
        ConfigError: There is no partition, no key, or a key is named twice.
    """
    if options.partitions < 1:
        raise ConfigError(
            "out of range",
            where="--partitions",
            found=options.partitions,
            expected="1 or more",
            remedy="give 1 or more",
        )
    if not options.keys or len(set(options.keys)) != len(options.keys):
        raise ConfigError(
            "no keys, or a key twice",
            where="--json-keys",
            found=" ".join(options.keys),
            expected="each key once",
            remedy="name each key once",
        )


def _check_names(output_prefix: Location, options: PreprocessOptions) -> None:
    """Check that files can be named after the keys, and that their names are not too long.

    The user gives a prefix, and the keys under which a line of JSON has its texts. The longest name
    of a file contains both, and may have 191 bytes (_MAX_NAME_BYTES). For the prefix `web` and the
    key `text`:

        longest name         web_text_document.manifest.json
        without the key      web__document.manifest.json, which has 27 bytes
        left for the key     191 - 27 = 164 bytes

    Args:
        output_prefix: The start of the names of all outputs, such as out/web.
        options: The settings, with the keys of the texts.

    Raises:
        ConfigError: A key cannot be part of a file name, or the names would be too long.
    """
    pair_name_without_key = pair_name(options.preset, output_prefix.name, key="")
    name_without_key = f"{pair_name_without_key}{PAIR_RECEIPT_ENDING}"
    bytes_for_key = _MAX_NAME_BYTES - len(name_without_key.encode())
    longest_key_bytes = max(len(key.encode(errors="replace")) for key in options.keys)

    is_name_too_long = longest_key_bytes > bytes_for_key
    is_prefix_too_long = bytes_for_key < MOST_KEY_BYTES  # a prefix should leave room for 64 bytes
    if is_name_too_long and is_prefix_too_long:
        raise _long_prefix_error(name_without_key)
    for key in options.keys:
        check_text_key(key, "--json-keys", most_bytes=bytes_for_key)


def _long_prefix_error(name_without_key: str) -> ConfigError:
    """Return the error for a prefix of output files that leaves no room for the key in their names.

    Args:
        name_without_key: The longest name of a file, in which only the key is missing.
    """
    name_bytes = len(name_without_key.encode())
    return ConfigError(
        "the names of the files would be too long",
        where="--output-prefix",
        found=f"{name_without_key}, which has {name_bytes:,} bytes without the key",
        expected=f"names of up to {_MAX_NAME_BYTES} bytes",
        remedy="choose a shorter prefix",
    )


def _check_apart_from_inputs(
    inputs: InputFiles,
    output_prefix: Location,
    prefixes: Sequence[Location],
    options: PreprocessOptions,
) -> None:
    """Check that no file that will be written is an input or the tokenizer.

    With the prefix `data/web`, the output data/web_rejects.jsonl would replace an input of that
    name.

    Args:
        inputs: The files that are tokenized.
        output_prefix: The start of the names of all outputs.
        prefixes: For each key of the texts, the path of its .bin and .idx without these endings.
        options: The settings.

    Raises:
        ConfigError: An output has the path of an input or of the tokenizer.
    """
    outputs: list[Location] = []
    for prefix in prefixes:
        outputs += _PairFiles.of(prefix)  # the .bin, the .idx and a receipt
    outputs.append(_with_ending(output_prefix, REJECTS_ENDING))
    tokenizer_path = as_source(options.tokenizer).path
    check_apart(outputs, [*inputs.paths, tokenizer_path])


def _framing_of(options: PreprocessOptions) -> Framing:
    """Return which special tokens are put before and after each document, by the options.

        --bos <s>               <s> before each document
        --eod </s>              </s> after each document
        --special-tokens add    also those that the tokenizer itself adds to every text
        --preset nanotron       the same, since nanotron's tool does that

    Args:
        options: The options of the command.

    Raises:
        ConfigError: The tokenizer lacks a token that they name, or it adds other special tokens to
            some texts than to others.
    """
    return make_framing(
        options.preset,
        options.tokenizer,
        bos=_token_id(options, options.bos, "--bos"),
        eod=_token_id(options, options.eod, "--eod"),
        special_tokens=options.special_tokens,
    )


def _token_id(options: PreprocessOptions, token: str | None, flag: str) -> int | None:
    """Return the id of a token that an option of the command names, or None without the option.

    `--eod <|endoftext|>` gives 50,256 for GPT-2's tokenizer.

    Args:
        options: The settings, with the tokenizer.
        token: The text of the token, or None.
        flag: The option, for the error.

    Raises:
        ConfigError: The tokenizer lacks the token.
    """
    if token is None:
        return None
    return token_id(options.tokenizer, token, flag)


# Outputs.


class _PairFiles(NamedTuple):
    """The files of a .bin and .idx pair."""

    bin: Location
    idx: Location
    receipt: Location
    """What the pair was made from."""

    @staticmethod
    def of(prefix: Location) -> _PairFiles:
        """Return the paths of the files of a pair, given the path without ending."""
        return _PairFiles(
            bin=_with_ending(prefix, ".bin"),
            idx=_with_ending(prefix, ".idx"),
            receipt=_with_ending(prefix, PAIR_RECEIPT_ENDING),
        )


def _with_ending(prefix: Location, ending: str) -> Location:
    """Append an ending to the name of a path."""
    return prefix.with_name(prefix.name + ending)


@dataclass(frozen=True, slots=True)
class _Call:
    """What all keys of one call have in common."""

    inputs: InputFiles
    output_prefix: Location
    options: PreprocessOptions
    root: OutputRoot
    """Where shards are made, in the scratch folder."""
    progress: Progress
    overwrite: bool
    executor: Executor | None
    ranges: InputRanges
    tokenizer: TokenizerFacts
    framing: Framing

    @property
    def rejects_path(self) -> Location:
        """File of the rejected lines; all pairs share one, since their lines are the same."""
        return _with_ending(self.output_prefix, REJECTS_ENDING)

    def rejects_if_any(self, facts: ShardFacts) -> Location | None:
        """Return the file of the rejected lines, or None if no line was rejected."""
        return self.rejects_path if facts.reasons else None

    def delivery(self, key: str, prefix: Location) -> Delivery:
        """Return which files this call writes for the texts of one key.

        For the prefix out/web_text_document, these are:

            out/web_text_document.bin      the tokens of all documents
            out/web_text_document.idx      where each document starts
            out/web_rejects.jsonl          lines without a text, if there are any

        The result puts them in place together, once all of them are written. It can also find them
        if an earlier call has made them from the same input.

        Args:
            key: Key of the texts, one of `options.keys`.
            prefix: Path of the .bin and .idx without these endings.
        """
        pair = _PairFiles.of(prefix)
        is_last_key = key == self.options.keys[-1]  # all keys have the same rejected lines
        optional_files = (self.rejects_path.name,) if is_last_key else ()
        return Delivery(
            folder=self.output_prefix.parent,
            receipt=self._receipt(key, pair.receipt.name),
            files=(pair.bin.name, pair.idx.name),
            optional=optional_files,
            # The .idx is put in place last: without it, readers do not take the .bin as complete.
            completing_files=(pair.idx.name,),
            is_hashed=True,  # a later call notices changed files by their content, not their times
        )

    def _receipt(self, key: str, name: str) -> Receipt:
        """Return the receipt of a .bin and .idx: a file that says what the two were made from.

            {"nanoset": …, "key": "text", "options": {"dtype": "uint16", …}, "sources": [the input
            files]}

        If a later call has the same input and settings, its receipt is equal, and it need not make
        the two files again.

        Args:
            key: Key of the texts in a JSON line, such as "text".
            name: Name of the file of the receipt.
        """
        # The input files, or pieces of large ones, with their digests.
        sources = [asdict(piece) for piece in self.ranges.pieces()]
        made_from = {
            "nanoset": RECEIPT_VERSION,
            "key": key,
            "options": self._recorded_settings(),
            "sources": sources,
        }
        # If a setting differs, the message names it by its option of the command.
        return Receipt(name=name, made_from=made_from, flags=_FLAG_BY_SETTING)

    def _recorded_settings(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of the outputs, for the receipt next to them.

        {"tokenizer": "9a3f…", "dtype": "uint16", "preset": "megatron", "partitions": 1, …}
        """
        options = self.options
        # The number of partitions decides the order of the documents, unless they keep the order of
        # the input. Then record 1, so that a later call with another number finds these files.
        n_partitions = options.partitions
        if options.keep_sequential_samples:
            n_partitions = 1
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": self.tokenizer.dtype.name,
            "preset": options.preset,
            "framing": to_plain(self.framing),  # the special tokens around each document
            "partitions": n_partitions,
            "keys": list(options.keys),  # of the texts in a line
            "max_line_bytes": options.max_line_bytes,
        }

    def job(self, key: str) -> TokenizeJob:
        """Return the job that tokenizes the texts of one key, in several processes.

        The input is divided into ranges of some MiB. The tokens of each range are written to a
        folder of their own (a shard), which is below the scratch folder until all are done. If this
        command is killed, the next one finds them there.

        Args:
            key: Key of the texts, one of `options.keys`.
        """
        settings = self._shard_settings(key)
        return TokenizeJob(
            root=self.root,
            corpus="input",  # part of the names of these folders
            folder=self.inputs.folder,
            ranges=self.ranges,
            options=self._options_of_digest(settings),
            settings=settings,
            workers=self.options.workers or available_processors(),
            executor=self.executor,
            progress=self.progress,
            activity="tokenize",
            subject=key,
            text_bytes=self.ranges.size,
        )

    def _options_of_digest(self, settings: ShardSettings) -> dict[str, Any]:
        """Return all settings that decide the content of a shard.

        Their digest is part of the name of the shard's folder. So shards that were made with other
        settings are not found.

        Args:
            settings: How the texts are tokenized.
        """
        return {
            **settings.recipe_options(self.tokenizer.fingerprint),
            "required_keys": list(settings.required_keys),
            "documents": settings.documents,  # whether a shard has a table of documents
        }

    def _shard_settings(self, key: str) -> ShardSettings:
        """Return the settings by which the texts of one key are tokenized.

        Args:
            key: Key of the texts, one of `options.keys`.
        """
        options = self.options
        # With the keys "question" and "answer", a line that has only one of them is used for
        # neither. So the files of both keys have the same documents, in the same order.
        other_keys = tuple(other for other in options.keys if other != key)
        return ShardSettings(
            tokenizer_file=options.tokenizer,
            engine=options.engine,
            audit=options.audit,
            dtype=self.tokenizer.dtype.name,
            max_id=self.tokenizer.max_id,
            framing=self.framing,  # the special tokens around each document
            text_key=key,
            required_keys=other_keys,
            max_line_bytes=options.max_line_bytes,
            fail_on_reject=options.on_reject == "fail",
            documents=options.count_by_file,  # a table of documents, to count tokens by file
            hashed=False,  # temporary files need no sha256
        )


def _check_no_earlier_output(call: _Call, prefixes: Sequence[Location]) -> None:
    """Check that files of tokens do not exist, when the input was found to have no documents.

    Suppose that the input had documents when it was tokenized earlier, and that these were deleted
    since. The files with their tokens still exist, and a training would use them. This is an error:
    nothing is deleted without asking.

    Args:
        call: The present call, which has found no documents.
        prefixes: Paths of the files that it would have written, without the endings .bin and .idx,
            such as out/web_text_document. Each key of the texts in a line has one.

    Raises:
        InputError: At least one of the files exists.
    """
    for prefix in prefixes:
        if _has_any_file(call, prefix):
            raise InputError(
                "the input holds no documents any more, but its pair still exists",
                where=call.inputs.place,
                found=prefix,
                remedy="delete the files of this pair, or restore the input",
            )


def _find_pair(call: _Call, key: str, prefix: Location) -> Preprocessed | None:
    """Find the .bin and .idx that an earlier call made from the same lines and settings.

    They are used again only if nothing has changed:

        the same input and settings                         they are used again
        another input, or other settings                    None, or an error
        tokens are to be counted by file, and were not      None
        the earlier call lost more text than is allowed     None

    If no file exists, nothing is compared: the comparison may read all inputs.

    Args:
        call: The present call.
        key: Key of the texts in a line.
        prefix: Path of the two files, without their endings.

    Returns:
        The two files; None if they have to be made.

    Raises:
        ConfigError: A file of this name was made from something else, and may not be overwritten.
    """
    if not _has_any_file(call, prefix):
        return None
    receipt = call.delivery(key, prefix).find(overwrite=call.overwrite)
    if receipt is None:
        return None
    tokens_by_file = receipt.get("tokens_by_file")
    is_count_missing = call.options.count_by_file and tokens_by_file is None
    if is_count_missing:
        return None
    losses = _permitted_losses(call, key, receipt)
    if losses is None:
        return None
    return Preprocessed(
        prefix=prefix,
        facts=losses.facts,
        rejects=call.rejects_if_any(losses.facts),
        lost=losses.beyond_rejects(),
        tokens_by_file=tokens_by_file,
        made=False,
    )


def _has_any_file(call: _Call, prefix: Location) -> bool:
    """Return whether any of the files exists that a call writes for the texts of one key.

    For the prefix out/web_text_document, these are:

        out/web_text_document.bin              the tokens
        out/web_text_document.idx              where each document starts
        out/web_text_document.manifest.json    the receipt: what the two were made from
        out/web_rejects.jsonl                  rejected lines

    Args:
        call: The call. It knows the path of the rejected lines.
        prefix: Path of the .bin and .idx, without their endings.
    """
    store = store_of(call.output_prefix.parent)  # the folder, on this machine or in a bucket
    possible_files = [*_PairFiles.of(prefix), call.rejects_path]
    return any(store.stat(path.name) is not None for path in possible_files)


def _permitted_losses(call: _Call, key: str, receipt: Mapping[str, Any]) -> Losses | None:
    """Return how much text an earlier call lost, or None if its files must be made again.

    The earlier call has left two files: a receipt with counts, and a list of rejected lines.
    Whether its outputs can be used again depends on the limits of the present call:

        3 of 1,000 lines were rejected, and 1 % is allowed     the counts are returned
        3 of 1,000 lines were rejected, and none is allowed    None
        the list of rejected lines was damaged or deleted      None

    Args:
        call: The present call.
        key: Key of the texts.
        receipt: That of the earlier call: {"facts": {"documents": 997, "rejected": 3, …}, …}.
    """
    limits = RejectPolicy(call.options, key)
    try:
        losses = _losses_of_earlier_call(call, receipt["facts"])
        is_too_much = limits.refusal(losses, call.inputs.folder) is not None
        n_listed_faults = len(losses.file_faults)
    except (KeyError, TypeError, FormatError):
        return None  # a receipt of another version, or a damaged list of rejected lines
    is_list_deleted = n_listed_faults != losses.facts.faults  # the receipt has their number, too
    if is_too_much or is_list_deleted:
        return None
    return losses


def _losses_of_earlier_call(call: _Call, counts: Mapping[str, Any]) -> Losses:
    """Return how much text an earlier call lost, by the files that it has left.

    A call tokenizes its input in ranges. The result of each range is a shard, with a list of the
    lines that were rejected. `Losses` adds up shards. The earlier call has deleted its shards when
    it was finished, but has left

        out/web_rejects.jsonl     the rejected lines of all shards, in one list
        the receipt               counts over all shards

    These two stand in for one shard with the whole input.

    Args:
        call: The present call. Its list of rejected lines has the same path as the earlier one.
        counts: The counts of the receipt: {"documents": 997, "rejected": 3, …}.

    Raises:
        TypeError: Another version of this program has counted something else.
    """
    whole_input_as_shard = RejectsOfCall(
        facts=counts,
        list_path=call.rejects_path,
        scratch=call.root.folder,  # the list is downloaded to it if it is in a bucket
    )
    return Losses(
        facts=ShardFacts(**counts),
        shards=[whole_input_as_shard],
        sizes=stored_sizes(call.ranges.pieces()),  # bytes of each input file
    )


def _make_pair(call: _Call, key: str, prefix: Location) -> Preprocessed:
    """Tokenize the texts of one key, and write their .bin and .idx.

        input files  →  tokens of parts of the input  →  out/web_text_document.bin, .idx
                        in the scratch folder            out/web_rejects.jsonl, if there are any

    Args:
        call: The call.
        key: Key of the texts in a line.
        prefix: Path of the two files, without their endings.

    Raises:
        InputError: There are no documents, or too many rejected lines.
    """
    shards = call.job(key).run().shards
    losses = sum_losses(shards, call.ranges.pieces())
    counts = losses.facts
    RejectPolicy(call.options, key).check(losses, call.inputs.folder)
    _check_not_empty(counts, call.inputs)

    tokens_of_files = None
    if call.options.count_by_file:
        tokens_of_files = _count_tokens_of_files(call.inputs, shards)
    # When this block ends, the files are moved to their places, with a receipt of the counts.
    with call.delivery(key, prefix).drafting(overwrite=call.overwrite) as draft:
        draft.facts = to_plain(counts)
        if tokens_of_files is not None:
            draft.more = {"tokens_by_file": tokens_of_files}
        _write_pair(shards, draft.folder / prefix.name, call.options, call.root)
        if counts.reasons:  # why lines were rejected; empty if none was
            _write_rejects(shards, draft.folder / call.rejects_path.name)

    return Preprocessed(
        prefix=prefix,
        facts=counts,
        rejects=call.rejects_if_any(counts),
        lost=losses.beyond_rejects(),  # a message about losses other than rejected lines
        tokens_by_file=tokens_of_files,
        encoders=encoders_of(shards),
    )


def _write_rejects(shards: Sequence[Manifest], path: Path) -> None:
    """Write the rejected lines of all shards to one file.

    Args:
        shards: The shards, in document order, each with a list of its own.
        path: Path of the file.
    """
    lists = [shard.path(REJECTS).read_bytes() for shard in shards]
    write_atomic(path, b"".join(lists))


def _count_tokens_of_files(inputs: InputFiles, shards: Sequence[Manifest]) -> dict[str, int]:
    """Return how many tokens each input file gave: path of the file → tokens.

    Args:
        inputs: The files.
        shards: The shards that were made from them, each with a table of its documents.
    """
    counts_of_shards = (counts_by_file(shard.path(DOCUMENTS)) for shard in shards)
    paths = [file.path for file in inputs.files]
    return tokens_by_file(paths, counts_of_shards)


def _check_not_empty(facts: ShardFacts, inputs: InputFiles) -> None:
    """Check that the input contains documents.

    If all lines were rejected, the user has perhaps named the wrong key of the texts.

    Args:
        facts: Counts of what was read: documents, rejected lines and so on.
        inputs: The files.

    Raises:
        NoDocumentsError: The input contains nothing, not even rejected lines.
        InputError: The input contains no documents.
    """
    if facts.documents:
        return
    remedy = "name files with documents"
    if facts.rejected:
        remedy += ", or another --json-keys"
    is_empty = not facts.reasons  # neither rejected lines nor unreadable files
    error_class = NoDocumentsError if is_empty else InputError
    raise error_class(
        "the input holds no documents",
        where=inputs.place,
        found=facts.described(),
        expected="at least one document",
        remedy=remedy,
    )


def _write_pair(
    shards: Sequence[Manifest], prefix: Path, options: PreprocessOptions, root: OutputRoot
) -> None:
    """Write the tokens of all documents to a .bin, and where each document starts to an .idx.

    They have been tokenized in parts (shards), which are concatenated here. With two `partitions`,
    the documents are then dealt to two files like cards, and these concatenated, as by
    Megatron-LM's tool:

        documents           0 1 2 3 4
        first partition     0 2 4
        second partition    1 3
        written             0 2 4 1 3

    Args:
        shards: The shards, in document order.
        prefix: Path of both files without their endings.
        options: The settings of the call.
        root: The scratch folder.
    """
    shard_prefixes = [shard.path(TOKENS) for shard in shards]
    keeps_order = options.partitions == 1 or options.keep_sequential_samples
    if keeps_order:
        merge_indexed_datasets(shard_prefixes, prefix)
        return

    # Concatenate the shards first, in a file that is removed with the scratch folder.
    concatenated_prefix = root.folder / "joined"
    merge_indexed_datasets(shard_prefixes, concatenated_prefix)
    deal_documents(concatenated_prefix, prefix, options.partitions)
