"""What a stage of the pipeline is: one kind of output, and how it is named, made, verified and
shown.

Each stage is one object in `stages/<stage>/stage.py`, and `stages/registry.py` lists them in order.
Commands, checks, sensors and pages ask these objects by way of `project.graph`, and know no stage
by name.

Most stages implement `Stage` alone. What only some of them need is a class of its own, which they
derive from as well:

- `CorpusStage`: every corpus has an output.
- `PerCorpus`: the subjects of its outputs are corpora, of which some have an output.
- `InternalStage`: versions without a name of their own, which the manifest of another stage lists by digest.
- `Planned`: it can refuse an output before anything is built.
- `Advising`: it warns of settings that are allowed but rarely intended.
- `Estimated`: its outputs are so large that their size is estimated before a build.
- `OutsideFiles`: an output needs files outside its own folder, which may be damaged while the folder is whole.
- `SharesFiles`: its versions share files in a folder next to them.
- `InParts`: its outputs are the parts of another stage's output.
- `BoundToMachine`: its recipes contain paths of this machine.
- `Resumable`: unfinished outputs contain files that a later build continues with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import StaleError
from nanoset_core.outputs.current import NOT_BUILT, CurrentVersion, Reason, differences
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED

AFTER = "after "
"""Prefix of the name of an input that must be built first, but is not part of the recipe."""
SUBJECT, PART = "{subject}", "{part}"
"""Placeholders in the path of a layout."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names one output of a stage."""

    subject: str
    """A corpus, nanoset, webdataset, export or section: whatever the stage has outputs for."""
    part: str | None = None
    """A split, a group of tars, a view …; None for stages whose subjects have one output each."""
    requested_at: str = field(default="", compare=False)
    """The key of nanoset.yaml that requests the output, for messages."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the outputs of a stage are stored below the root."""

    folder: str
    """First folder of the path; no two public stages share one unless their paths differ."""
    path: tuple[str, ...] = (SUBJECT,)
    """Folders below it, down to the versions of one output: placeholders for the key, or fixed
    names.
    """
    uploaded_first: tuple[str, ...] = ()
    """Endings of large files that are uploaded to a bucket before the manifest. On a disk, all
    files appear at once.
    """

    def name_of(self, key: Key) -> str:
        """Return the name of an output: the path of its versions below `folder`."""
        values = {SUBJECT: key.subject, PART: key.part or ""}
        return "/".join(values.get(step, step) for step in self.path)

    def key_of(self, name: str) -> Key | None:
        """Return the key of the output with this name, or None if no output of this layout can have
        it.
        """
        names = name.split("/")
        if len(names) != len(self.path):
            return None
        values = dict(zip(self.path, names, strict=True))
        fixed_names = [step for step in self.path if step not in (SUBJECT, PART)]
        if any(values[step] != step for step in fixed_names):
            return None
        return Key(values.get(SUBJECT, ""), values.get(PART))


@dataclass(slots=True)
class ReadingBudget:
    """Bytes that may still be read, shared by everything that wants to look ahead."""

    bytes_left: int

    def spend(self, size: int) -> bool:
        """Take `size` bytes from the budget; return False, and take nothing, if it has less."""
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        return True


@dataclass(frozen=True, slots=True)
class Summary:
    """What people are shown of one version of an output: plain values, which terminal, JSON and UI
    render.
    """

    figures: Mapping[str, int] = field(default_factory=dict)
    """Counts by name. `bytes` are added to those of other outputs in the same row of `nanoset
    status`.
    """
    details: Mapping[str, str] = field(default_factory=dict)
    """Column → text, shown in tables only."""
    warnings: Sequence[str] = ()
    """Faults that the settings allow: clauses that name the files."""
    rejects: Sequence[str] = ()
    """Files that list rejected lines."""
    preview: str = ""
    """An excerpt as Markdown, for the UI."""


