"""Write a folder of shuffled tars from text, pairs or tars: `nanoset shuffle`.

A call works in a scratch folder, and the output appears when it is complete. A call that was killed
is resumed by the next one with the same inputs and settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.tars.members import compressor_identity
from nanoset_core.outputs.apart import check_outside
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    Recipe,
    StoredManifest,
    digest_of,
)
from nanoset_core.records.json_records import dump, to_plain
from nanoset_core.stages.webdataset.lists import write_lists
from nanoset_core.stages.webdataset.markers import clear_markers
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.standalone.inputs import ShuffleInputs
from nanoset_core.stages.webdataset.standalone.options import (
    NON_RECIPE_OPTIONS,
    ShuffleOptions,
    plan_settings,
)
from nanoset_core.stages.webdataset.standalone.tars_folder import STAGE, TarsFolder
from nanoset_core.stages.webdataset.standalone.tokens import PreparedTokens, prepare
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.stages.webdataset.writing import write_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import alone_in, sweep_abandoned, write_atomic
from nanoset_core.storage.drafts import folder_and_access, replacing, resumable_draft
from nanoset_core.storage.location import Location, on_this_machine
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.working_copies import work_folder
from nanoset_core.tokenizers.files import tokenizer_files
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

VERSION = 1
"""Version of the algorithm, which is part of every recipe."""
REJECTS = "rejects.jsonl"
"""File name of the list of rejected lines, next to the tars."""
_ROOM = "room for the tokens (--scratch) and the tars; `--plan` says how much"
"""What a full disk should have, for messages."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The result of a call."""

    folder: Location
    """Folder of the tars, as the user named it."""
    manifest: Manifest
    """Manifest in the folder, which lists the files and what they were made from."""
    made: bool
    """Whether this call made it, rather than an earlier one."""

    @property
    def lost(self) -> Sequence[str]:
        """Messages about text files that could not be read to their end, and runs of zero bytes."""
        return tuple(self.manifest.facts.get("lost", ()))

    @property
    def passed_over(self) -> str | None:
        """Message about members of input tars that have no tokens, or None if all have some."""
        text: str | None = self.manifest.facts.get("passed_over")
        return text

    @property
    def faults(self) -> int:
        """Number of files that could not be read to their end, which count as rejected lines."""
        return int(self.manifest.facts.get("faults", 0))


