"""`nanoset shuffle`: text, pairs or tars → a folder of shuffled tars, in one call that can be resumed."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, FormatError, NanosetError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.tars.members import compressor_identity
from nanoset_core.formats.tars.tar_input import passed_over_text
from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, digest_of, manifest_bytes, read_manifest
from nanoset_core.outputs.recorded import OutputPlace, check_outside, flag_differences
from nanoset_core.stages.shards.inputs import files_of
from nanoset_core.stages.shards.preprocess import PreprocessOptions
from nanoset_core.stages.webdataset.inputs import Prepared, ShuffleInput, ShuffleInputs, prepare, survey_sources
from nanoset_core.stages.webdataset.lists import LISTS, write_lists
from nanoset_core.stages.webdataset.options import NON_RECIPE_OPTIONS, ShuffleOptions, plan_settings, text_options
from nanoset_core.stages.webdataset.plan import ShufflePlan, plan_lengths, plan_shuffle
from nanoset_core.stages.webdataset.shards import clear_markers, output_bytes
from nanoset_core.stages.webdataset.sizing import EngineChoice, choose_engine
from nanoset_core.stages.webdataset.writing import WriteOptions, write_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import alone_in, fsync_folder, move_into_place, sweep_abandoned, write_atomic
from nanoset_core.storage.location import Location, RawFolder, on_this_machine
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.working_copies import any_remote, temporary_folder, work_folder
from nanoset_core.text.contents import FileStat
from nanoset_core.text.documents import read_documents
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.reference import EncodingError
from nanoset_core.tokenizers.files import tokenizer_files
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

STAGE = "webdatasets"
VERSION = 1
REJECTS = "rejects.jsonl"
_ROOM = "room for the tokens (--scratch) and the tars; `--plan` says how much"
_SAMPLE_FILES, _SAMPLE_BYTES = 8, 1 << 20  # of text, read for an estimate: so much of each file
_FLAGS = {"sequence_length": "--seqlen", "samples_per_shard": "--wds-chunk-size", "text_key": "--json-key"}


@dataclass(frozen=True, slots=True)
class Shuffled:
    """What a call made, or found finished."""

    folder: Location
    manifest: Manifest
    made: bool
    """False when it was there already."""

    @property
    def lost(self) -> Sequence[str]:
        """Which files of text could not be read to their end, how much of the input that is, and runs of zero bytes."""
        return tuple(self.manifest.facts.get("lost", ()))

    @property
    def passed_over(self) -> str | None:
        """How many members of the tars that were read hold no tokens, with an example; None if all do."""
        text: str | None = self.manifest.facts.get("passed_over")
        return text

    @property
    def faults(self) -> int:
        """How many files could not be read to their end: they count as rejected in the manifest."""
        return int(self.manifest.facts.get("faults", 0))


def shuffle(
    inputs: ShuffleInputs,
    output: Location,
    options: ShuffleOptions,
    *,
    scratch: Path | None = None,
    listener: ProgressCallback = silent,
    overwrite: bool = True,
) -> Shuffled:
    """Write the shuffled tars of `inputs` into the folder `output`, which appears when it is whole.

    Until then everything is in `.<output>.scratch` beside it (of a bucket: below TMPDIR): a call that was killed is
    continued by the next one, with any number of workers and any engine. The same call on the same inputs does nothing.
    In a bucket the manifest comes last.

    Args:
        inputs: the sources.
        output: the folder; it must not be there, or be empty, or hold what such a call made.
        options: the settings.
        scratch: where to put tokens and spill files, in a folder of this output's own; default: beside the output.
        listener: progress callback.
        overwrite: whether the result of a call with other inputs or settings may be replaced. A call that is killed
            while it replaces leaves the old folder, the new one, or none and the new one in the scratch.
    """
    options.check(inputs.kind)
    check_outside(output, [*inputs.files, *tokenizer_files(options.tokenizer)])
    recipe = _recipe(inputs, options, output.name)
    target, name = output.absolute(), f".{output.name}.scratch"
    scratch_dir = work_folder(target, name, scratch)
    work = work_folder(target, name, None) if isinstance(output, Path) else scratch_dir
    with contextlib.ExitStack() as held:
        if isinstance(output, Path):
            tars = TarsFolder(output, work / "tars", FileAccess(output), output)
        else:
            room = held.enter_context(temporary_folder(output.name))
            tars = TarsFolder(
                room / output.name, work / "tars" / output.name, FileAccess(room, output.parent.place), output
            )
        if (finished := _finished(tars, recipe, options)) is not None:
            if tars.interrupted() is not None:  # a call was killed just after it had published everything
                tars.place.store.delete(_PUBLISHING)
            if work.exists():
                with _owned(work, recipe, tars.draft):
                    _remove(work, scratch_dir)
            return Shuffled(output, finished, False)
        _check_output(tars, recipe, overwrite=overwrite)
        place = OutputPlace(output.parent) if isinstance(output, Path) else tars.place
        held.enter_context(place.writing(expected=_ROOM))
        held.enter_context(writing_to(scratch_dir.parent, expected=_ROOM))
        held.enter_context(_owned(work, recipe, tars.draft))
        prepared = prepare(inputs, options, scratch_dir / "tokens", listener=listener)
        settings = plan_settings(options, inputs.frequencies, prepared.streams, prepared.sequence_length)
        plan = plan_shuffle(prepared.sources, settings)
        how = WriteOptions(
            engine=options.engine,
            memory_bytes=options.memory_bytes,
            scratch=scratch_dir,
            workers=options.processes,
            listener=listener,
            name=recipe.name,
        )
        manifest = _write(prepared, plan, recipe, tars.draft, options, how)
        _check_output(tars, recipe, overwrite=overwrite)  # something may have been put there in the meantime
        manifest = tars.publish(manifest)
        _remove(work, scratch_dir)
    return Shuffled(output, manifest, True)


def _recipe(inputs: ShuffleInputs, options: ShuffleOptions, name: str) -> Recipe:
    given = {key: value for key, value in asdict(options).items() if key not in NON_RECIPE_OPTIONS}
    if options.tokenizer is not None:
        given["tokenizer"] = tokenizer_facts(options.tokenizer).fingerprint
    given["compressor"] = compressor_identity() if options.member == "json.gz" else None
    return Recipe(STAGE, name, VERSION, {"inputs": digest_of([inputs.kind, inputs.state()])}, given)


def _finished(tars: TarsFolder, recipe: Recipe, options: ShuffleOptions) -> Manifest | None:
    """Return the result of the same call, if it is whole; rejected lines are judged anew under another policy."""
    with contextlib.suppress(NanosetError):
        found = tars.manifest()
        if found is not None and found.digest == recipe.digest and found.damage() is None:
            judged = not found.facts["rejected"] or found.facts.get("policy") == list(options.limits.values())
            return found if judged else None
    return None


def _check_output(tars: TarsFolder, recipe: Recipe, *, overwrite: bool) -> None:
    names, found = tars.names(), None
    if names is not None and not names:
        return
    with contextlib.suppress(FormatError):
        found = tars.manifest()
    if found is None or found.stage != STAGE:
        if (digest := tars.interrupted()) is not None and (overwrite or digest == recipe.digest):
            return
        what, expected = "there is something else already", "no such folder, an empty one, or an earlier result"
        remedy = "give another --output, or remove it"
        raise ConfigError(what, where=tars.output, expected=expected, remedy=remedy)
    foreign = sorted((names or frozenset()) - {MANIFEST, *found.files})
    if found.digest != recipe.digest and not overwrite:
        is_of_others = found.recipe["parents"] != recipe.parents
        differences = ["it was made of other files, or they were moved or written again since"] * is_of_others
        differences += flag_differences(found.recipe["options"], recipe.to_json()["options"], _FLAGS)
        what, remedy = "an output of other input or settings is there already", "or replace this one with --overwrite"
        text = "; ".join(differences) or "it was made under another name"
        raise ConfigError(what, where=tars.output, found=text, remedy=f"name another --output, {remedy}")
    if foreign and not overwrite:
        what = "the output is damaged, and holds other files too, which would be removed as it is made again"
        remedy = "move them out of it, or replace all that is there with --overwrite"
        raise ConfigError(what, where=tars.output, found=", ".join(foreign[:5]), remedy=remedy)


@contextlib.contextmanager
def _owned(work: Path, recipe: Recipe, draft: Path) -> Iterator[None]:
    """Hold the scratch of one output; remove the tars in it that a call of other settings left."""
    with alone_in(work, waits=False) as ours:
        if not ours:
            remedy = "wait for it, or give another --output"
            raise ConfigError("another call is writing this output", where=work, remedy=remedy)
        mark = work / "recipe"
        if not mark.exists() or mark.read_text(encoding="utf-8") != recipe.digest:
            shutil.rmtree(draft, ignore_errors=True)
            write_atomic(mark, recipe.digest.encode())
        sweep_abandoned(work)
        yield


def _write(
    prepared: Prepared, plan: ShufflePlan, recipe: Recipe, folder: Path, options: ShuffleOptions, how: WriteOptions
) -> Manifest:
    shards = write_shards(plan, prepared.sources, range(plan.shards), folder, how, made_from=recipe.digest)
    tokenizer, access = options.tokenizer.parent.name if options.tokenizer else None, FileAccess(folder)
    files = write_lists(plan, shards, folder, name=recipe.name, tokenizer=tokenizer)
    if listed := [on_this_machine(text.rejects).read_bytes() for text in prepared.texts if text.rejects is not None]:
        write_atomic(folder / REJECTS, data := b"".join(listed))
        files[REJECTS] = FileFact(len(data), hashlib.sha256(data).hexdigest())
    facts = {"plan": plan.to_json()} | _facts(prepared, options)
    write_atomic(folder / MANIFEST, manifest_bytes(recipe, facts, files))
    clear_markers(folder, access)
    return Manifest(folder, recipe.to_json(), recipe.digest, facts, files, access)


def _facts(prepared: Prepared, options: ShuffleOptions) -> dict[str, Any]:
    texts = prepared.texts
    faults = sum(text.facts.faults for text in texts)
    rejected = sum(text.facts.rejected for text in texts) + faults
    more = {
        "zeroed": dict(sum((Counter(text.facts.zeroed) for text in texts), Counter[str]())),
        "lost": [text.lost for text in texts if text.lost],
        "faults": faults,
        "policy": list(options.limits.values()) if rejected else [],
        "passed_over": prepared.passed_over,
    }
    facts = {"documents": sum(text.facts.documents for text in texts), "rejected": rejected}
    return facts | {name: value for name, value in more.items() if value}


def _remove(work: Path, scratch_dir: Path) -> None:
    for folder in (scratch_dir, work):  # the lock goes last
        shutil.rmtree(folder, ignore_errors=True)


_PUBLISHING = ".begun"
"""Object that marks a folder of a bucket to which a call publishes, or was publishing when it was killed."""


@dataclass(frozen=True, slots=True)
class TarsFolder:
    """Where the tars of one call go, with their lists and manifest."""

    folder: Path
    """As `access` names it."""
    draft: Path
    """Where they are written first; in a bucket a folder of the output's name."""
    access: FileAccess
    output: Location
    """The folder, as the user names it."""

    @property
    def place(self) -> OutputPlace:
        return OutputPlace(self.output)

    def names(self) -> frozenset[str] | None:
        """Return the names of what is in it; None where it is no folder."""
        if isinstance(self.output, Path) and self.output.exists() and not self.output.is_dir():
            return None
        return self.access.names(self.folder) - {_PUBLISHING}

    def manifest(self) -> Manifest | None:
        """Return the manifest of the result that it holds; raise FormatError where it is none of ours."""
        return read_manifest(self.folder, self.access)

    def interrupted(self) -> str | None:
        """Return the digest of the result that a call was publishing to a bucket when it was killed."""
        data = None if isinstance(self.output, Path) else self.place.store.read(_PUBLISHING)
        return None if data is None else data.decode(errors="replace")

    def publish(self, manifest: Manifest) -> Manifest:
        """Put the draft in place of an earlier result, and return its manifest there.

        A local folder is replaced by a rename. To a bucket tars are sent, then the lists that name them, and the
        manifest last.
        """
        if isinstance(self.output, Path):
            fsync_folder(self.draft)
            sweep_abandoned(self.output.parent, self.output.name)  # what a killed call had moved away
            move_into_place(self.draft, self.output)
            return replace(manifest, folder=self.output)
        earlier, place, access = None, self.place, self.access.with_copies_in(self.draft.parent)
        with contextlib.suppress(ValueError):
            earlier = self.manifest()
        place.store.put(_PUBLISHING, manifest.digest.encode())
        for name in (MANIFEST, *LISTS):
            place.store.delete(name)
        sums = {name: fact.sha256 for name, fact in manifest.files.items()}
        tars = {self.draft / name: sha256 for name, sha256 in sums.items() if name not in LISTS and sha256 is not None}
        access.send(tars, tars)
        access.publish(self.draft, sums, MANIFEST)
        for name in (*((earlier.files if earlier is not None else {}).keys() - sums.keys()), _PUBLISHING):
            place.store.delete(name)
        return replace(manifest, access=access)


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan and what it takes."""

    plan: ShufflePlan
    """Of sources as they are, or as they are estimated."""
    estimated: bool
    """Whether tokens are those of a sample of the text."""
    output_bytes: int
    output_exact: bool
    token_bytes: int
    """Bytes of scratch for tokens of text or tars, at the most."""
    engine: EngineChoice
    passed_over: str | None = None
    """How many members of tars hold no tokens, with an example; None if all do."""


def preview(inputs: ShuffleInputs, options: ShuffleOptions) -> Preview:
    """Plan a call: exactly for pairs and tars, by a sample for text."""
    options.check(inputs.kind)
    streams: dict[str, Sequence[int]] = {}
    length = None
    passed_over = None
    if inputs.kind == "datasets":
        prefixes = (str(source.files[0]).removesuffix(".bin") for source in inputs.sources)
        pairs = [MMapIndexedDataset(prefix, validate=False) for prefix in prefixes]
        counts = [int(pair.sequence_lengths.sum(dtype=np.int64)) for pair in pairs]
        dtype = np.result_type(*(pair.dtype for pair in pairs)).name
    elif inputs.kind == "tars":
        with temporary_folder("tars") if any_remote(inputs.files) else contextlib.nullcontext(Path()) as room:
            surveys = survey_sources(inputs.here(room), options)
        counts = [survey.tokens for survey in surveys]
        dtype = surveys[-1].dtype
        length = surveys[-1].sequence_length
        passed_over = passed_over_text(surveys)
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
    return Preview(plan, inputs.kind == "text", size, exact and inputs.kind != "text", scratch, choice, passed_over)


def _estimated(source: ShuffleInput, settings: PreprocessOptions) -> list[int]:
    """Estimate the tokens of each file by the tokens per byte of a few."""
    inputs = files_of(source.files)
    by_size = sorted(inputs.files, key=lambda file: file.size)
    spread = {by_size[i * (len(by_size) - 1) // (_SAMPLE_FILES - 1)] for i in range(_SAMPLE_FILES)}
    samples = [_sample(inputs.folder, file, settings) for file in sorted(spread, key=lambda file: file.path)]
    read, tokens = (sum(counts) for counts in zip(*samples, strict=True))
    return [round(file.size * tokens / max(read, 1)) for file in inputs.files]


def _sample(folder: RawFolder, file: FileStat, settings: PreprocessOptions) -> tuple[int, int]:
    """Return (stored bytes read, their tokens) of a file's beginning; of all of it if it is compressed or a table."""
    whole, source = not is_cuttable(file.path), SourceRange((Piece(file.path, 0, file.size, 1, ""),))
    key, size = settings.keys[0], _SAMPLE_BYTES
    batches = read_documents(folder, source, text_key=key, id_key="id", batch_bytes=size, verify=False)
    engine, read, tokens = make_engine(settings.tokenizer, "tokenizers"), 0, 0
    extra = (settings.eod is not None) + (settings.bos is not None)
    for batch in batches if whole else islice(batches, 1):
        try:
            encoded = engine.encode(batch.texts)
        except EncodingError as error:
            raise error.at(f"{folder / file.path}:{batch.lines[error.document]}") from error
        tokens += len(encoded.ids) + extra * len(batch.texts)
        read += batch.read_bytes
    return (file.size if whole else read), tokens
