"""`nanoset shuffle`: text, pairs or tars → a folder of shuffled tars, in one call that can be resumed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, FormatError, NanosetError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, digest_of, manifest_bytes
from nanoset_core.outputs.places import place_of
from nanoset_core.outputs.recorded import check_outside, flag_differences
from nanoset_core.shuffling.inputs import Prepared, ShuffleInputs, prepare
from nanoset_core.shuffling.members import compressor_identity
from nanoset_core.shuffling.options import NON_RECIPE_OPTIONS, ShuffleOptions, plan_settings
from nanoset_core.shuffling.output_folder import TarsFolder, tars_folder
from nanoset_core.shuffling.plan import ShufflePlan, plan_shuffle
from nanoset_core.shuffling.webdataset import complete_webdataset
from nanoset_core.shuffling.writing import WriteOptions, write_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file, sweep_abandoned, write_atomic
from nanoset_core.storage.location import Location
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.scratch import held_alone
from nanoset_core.storage.working_copies import work_folder
from nanoset_core.tokenization.files import tokenizer_files
from nanoset_core.tokenization.inputs import files_of
from nanoset_core.tokenization.losses import Listing, Losses
from nanoset_core.tokenization.policy import RejectPolicy
from nanoset_core.tokenization.shards import ShardFacts
from nanoset_core.tokenization.tokenizer import tokenizer_facts

STAGE = "webdatasets"
VERSION = 1
REJECTS = "rejects.jsonl"
_ROOM = "room for the tokens (--scratch) and the tars; `--plan` says how much"
_FLAGS = {"sequence_length": "--seqlen", "samples_per_shard": "--wds-chunk-size", "text_key": "--json-key"}


@dataclass(frozen=True, slots=True)
class Shuffled:
    """What a call made, or found finished."""

    folder: Location
    """Of the tars and their lists."""
    manifest: Manifest
    """Counts and checksums."""
    made: bool
    """False when it was there already."""
    lost: tuple[str, ...] = ()
    """Which files of text could not be read to their end, how much of the input that is, and runs of zero bytes."""
    faults: int = 0
    """How many files could not be read to their end: they count as rejected in the manifest."""


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

    Until then everything is in `.<output>.scratch` beside it: a call that was killed is continued by the next one, with
    any number of workers and any engine. The same call on the same inputs does nothing. In a bucket the manifest comes
    last; the scratch of an output there is below TMPDIR.

    Args:
        inputs: the sources.
        output: the folder; it must not be there, or be empty, or hold what such a call made.
        options: the settings.
        scratch: where to put tokens and spill files, in a folder of this output's own; default: beside the output.
        listener: progress callback.
        overwrite: whether the result of a call with other inputs or settings may be replaced. A call that is killed
            while it replaces leaves the old folder, the new one, or none and the new one in the scratch.

    Raises:
        ConfigError: settings that do not go together, an input in the output, or a folder with content that is not to
            be replaced.
        StorageError: the output cannot be written, or the disk is full.
        NanosetError: as `prepare`, `plan_shuffle` and `write_shards`.
    """
    options.check(inputs.kind)
    check_outside(output, [*inputs.files, *tokenizer_files(options.tokenizer)])
    recipe = _recipe(inputs, options, output.name)
    target, name = (output.absolute() if isinstance(output, Path) else output), f".{output.name}.scratch"
    scratch_dir = work_folder(target, name, scratch)
    work = work_folder(target, name, None) if isinstance(output, Path) else scratch_dir
    with contextlib.ExitStack() as held:
        tars = held.enter_context(tars_folder(output, work))
        if (finished := _finished(tars, recipe, inputs, options)) is not None:
            done, lost = finished
            tars.clear_mark()
            if work.exists():  # of a call that was killed just after it had published
                with _owned(work, recipe, tars.draft):
                    _remove(work, scratch_dir)
            texts = tuple(filter(None, [lost.beyond_rejects()]))
            return Shuffled(output, done, False, texts, lost.facts.faults)
        _check_output(tars, recipe, overwrite=overwrite)
        place = place_of(output.parent) if isinstance(output, Path) else tars.place
        held.enter_context(place.writing(expected=_ROOM))
        held.enter_context(writing_to(scratch_dir.parent, expected=_ROOM))
        held.enter_context(_owned(work, recipe, tars.draft))
        prepared = prepare(inputs, options, scratch_dir / "tokens", listener=listener)
        frequencies = {source.name: source.frequency for source in inputs.sources}
        settings = plan_settings(options, frequencies, prepared.streams, prepared.sequence_length)
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
    return Shuffled(output, manifest, True, prepared.lost, prepared.faults)


def _recipe(inputs: ShuffleInputs, options: ShuffleOptions, name: str) -> Recipe:
    given = {key: value for key, value in asdict(options).items() if key not in NON_RECIPE_OPTIONS}
    if options.tokenizer is not None:
        given["tokenizer"] = tokenizer_facts(options.tokenizer).fingerprint
    given["compressor"] = compressor_identity() if options.member == "json.gz" else None
    return Recipe(STAGE, name, VERSION, {"inputs": digest_of([inputs.kind, inputs.state()])}, given)


