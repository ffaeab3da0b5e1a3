"""`nanoset pack`: a `.pbin` of an indexed dataset, or of text files, as Modalities would pack them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.outputs.recorded import RecordedOutput, check_apart, read_record, record_of, record_path
from nanoset_core.stages.pbin.writing import PackedFacts, fitting_vocab_size, pack_indexed_dataset, packing_vocab_size
from nanoset_core.stages.shards.inputs import InputFiles, resolve_inputs
from nanoset_core.stages.shards.preprocess import Preprocessed, PreprocessOptions, preprocess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import Location, location, on_this_machine
from nanoset_core.storage.working_copies import downloaded, work_folder
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_files, tokenizer_path
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions(RejectOptions):
    """Settings of one call; those from `key` on apply to text alone."""

    tokenizer: TokenizerPath | None = None
    """Its file, or the folder that holds it; text needs one."""
    vocab_size: int | None = None
    """Vocabulary size that decides the size of a token; None = the tokenizer's, or else that of a pair's tokens."""
    eod: str | None = None
    """The end-of-document token; None = the eos_token of tokenizer_config.json beside the tokenizer."""
    append_eod: bool = False
    """Whether documents of a pair are ended with that token where they lack it; documents of text always are."""
    key: str = "text"
    """Key of the text in each line's JSON object."""
    workers: int | None = None
    """Processes; None = one for each processor."""
    engine: EngineName = "auto"
    """One of auto, numpy, tokenizers and gigatoken; all give the same bytes."""
    scratch: Path | None = None
    """Where the folder for unfinished work lies, which holds the tokens once more; None = beside the output."""


@dataclass(frozen=True, slots=True)
class PackResult:
    """What one call wrote, or found."""

    facts: PackedFacts
    """Counts; `left_out` are documents without tokens."""
    rejected: int = 0
    """Lines of text that are no documents, and files that could not be read to their end."""
    rejects: Location | None = None
    """The rejected lines, or None where there are none."""
    lost: str = ""
    """Which files could not be read to their end, and how much of the input that is; empty where all could."""
    notices: tuple[str, ...] = ()
    """What else lies in folders and patterns of text, and is not read."""
    faults: int = 0
    """How many of `rejected` are files."""


def pack_once(
    inputs: Sequence[str | os.PathLike[str]],
    output: Location,
    options: PackOptions,
    listener: ProgressCallback = silent,
    *,
    overwrite: bool = False,
) -> tuple[PackResult, bool]:
    """Write a `.pbin` of layout D from a .bin/.idx pair or from text, unless it was made of just this already.

    From text the bytes are those of Modalities' `pack_encoded_data` wherever that packs every line: with the special
    tokens that the tokenizer adds, and the end-of-document token after each document that does not end in it. A
    document without tokens, or a line that is none, costs only itself; rejected lines go to `<stem>_rejects.jsonl`
    beside the output. A killed call on text resumes its work.

    Returns:
        (result, whether the file was made)
    """
    rejects = output.with_name(f"{output.stem}_rejects.jsonl")
    is_ours = read_record(record_path(output)) is not None
    own = rejects.absolute()
    source = _source([os.fspath(name) for name in inputs], leave_out=lambda path: is_ours and path == own)
    paths: Sequence[Location] = pair_files(source) if not isinstance(source, InputFiles) else source.paths
    is_text, notices = isinstance(source, InputFiles), getattr(source, "notices", ())
    tokenizer = None if options.tokenizer is None else tokenizer_path(options.tokenizer)
    check_apart([output, rejects], [*paths, *tokenizer_files(tokenizer)])
    options = replace(options, tokenizer=tokenizer)
    end = None
    if is_text or options.append_eod:
        if tokenizer is None:
            expected = "its file, or the folder that holds it: for text, and for the end-of-document token"
            raise ConfigError("no tokenizer is named", where="--tokenizer", expected=expected, remedy="name it")
        end = token_id(tokenizer, end_token(tokenizer, options.eod), "--eod")
    settings = {
        "tokenizer": None if tokenizer is None else tokenizer_facts(tokenizer).fingerprint,
        "vocab_size": options.vocab_size,
        "append_eod": is_text or options.append_eod,
        "eod": end,
        "json_key": options.key if is_text else None,
    }
    result = RecordedOutput.single(output, record_of("pack write", output, paths, settings), *[rejects][: int(is_text)])
    record = result.find(overwrite=overwrite)
    facts: Mapping[str, Any] = {} if record is None else record["facts"]
    # Rejected lines are judged anew under another policy.
    is_new = not facts or (bool(facts["rejected"]) and facts["policy"] != list(options.limits.values()))
    if is_new:
        with result.making(overwrite=overwrite) as draft:
            draft.facts = facts = _make(source, draft.folder, output, options, end, listener)
    lost, faults = facts.get("lost", ""), facts.get("faults", 0)
    listed = rejects if facts["rejected"] else None
    return PackResult(PackedFacts(**facts["packed"]), facts["rejected"], listed, lost, notices, faults), is_new


