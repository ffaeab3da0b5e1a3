"""A stage of the pipeline: one kind of output, and everything that the rest of the house asks about it.

Each stage is one object, beside the functions that make its outputs. `build`, `status`, `diff`, `gc`, the freshness
that `verify` tells, and Dagster's sensors and schedule ask these objects, by way of `pipeline.graph`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import StaleError
from nanoset_core.outputs.current import CurrentVersion, Reason, differences
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.access import FileAccess

REPLACED = (
    "the version asked for is there, but another was made current: by another nanoset.yaml with this root, or by this "
    "one with other settings"
)


@dataclass(frozen=True, slots=True)
class Key:
    """Which output of a stage."""

    subject: str
    """The corpus, nanoset or webdataset."""
    part: str | None = None
    """A split or group of shards; None where there are no parts."""


@dataclass(slots=True)
class Budget:
    """Bytes that may still be read."""

    left: int


class Stage(ABC):
    """One kind of output."""

    folder: ClassVar[str]
    """Where its outputs lie below the root."""
    kind: ClassVar[str]
    """What `nanoset status` calls them; with the subject and `row_part` it names a row."""
    asset: ClassVar[str | None]
    """The last word of its Dagster key; None where it is no asset of its own."""
    by_corpus: ClassVar[bool] = False
    """Whether its subjects are corpora, which are partitions of one asset; else each subject has an asset."""
    named_by: ClassVar[Stage | None] = None
    """The stage whose outputs name versions of this one, which has no current version; it is made from files alone."""
    counted_as: ClassVar[str | None] = None
    """What its parts are called where a row counts them, such as `groups of tars`."""
    to_be_made: ClassVar[str] = ""
    """The reason of a part that is just not made yet: the count tells it."""
    counts: ClassVar[tuple[str, ...]] = ()
    """Facts that `nanoset status` shows, beside the bytes; empty: it shows nothing of this stage."""
    detailed: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(column, name of a fact) of the counts that only the tables of `nanoset status` show."""
    changed: ClassVar[Mapping[str, str]] = {}
    """Name of an input → what is told where it is another one now, in place of `<name> changed`."""
    maker: ClassVar[Callable[..., Manifest]]
    """Makes an output: (project, subject) or (project, subject, part) → its manifest."""
    asked_by: ClassVar[str | None] = "nanoset.yaml"
    """Who asks for its subjects, as `nanoset gc` says it; None where another stage's report is enough."""

    @property
    def version(self) -> int:
        """Of the algorithm: VERSION of the stage's module, raised when the same inputs would give other bytes."""
        return int(sys.modules[type(self).__module__].VERSION)

    @abstractmethod
    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Which outputs there should be.

        Args:
            config: the project's configuration.
            corpora: those of the raw folder, for stages of which every corpus has an output.
        """

    @abstractmethod
    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Name → what an output is made from, or after."""

    @abstractmethod
    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """What an output is made from.

        Args:
            project: the project.
            key: of the output.
            parents: name of each input → its digest.
        """

    def make(self, project: Project, key: Key) -> Manifest:
        """Make an output from its inputs as they are now, and make it the current version."""
        return type(self).maker(project, key.subject, *([] if key.part is None else [key.part]))

    def name(self, key: Key) -> str:
        """Where the versions of an output lie below `folder`."""
        return key.subject

    def key_of(self, name: str) -> Key | None:
        """The output whose versions lie at `name`; None for what is not of this stage."""
        return Key(name)

    def row_part(self, key: Key) -> str | None:
        """The part that a row of `nanoset status` is about; outputs of one kind, subject and row part share a row."""
        return key.part

    def named_in(self, key: Key) -> str:
        """Where nanoset.yaml names the corpora that an output is made of."""
        return f"{self.kind}s.{key.subject}"

    def digest(self, recipe: Recipe) -> str:
        """Which version an output is of: what Dagster records as its data version."""
        return recipe.digest

    def current(self, project: Project, key: Key) -> CurrentVersion:
        """The current version of an output."""
        return project.outputs.current_version(self.folder, self.name(key))

    def current_of_all(self, project: Project, keys: Sequence[Key]) -> list[CurrentVersion]:
        """As `current`, of many outputs: those of corpora are looked for together."""
        if self.by_corpus and all(self.name(key) == key.subject for key in keys):
            return project.outputs.current_versions(self.folder, [key.subject for key in keys])
        return [self.current(project, key) for key in keys]

    def stale_reasons(self, project: Project, key: Key, wanted: Recipe, current: CurrentVersion) -> Sequence[Reason]:
        """Why the current version is not the wanted one; none where it is, and whole."""
        reasons = self.told(current.stale_reasons(wanted))
        if not reasons and current.manifest is not None:
            fault = self.fault(project, key, current.manifest)
            return [] if fault is None else [Reason(fault)]
        if current.other_settings(wanted) and project.outputs.find(wanted) is not None:
            reasons.append(Reason(REPLACED))
        return reasons

    def told(self, reasons: Iterable[Reason]) -> list[Reason]:
        """Reasons in the words that the stage has for them."""
        return [Reason(self.changed.get(reason.input or "", reason.text), reason.input) for reason in reasons]

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """What is wrong with what belongs to an output and lies elsewhere; its own files are whole."""
        return None

    def warnings(self, project: Project, manifest: Manifest) -> Iterable[str]:
        """What is not as it should be with a version that is allowed all the same: clauses that name the files."""
        return ()

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: Budget) -> str | None:
        """Why an output would be refused, as far as that can be told by reading no more than a budget."""
        return None

    def figures(self, manifest: Manifest) -> Mapping[str, int]:
        """Counts of a version that `nanoset status` shows; `bytes` are added to those of other outputs of the row."""
        counts = {name: int(manifest.facts[name]) for name in self.counts}
        return counts | {"bytes": size_bytes(manifest)} if counts else {}

    def details(self, manifest: Manifest) -> Mapping[str, str]:
        """What else a table of `nanoset status` shows of a version: name of the column → what stands there."""
        return {column: f"{manifest.facts[name]:,}" for column, name in self.detailed}

    def rejects(self, project: Project, manifest: Manifest) -> Iterator[str]:
        """Files that hold rejected lines."""
        yield from ()

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Digests of versions that an output needs beside its parents."""
        return ()

    def future_outputs(self, manifest: Manifest) -> Iterable[str]:
        """Digests of versions that will be made from an output, and may be in the making."""
        return ()

    def sweep(self, outputs: OutputRoot) -> None:
        """Remove what killed processes left within complete outputs, where any works there."""
        return

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Names of files of ours in a version's folder that has no manifest yet; None where that cannot be told."""
        return None

    def shared_files(self, manifest: Manifest) -> Collection[str] | None:
        """Names of files that versions of an output share, outside of their folders; None for a stage without."""
        return None

    def planned_files(self, project: Project, key: Key) -> tuple[Set[str], Set[str]] | None:
        """(shared files that an output would have now, all that are there); None for a stage without."""
        return None


