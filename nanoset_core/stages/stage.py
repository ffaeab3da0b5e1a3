"""A stage of the pipeline: one kind of output, and everything that other parts of the program ask about it.

Each stage is one object, beside the functions that make its outputs. `build`, `status`, `diff`, `gc`, `verify`, and
Dagster's sensors and schedule use these objects by way of `pipeline.graph`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nanoset_core.errors import StaleError
from nanoset_core.outputs.current import CurrentVersion, Reason, differences
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED

REPLACED = (
    "the version asked for is there, but another was made current: by another nanoset.yaml with this root, or by this "
    "one with other settings"
)


AFTER = "after "
"""How the name of an input begins that comes before an output without being a part of its recipe."""


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


class Stage:
    """One kind of output."""

    folder: str
    """Where its outputs lie below the root."""
    place: str = "{subject}"
    """Where the versions of an output lie below `folder`: parts in braces are those of its key."""
    subjects: ClassVar[str]
    """Where nanoset.yaml names its subjects, unless there are other keys."""
    kind: str
    """What `nanoset status` calls them; with the subject and `row_part` it names a row."""
    asset: ClassVar[str | None]
    """The last word of its Dagster key; None where it is no asset of its own."""
    job: ClassVar[str] = "{subject}"
    """The Dagster job of its assets, unless its subjects are corpora; those of one job have the same partitions."""
    by_corpus: bool = False
    """Whether its subjects are corpora, which are partitions of one asset; else each subject has an asset."""
    named_by: Stage | None = None
    """The stage whose manifests list versions of this one by digest; None for a stage that has a current version."""
    counted_as: ClassVar[str | None] = None
    """What its parts are called where a row counts them, such as `groups of tars`."""
    to_be_made: ClassVar[str] = ""
    """The reason of a part that is not made yet; where all reasons of a row are this one, it shows their count."""
    counts: ClassVar[tuple[str, ...] | None] = None
    """Facts that `nanoset status` shows beside the bytes; None: it shows nothing of this stage."""
    detailed: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(column, name of a fact) of the counts that only the tables of `nanoset status` show."""
    changed: ClassVar[Mapping[str, str]] = {}
    """Name of an input → the reason shown when it differs now, in place of `<name> changed`."""
    maker: ClassVar[Callable[..., Manifest]]
    """Makes an output: (project, subject) or (project, subject, part) → its manifest."""
    named_in: ClassVar[str] = "{kind}s.{subject}"
    """Where nanoset.yaml names the corpora that an output is made of."""
    asked_by: ClassVar[str | None] = "nanoset.yaml"
    """Who asks for its subjects, in the words of `nanoset gc`; None where it reports them for another stage."""

    sent_first: ClassVar[tuple[str, ...]] = ()
    """Endings of its files that in a bucket are there before the manifest; in a folder all appear at once."""

    @property
    def version(self) -> int:
        """Of the algorithm: VERSION of the stage's module, raised when the same inputs would give other bytes."""
        return int(sys.modules[type(self).__module__].VERSION)

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return which outputs there should be; `corpora` are those of the raw folder."""
        return map(Key, getattr(config, self.subjects))

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return name → what an output is made from, or after."""
        return {}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe of an output; parents: name of each input → its digest."""
        raise NotImplementedError(f"outputs of {self.folder} are no part of the graph")

    def make(self, project: Project, key: Key) -> Manifest:
        """Make an output from its inputs as they are now, and make it the current version."""
        return type(self).maker(project, key.subject, *([] if key.part is None else [key.part]))

    def name(self, key: Key) -> str:
        """Return where the versions of an output lie below `folder`."""
        return self.place.format(subject=key.subject, part=key.part)

    def key_of(self, name: str) -> Key | None:
        """Return the output whose versions lie at `name`; None for names that are not of this stage."""
        found = re.fullmatch(self.place.format(subject="(?P<subject>[^/]+)", part="(?P<part>[^/]+)"), name)
        return None if found is None else Key(**{"subject": "", **found.groupdict()})

    def row_part(self, key: Key) -> str | None:
        """Return the part of a row of `nanoset status`; outputs of one kind, subject and row part share a row."""
        return key.part

    def digest(self, recipe: Recipe) -> str:
        """Return which version an output is of: what Dagster records as its data version."""
        return recipe.digest

    def current(self, project: Project, key: Key) -> CurrentVersion:
        """Return the current version of an output."""
        return project.outputs.current_version(self.folder, self.name(key))

    def require(self, project: Project, key: Key) -> Manifest:
        """Return the current version of an output that another one is made from; MissingError where none is whole."""
        return project.outputs.require(self.folder, self.name(key), remedy=self._remedy(key))

    def check_current(self, key: Key, made: Manifest, expected: Recipe) -> None:
        """Raise StaleError unless an output has the recipe that the present inputs and settings give."""
        if made.digest != expected.digest:
            raise StaleError(
                "this was made from other datasets, or under other settings, than the present ones",
                where=made.url(),
                found="; ".join(reason.text for reason in differences(made.recipe, expected)),
                remedy=self._remedy(key),
            )

    def _remedy(self, key: Key) -> str:
        what = f"{self.asset} for the corpus {key.subject!r}" if self.by_corpus else f"{key.subject}/{self.asset}"
        part = "" if key.part is None else f" for the split {key.part!r}"
        return f"run `nanoset build`, or materialise {what}{part} first"

    def stale_reasons(self, project: Project, key: Key, wanted: Recipe, current: CurrentVersion) -> Sequence[Reason]:
        """Return why the current version is not the wanted one; none where it is, and whole."""
        reasons = self.reworded(current.stale_reasons(wanted))
        if not reasons and current.manifest is not None:
            return [Reason(text) for text in [self.fault(project, key, current.manifest)] if text is not None]
        if current.other_settings(wanted) and project.outputs.find(wanted) is not None:
            reasons.append(Reason(REPLACED))
        return reasons

    def reworded(self, reasons: Iterable[Reason]) -> list[Reason]:
        """Return reasons in the words that the stage has for them."""
        return [Reason(self.changed.get(reason.input or "", reason.text), reason.input) for reason in reasons]

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return what is wrong with files of an output that lie outside its folder; its own files are whole."""
        return None

    def warnings(self, project: Project, manifest: Manifest) -> Iterable[str]:
        """Return faults of a version that are allowed: clauses that name the files."""
        return ()

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        """Return what nanoset.yaml asks of an output that is allowed but rarely intended; known before it is built."""
        return ()

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: Budget) -> str | None:
        """Return why making an output would fail, as far as that can be told within a budget."""
        return None

    def figures(self, manifest: Manifest) -> Mapping[str, int]:
        """Return counts of a version for `nanoset status`; `bytes` are added to those of other outputs of the row."""
        if self.counts is None:
            return {}
        return {name: int(manifest.facts[name]) for name in self.counts} | {"bytes": size_bytes(manifest)}

    def details(self, manifest: Manifest) -> Mapping[str, str]:
        """Return what only tables of `nanoset status` show of a version: column → text."""
        known = {column: manifest.facts[name] for column, name in self.detailed}
        return {column: "" if count is None else f"{count:,}" for column, count in known.items()}

    def rejects(self, project: Project, manifest: Manifest) -> Iterator[str]:
        """Yield files that hold rejected lines."""
        yield from ()

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return digests of versions that an output needs beside its parents."""
        return ()

    def future_outputs(self, manifest: Manifest) -> Iterable[str]:
        """Return digests of versions that will be made from an output, and may be in the making."""
        return ()

    def sweep(self, outputs: OutputRoot) -> None:
        """Remove what killed processes left within complete outputs."""
        return

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an unfinished version, which `gc` may remove; None where they may be somebody else's."""
        names = {name for name in access.names(folder) if not name.startswith(UNFINISHED)}
        is_ours = access.has_copies and self.sent_first and all(name.endswith(self.sent_first) for name in names)
        return names if is_ours else None


