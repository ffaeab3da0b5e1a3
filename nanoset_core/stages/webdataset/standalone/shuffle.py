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
)
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import dump, to_plain
from nanoset_core.stages.webdataset.lists import write_lists
from nanoset_core.stages.webdataset.markers import clear_markers
from nanoset_core.stages.webdataset.names import FOLDER
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.standalone.inputs import ShuffleInputs
from nanoset_core.stages.webdataset.standalone.options import (
    NON_RECIPE_OPTIONS,
    ShuffleOptions,
    plan_settings,
)
from nanoset_core.stages.webdataset.standalone.tars_folder import TarsFolder
from nanoset_core.stages.webdataset.standalone.tokens import PreparedTokens, prepare
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.stages.webdataset.writing import write_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import alone_in, sweep_abandoned, write_atomic
from nanoset_core.storage.copies.temporary import work_folder
from nanoset_core.storage.location import Location, on_this_machine
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.places import is_here
from nanoset_core.storage.writing.drafts import folder_and_access, replacing
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
        path = output.absolute()
        name = f".{output.name}.scratch"
        scratch_folder = work_folder(path, name, scratch)

        # The tars of a local output are next to it, on the same disk, so that they can be renamed.
        tars_folder = scratch_folder
        if is_here(path):
            tars_folder = work_folder(path, name, scratch=None)
        return _WorkFolders(scratch=scratch_folder, work=tars_folder)

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
    """Shuffle text or tokens into tar files of training samples.

    The output folder appears when it is complete; in a bucket, its manifest is written last. Until
    then everything is in a work folder: for the output tars/, this is .tars.scratch/ next to it, or
    below TMPDIR if the output is in a bucket.

    - If the call is killed, the next one resumes it, also with another number of workers.
    - If the output was made from the same inputs and settings before, nothing is done.

    Args:
        inputs: The text or the tokens.
        output: The folder. It must be missing, empty, or the result of an earlier call.
        options: The settings.
        scratch: Where to create a folder for temporary files. None: next to the output.
        progress: Shows how far the work has come.
        overwrite: Whether the result of a call with other inputs or settings may be replaced. If
            the call is killed during the replacement, the old folder or the new one is in place, or
            no folder is, and the new one is still in the work folder.

    Raises:
        ConfigError: Options exclude each other, the output has other files, or another call is
            writing it.
    """
    options.check(inputs.kind)
    check_outside(output, [*inputs.files, *tokenizer_files(options.tokenizer)])
    recipe = _recipe(inputs, options, output.name)  # everything that decides the output
    folders = _WorkFolders.of(output, scratch)
    call = _ShuffleCall(inputs, options, recipe, folders, progress)
    with contextlib.ExitStack() as stack:
        tars = _tars_folder(output, folders.work, stack)
        finished = _finished(tars, recipe, options)
        if finished is not None:
            _clean_up(tars, recipe, folders)
            return Shuffled(output, finished, made=False)
        tars.check_may_write(recipe, overwrite=overwrite)

        # From here on everything is in the work folder, where a later call finds it.
        stack.enter_context(replacing(output, expected=_ROOM))
        stack.enter_context(writing_to(folders.scratch.parent, expected=_ROOM))
        stack.enter_context(_locked(folders.work, recipe, tars.draft))
        manifest = call.write(tars.draft)

        # Check again: somebody may have put files into the output in the meantime.
        tars.check_may_write(recipe, overwrite=overwrite)
        manifest = tars.publish(manifest)
        folders.remove()
    return Shuffled(output, manifest, made=True)


def _tars_folder(output: Location, work: Path, stack: contextlib.ExitStack) -> TarsFolder:
    """Return where the tar files of a shuffle go, and where they are written first.

    All tars are written to a draft folder of this machine. When they are finished, the draft is
    moved to the output folder, or uploaded to it. For the two kinds of outputs:

        output folder                     data/web                  s3://bucket/a/web
        `work`, for unfinished files      data/.web.scratch         /tmp/web-scratch
        draft                             data/.web.scratch/tars    /tmp/web-scratch/tars/web
        where files of an earlier         data/web                  /tmp/x/web, to which they are
          shuffle are read                                            downloaded

    Args:
        output: The output folder that the user named.
        work: Folder of this machine for unfinished files.
        stack: Deletes the temporary folder /tmp/x at the end of the shuffle.
    """
    # `access` reads the file data/web/index.json, or downloads it to /tmp/x/web/index.json before.
    folder_to_read, access = stack.enter_context(folder_and_access(output))

    draft = work / "tars"
    if access.takes_requests:  # the output is in a bucket
        draft /= output.name  # "web"
    return TarsFolder(folder=folder_to_read, draft=draft, access=access, output=output)