class CorpusStage(Stage):
    """A stage through which every corpus goes."""

    kind = "corpus"
    by_corpus = True
    asked_by: ClassVar[str | None] = None

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return map(Key, corpora)


@dataclass(frozen=True, slots=True)
class Node:
    """One output of one stage."""

    stage: Stage
    key: Key

    @property
    def asset(self) -> tuple[str, ...]:
        """Its Dagster key."""
        asset = self.stage.asset or self.stage.folder
        return (asset,) if self.stage.by_corpus else (self.key.subject, asset)

    @property
    def partition(self) -> str | None:
        """Its Dagster partition: a corpus, split or group."""
        return self.key.subject if self.stage.by_corpus else self.key.part

    @property
    def label(self) -> str:
        """Its asset and partition, as they are shown."""
        return "/".join(self.asset) + (f" [{self.partition}]" if self.partition is not None else "")

    @property
    def row(self) -> tuple[str, str, str | None]:
        """(kind, name, part) of the row of `nanoset status` that it is told in."""
        return self.stage.kind, self.key.subject, self.stage.row_part(self.key)

    def inputs(self, config: ProjectConfig) -> Mapping[str, Node]:
        """Name → what it is made from, or after."""
        return self.stage.inputs(config, self.key)

    def direct_inputs(self, config: ProjectConfig) -> list[Node]:
        """Its inputs without those that are inputs of another one of them."""
        inputs = list(self.inputs(config).values())
        implied = {node for one in inputs for node in one.inputs(config).values()}
        return [node for node in dict.fromkeys(inputs) if node not in implied]


def size_bytes(manifest: Manifest) -> int:
    """Bytes of an output's own files."""
    return sum(fact.size for fact in manifest.files.values())


def check_current(made: Manifest, expected: Recipe, what: str) -> None:
    """Refuse an output that is not what the present datasets and settings give.

    Args:
        made: the output.
        expected: what it would be made from now.
        what: is to be materialised where it differs.

    Raises:
        StaleError: it was made from something else.
    """
    if made.digest != expected.digest:
        raise StaleError(
            "this was made from other datasets, or under other settings, than the present ones",
            where=made.folder,
            found="; ".join(reason.text for reason in differences(made.recipe, expected)),
            remedy=f"run `nanoset build`, or materialise {what} first",
        )