@dataclass(frozen=True, slots=True)
class _WorkFolders:
    """Where the unfinished files of a call are."""

    scratch: Path
    """Folder of tokens and bucket files."""
    work: Path
    """Folder of the unfinished tars, and of the lock.

    It is next to a local output, so that the finished tars can be put in place by a rename.
    """

    @staticmethod
    def of(output: Location, scratch: Path | None) -> _WorkFolders:
        """Return the folders for an output, below `scratch` if it is given."""
        name = f".{output.name}.scratch"
        return _WorkFolders(
            scratch=work_folder(output.absolute(), name, scratch),
            work=resumable_draft(output.absolute(), name, scratch),
        )

    def remove(self) -> None:
        """Remove all unfinished files, and the lock last."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)


def shuffle(
    inputs: ShuffleInputs,
    output: Location,
    options: ShuffleOptions,
    *,
    scratch: Path | None = None,
    progress: Progress = SILENT,
    overwrite: bool = True,
) -> Shuffled:
    """Write the shuffled tars of `inputs` into the folder `output`.

    The folder appears when it is complete; in a bucket, its manifest is written last. Until then
    everything is in `.<output>.scratch` next to it, or below TMPDIR if it is in a bucket. If the
    call is killed, the next one resumes it, also with another number of workers or another engine.
    If the output was made from the same inputs and settings before, nothing is done.

    Args:
        inputs: The sources.
        output: The folder. It must be missing, empty, or the result of an earlier call.
        options: The settings.
        scratch: Where to create a folder for tokens and bucket files. None: next to the output.
        progress: Shows how far the work has come.
        overwrite: Whether the result of a call with other inputs or settings may be replaced. If
            the call is killed during the replacement, the old folder or the new one is in place, or
            no folder is, and the new one is still in the scratch folder.

    Raises:
        ConfigError: Options exclude each other, the output has other files, or another call is
            writing it.
    """
    options.check(inputs.kind)
    check_outside(output, [*inputs.files, *tokenizer_files(options.tokenizer)])
    recipe = _recipe(inputs, options, output.name)
    folders = _WorkFolders.of(output, scratch)
    call = _ShuffleCall(inputs, options, recipe, folders, progress)
    with contextlib.ExitStack() as stack:
        tars = _tars_folder(output, folders.work, stack)
        finished = _finished(tars, recipe, options)
        if finished is not None:
            _clean_up(tars, recipe, folders)
            return Shuffled(output, finished, made=False)
        tars.check_may_write(recipe, overwrite=overwrite)

        # From here on everything is in the scratch folder, where a later call finds it.
        stack.enter_context(replacing(output, expected=_ROOM))
        stack.enter_context(writing_to(folders.scratch.parent, expected=_ROOM))
        stack.enter_context(_locked(folders.work, recipe, tars.draft))
        manifest = call.write(tars.draft)

        # Check again: somebody may have put files there in the meantime.
        tars.check_may_write(recipe, overwrite=overwrite)
        manifest = tars.publish(manifest)
        folders.remove()
    return Shuffled(output, manifest, made=True)


def _tars_folder(output: Location, work: Path, stack: contextlib.ExitStack) -> TarsFolder:
    """Return where the tars of a call go, and where they are written first.

    Args:
        output: The folder that the user named, on this machine or in a bucket.
        work: Folder of this machine for unfinished tars.
        stack: Removes temporary folders at the end of the call.
    """
    folder, access = stack.enter_context(folder_and_access(output))
    return TarsFolder(
        folder=folder,
        # For an output in a bucket, the draft is a folder with the name of the output.
        draft=work / "tars" / access.name(folder),
        access=access,
        output=output,
    )


def _clean_up(tars: TarsFolder, recipe: Recipe, folders: _WorkFolders) -> None:
    """Remove what an earlier call has left, if it was killed after it had completed the output.

    Args:
        tars: The output, which is complete.
        recipe: Recipe of the output.
        folders: Where unfinished files may be.
    """
    # In a bucket: the note that an upload is in progress.
    if tars.unfinished_upload() is not None:
        tars.forget_unfinished_upload()

    # On this machine: unfinished tars and tokens. Another call may be using them, so they are
    # locked first.
    if folders.work.exists():
        with _locked(folders.work, recipe, tars.draft):
            folders.remove()


def _recipe(inputs: ShuffleInputs, options: ShuffleOptions, name: str) -> Recipe:
    """Return the recipe of the tars: the inputs, and all settings that change the tars."""
    recipe_options = {
        key: value for key, value in asdict(options).items() if key not in NON_RECIPE_OPTIONS
    }
    if options.tokenizer is not None:
        recipe_options["tokenizer"] = tokenizer_facts(options.tokenizer).fingerprint
    recipe_options["compressor"] = compressor_identity() if options.member == "json.gz" else None
    parents = {"inputs": digest_of([inputs.kind, inputs.state()])}
    return Recipe(STAGE, name, VERSION, parents, recipe_options)


def _finished(tars: TarsFolder, recipe: Recipe, options: ShuffleOptions) -> Manifest | None:
    """Return the manifest of the output if an earlier call has completed it.

    Lines of text that cannot be read are rejected, up to a limit. If an earlier call rejected some,
    its output is used only by calls with the same limit.

    Args:
        tars: The folder of the output.
        recipe: Recipe of this call: its inputs and settings.
        options: The settings of this call, with the limit.

    Returns:
        The manifest; None if the output has to be made.
    """
    # A manifest that cannot be read counts as none: the output is made again.
    with contextlib.suppress(NanosetError):
        manifest = tars.manifest()
        if manifest is None or manifest.digest != recipe.digest:
            return None
        is_damaged = manifest.damage() is not None
        if not is_damaged and options.accept(manifest.facts):
            return manifest
    return None


@contextlib.contextmanager
def _locked(work: Path, recipe: Recipe, draft: Path) -> Iterator[None]:
    """Lock the folder of unfinished tars until the end of the block, and remove useless files.

    Unfinished tars are useful only to a call with the same inputs and settings, which resumes them.

    Args:
        work: The folder, which contains the lock.
        recipe: Inputs and settings of this call.
        draft: Folder of the unfinished tars, in `work`.

    Raises:
        ConfigError: Another call has locked the folder.
    """
    with alone_in(work, waits=False) as is_ours:
        if not is_ours:
            raise ConfigError(
                "another call is writing this output",
                where=work,
                remedy="wait for it, or give another --output",
            )
        # This file names the recipe of the unfinished tars. If it is another one, remove them. The
        # tokens are in another folder, and stay: they have records of what they were made from.
        recipe_file = work / "recipe"
        is_same_recipe = False
        if recipe_file.exists():
            is_same_recipe = recipe_file.read_text(encoding="utf-8") == recipe.digest
        if not is_same_recipe:
            shutil.rmtree(draft, ignore_errors=True)
            write_atomic(recipe_file, recipe.digest.encode())

        # Remove temporary files of calls that were killed.
        sweep_abandoned(work)
        yield


@dataclass(frozen=True, slots=True)
class _ShuffleCall:
    """One call of `shuffle`, which writes tars that do not exist yet."""

    inputs: ShuffleInputs
    options: ShuffleOptions
    recipe: Recipe
    """Recipe of the tars."""
    folders: _WorkFolders
    progress: Progress

    def write(self, folder: Path) -> Manifest:
        """Write the tars, and all files next to them, into a folder of this machine.

        Tokens and tars that a killed call has written are used again.

        Args:
            folder: Where to write. A manifest is written last: a folder that has one is complete.

        Returns:
            The manifest.
        """
        # Tokenize or decode the inputs, and plan which of their tokens go into which tar.
        token_folder = self.folders.scratch / "tokens"
        prepared = prepare(self.inputs, self.options, token_folder, progress=self.progress)
        plan = self._plan(prepared)

        # Write the tars, the lists that name them, and the lines of text that were rejected.
        tars = write_shards(
            plan,
            prepared.sources,
            range(plan.shards),
            folder,
            self._write_options(),
            made_from=self.recipe.digest,
        )
        tokenizer_file = self.options.tokenizer
        tokenizer = None if tokenizer_file is None else tokenizer_file.parent.name
        files = write_lists(plan, tars, folder, name=self.recipe.name, tokenizer=tokenizer)
        files |= _write_rejects(prepared, folder)

        facts = {"plan": to_plain(StoredShufflePlan.of(plan)), **_facts(prepared, self.options)}
        return self._write_manifest(folder, facts, files)

    def _plan(self, prepared: PreparedTokens) -> ShufflePlan:
        """Decide which tokens of the inputs go into which tar.

        Args:
            prepared: The tokens of the inputs.
        """
        settings = plan_settings(
            self.options,
            self.inputs.frequencies,
            prepared.tokens_by_file,
            prepared.sequence_length,
        )
        return plan_shuffle(prepared.sources, settings)

    def _write_manifest(
        self, folder: Path, facts: dict[str, Any], files: dict[str, FileFact]
    ) -> Manifest:
        """Write the manifest of a folder of tars, and remove the markers of finished tars.

        The manifest contains what the markers say.

        Args:
            folder: The folder.
            facts: Facts for the manifest.
            files: Name of each file in the folder → its size and sha256.
        """
        write_atomic(folder / MANIFEST, dump(StoredManifest.of(self.recipe, facts, files)))
        access = FileAccess(folder)
        clear_markers(folder, access)
        return Manifest(
            folder=folder,
            recipe=to_plain(self.recipe),
            digest=self.recipe.digest,
            facts=facts,
            files=files,
            access=access,
        )

    def _write_options(self) -> WriteOptions:
        """Return how the tars are written; it does not change their bytes."""
        return WriteOptions(
            engine=self.options.engine,
            memory_bytes=self.options.memory_bytes,
            scratch=self.folders.scratch,
            workers=self.options.processes,
            progress=self.progress,
            name=self.recipe.name,
        )


def _write_rejects(prepared: PreparedTokens, folder: Path) -> dict[str, FileFact]:
    """Write the rejected lines of all sources of text into one file, if there are any.

    A line is rejected if it is no JSON object, or has no text, for example.

    Args:
        prepared: The tokens of the sources.
        folder: Where to write.

    Returns:
        Name of the file → its size and sha256; empty if no line was rejected.
    """
    rejects: list[bytes] = []
    for text in prepared.texts:
        if text.rejects is not None:
            rejects.append(on_this_machine(text.rejects).read_bytes())
    if not rejects:
        return {}
    data = b"".join(rejects)
    write_atomic(folder / REJECTS, data)
    return {REJECTS: FileFact(len(data), hashlib.sha256(data).hexdigest())}


def _facts(prepared: PreparedTokens, options: ShuffleOptions) -> dict[str, Any]:
    """Return the facts about the inputs, which the manifest contains.

    For example, 1,000 documents were read, and 3 lines rejected because they are no JSON.

    Args:
        prepared: The tokens of the inputs, and what was lost of text.
        options: The settings of the call.

    Returns:
        The numbers of documents and of rejected lines; others only if something was lost.
    """
    n_rejected = sum(text.n_rejected for text in prepared.texts)
    facts: dict[str, Any] = {
        "documents": sum(text.facts.documents for text in prepared.texts),
        "rejected": n_rejected,
    }
    optional_facts = {
        # Documents with runs of zero bytes, which a file system leaves after a crash.
        "zeroed": _zeroed(prepared),
        # Messages about, and number of, files that could not be read to their end.
        "lost": [text.lost for text in prepared.texts if text.lost],
        "faults": sum(text.facts.faults for text in prepared.texts),
        # The limits under which lines were rejected.
        "policy": options.recorded if n_rejected else [],
        # A message about members of tars that have no tokens.
        "passed_over": prepared.passed_over,
    }
    for name, value in optional_facts.items():
        if value:
            facts[name] = value
    return facts


def _zeroed(prepared: PreparedTokens) -> dict[str, int]:
    """Return the number of documents with runs of zero bytes, by file, of all sources of text."""
    zeroed: Counter[str] = Counter()
    for text in prepared.texts:
        zeroed.update(text.facts.zeroed)
    return dict(zeroed)