def _clean_up(tars: TarsFolder, recipe: Recipe, folders: _WorkFolders) -> None:
    """Delete what an earlier call left if it was killed just after it had completed the output.

    Args:
        tars: The output, which is complete.
        recipe: What the output was made from.
        folders: Where temporary files may be.
    """
    # In a bucket, there may be a note that says that an upload is in progress.
    if tars.unfinished_upload() is not None:
        tars.forget_unfinished_upload()

    # On this machine, there may be temporary files with tokens, and unfinished tars. Another call
    # may be using them, so lock their folder before.
    if folders.work.exists():
        with _locked(folders.work, recipe, tars.draft):
            folders.remove()


def _recipe(inputs: ShuffleInputs, options: ShuffleOptions, name: str) -> Recipe:
    """Return everything that decides the bytes of the shuffled tar files, as a record.

    If the record of a finished output equals this one, the output need not be made again. The
    record has

    - a digest of the input files with their sizes and times;
    - the settings, except those that change only the speed, such as the number of workers;
    - the versions of the tokenizer and of the compression library.

    Args:
        inputs: The input files.
        options: All settings.
        name: Name of the output folder.
    """
    recipe_options = {
        key: value for key, value in asdict(options).items() if key not in NON_RECIPE_OPTIONS
    }
    if options.tokenizer is not None:
        recipe_options["tokenizer"] = tokenizer_facts(options.tokenizer).fingerprint
    recipe_options["compressor"] = compressor_identity() if options.member == "json.gz" else None
    parents = {"inputs": digest_of([inputs.kind, inputs.state()])}
    return Recipe(FOLDER, name, VERSION, parents, recipe_options)


def _finished(tars: TarsFolder, recipe: Recipe, options: ShuffleOptions) -> Manifest | None:
    """Return the record of an earlier call's output, if this call would write the same.

    Args:
        tars: The folder of the output.
        recipe: Input and settings of this call.
        options: The settings again. Lines of text that cannot be read are left out, and the user
            limits how many these may be. The limit is not in the recipe.

    Returns:
        The record (manifest). None: there is no output, or it has to be made again.
    """
    try:
        manifest = tars.manifest()
        if manifest is None:
            return None
        has_same_recipe = manifest.digest == recipe.digest
        if not has_same_recipe or manifest.damage() is not None:
            return None
    except NanosetError:
        return None  # the record cannot be read

    # If the earlier call left lines out, they may be too many for this call.
    if not options.accept(manifest.facts):
        return None
    return manifest


