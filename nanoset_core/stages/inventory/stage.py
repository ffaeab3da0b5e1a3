"""raw: the inventory of each corpus, from which everything downstream is made."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, MissingError, NanosetError, SourceChangedError, one_of, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Meter
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project, despite_lost_copies
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards.settings import CorpusSpec
from nanoset_core.stages.stage import CorpusStage, Key, Layout, Summary, current_version, require
from nanoset_core.storage.leases import leased
from nanoset_core.storage.location import RawFolder
from nanoset_core.storage.os_errors import explained
from nanoset_core.text.choice import held_out
from nanoset_core.text.contents import Contents, FileStat, Notice, contents_of, some
from nanoset_core.text.endings import format_of
from nanoset_core.text.fingerprints import FingerprintMemory
from nanoset_core.text.pieces import Inventory, Piece, SourceRange
from nanoset_core.text.survey import (
    QuietPeriod,
    RawText,
    known_inventory,
    list_corpora,
    no_text,
    take_inventory,
)

VERSION = 1
STAGE = "inventory"
FILE = "inventory.json"


def corpora(project: Project) -> list[str]:
    """Return every corpus of the raw folder, sorted; see `names`."""
    return list(names(project).corpora)


def names(project: Project) -> RawText:
    """Return every corpus of the raw folder by name: its folders, and corpora of nanoset.yaml that read from them.

    Raises as `list_corpora`; or ConfigError where a corpus could be either of two folders.
    """
    text = scan(project, names_only=True)
    for fault in text.faults.values():
        raise fault
    return text


def scan(project: Project, *, names_only: bool = False) -> RawText:
    """List the files of every corpus, or its name alone, and errors of those not readable; raises as `list_corpora`."""
    config, text = project.config, list_corpora(project.config.raw_folder, names_only=names_only)
    ambiguous = _ambiguous(config, [*text.corpora, *text.faults])
    found, faults = dict(text.corpora), dict(text.faults)
    for name, folder in ((name, config.folder_name(name)) for name in config.corpora):
        if folder in text.corpora:
            found[name] = replace(text.corpora[folder], corpus=name).chosen(config.choice_of(name))
            if not (names_only or found[name].texts):
                faults[name] = no_text(config.corpus_folder(name), found.pop(name))
        if folder in text.faults:
            faults[name] = text.faults[folder]
    unambiguous = {name: found[name] for name in sorted(found) if name not in ambiguous}
    return RawText(unambiguous, faults | ambiguous, text.aside)


def _ambiguous(config: ProjectConfig, folders: Collection[str]) -> dict[str, NanosetError]:
    """Return errors of corpora that are read from another folder, though one of their own name is there as well."""
    return {
        name: ConfigError(
            "this corpus could be either of two folders",
            where=f"{config.file}: corpora.{name}",
            found=f"folder: {config.folder_name(name)}, and {config.raw_folder / name}, which is a corpus of that name",
            expected="a name that no folder of text has",
            remedy="give the corpus, or that folder, another name",
        )
        for name in config.corpora
        if name in folders and config.folder_name(name) != name
    }


def corpus_folder(project: Project, corpus: str) -> RawFolder:
    """Return the folder of one corpus; MissingError where there is none."""
    folder = project.config.corpus_folder(corpus)
    if not folder.is_dir():
        names = corpora(project)
        expected = one_of(names, "none: the raw folder is empty")
        remedy = f"put its files there, or take {corpus!r} out of {project.config.file.name}"
        remedy = remedy_for_name(corpus, [*names, *project.config.derived], remedy)
        raise MissingError("a corpus has no folder of raw text", where=folder, expected=expected, remedy=remedy)
    return folder


def contents_now(project: Project, corpus: str) -> Contents:
    """Return what lies in a corpus's folder; MissingError or InputError where it cannot be listed."""
    folder = project.config.corpus_folder(corpus)
    try:
        return contents_of(folder, folder.parent).chosen(project.config.choice_of(corpus))
    except MissingError:
        corpus_folder(project, corpus)  # a better message, where it is not there
        raise


