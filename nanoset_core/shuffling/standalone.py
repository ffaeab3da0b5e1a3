"""Text, pairs or tars → a folder of shuffled tars, in one call: resumable, published whole."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoset_core.config.webdataset import DEFAULT_LENGTH
from nanoset_core.errors import ConfigError, FormatError, NanosetError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, digest_of, manifest_bytes
from nanoset_core.outputs.recorded import check_outside, flag_differences
from nanoset_core.shuffling import tokshuf
from nanoset_core.shuffling.engines import WriteOptions, write_shards
from nanoset_core.shuffling.inputs import (
    Prepared,
    ShuffleInputs,
    decode_sources,
    input_files,
    open_pairs,
    survey_sources,
    tokenize_sources,
)
from nanoset_core.shuffling.members import compressor_identity
from nanoset_core.shuffling.plan import ShufflePlan, plan_shuffle
from nanoset_core.shuffling.publishing import TarsFolder, tars_folder
from nanoset_core.shuffling.settings import PlanSettings, ShuffleOptions
from nanoset_core.shuffling.webdataset import complete_webdataset
from nanoset_core.storage.access import LocalAccess
from nanoset_core.storage.atomic import sha256_file, sweep_abandoned, write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.remote_folder import Location
from nanoset_core.storage.scratch import held_alone
from nanoset_core.storage.working_copies import work_folder
from nanoset_core.tokenization.files import TokenizerPath, tokenizer_files
from nanoset_core.tokenization.losses import Listing, Losses
from nanoset_core.tokenization.policy import RejectPolicy
from nanoset_core.tokenization.preprocess import PreprocessOptions
from nanoset_core.tokenization.shards import ShardFacts
from nanoset_core.tokenization.tokenizer import token_id, tokenizer_facts

STAGE = "webdatasets"
VERSION = 1
REJECTS = "rejects.jsonl"
_ROOM = "room for the tokens (--scratch) and the tars; `--plan` says how much"


_FLAGS = {"sequence_length": "--seqlen", "samples_per_shard": "--wds-chunk-size", "text_key": "--json-key"}
_TRACELESS = (
    *("tokenizer_engine", "engine", "memory_bytes", "workers"),
    *("on_reject", "max_rejected_fraction", "max_unreadable_fraction"),
)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """What a call made, or found made."""

    folder: Location
    """Of the tars and their lists."""
    manifest: Manifest
    """Counts and checksums."""
    made: bool
    """False when it was there already."""
    plan: dict[str, Any] = field(default_factory=dict)
    """The plan's JSON."""
    lost: tuple[str, ...] = ()
    """Which files of text could not be read to their end, how much of the input that is, and runs of zero bytes."""
    faults: int = 0
    """How many files these are that could not be read to their end: they count as rejected in the manifest."""


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

    Until then everything lies in `.<output>.scratch` beside it: a call that was killed goes on where it was, for any
    number of workers and any engine. The same call on the same inputs does nothing. In a bucket the manifest comes
    last; the scratch of an output there lies below TMPDIR.

    Args:
        inputs: the sources.
        output: the folder; it must not be there, or be empty, or hold what such a call made.
        options: the settings.
        scratch: where to put tokens and buckets, in a folder of this output's own; default: beside the output.
        listener: hears the progress.
        overwrite: whether what such a call made of other inputs or with other settings may be replaced. Whoever is
            killed meanwhile leaves it whole, or nothing there, for a moment, and the new folder in the scratch.

    Raises:
        ConfigError: settings that do not go together, an input in the output, or a folder with content that is not to
            be replaced.
        StorageError: the output cannot be written, or the disk is full.
        NanosetError: as `preprocess`, `survey_tars`, `plan_shuffle` and `write_shards`.
    """
    options.check(inputs.kind)
    check_outside(output, [*inputs.files, *tokenizer_files(options.tokenizer)])
    recipe = _recipe(inputs, options, output.name)
    target, name = (output.absolute() if isinstance(output, Path) else output), f".{output.name}.scratch"
    aside = work_folder(target, name, scratch)
    work = work_folder(target, name, None) if isinstance(output, Path) else aside
    with contextlib.ExitStack() as held:
        tars = held.enter_context(tars_folder(output, work))
        if (finished := _finished(tars, recipe, inputs, options)) is not None:
            done, lost = finished
            tars.forget_begun()
            if work.exists():  # of a call that was killed just after it had published
                with _owned(work, recipe, tars.draft):
                    _remove(work, aside)
            texts = tuple(filter(None, [lost.beyond_rejects()]))
            return Shuffled(output, done, False, done.facts["plan"], texts, lost.facts.faults)
        _check_output(tars, recipe, overwrite=overwrite)
        held.enter_context(tars.writing(expected=_ROOM))
        held.enter_context(writing_to(aside.parent, expected=_ROOM))
        held.enter_context(_owned(work, recipe, tars.draft))
        prepared = prepare(inputs, options, aside / "tokens", listener)
        plan = make_plan(prepared, inputs, options)
        how = WriteOptions(
            engine=options.engine,
            memory_bytes=options.memory_bytes,
            scratch=aside,
            workers=options.processes,
            listener=listener,
            name=recipe.name,
        )
        manifest = _write(prepared, plan, recipe, tars.draft, options, how)
        _check_output(tars, recipe, overwrite=overwrite)  # something may have been put there meanwhile
        manifest = tars.publish(manifest)
        _remove(work, aside)
    return Shuffled(output, manifest, True, plan.to_json(), prepared.lost, prepared.faults)


def prepare(
    inputs: ShuffleInputs, options: ShuffleOptions, folder: Path, listener: ProgressCallback = silent
) -> Prepared:
    """The token sources of `inputs`; `folder` takes what must be made for it."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = inputs.here(folder / "copies")
    if inputs.kind == "datasets":
        return open_pairs(inputs)
    if inputs.kind == "text":
        return tokenize_sources(inputs, text_options(options), folder, listener=listener)
    surveys = survey_sources(inputs, options.data_key, options.tokenizer)
    found = surveys[0].sequence_length
    if options.sequence_length not in (None, found):
        raise ConfigError(
            "the contexts of tars stay as they are",
            where="--seqlen",
            found=options.sequence_length,
            expected=f"{found}, which they have",
            remedy="leave --seqlen out, or cut other contexts from the text",
        )
    return decode_sources(inputs, surveys, folder, workers=options.processes, listener=listener)