def _source(inputs: Sequence[str], leave_out: Callable[[Location], bool]) -> Location | InputFiles:
    """Return the prefix of the pair that `inputs` name (either file of it will do), or else files of text."""
    for given in inputs:
        if given.endswith(".pbin"):
            remedy = "name the operation: `nanoset pack merge`, shuffle, filter, repair or describe"
            raise ConfigError("this is packed already", where=given, remedy=remedy)
    prefixes = [location(given.removesuffix(".bin").removesuffix(".idx")) for given in inputs]
    pairs = [prefix for prefix in prefixes if all(file.is_file() for file in pair_files(prefix))]
    if not pairs:
        return resolve_inputs(inputs, leave_out=leave_out)
    if len(set(prefixes)) > 1:
        remedy = "join the datasets with `nanoset merge`, or the .pbin files with `nanoset pack merge`"
        raise ConfigError("one dataset is packed at a time", where=pairs[0], found=", ".join(inputs), remedy=remedy)
    return pairs[0]


def _make(
    source: Location | InputFiles,
    folder: Path,
    output: Location,
    options: PackOptions,
    end: int | None,
    listener: ProgressCallback,
) -> dict[str, Any]:
    """Write the file, and any rejected lines, into `folder`; return the facts for the record."""
    facts: dict[str, Any] = {"rejected": 0, "policy": list(options.limits.values()), "lost": "", "faults": 0}
    with _pair_of(source, output, options, listener) as (prefix, made):
        vocab_size = options.vocab_size
        if vocab_size is None and options.tokenizer is not None:
            vocab_size = fitting_vocab_size(MMapIndexedDataset(prefix), packing_vocab_size(options.tokenizer), end)
        target = folder / output.name
        greatest_id = None if options.tokenizer is None else tokenizer_facts(options.tokenizer).max_id
        packed = pack_indexed_dataset(
            prefix, target, vocab_size=vocab_size, end_token=end, greatest_id=greatest_id, listener=listener
        )
        if made is not None:
            faults = made.facts.faults
            facts |= {"rejected": made.facts.rejected + faults, "lost": made.lost, "faults": faults}
            if made.rejects is not None:
                write_atomic(folder / f"{target.stem}_rejects.jsonl", on_this_machine(made.rejects).read_bytes())
    return {"packed": asdict(packed), **facts}


@contextmanager
def _pair_of(
    source: Location | InputFiles, output: Location, options: PackOptions, listener: ProgressCallback
) -> Iterator[tuple[Path, Preprocessed | None]]:
    """Yield the prefix of a pair on this machine; of text, what is said of its tokens, which lie beside `output`."""
    if not isinstance(source, InputFiles):
        with downloaded(pair_files(source)) as (tokens, _):
            yield tokens.with_suffix(""), None
        return
    assert options.tokenizer is not None  # it gave the end token
    folder = work_folder(output, f".{output.name}.packing", options.scratch)
    settings = PreprocessOptions(
        tokenizer=options.tokenizer,
        keys=(options.key,),
        preset="nanotron",  # the one that adds the tokenizer's special tokens, as Modalities does
        workers=options.workers,
        engine=options.engine,
        **options.limits,
    )
    (pair,) = preprocess(source, folder / "tokens", settings, listener=listener)
    yield on_this_machine(pair.prefix), pair
    shutil.rmtree(folder)