@contextlib.contextmanager
def _locked(work: Path, recipe: Recipe, draft: Path) -> Iterator[None]:
    """Lock the folder of unfinished tar files, so that only one call at a time writes there.

    Each output has such a folder, on this machine. For the output data/web:

        data/.web.scratch/            `work`, which is locked
        data/.web.scratch/recipe      a digest of the input and settings, such as "3f2a…"
        data/.web.scratch/tars/       `draft`, the unfinished tars

    Args:
        work: The folder.
        recipe: Input and settings of this call.
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
        _keep_or_delete_draft(work, recipe, draft)
        sweep_abandoned(work)  # temporary files of calls that were killed
        yield


def _keep_or_delete_draft(work: Path, recipe: Recipe, draft: Path) -> None:
    """Keep the unfinished tars of a killed call if this call can continue with them.

    That is so if both have the same recipe. Otherwise the tars are deleted. The tokens that were
    made from the input are in another folder, and stay: they have records of their own.

    Args:
        work: The folder with the file `recipe`, in which the killed call has recorded its digest.
        recipe: Input and settings of this call.
        draft: Folder of the unfinished tars.
    """
    recipe_file = work / "recipe"
    is_same_recipe = False
    if recipe_file.exists():
        is_same_recipe = recipe_file.read_text(encoding="utf-8") == recipe.digest
    if not is_same_recipe:
        shutil.rmtree(draft, ignore_errors=True)
        write_atomic(recipe_file, recipe.digest.encode())


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
        """Write the shuffled tar files, and all files next to them, into a folder of this machine.

        If an earlier call was killed, its tokens and tars are used again.

        Args:
            folder: Where to write.

        Returns:
            The manifest: a record of all files, by which the folder counts as complete.
        """
        # Tokens of text are made now, and those of tars are decoded. Pairs have tokens already.
        token_folder = self.folders.scratch / "tokens"
        prepared = prepare(self.inputs, self.options, token_folder, progress=self.progress)
        plan = self._plan(prepared)

        files = self._write_tars(plan, prepared, folder)
        files |= _write_rejects(prepared, folder)
        facts = {"plan": to_plain(StoredShufflePlan.of(plan)), **_facts(prepared, self.options)}
        return self._write_manifest(folder, facts, files)

    def _plan(self, prepared: PreparedTokens) -> ShufflePlan:
        """Decide which training sample goes into which tar file.

        The tokens of each source, such as web, are cut into samples of one length, and all samples
        are shuffled. The plan is computed from the settings and the numbers of tokens.

        Args:
            prepared: The tokens of each source. If files are to be cut separately, also the number
                of tokens of each file.
        """
        settings = plan_settings(
            self.options,
            self.inputs.frequencies,
            prepared.tokens_by_file,
            prepared.sequence_length,
        )
        return plan_shuffle(prepared.sources, settings)

    def _write_tars(
        self, plan: ShufflePlan, prepared: PreparedTokens, folder: Path
    ) -> dict[str, FileFact]:
        """Write the tar files, and the lists of them that data loaders read.

        Args:
            plan: Which training sample goes into which tar.
            prepared: The tokens of each source.
            folder: Where to write.

        Returns:
            Name of each file → its size and sha256.
        """
        all_tars = range(plan.shards)
        tars = write_shards(
            plan,
            prepared.sources,
            all_tars,
            folder,
            self._write_options(),
            made_from=self.recipe.digest,
        )
        tokenizer_name = None
        if self.options.tokenizer is not None:
            tokenizer_name = self.options.tokenizer.parent.name
        return write_lists(plan, tars, folder, name=self.recipe.name, tokenizer=tokenizer_name)

    def _write_manifest(
        self, folder: Path, facts: dict[str, Any], files: dict[str, FileFact]
    ) -> Manifest:
        """Write the manifest of a folder of tar files: the record by which it counts as complete.

        Until now, each finished tar had a marker, a small file with its counts, so that a call that
        was killed could be resumed. The manifest has the facts of all tars, so the markers are
        deleted.

        Args:
            folder: The folder.
            facts: Counts of documents, tokens and so on, which the manifest records.
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
    """Collect the lines of text that could not be read, from all sources, in one file.

    A line is rejected if, for example, it is no JSON object, or has no text. While each source was
    tokenized, its rejected lines were written to a file. These files are concatenated.

    Args:
        prepared: The tokens of the sources, and the file of rejected lines of each, if any.
        folder: Where to write the file, which is named rejects.jsonl.

    Returns:
        {"rejects.jsonl": its size and sha256}; {} if no line was rejected.
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
    """Return what is recorded about the text from which tar files of samples were made.

    The numbers of documents and of rejected lines are always recorded. For example, if 3 lines were
    no JSON: {"documents": 1000, "rejected": 3, "policy": [...]}. These only if they are not empty:

        zeroed         file → number of its documents with runs of zero bytes, which a crash leaves
        lost           a message for each source with files that could not be read to their end
        faults         number of these files
        policy         how many lines the user allows to be rejected, if any line was
        passed_over    message about files in input tars that are no samples, and were left out

    Args:
        prepared: The tokens of each source, and what was lost of its text.
        options: The settings, with the limits for rejected lines.
    """
    n_rejected = sum(text.n_rejected for text in prepared.texts)
    facts = {
        "documents": sum(text.facts.documents for text in prepared.texts),
        "rejected": n_rejected,
    }
    facts_if_any = {
        "zeroed": _zeroed(prepared),
        "lost": [text.lost for text in prepared.texts if text.lost],
        "faults": sum(text.facts.faults for text in prepared.texts),
        "policy": options.recorded if n_rejected else [],
        "passed_over": prepared.passed_over,
    }
    return facts | {name: value for name, value in facts_if_any.items() if value}


def _zeroed(prepared: PreparedTokens) -> dict[str, int]:
    """Return the number of documents with runs of zero bytes, by file, of all sources of text."""
    zeroed: Counter[str] = Counter()
    for text in prepared.texts:
        zeroed.update(text.facts.zeroed)
    return dict(zeroed)
