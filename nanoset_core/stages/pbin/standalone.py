"""Write a `.pbin` from a .bin/.idx pair or from text, without a project: `nanoset pbin write`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.outputs.deliver import Delivery
from nanoset_core.outputs.receipts import read_record, record_name, record_of
from nanoset_core.stages.pbin.conversion import (
    fitting_vocab_size,
    model_vocab_size,
    write_dataset_as_pbin,
)
from nanoset_core.stages.shards.inputs import InputFiles, resolve_inputs
from nanoset_core.stages.shards.preprocess import preprocess
from nanoset_core.stages.shards.preprocess_options import Preprocessed, PreprocessOptions
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import Location, location, on_this_machine
from nanoset_core.storage.working_copies import downloaded, work_folder
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_files, tokenizer_path
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

_COMMAND = "pack write"
"""Name of the command in records. It is the former name, so that existing files are recognised."""


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
    # Find the inputs: a pair, or text files. The list of rejects of an earlier call is not input.
    rejects = output.with_name(f"{output.stem}_rejects.jsonl")
    has_record = read_record(output.with_name(record_name(output.name))) is not None
    own_rejects = rejects.absolute()
    source = _source(
        [os.fspath(name) for name in inputs],
        leave_out=lambda path: has_record and path == own_rejects,
    )
    notices: tuple[str, ...] = ()
    if isinstance(source, InputFiles):
        notices = tuple(source.notices)

    tokenizer = None if options.tokenizer is None else tokenizer_path(options.tokenizer)
    options = replace(options, tokenizer=tokenizer)
    end = _end_id(options, is_text=isinstance(source, InputFiles))

    # Make the file unless it exists. If it has rejected lines, and another number of them is
    # allowed now, it is made again to decide whether there are too many.
    delivery = _delivery(source, output, rejects, options, end)
    record = delivery.find(overwrite=overwrite)
    facts: Mapping[str, Any] = {} if record is None else record["facts"]
    has_other_policy = (
        bool(facts) and bool(facts["rejected"]) and facts["policy"] != list(options.limits.values())
    )
    is_new = not facts or has_other_policy
    if is_new:
        with delivery.drafting(overwrite=overwrite) as draft:
            facts = _make(source, draft.folder, output, options, end, progress)
            draft.facts = facts

    result = PbinResult(
        counts=PbinCounts(**facts["packed"]),
        rejected=facts["rejected"],
        rejects=rejects if facts["rejected"] else None,
        lost=facts.get("lost", ""),
        notices=notices,
        faults=facts.get("faults", 0),
    )
    return result, is_new


def _paths_of(source: Location | InputFiles) -> Sequence[Location]:
    """Return the files of an input: both files of a pair, or all text files."""
    if isinstance(source, InputFiles):
        return source.paths
    return pair_files(source)


def _delivery(
    source: Location | InputFiles,
    output: Location,
    rejects: Location,
    options: PbinOptions,
    end: int | None,
) -> Delivery:
    """Return the files that are written, with a record of everything that decides its bytes.

    Args:
        source: Prefix of the pair, or the text files.
        output: The file to write.
        rejects: Path of the list of rejected lines, which text may have.
        options: The settings.
        end: Id of the token that documents end in, or None if none is added.
    """
    is_text = isinstance(source, InputFiles)
    fingerprint: str | None = None
    if options.tokenizer is not None:
        fingerprint = tokenizer_facts(options.tokenizer).fingerprint
    settings = {
        "tokenizer": fingerprint,
        "vocab_size": options.vocab_size,
        "append_eod": is_text or options.append_eod,
        "eod": end,
        "json_key": options.key if is_text else None,
    }
    sources = _paths_of(source)
    return Delivery.of_file(
        output,
        record_of(_COMMAND, output, sources, settings),
        optional=[rejects.name] if is_text else [],
        inputs=[*sources, *tokenizer_files(options.tokenizer)],
    )


def _end_id(options: PbinOptions, *, is_text: bool) -> int | None:
    """Return the id of the token that documents end in, or None if none is added.

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


