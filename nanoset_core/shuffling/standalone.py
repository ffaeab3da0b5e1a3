"""Text, pairs or tars → a folder of shuffled tars, in one call: resumable, published whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, NanosetError, StorageError
from nanoset_core.execution.progress import Listener, silent
from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, digest_of, manifest_bytes, read_manifest
from nanoset_core.shuffling.engines import write_shards
from nanoset_core.shuffling.inputs import Prepared, ShuffleInputs, decode_sources, open_pairs, tokenize_sources
from nanoset_core.shuffling.members import compressor_identity
from nanoset_core.shuffling.plan import ShufflePlan, plan_shuffle
from nanoset_core.shuffling.receipts import RECEIPTS, clear_receipts
from nanoset_core.shuffling.settings import ShuffleOptions, check_options, plan_settings, text_options
from nanoset_core.shuffling.webdataset import write_manifest
from nanoset_core.storage.atomic import UNFINISHED, fsync_folder, sha256_file, sweep_abandoned, write_atomic
from nanoset_core.storage.scratch import detour
from nanoset_core.tokenization.job import RejectPolicy
from nanoset_core.tokenization.tokenizer import tokenizer_facts

STAGE = "webdatasets"
VERSION = 1
REJECTS = "rejects.jsonl"


_TRACELESS = ("tokenizer_engine", "engine", "memory_bytes", "workers", "on_reject", "max_rejected_fraction")


@dataclass(frozen=True, slots=True)
class Shuffled:
    """What a call made, or found made."""

    folder: Path
    """of the tars and their lists"""
    manifest: Manifest
    """counts and checksums"""
    made: bool
    """False when it was there already"""
    plan: dict[str, Any] = field(default_factory=dict)
    """the plan's JSON"""


def shuffle(
    inputs: ShuffleInputs,
    output: Path,
    options: ShuffleOptions,
    *,
    scratch: Path | None = None,
    listener: Listener = silent,
) -> Shuffled:
    """Write the shuffled tars of ``inputs`` into the folder ``output``, which appears when it is whole.

    Until then everything lies in ``.<output>.scratch`` beside it: a call that was killed goes on where it was, for any
    number of workers and any engine. The same call on the same inputs does nothing.

    Args:
        inputs: the sources.
        output: the folder; it must not be there, or be empty, or hold what such a call made, which is replaced.
        options: the settings.
        scratch: where to put tokens and buckets, in a folder of this output's own; default: beside the output.
        listener: hears the progress.

    Raises StorageError for a full disk; ConfigError for settings that cannot be and a folder of other content; and
    what `preprocess`, `survey_tars`, `plan_shuffle` and `write_shards` raise.
    """
    check_options(inputs, options)
    recipe = _recipe(inputs, options, output.name)
    work, aside = (detour(output.absolute(), f".{output.name}.scratch", folder) for folder in (None, scratch))
    if (done := _finished(output, recipe, options)) is not None:
        if work.exists():  # of a call that was killed just after it had published
            with _owned(work, recipe):
                _remove(work, aside)
        return Shuffled(output, done, False, done.facts["plan"])
    _check_output(output)
    with _owned(work, recipe), _full_disk(work):
        prepared = prepare(inputs, options, aside / "tokens", listener)
        plan = make_plan(prepared, inputs, options)
        manifest = _write(prepared, plan, recipe, work / "tars", aside, options, listener)
        _publish(work / "tars", output)
        _remove(work, aside)
    return Shuffled(output, replace(manifest, folder=output), True, plan.to_json())


def prepare(inputs: ShuffleInputs, options: ShuffleOptions, folder: Path, listener: Listener = silent) -> Prepared:
    """The token sources of ``inputs``; ``folder`` takes what must be made for it."""
    folder.mkdir(parents=True, exist_ok=True)
    if inputs.kind == "datasets":
        return open_pairs(inputs)
    if inputs.kind == "text":
        return tokenize_sources(inputs, text_options(options), folder, listener=listener)
    dtype = tokenizer_facts(options.tokenizer).dtype.name if options.tokenizer is not None else None
    found = decode_sources(
        inputs, folder, data_key=options.data_key, dtype=dtype, workers=options.processes, listener=listener
    )
    if options.sequence_length not in (None, found.sequence_length):
        raise ConfigError(
            "the contexts of tars stay as they are",
            where="--seqlen",
            found=options.sequence_length,
            expected=f"{found.sequence_length}, which they have",
            remedy="leave --seqlen out, or cut other contexts from the text",
        )
    return found