class Stage(ABC):
    """One kind of output of the pipeline."""

    layout: Layout
    """Where its outputs are stored."""
    kind: str
    """What rows of `nanoset status` call its outputs; stages of one kind and subject share rows."""
    version: int
    """Version of the algorithm, part of every recipe: raise it when the same inputs give other
    bytes.
    """

    @abstractmethod
    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the outputs that a configuration requests; `corpora` are those in the raw folder."""

    @abstractmethod
    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides an output's bytes; `parents` maps each input's name to its
        digest.
        """

    @abstractmethod
    def make(self, project: Project, key: Key) -> Manifest:
        """Make an output from its inputs as they are now, and make it the current version."""

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the outputs that an output is made from, by the name that each has in the recipe."""
        return {}

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        """Check the current version of an output.

        Args:
            deep: Read every byte, where the quick check takes samples.
            run: Has the parts of deep work done, here or on other machines.
        """
        return Report(f"{self.layout.folder}/{self.layout.name_of(key)}")

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return what people are shown of a version."""
        return Summary()

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return digests of versions that a version needs in addition to its parents; `nanoset gc`
        keeps them.
        """
        return ()


class PerCorpus(Stage):
    """A stage whose subjects are corpora."""


class CorpusStage(PerCorpus):
    """A stage with an output for every corpus."""

    kind = "corpus"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return map(Key, corpora)


class Planned(Stage):
    """A stage that can tell from settings and existing outputs that an output cannot be made."""

    @abstractmethod
    def refusal(
        self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return why making an output would fail, or None if nothing speaks against it within the
        budget.
        """


class Advising(Stage):
    """A stage that can tell from nanoset.yaml that an output is allowed but rarely intended."""

    @abstractmethod
    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        """Return what is unusual in the settings of an output: clauses, known before it is built."""


class Estimated(Stage):
    """A stage whose outputs are so large that their size is estimated before a build."""

    estimated_as: str
    """What its outputs are called in estimates: shards, datasets, tars …"""

    @abstractmethod
    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Return how many bytes an output will take.

        Args:
            project: The project.
            key: The output.
            text_of: Returns what is known of a corpus's text.
        """


class OutsideFiles(Stage):
    """A stage whose outputs need files outside their own folders, such as the shards of a set."""

    @abstractmethod
    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return what is wrong with these files, or None."""


class SharesFiles(Stage):
    """A stage whose versions share files in a folder next to them, such as the index files of a
    nanoset.
    """

    shared_folder: str
    """Name of the folder, in the folder of each subject."""

    @abstractmethod
    def shared_files(self, manifest: Manifest) -> set[str]:
        """Return the files that a version needs, by their names in that folder.

        Raises:
            FormatError: They are not known, because a file of the version is damaged.
        """

    def planned_files(self, project: Project, key: Key) -> tuple[Set[str], Set[str]] | None:
        """Return (files that a build would need now, files that exist), or None if that is not
        known.
        """
        return None


class InParts(Stage):
    """A stage whose outputs are the parts of one version of another stage, such as the tars of a
    webdataset.
    """

    NOT_WRITTEN = Reason("it is not written yet")
    parts_name: str
    """What the parts are called when they are counted."""

    @abstractmethod
    def part_digest(self, recipe: Recipe) -> str:
        """Return the digest that a part is known by: parts have no version of their own."""

    @abstractmethod
    def part_problem(self, project: Project, key: Key, recipe: Recipe) -> Reason | None:
        """Return why a part is not as its recipe says, or None if it is; `NOT_WRITTEN` for a part
        that is missing.
        """


class BoundToMachine(Stage):
    """A stage whose recipes contain paths of this machine, so that other machines cannot verify its
    outputs.
    """


