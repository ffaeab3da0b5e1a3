"""tokenization: the corpus's source ranges → content-addressed shards, in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import InputError, MissingError, NanosetError, StorageError, one_line
from nanoset_core.execution.progress import Progress, note
from nanoset_core.outputs.erasures import missing_version
from nanoset_core.outputs.manifest import Manifest, PackedManifests, Recipe, pack
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.inventory.corpora import corpus_folder
from nanoset_core.stages.inventory.make import current_inventory, inventory_at, with_object_marks
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards import purged, shards
from nanoset_core.stages.shards.document_table import LineNumbers, joined_facts
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.framing import Framing, make_framing, special_tokens_notices
from nanoset_core.stages.shards.losses import Losses, RejectPolicy, SettingNames, losses_of, stored_sizes
from nanoset_core.stages.shards.repeats import LOOK, repeats_text
from nanoset_core.stages.stage import (
    CorpusStage,
    Estimated,
    InternalStage,
    Key,
    Layout,
    Node,
    OutsideFiles,
    Planned,
    ReadingBudget,
    Summary,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.files import define

T = TypeVar("T")
STAGE = "tokenized"
SHARDS = shards.STAGE
VERSION = shards.VERSION
BY_SHARD, MANY_SHARDS = "documents_by_shard", 256
"""Fact of a set of shards: documents of each, where there are so many that asking each for it takes long."""
_BYTES_PER_TOKEN = 4
"""Of text as it is stored."""
_UNPACKED = 3
"""Bytes of text in a byte of compressed text, about."""
"""The reason shown for a changed inventory."""
_NAMES = SettingNames(
    on_reject="documents.on_reject: fail",
    rejected="documents.max_rejected_fraction",
    unreadable="documents.max_unreadable_fraction",
    text_key="documents.text_key",
)


def token_options(project: Project, corpus: str) -> dict[str, Any]:
    """Return what decides a corpus's tokens: those of its shards, and the documents that are erased."""
    return _shard_options(project, corpus) | purged.recipe_options(purged.noted(project.outputs, corpus))


def _shard_options(project: Project, corpus: str) -> dict[str, Any]:
    """Return what decides a shard's tokens: settings, and the engines that are not trusted with the tokenizer."""
    distrusted = distrust.noted(project.outputs, project.tokenizer.fingerprint)
    settings = _settings(project, corpus)
    return settings.recipe_options(project.tokenizer.fingerprint) | distrust.recipe_options(distrusted)


def _settings(project: Project, corpus: str) -> shards.ShardSettings:
    config, documents = project.config, project.config.documents_of(corpus)
    return shards.ShardSettings(
        tokenizer_file=config.tokenizer_file,
        engine=config.tokenization.engine,
        audit=config.tokenization.audit,
        dtype=project.tokenizer.dtype.name,
        max_id=project.tokenizer.max_id,
        framing=framing(project),
        text_key=documents.text_key,
        id_key=documents.id_key,
        max_line_bytes=int(documents.max_line_mib * (1 << 20)),
        fail_on_reject=documents.on_reject == "fail",
    )


def check_tokenizer(project: Project) -> None:
    """Raise MissingError, FormatError or ConfigError for a tokenizer that no build could use."""
    _settings(project, "")


def tokenizer_notices(project: Project) -> list[str]:
    """Return notices on a tokenizer: what its files do not tell, and special tokens that it would add itself."""
    settings = project.config.tokenization
    tokenizer = project.config.tokenizer
    special_tokens = special_tokens_notices(
        settings.preset,
        project.tokenizer.file,
        settings.special_tokens,
        bos=tokenizer.bos if settings.prepend_bos else None,
        eod=tokenizer.eod if settings.append_eod else None,
    )
    return [*define(project.tokenizer.file).notices, *special_tokens]


def framing(project: Project) -> Framing:
    """Return what is put around each document's tokens."""
    settings = project.config.tokenization
    return make_framing(
        settings.preset,
        project.config.tokenizer_file,
        bos=project.special("bos") if settings.prepend_bos else None,
        eod=project.special("eod") if settings.append_eod else None,
        special_tokens=settings.special_tokens,
    )


def _end_of_documents(project: Project) -> str:
    if not project.config.tokenization.append_eod:
        return "no token ends documents (tokenization.append_eod: false)"
    return f"EOD {project.config.tokenizer.eod!r} (id {project.special('eod')})"


def _range_bytes(project: Project) -> int:
    return int(project.config.tokenization.range_mib * (1 << 20))