def make_plan(prepared: Prepared, inputs: ShuffleInputs, options: ShuffleOptions) -> ShufflePlan:
    """The plan of prepared sources."""
    return plan_shuffle(prepared.sources, **plan_settings(prepared, inputs, options))


def _recipe(inputs: ShuffleInputs, options: ShuffleOptions, name: str) -> Recipe:
    given = {key: value for key, value in asdict(options).items() if key not in _TRACELESS}
    if options.tokenizer is not None:
        given["tokenizer"] = tokenizer_facts(options.tokenizer).fingerprint
    given["compressor"] = compressor_identity() if options.member == "json.gz" else None
    return Recipe(STAGE, name, VERSION, {"inputs": digest_of([inputs.kind, inputs.state()])}, given)


def _finished(output: Path, recipe: Recipe, options: ShuffleOptions) -> Manifest | None:
    """The result of the same call, where it is whole and has no more rejects than the options allow."""
    with contextlib.suppress(NanosetError):
        found = read_manifest(output)
        if found is not None and found.digest == recipe.digest and found.damage() is None:
            rejected, documents = found.facts["rejected"], found.facts["documents"]
            policy = RejectPolicy(options.on_reject, options.max_rejected_fraction)
            return found if policy.allows(rejected, rejected + documents) else None
    return None


def _check_output(output: Path) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    with contextlib.suppress(NanosetError):
        found = read_manifest(output)
        if found is not None and found.stage == STAGE:
            return
    raise ConfigError(
        "there is something else already",
        where=output,
        expected="no such folder, an empty one, or an earlier result",
        remedy="give another --output, or remove it",
    )


@contextlib.contextmanager
def _owned(work: Path, recipe: Recipe) -> Iterator[None]:
    """Hold the scratch of one output; what a call of other settings left of the tars goes."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                "another call is writing this output", where=work, remedy="wait for it, or give another --output"
            ) from error
        mark = work / "recipe"
        if not mark.exists() or mark.read_text() != recipe.digest:
            shutil.rmtree(work / "tars", ignore_errors=True)
            write_atomic(mark, recipe.digest.encode())
        sweep_abandoned(work)
        yield


@contextlib.contextmanager
def _full_disk(work: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(
            "the disk is full",
            where=error.filename or work,
            found=error.strerror,
            expected="room for the tokens (--scratch) and the tars; `--plan` says how much",
            remedy="make room and run again: nothing was published, and what is finished is kept",
        ) from error


def _write(
    prepared: Prepared,
    plan: ShufflePlan,
    recipe: Recipe,
    folder: Path,
    scratch: Path,
    options: ShuffleOptions,
    listener: Listener,
) -> Manifest:
    """Write the tars, the lists that name them and, last, the manifest of all into a folder."""
    facts = write_shards(
        plan,
        prepared.sources,
        range(plan.shards),
        folder,
        engine=options.engine,
        memory_bytes=options.memory_bytes,
        scratch=scratch,
        workers=options.processes,
        listener=listener,
        name=recipe.name,
        made_from=recipe.digest,
    )
    tokenizer = options.tokenizer.parent.name if options.tokenizer is not None else None
    checksums = write_manifest(plan, facts, folder, name=recipe.name, tokenizer=tokenizer)
    if prepared.rejects:
        write_atomic(folder / REJECTS, b"".join(path.read_bytes() for path in prepared.rejects))
        checksums[REJECTS] = sha256_file(folder / REJECTS)
    files = {f"{fact.stem}.tar": FileFact(fact.size_bytes, fact.sha256) for fact in facts}
    files |= {name: FileFact((folder / name).stat().st_size, checksum) for name, checksum in checksums.items()}
    summary = {"plan": plan.to_json(), "documents": prepared.documents, "rejected": prepared.rejected}
    write_atomic(folder / MANIFEST, manifest_bytes(recipe, summary, files))
    if (folder / RECEIPTS).exists():
        clear_receipts(folder)
    return Manifest(folder, recipe.to_json(), recipe.digest, summary, files)


def _remove(work: Path, aside: Path) -> None:
    for folder in (aside, work):  # the lock goes last
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, output: Path) -> None:
    """Let ``folder`` become ``output`` by one rename; an earlier result gives way."""
    fsync_folder(folder)
    earlier = output.with_name(f"{UNFINISHED}{output.name}-{secrets.token_hex(4)}")
    if output.exists() and any(output.iterdir()):
        output.rename(earlier)
    os.replace(folder, output)
    fsync_folder(output.parent)
    shutil.rmtree(earlier, ignore_errors=True)