class Resumable(Stage):
    """A stage whose unfinished outputs contain files that a later build continues with."""

    def sweep(self, outputs: OutputRoot) -> None:
        """Remove what killed processes left in complete outputs."""
        return

    @abstractmethod
    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an unfinished version, or None if some might not be ours."""

    def unfinished_version(self, manifest: Manifest) -> str | None:
        """Return the digest of this stage's version, finished or not, that continues from another
        stage's version.
        """
        return None


class InternalStage(Stage):
    """Versions that the manifests of another stage list by digest; none of them is current.

    Args:
        layout: Where the versions are stored.
        named_by: The stage whose manifests list them.
    """

    def __init__(self, layout: Layout, named_by: Stage) -> None:
        self.layout = layout
        self.named_by = named_by
        self.kind = named_by.kind
        self.version = named_by.version

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return ()

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        raise NotImplementedError(
            f"versions of {self.layout.folder} are made by the stage that lists them"
        )

    def make(self, project: Project, key: Key) -> Manifest:
        raise NotImplementedError(
            f"versions of {self.layout.folder} are made by the stage that lists them"
        )


class RowName(NamedTuple):
    """Names a row of `nanoset status`."""

    kind: str
    """What the stage calls its outputs: corpus, nanoset, webdataset …"""
    subject: str
    """Name of the corpus, nanoset or webdataset."""
    part: str | None
    """A split, a view, `handoff` …; None for subjects with one row."""

    @property
    def label(self) -> str:
        """The names that it has, separated by spaces."""
        return " ".join(name for name in self if name)


@dataclass(frozen=True, slots=True)
class Node:
    """One output of one stage: a node of the graph of a project's outputs."""

    stage: Stage
    key: Key

    @property
    def name(self) -> str:
        """Where its versions are, below the stage's folder."""
        return self.stage.layout.name_of(self.key)

    @property
    def is_of_corpus(self) -> bool:
        """Whether its subject is a corpus."""
        return is_of_corpora(self.stage)

    @property
    def row(self) -> RowName:
        """Name of its row in `nanoset status`; the outputs of a row are shown together."""
        part = self.key.part
        if isinstance(self.stage, InParts):
            part = None
        elif part is None:
            part = self._fixed_name
        return RowName(self.stage.kind, self.key.subject, part)

    @property
    def _fixed_name(self) -> str | None:
        """Last folder of the layout if it is a fixed name, such as `handoff`."""
        last = self.stage.layout.path[-1]
        return None if last in (SUBJECT, PART) else last

    def inputs(self, config: ProjectConfig) -> Mapping[str, Node]:
        """Return the outputs that it is made from, or made after, by name."""
        return self.stage.inputs(config, self.key)

    def direct_inputs(self, config: ProjectConfig) -> list[Node]:
        """Return its inputs, except those that are also inputs of another one of them."""
        inputs = list(self.inputs(config).values())
        indirect = {node for parent in inputs for node in parent.inputs(config).values()}
        return [node for node in dict.fromkeys(inputs) if node not in indirect]


def is_of_corpora(stage: Stage) -> bool:
    """Return whether the subjects of a stage's outputs are corpora."""
    return isinstance(stage, PerCorpus)


def settings_warnings(stage: Stage, config: ProjectConfig, key: Key) -> list[str]:
    """Return what is allowed in the settings of an output but rarely intended."""
    return list(stage.settings_warnings(config, key)) if isinstance(stage, Advising) else []


def current_version(project: Project, stage: Stage, key: Key) -> CurrentVersion:
    """Return the current version of an output; parts of another output have none of their own."""
    if isinstance(stage, InParts):
        return CurrentVersion(None, NOT_BUILT)
    return project.outputs.current_version(stage.layout.folder, stage.layout.name_of(key))


def require(project: Project, stage: Stage, key: Key) -> Manifest:
    """Return the current version of an output that another one is made from.

    Raises:
        MissingError: There is none, or it is not whole.
    """
    layout = stage.layout
    return project.outputs.require(
        layout.folder, layout.name_of(key), remedy="run `nanoset build` first"
    )


def check_recipe(manifest: Manifest, expected: Recipe) -> None:
    """Check that an output was made from the present inputs and settings.

    Raises:
        StaleError: Its recipe is another than `expected`.
    """
    if manifest.digest == expected.digest:
        return
    reasons = differences(manifest.recipe, expected)
    raise StaleError(
        "this output was made from other inputs, or with other settings, than the present ones",
        where=manifest.url(),
        found="; ".join(reason.text for reason in reasons),
        remedy="run `nanoset build` first",
    )


def uploaded_files(layout: Layout, access: FileAccess, folder: Path) -> set[str] | None:
    """Return the files of an unfinished version in a bucket that are uploaded before the manifest.

    Returns None if the folder contains other files, which may be somebody else's.
    """
    if not access.has_copies or not layout.uploaded_first:
        return None
    names = {name for name in access.names(folder) if not name.startswith(UNFINISHED)}
    return names if all(name.endswith(layout.uploaded_first) for name in names) else None


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of an output's own files, without ranges of other outputs' files."""
    return sum(fact.size for fact in manifest.files.values() if fact.within is None)


def counted(manifest: Manifest, *names: str) -> dict[str, int]:
    """Return facts of a version as figures, with its size as `bytes`."""
    figures = {name: int(manifest.facts[name]) for name in names}
    figures["bytes"] = size_bytes(manifest)
    return figures