def _source(inputs: Sequence[str], leave_out: Callable[[Location], bool]) -> Location | InputFiles:
    """Return the prefix of the pair that the inputs name, or else the text files.

    Args:
        inputs: Prefix of a pair or one of its files, or files, folders and patterns of text.
        leave_out: Returns whether a text file is not input.

    Raises:
        ConfigError: The inputs name a `.pbin`, or several pairs.
    """
    for name in inputs:
        if name.endswith(".pbin"):
            raise ConfigError(
                "this is a .pbin already",
                where=name,
                remedy=(
                    "name the operation: `nanoset pbin merge`, shuffle, filter, repair or describe"
                ),
            )
    prefixes = [location(name.removesuffix(".bin").removesuffix(".idx")) for name in inputs]
    pairs = [prefix for prefix in prefixes if _is_pair(prefix)]
    if not pairs:
        return resolve_inputs(inputs, leave_out=leave_out)
    if len(set(prefixes)) > 1:
        raise ConfigError(
            "one dataset is converted at a time",
            where=pairs[0],
            found=", ".join(inputs),
            remedy=(
                "join the datasets with `nanoset merge`, "
                "or the .pbin files with `nanoset pbin merge`"
            ),
        )
    return pairs[0]


def _is_pair(prefix: Location) -> bool:
    """Return whether both files of a pair exist."""
    return all(file.is_file() for file in pair_files(prefix))


def _make(
    source: Location | InputFiles,
    folder: Path,
    output: Location,
    options: PbinOptions,
    end: int | None,
    progress: Progress,
) -> dict[str, Any]:
    """Write the file into a folder, with the list of rejected lines if there are any.

    Args:
        source: Prefix of the pair, or the text files.
        folder: Where to write.
        output: Path of the finished file, which decides the names.
        options: The settings.
        end: Id of the token that documents end in, or None if none is added.
        progress: Shows how far the work has come.

    Returns:
        The facts for the record.
    """
    with _pair_of(source, output, options, progress) as (prefix, text):
        max_id = None
        vocab_size = options.vocab_size
        if options.tokenizer is not None:
            max_id = tokenizer_facts(options.tokenizer).max_id
            if vocab_size is None:
                model_size = model_vocab_size(options.tokenizer)
                vocab_size = fitting_vocab_size(MMapIndexedDataset(prefix), model_size, end)
        target = folder / output.name
        counts = write_dataset_as_pbin(
            prefix,
            target,
            vocab_size=vocab_size,
            end_token=end,
            max_id=max_id,
            progress=progress,
        )
        facts: dict[str, Any] = {
            "packed": asdict(counts),
            "rejected": 0,
            "policy": list(options.limits.values()),
            "lost": "",
            "faults": 0,
        }
        if text is not None:
            facts["rejected"] = text.facts.rejected + text.facts.faults
            facts["lost"] = text.lost
            facts["faults"] = text.facts.faults
            if text.rejects is not None:
                rejected_lines = on_this_machine(text.rejects).read_bytes()
                write_atomic(folder / f"{target.stem}_rejects.jsonl", rejected_lines)
    return facts


@contextmanager
def _pair_of(
    source: Location | InputFiles,
    output: Location,
    options: PbinOptions,
    progress: Progress,
) -> Iterator[tuple[Path, Preprocessed | None]]:
    """Yield the prefix of a pair on this machine, and the facts about text that was tokenized.

    A pair in a bucket is downloaded, and text is tokenized into a pair. The tokens of text are in a
    folder next to `output` until the block succeeds, so that a call that was killed can be resumed.
    """
    if not isinstance(source, InputFiles):
        with downloaded(pair_files(source)) as (tokens, _):
            yield tokens.with_suffix(""), None
        return

    assert options.tokenizer is not None  # checked with the end token
    folder = work_folder(output, f".{output.name}.packing", options.scratch)
    settings = PreprocessOptions(
        tokenizer=options.tokenizer,
        keys=(options.key,),
        preset="nanotron",  # adds the tokenizer's special tokens, as Modalities does
        workers=options.workers,
        engine=options.engine,
        **options.limits,
    )
    (pair,) = preprocess(source, folder / "tokens", settings, progress=progress)
    yield on_this_machine(pair.prefix), pair
    shutil.rmtree(folder)