def make_plan(prepared: Prepared, inputs: ShuffleInputs, options: ShuffleOptions) -> ShufflePlan:
    """The plan of prepared sources."""
    return plan_shuffle(prepared.sources, plan_settings(prepared, inputs, options))


def text_options(options: ShuffleOptions) -> PreprocessOptions:
    """How text is tokenized on the way.

    Raises:
        ConfigError: the options name no tokenizer, or with the preset tokshuf one that it does not know.
    """
    tokenizer = options.require_tokenizer()
    is_tokshuf = options.preset == "tokshuf"
    return PreprocessOptions(
        tokenizer=tokenizer,
        keys=(options.text_key,),
        preset="tokshuf" if is_tokshuf else "megatron",
        eod=tokshuf.tokshuf_tokens(tokenizer).eot if is_tokshuf else options.eod,
        bos=options.bos,
        workers=options.workers,
        engine=options.tokenizer_engine,
        on_reject=options.on_reject,
        max_rejected_fraction=options.max_rejected_fraction,
        max_unreadable_fraction=options.max_unreadable_fraction,
        count_by_file=is_tokshuf,
    )


def plan_settings(prepared: Prepared, inputs: ShuffleInputs, options: ShuffleOptions) -> PlanSettings:
    """The settings of the plan that the options come to."""
    file = options.tokenizer
    settings = PlanSettings(
        sequence_length=prepared.sequence_length or options.sequence_length or DEFAULT_LENGTH,
        samples_per_shard=options.samples_per_shard,
        seed=options.seed,
        member=options.member,
        bos_id=_id_of(file, options.context_bos, "--context-bos"),
        streams=prepared.streams or None,
        frequencies={source.name: source.frequency for source in inputs.sources},
        even=options.even,
        preset=options.preset,
    )
    if options.preset == "tokshuf" and file is not None:
        pad_id = tokshuf.tokshuf_tokens(file).pad_id
        return replace(settings, tail=tokshuf.TAIL, pad_id=pad_id, eod=tokshuf.EOT)
    return replace(
        settings,
        tail=options.tail,
        pad_id=_id_of(file, options.pad, "--pad") if options.tail == "pad" else None,
        eod=_id_of(file, options.eod, "--eod"),
        vocab_size=tokenizer_facts(file).max_id + 1 if file is not None else None,
    )


def _id_of(tokenizer: TokenizerPath | None, text: str | None, where: str) -> int | None:
    return token_id(tokenizer, text, where) if tokenizer is not None and text else None


def _recipe(inputs: ShuffleInputs, options: ShuffleOptions, name: str) -> Recipe:
    given = {key: value for key, value in asdict(options).items() if key not in _TRACELESS}
    if options.tokenizer is not None:
        given["tokenizer"] = tokenizer_facts(options.tokenizer).fingerprint
    given["compressor"] = compressor_identity() if options.member == "json.gz" else None
    return Recipe(STAGE, name, VERSION, {"inputs": digest_of([inputs.kind, inputs.state()])}, given)