def settling(project: Project, corpus: str) -> QuietPeriod | None:
    """Return which files of a corpus a sensor's build takes as they are now: those not written for settle_seconds.

    None where the current inventory is damaged: all files are taken as they are.
    """
    try:
        exists = current_version(project, INVENTORY, Key(corpus)).exists
        before = pieces_by_file(require(project, INVENTORY, Key(corpus)) if exists else None)
    except NanosetError:
        return None
    return QuietPeriod(project.config.automation.settle_seconds, time.time_ns(), before)


def overwritten(project: Project, corpus: str, files: Iterable[FileStat]) -> str | None:
    """Return a file that is being overwritten, so that the corpus has to be waited for; see `settling`."""
    settled = settling(project, corpus)
    return None if settled is None else settled.overwritten(project.config.corpus_folder(corpus), files)


def survey(project: Project, corpus: str, *, settled: bool = False, executor: Executor | None = None) -> Inventory:
    """List and fingerprint a corpus's files as they are now, by an executor where given; nothing is published.

    With `settled`, files that were written lately are taken as they were in the current inventory; see `settling`.
    Raises as `take_inventory`; or SourceChangedError where a file cannot be left as it was.
    """
    folder, contents = project.config.corpus_folder(corpus), contents_now(project, corpus)
    rewritten = overwritten(project, corpus, contents.ordered) if settled else None
    if rewritten is not None:
        what = "something writes to this file, and what it held in the last build is gone"
        remedy = "wait until nothing writes to it, or build by hand, which takes files as they are"
        raise SourceChangedError(what, where=folder / rewritten, remedy=remedy)
    with explained(project.outputs.folder):
        return take_inventory(
            folder,
            corpus,
            memory=memory_of(project, folder),
            progress=Meter(project.listener, "raw_jsonl", corpus, contents.size).advance,
            contents=contents,
            quiet=settling(project, corpus) if settled else None,
            executor=executor,
        )


def notices(project: Project, corpus: str, contents: Contents | None = None) -> list[Notice]:
    """Return notices on a corpus's files as they are now; `contents` where they were listed already.

    A file is compared with the current inventory, or where it equals that, with the one before.
    """
    if contents is None:
        contents = contents_now(project, corpus)
    outputs, apart = project.outputs, _held_out(project.config, corpus, contents)
    try:
        current = outputs.current(STAGE, corpus)
        known, earlier = map(pieces_by_file, (current, None if current is None else outputs.previous(current)))
        now, before = (
            {path: sum(piece.size for piece in pieces) for path, pieces in files.items()} for files in (known, earlier)
        )
    except NanosetError:
        return apart + contents.notices()  # an inventory is damaged, which is reported elsewhere
    as_they_are = {file.path: file.size for file in contents.texts}
    changed = {path: size for path, size in now.items() if as_they_are.get(path) != size}
    same = {path: pieces for path, pieces in known.items() if now[path] and path in as_they_are and path not in changed}
    copies, limit = _copies(same), project.config.documents.max_duplicate_fraction * contents.size
    if sum(now[path] for path in copies) > limit:
        named = some([f"{path} ({other})" for path, other in copies.items()])
        apart.append(Notice("copies", len(copies), named))
    return apart + contents.notices(before | changed)


def _copies(known: Mapping[str, Sequence[Piece]]) -> dict[str, str]:
    """Return file → another one of the same bytes, by the digests of their pieces."""
    first: dict[tuple[str, ...], str] = {}
    others = ((path, first.setdefault(tuple(one.digest for one in pieces), path)) for path, pieces in known.items())
    return {path: other for path, other in others if other != path}