def _finished(
    tars: TarsFolder, recipe: Recipe, inputs: ShuffleInputs, options: ShuffleOptions
) -> tuple[Manifest, Losses] | None:
    """Return the result of the same call, if it is whole and lost no more than the options allow, and what it lost."""
    with contextlib.suppress(NanosetError):
        found = tars.manifest()
        if found is not None and found.digest == recipe.digest and found.damage() is None:
            lost = _losses(found, inputs)
            policy = RejectPolicy(options.on_reject, options.max_rejected_fraction, options.max_unreadable_fraction)
            return (found, lost) if policy.allows(lost) else None
    return None


def _losses(found: Manifest, inputs: ShuffleInputs) -> Losses:
    """Return what a call lost, by its list of rejects; of files of one name in several sources the largest counts."""
    rejected, documents = found.facts["rejected"], found.facts["documents"]
    sizes: dict[str, int] = {}
    listings = []
    if rejected:
        for stat in (stat for source in inputs.sources for stat in files_of(source.paths).files):
            sizes[stat.path] = max(stat.size, sizes.get(stat.path, 0))
        listings = [Listing(ShardFacts(faults=rejected), lambda: found.path(REJECTS))]
    faults = len(Losses(ShardFacts(), listings, sizes).unreadable)
    facts = ShardFacts(
        lines=rejected - faults + documents,
        documents=documents,
        rejected=rejected - faults,
        faults=faults,
        stored_bytes=sum(sizes.values()),
        zeroed=found.facts.get("zeroed", {}),
    )
    return Losses(facts, listings, sizes)


def _check_output(tars: TarsFolder, recipe: Recipe, *, overwrite: bool) -> None:
    """Raise ConfigError where the output folder holds something that may not be replaced."""
    names = tars.names()
    if names is not None and not names:
        return
    found = None
    with contextlib.suppress(FormatError):
        found = tars.manifest()
    if found is not None and found.stage == STAGE:
        if not overwrite:
            _check_same(tars, found, recipe)
    elif (digest := tars.interrupted()) is None or not (overwrite or digest == recipe.digest):
        expected = "no such folder, an empty one, or an earlier result"
        remedy = "give another --output, or remove it"
        raise ConfigError("there is something else already", where=tars.output, expected=expected, remedy=remedy)


def _check_same(tars: TarsFolder, found: Manifest, recipe: Recipe) -> None:
    """Raise ConfigError where an earlier result is not of this call, or holds what is not of that result."""
    if found.digest != recipe.digest:
        differences = []
        if found.recipe["parents"] != recipe.parents:
            differences.append("it was made of other files, or they were moved or written again since")
        differences += flag_differences(found.recipe["options"], recipe.to_json()["options"], _FLAGS)
        raise ConfigError(
            "an output of other input or settings is there already",
            where=tars.output,
            found="; ".join(differences) or "it was made under another name",
            remedy="name another --output, or replace this one with --overwrite",
        )
    if foreign := sorted((tars.names() or frozenset()) - {MANIFEST, *found.files}):
        what = "the output is damaged, and holds other files too, which would be removed as it is made again"
        remedy = "move them out of it, or replace all that is there with --overwrite"
        raise ConfigError(what, where=tars.output, found=", ".join(foreign[:5]), remedy=remedy)


@contextlib.contextmanager
def _owned(work: Path, recipe: Recipe, draft: Path) -> Iterator[None]:
    """Hold the scratch of one output; remove the tars in it that a call of other settings left."""
    work.mkdir(parents=True, exist_ok=True)
    with held_alone(work / ".lock") as ours:
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
    """Write the tars, the lists that name them and, last, the manifest of all into a folder."""
    shards = write_shards(plan, prepared.sources, range(plan.shards), folder, how, made_from=recipe.digest)
    rejects = {}
    if prepared.rejects:
        write_atomic(folder / REJECTS, b"".join(path.read_bytes() for path in prepared.rejects))
        rejects[REJECTS] = sha256_file(folder / REJECTS)

    def finalize(recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]) -> Manifest:
        write_atomic(folder / MANIFEST, manifest_bytes(recipe, facts, files))
        return Manifest(folder, recipe.to_json(), recipe.digest, facts, files, FileAccess(folder))

    facts = {"plan": plan.to_json(), "documents": prepared.documents, "rejected": prepared.rejected}
    return complete_webdataset(
        plan,
        shards,
        folder,
        recipe,
        facts | ({"zeroed": dict(prepared.zeroed)} if prepared.zeroed else {}),
        tokenizer=options.tokenizer.parent.name if options.tokenizer is not None else None,
        finalize=finalize,
        others=rejects,
    )


def _remove(work: Path, scratch_dir: Path) -> None:
    for folder in (scratch_dir, work):  # the lock goes last
        shutil.rmtree(folder, ignore_errors=True)