def _finished(
    tars: TarsFolder, recipe: Recipe, inputs: ShuffleInputs, options: ShuffleOptions
) -> tuple[Manifest, Losses] | None:
    """The result of the same call, where it is whole and lost no more than the options allow, and what it lost."""
    with contextlib.suppress(NanosetError):
        found = tars.manifest()
        if found is not None and found.digest == recipe.digest and tars.is_whole(found):
            lost = _lost(found, inputs)
            policy = RejectPolicy(options.on_reject, options.max_rejected_fraction, options.max_unreadable_fraction)
            return (found, lost) if policy.allows(lost) else None
    return None


def _lost(found: Manifest, inputs: ShuffleInputs) -> Losses:
    """What a call lost, by its list of rejects; of files of one name in several sources the largest counts."""
    rejected, documents = found.facts["rejected"], found.facts["documents"]
    zeroed = found.facts.get("zeroed", {})
    if not rejected:
        return Losses(ShardFacts(lines=documents, documents=documents, zeroed=zeroed))
    sizes: dict[str, int] = {}
    for stat in (stat for source in inputs.sources for stat in input_files(source).files):
        sizes[stat.path] = max(stat.size, sizes.get(stat.path, 0))
    listing = Listing(ShardFacts(faults=rejected), lambda: found.path(REJECTS))
    faults = len(Losses(listing.facts, [listing], sizes).unreadable)
    lines = rejected - faults
    facts = ShardFacts(
        lines=lines + documents,
        documents=documents,
        rejected=lines,
        faults=faults,
        stored_bytes=sum(sizes.values()),
        zeroed=zeroed,
    )
    return Losses(facts, [listing], sizes)


def _check_output(tars: TarsFolder, recipe: Recipe, *, overwrite: bool) -> None:
    names = tars.names()
    if names is not None and not names:
        return
    found = None
    with contextlib.suppress(FormatError):
        found = tars.manifest()
    if found is not None and found.stage == STAGE:
        if not overwrite:
            _check_same(tars, found, recipe)
        return
    if (begun := tars.begun()) is not None and (overwrite or begun == recipe.digest):
        return
    raise ConfigError(
        "there is something else already",
        where=tars.output,
        expected="no such folder, an empty one, or an earlier result",
        remedy="give another --output, or remove it",
    )


def _check_same(tars: TarsFolder, found: Manifest, recipe: Recipe) -> None:
    """Raise ConfigError where an earlier result is not of this call, or holds what is not of that result."""
    if found.digest != recipe.digest:
        raise ConfigError(
            "an output of other input or settings is there already",
            where=tars.output,
            found="; ".join(_differences(found, recipe)) or "it was made under another name",
            expected="no such folder, an empty one, or what the same call made",
            remedy="name another --output, or replace this one with --overwrite",
        )
    foreign = sorted((tars.names() or frozenset()) - {MANIFEST, *found.files})
    if foreign:
        raise ConfigError(
            "the output is damaged, and holds other files too, which would be removed as it is made again",
            where=tars.output,
            found=", ".join(foreign[:5]),
            expected="nothing but what the same call made",
            remedy="move them out of it, or replace all that is there with --overwrite",
        )


def _differences(found: Manifest, recipe: Recipe) -> Iterator[str]:
    if found.recipe["parents"] != recipe.parents:
        yield "it was made of other files, or they were moved or written again since"
    yield from flag_differences(found.recipe["options"], recipe.to_json()["options"], _FLAGS)


@contextlib.contextmanager
def _owned(work: Path, recipe: Recipe, draft: Path) -> Iterator[None]:
    """Hold the scratch of one output; what a call of other settings left of the tars goes."""
    work.mkdir(parents=True, exist_ok=True)
    with held_alone(work / ".lock") as ours:
        if not ours:
            raise ConfigError(
                "another call is writing this output", where=work, remedy="wait for it, or give another --output"
            )
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
        return Manifest(folder, recipe.to_json(), recipe.digest, facts, files, LocalAccess(folder))

    return complete_webdataset(
        plan,
        shards,
        folder,
        recipe,
        {
            "plan": plan.to_json(),
            "documents": prepared.documents,
            "rejected": prepared.rejected,
            **({"zeroed": dict(prepared.zeroed)} if prepared.zeroed else {}),
        },
        tokenizer=options.tokenizer.parent.name if options.tokenizer is not None else None,
        finalize=finalize,
        others=rejects,
    )


def _remove(work: Path, aside: Path) -> None:
    for folder in (aside, work):  # the lock goes last
        shutil.rmtree(folder, ignore_errors=True)