def _held_out(config: ProjectConfig, corpus: str, contents: Contents) -> list[Notice]:
    """Return the notice of files that are named as validation or test data among others that train reads.

    It has the lines of nanoset.yaml that part them. `files` in nanoset.yaml says which are meant.
    """
    spec, paths = config.corpora.get(corpus, CorpusSpec()), [file.path for file in contents.ordered]
    found = {path: named for path in paths if (named := held_out(path)) is not None}
    if spec.files is not None or not 0 < len(found) < len(paths) or not config.trains_on(corpus):
        return []
    patterns: dict[str, list[str]] = {}
    for split, pattern in dict.fromkeys(found.values()):
        patterns.setdefault(split, []).append(pattern)
    exclude = json.dumps([*spec.exclude, *(one for several in patterns.values() for one in several)])
    folder = config.folder_name(corpus)
    own = (f"{corpus}_{split}: {{folder: {folder}, files: {json.dumps(them)}}}" for split, them in patterns.items())
    lines = ", ".join([f"corpora: {{{corpus}: {{exclude: {exclude}}}", *own]) + "}"
    return [Notice("held_out", len(found), f"{some([*found])}; to part them write {lines}")]


def pieces_by_file(inventory: Manifest | None) -> dict[str, list[Piece]]:
    """Return path → pieces of an inventory, none without one; FormatError where its file cannot be read."""
    files: dict[str, list[Piece]] = {}
    for piece in inventory.load(FILE, Inventory.from_json).pieces if inventory is not None else ():
        files.setdefault(piece.path, []).append(piece)
    return files


def known(project: Project, found: Contents, quiet: QuietPeriod | None = None) -> Inventory | None:
    """Return the inventory of these files where it is known without reading them; see known_inventory."""
    return known_inventory(found, memory_of(project, project.config.corpus_folder(found.corpus)), quiet)


def memory_of(project: Project, folder: RawFolder) -> FingerprintMemory:
    """Return what earlier surveys, on any machine, found out of a folder's files: all corpora of it share that."""
    access = project.outputs.access
    return FingerprintMemory(access.folder / STAGE / folder.name / ".fingerprints.json", access, folder)


def marked(project: Project, folder: RawFolder, ranges: Sequence[SourceRange]) -> list[SourceRange]:
    """Return ranges with the marks of their tables in a bucket, whose bytes are not read in order."""
    if isinstance(folder, Path) or all(format_of(one.path) == "lines" for source in ranges for one in source.pieces):
        return [*ranges]
    memory = memory_of(project, folder)

    def of(source: SourceRange) -> SourceRange:
        marks = {one.path: memory.mark(one) for one in source.pieces if format_of(one.path) != "lines"}
        return replace(source, marks={path: mark for path, mark in marks.items() if mark is not None})

    return [*map(of, ranges)]


def make_inventory(project: Project, corpus: str) -> Manifest:
    """Survey a corpus, publish the inventory and make it the current one."""
    return publish_inventory(project, survey(project, corpus, executor=project.executor))


def publish_inventory(project: Project, inventory: Inventory) -> Manifest:
    """Publish an inventory and make it the corpus's current one."""
    recipe = inventory_recipe(inventory)

    def write(place: Path) -> tuple[dict[str, Any], dict[str, str]]:
        (place / FILE).write_text(json.dumps(inventory.to_json(), indent=1) + "\n", encoding="utf-8")
        return {"files": len(inventory.files), "stored_bytes": inventory.size}, {}

    def publish() -> Manifest:
        return project.outputs.make_current(project.outputs.commit(recipe, write))

    with leased(project.outputs.access, [inventory.corpus]):
        return despite_lost_copies(project.outputs.access, publish)


def inventory_recipe(inventory: Inventory) -> Recipe:
    """Return what an inventory is made from: the names and content of its files."""
    return Recipe(STAGE, inventory.corpus, VERSION, options={"content": inventory.digest})


def current_inventory(project: Project, corpus: str) -> tuple[Manifest, Inventory]:
    """Return the corpus's current inventory; MissingError where none was taken yet."""
    manifest = require(project, INVENTORY, Key(corpus))
    return manifest, manifest.load(FILE, Inventory.from_json)


class InventoryStage(CorpusStage):
    """The files of each corpus."""

    layout = Layout(STAGE)
    version = VERSION

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Survey the files as they are now."""
        return inventory_recipe(survey(project, key.subject, executor=project.executor))

    def make(self, project: Project, key: Key) -> Manifest:
        return make_inventory(project, key.subject)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.shards.verify import verify_inventory

        return verify_inventory(project, key.subject)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return Summary({"files": int(manifest.facts["files"])})


INVENTORY = InventoryStage()