@holding
def tokenize(project: Project, corpus: str) -> Manifest:
    """Tokenize what is not yet tokenized of a corpus's current inventory; make the set of its shards current.

    InputError where there is no text, or more was lost than is allowed; SourceChangedError where a file is another now.
    """
    inventory_manifest, inventory = current_inventory(project, corpus)
    for notice in define(project.tokenizer.file).notices:
        project.listener(note(f"notice: {notice}"))
    project.listener(note(_end_of_documents(project)))
    while True:
        try:
            made, options = _make_shards(project, corpus, inventory)
            break
        except purged.PurgedError as error:
            found = f"documents that were erased are in {project.config.corpus_folder(corpus)} again, and left out"
            project.listener(note(f"{len(error.places):,} {found}"))
            purged.note(project.outputs, corpus, error.places)
    # By the engines that were not used, and what was erased, whatever is noted by now.
    recipe = _set_recipe(project, corpus, {"inventory": inventory_manifest.digest}, options)
    lost = losses_of(made, inventory.pieces)
    reject_policy(project, corpus).check(lost, project.config.corpus_folder(corpus))
    facts = lost.facts
    if facts.tokens == 0:
        raise InputError(
            "the corpus holds no text",
            where=project.config.corpus_folder(corpus),
            found=facts.described(),
            expected="at least one document with text",
            remedy="add documents, or remove the folder",
        )

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        counts = {BY_SHARD: [shard.facts["documents"] for shard in made]} if len(made) >= MANY_SHARDS else {}
        digests = {SHARDS: [shard.digest for shard in made]}
        return facts.to_json() | joined_facts(made, inventory.pieces) | digests | counts, {}

    return project.outputs.make_current(project.outputs.commit(recipe, write))


def _make_shards(project: Project, corpus: str, inventory: Inventory) -> tuple[Sequence[Manifest], dict[str, Any]]:
    """Make the shards that are not there yet; → all, and the options of their set. Raises as TokenizeJob.run."""
    settings, folder = _settings(project, corpus), corpus_folder(project, corpus)
    erased = purged.noted(project.outputs, corpus, again=True)
    ranges = with_object_marks(project, folder, purged.without(cut_ranges(inventory, _range_bytes(project)), erased))
    workers, room = _fitting(project, corpus, ranges)
    job = shards.TokenizeJob(
        root=project.outputs,
        corpus=corpus,
        folder=folder,
        ranges=ranges,
        options=settings.recipe_options(project.tokenizer.fingerprint),
        settings=replace(settings, room=room),
        workers=workers,
        executor=project.executor,
        listener=project.listener,
        news=Progress("tokenized_shards", corpus, 0, sum(source.size for source in ranges)),
        look_first=not project.rebuild,
    )
    made, options = job.run()
    return made, options | purged.recipe_options(erased)


def ranges_of(project: Project, inventory: Inventory, range_bytes: int) -> list[SourceRange]:
    """Return the ranges of a corpus, one a shard, without the documents that are erased."""
    erased = purged.noted(project.outputs, inventory.corpus)
    return purged.without(cut_ranges(inventory, range_bytes), erased)