class CorpusStage(Stage):
    """A stage of which every corpus has an output."""

    kind = "corpus"
    by_corpus = True
    asked_by: ClassVar[str | None] = None

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return map(Key, corpora)


class InternalStage(Stage):
    """Outputs without a current version, which the manifests of another stage list by digest."""

    asset, asked_by = None, None

    def __init__(self, folder: str, named_by: Stage, place: str = "{subject}") -> None:
        """Args: see `Stage`."""
        self.folder, self.place, self.named_by = folder, place, named_by
        self.kind, self.by_corpus = named_by.kind, named_by.by_corpus

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return ()


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
        """Its asset and partition, for messages."""
        return "/".join(self.asset) + (f" [{self.partition}]" if self.partition is not None else "")

    @property
    def row(self) -> tuple[str, str, str | None]:
        """(kind, name, part) of its row in `nanoset status`."""
        return self.stage.kind, self.key.subject, self.stage.row_part(self.key)

    def inputs(self, config: ProjectConfig) -> Mapping[str, Node]:
        """Return name → what it is made from, or after."""
        return self.stage.inputs(config, self.key)

    def direct_inputs(self, config: ProjectConfig) -> list[Node]:
        """Return its inputs without those that are inputs of another one of them."""
        inputs = list(self.inputs(config).values())
        implied = {node for one in inputs for node in one.inputs(config).values()}
        return [node for node in dict.fromkeys(inputs) if node not in implied]


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of an output's files, without ranges of other outputs' files."""
    return sum(fact.size for fact in manifest.files.values() if fact.within is None)