def _fitting(project: Project, corpus: str, ranges: Sequence[SourceRange]) -> tuple[int, int]:
    """Return (workers that make shards at once, bytes of the disk for these), by the room for working copies.

    A shard is thought to take 1.5 times its text, and compressed text to be three times as long as it is stored.
    StorageError where one is surely larger than the room.
    """
    room, workers = project.outputs.access.room, project.config.workers
    if room is None or not ranges:
        return workers, 0
    largest = max(one.size for one in ranges)
    if (tokens := largest // _BYTES_PER_TOKEN * project.tokenizer.dtype.itemsize) > room:
        raise StorageError(
            "a shard is larger than the room for working copies",
            where=project.config.corpus_folder(corpus),
            found=f"about {format_bytes(tokens)} of tokens in {format_bytes(largest)} of text as stored",
            expected=f"at most {format_bytes(room)}, three quarters of storage.scratch_mib",
            remedy="set storage.scratch_mib to more, or tokenization.range_mib to less; "
            "keep compressed text and tables in smaller files",
        )
    text = max(one.size * (1 if all(map(is_cuttable, one.files)) else _UNPACKED) for one in ranges)
    each = text * 3 // 2
    at_once = workers if project.executor else max(1, min(workers, room // each))  # other machines have their room
    if at_once < workers:
        project.listener(note(f"{at_once} of {workers} workers: storage.scratch_mib has no room for more shards"))
    return at_once, min(room, each if project.executor else each * at_once)


def current_shards(project: Project, tokenized: Manifest) -> Sequence[Manifest]:
    """Return the shards of a tokenized corpus in document order; MissingError where one is gone or damaged."""
    return some_shards(project, tokenized.name, tokenized.facts[SHARDS])


def some_shards(project: Project, corpus: str, digests: Sequence[str]) -> Sequence[Manifest]:
    """Return these shards of a corpus, in their order; raises as `current_shards`."""
    return PackedManifests(each_shard(project, corpus, digests, pack), project.outputs.access)


def each_shard(project: Project, corpus: str, digests: Sequence[str], work: Callable[[Manifest], T]) -> list[T]:
    """Call `work` on each of these shards of a corpus, in their order; raises as `current_shards`."""

    def look(outputs: OutputRoot, place: Path) -> T:
        shard = outputs.manifest_at(place)
        damage = "its manifest is missing" if shard is None else shard.damage()
        if shard is None or damage:
            remedy = f"run `nanoset build`, or materialise tokenized_shards for the corpus {corpus!r} again"
            if shard is None:
                path = (SHARDS, corpus, place.name)
                raise missing_version(outputs.access, path, "a shard is not whole", found=damage, remedy=remedy)
            raise MissingError("a shard is not whole", where=place, found=damage, remedy=remedy)
        return work(shard)

    return project.outputs.each_version(look, SHARDS, corpus, digests)


def losses(outputs: OutputRoot, tokenized: Manifest) -> Losses:
    """Return what a tokenized corpus lost; FormatError where a shard's manifest or the inventory cannot be read."""
    facts = ShardFacts.of(tokenized.facts)
    if not facts.reasons:
        return Losses(facts)

    def rejecting(outputs: OutputRoot, place: Path) -> bytes | None:
        shard = outputs.manifest_at(place)
        return pack(shard) if shard is not None and shard.facts["reasons"] else None

    found = filter(None, outputs.each_version(rejecting, SHARDS, tokenized.name, tokenized.facts[SHARDS]))
    rejecting_shards = PackedManifests(found, outputs.access)
    inventory = inventory_at(outputs, tokenized.name, tokenized.recipe["parents"]["inventory"])
    sizes = {} if inventory is None else stored_sizes(inventory.pieces)
    return Losses(facts, rejecting_shards, sizes, LineNumbers.of(tokenized.facts))


def refusal(project: Project, corpus: str, lost: Losses) -> InputError | None:
    """Return why a corpus that lost so much is refused by the present policy; None where it is not."""
    return reject_policy(project, corpus).refusal(lost, project.config.corpus_folder(corpus))


def repeats_warning(project: Project, tokenized: Manifest) -> str:
    """Return that more documents of a corpus repeat others of their shard than may; empty where that is not so."""
    facts = ShardFacts.of(tokenized.facts)
    return repeats_text(facts.repeated / max(facts.documents, 1), project.config.documents.max_duplicate_fraction)


def _set_recipe(project: Project, corpus: str, parents: Mapping[str, str], options: dict[str, Any]) -> Recipe:
    return Recipe(STAGE, corpus, VERSION, parents, options | {"range_bytes": _range_bytes(project)})


def reject_policy(project: Project, corpus: str) -> RejectPolicy:
    """Return how much of a corpus may be lost by the present settings."""
    documents, spec = project.config.documents_of(corpus), project.config.corpora.get(corpus)
    own = spec is not None and spec.text_key is not None
    return RejectPolicy(
        RejectOptions(**{name: getattr(documents, name) for name in RejectOptions.__slots__}),
        documents.text_key,
        replace(
            _NAMES,
            text_key=f"corpora.{corpus}.text_key" if own else _NAMES.text_key,
            leave_out=f"corpora: {{{corpus}: {{exclude: {{files}}}}}}",
        ),
    )


def _reject_files(project: Project, tokenized: Manifest) -> list[str]:
    """Return the addresses of the shards' lists of rejected lines, without empty ones."""

    def address(outputs: OutputRoot, place: Path) -> str | None:
        try:
            shard = outputs.manifest_at(place)
        except NanosetError:  # the shard is damaged, which `nanoset verify` reports
            return None
        if shard is None or not shard.facts["reasons"]:
            return None
        return shard.url(shards.REJECTS)

    if not tokenized.facts["rejected"] + tokenized.facts["faults"]:
        return []
    addresses = project.outputs.each_version(address, SHARDS, tokenized.name, tokenized.facts[SHARDS])
    return [found for found in addresses if found is not None]


def _unlisted_shard_bytes(outputs: OutputRoot, corpus: str, tokenized: Manifest | None) -> int:
    """Return the bytes of tokens in shards that the current set does not list, as a build that was cut short left."""
    access = outputs.access
    folder = outputs.folder / SHARDS / corpus
    listed: frozenset[str] = frozenset(() if tokenized is None else tokenized.facts[SHARDS])
    sizes = [access.size(folder / digest / shards.BIN) for digest in access.names(folder) - listed]
    return sum(size or 0 for size in sizes)


class TokenizedStage(CorpusStage, OutsideFiles, Planned, Estimated):
    """A corpus as token ids: the set of its shards."""

    layout = Layout(STAGE)
    version = VERSION
    estimated_as = "shards"

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"inventory": Node(INVENTORY, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return _set_recipe(project, key.subject, parents, token_options(project, key.subject))

    def make(self, project: Project, key: Key) -> Manifest:
        return tokenize(project, key.subject)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.shards.verify import verify_shards

        return verify_shards(project, key.subject, deep, run)

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        try:
            each_shard(project, key.subject, manifest.facts[SHARDS], lambda shard: None)
            return _in_one_line(refusal(project, key.subject, losses(project.outputs, manifest)))
        except MissingError:
            return "a shard is missing or damaged"
        except NanosetError as error:
            return one_line(error)

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget) -> str | None:
        """Return that too much is lost, where all shards of the inventory are there to tell."""
        lost = _lost(project, key.subject, wanted)
        return None if lost is None else _in_one_line(refusal(project, key.subject, lost))

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Return the size of the shards that do not exist yet: of new text, or of all if settings changed."""
        text = text_of(key.subject)
        new_bytes = text.stored_bytes
        if text.tokenized is not None:
            wanted = self.recipe(project, key, text.tokenized.recipe["parents"])
            if wanted.digest == text.tokenized.digest:
                new_bytes = max(0, new_bytes - text.tokenized.facts["stored_bytes"])
        if not new_bytes:
            return 0
        shard_bytes = int(new_bytes * text.tokens_per_byte * project.tokenizer.dtype.itemsize)
        return max(0, shard_bytes - _unlisted_shard_bytes(project.outputs, key.subject, text.tokenized))

    def show(self, project: Project, manifest: Manifest) -> Summary:
        warnings = list(losses(project.outputs, manifest).texts())
        if repeated := repeats_warning(project, manifest):
            warnings.append(f"{repeated}: {LOOK}")
        faults = manifest.facts["faults"]
        details = {"unreadable": format_count(faults, "file")} if faults else {}
        return Summary(details=details, warnings=warnings, rejects=_reject_files(project, manifest))

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        return map(str, manifest.facts["shards"])


def _in_one_line(refused: InputError | None) -> str | None:
    """Return a refusal in one line, with the limit that it names."""
    return None if refused is None else f"{one_line(refused)}; expected {refused.expected}"


def _lost(project: Project, corpus: str, wanted: Recipe) -> Losses | None:
    """Return what the shards of a set lost, made or not; None where one of them is not there."""
    outputs = project.outputs
    if (tokenized := outputs.find(wanted)) is not None:
        return losses(outputs, tokenized)
    inventory = inventory_at(outputs, corpus, wanted.parents["inventory"])
    if inventory is None:
        return None
    options, ranges = _shard_options(project, corpus), ranges_of(project, inventory, wanted.options["range_bytes"])
    digests = [shards.shard_recipe(corpus, source, options).digest for source in ranges]
    if not outputs.digests_in(outputs.folder / SHARDS / corpus).keys() >= {*digests}:
        return None

    def look(outputs: OutputRoot, place: Path) -> bytes | None:
        shard = outputs.find_at(place)
        return None if shard is None else pack(shard)

    found = [shard for shard in outputs.each_version(look, SHARDS, corpus, digests) if shard is not None]
    if len(found) < len(digests):
        return None
    return losses_of(PackedManifests(found, outputs.access), inventory.pieces)


TOKENIZED = TokenizedStage()
SHARD = InternalStage(Layout(SHARDS), TOKENIZED)
"""Shards, whose recipes are those of `shards.shard_recipe`."""
