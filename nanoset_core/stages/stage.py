"""The interface of a stage, which makes one kind of output of the pipeline.

An *output* is a folder of files with a manifest. It is *current* if other stages read it, and
*stale* if its recipe, which is everything that decides its bytes, has changed since it was made.
Earlier versions of an output are kept next to the current one.

Each stage is one object in `stages/<stage>/stage.py`: it names, makes, verifies and summarises its
outputs. `stages/registry.py` lists the stages in order. Commands, checks, sensors and pages loop
over this list, so they include a new stage without being changed.

All stages implement `Stage`. A stage also derives from one of these classes for each ability that
only some stages have:

- `CorpusStage`: every corpus has an output.
- `PerCorpus`: some corpora have an output.
- `Planned`: it can refuse an output before anything is built.
- `Advising`: it warns of settings that are allowed but rarely intended.
- `WarnsBeforeReplacing`: it warns before a build replaces an output that may be in use.
- `Estimated`: its outputs are so large that their size is estimated before a build.
- `OutsideFiles`: its outputs need files that are stored in other outputs.
- `SharesFiles`: its versions share files in a folder next to them.
- `InParts`: its outputs are the parts of another stage's output.
- `Forbidding`: what its outputs say can forbid making others.
- `BoundToMachine`: its recipes contain paths of this machine.
- `Resumable`: a build continues with the files that an interrupted build wrote.

Only pieces of the outputs of another stage, such as shards, are objects of `InternalStage`: where
they are stored, and which stage makes and lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import StaleError
from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.differences import Reason, differences
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED

AFTER = "after "
"""Prefix of the name of an input that must be built first, but has no influence on the bytes.

Such inputs are left out of the recipe. They are outputs of a stage that is `Forbidding`: what they
say decides whether the output may be made at all.
"""
SUBJECT = "{subject}"
"""Placeholder for `Key.subject` in the path of a layout."""
PART = "{part}"
"""Placeholder for `Key.part` in the path of a layout."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names one output of a stage."""

    subject: str
    """Name of the corpus, nanoset, webdataset or export that the output belongs to."""
    part: str | None = None
    """A split, a group of tars or a view; None if each subject has one output of the stage."""
    requested_at: str = field(default="", compare=False)
    """The key of nanoset.yaml that requests the output, for messages."""

    @property
    def required_part(self) -> str:
        """The part, for a stage whose keys all have one.

        Raises:
            ValueError: The key has no part.
        """
        if self.part is None:
            raise ValueError(f"the key of {self.subject!r} has no part")
        return self.part


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the outputs of a stage are stored below the root."""

    folder: str
    """First folder of the path; two public stages share one only if their paths differ."""
    path: tuple[str, ...] = (SUBJECT,)
    """The folders below it that lead to the versions of one output: placeholders or fixed names."""
    uploaded_first: tuple[str, ...] = ()
    """Endings of large files that are uploaded to a bucket before the manifest.

    On a disk, all files of a version appear at once.
    """

    @property
    def is_named_by_part(self) -> bool:
        """Whether the part alone names an output, as it does for views and packs.

        The subject of these is the corpus that they are made from, which has many of them.
        """
        return SUBJECT not in self.path

    def name_of(self, key: Key) -> str:
        """Return the name of an output, which is the path of its folder below that of its stage.

        For example, the index files for the split `train` of the nanoset (training mixture)
        `pretrain`:

            path of this layout    ("{subject}", "index", "{part}")
            key of the output      Key(subject="pretrain", part="train")
            name                   pretrain/index/train

        Args:
            key: Which output of the stage.
        """
        values = {SUBJECT: key.subject, PART: key.part or ""}
        return "/".join(values.get(folder, folder) for folder in self.path)

    def path_of(self, key: Key) -> str:
        """Return the path of an output's folder below the root, such as nanosets/pretrain/index.

        Args:
            key: Which output of the stage.
        """
        return f"{self.folder}/{self.name_of(key)}"

    def key_of(self, name: str) -> Key | None:
        """Return which output a name belongs to: the reverse of `name_of`.

        With the path `("{subject}", "index", "{part}")`:

            pretrain/index/train    Key(subject="pretrain", part="train")
            pretrain/other/train    None, since the second folder is not `index`
            pretrain/index          None, since there are only two folders

        Args:
            name: Names of folders, separated by slashes.

        Returns:
            The key, or None if the name does not fit the path of this layout.
        """
        folders = name.split("/")
        if len(folders) != len(self.path):
            return None
        value_by_placeholder: dict[str, str] = {}
        for pattern, folder in zip(self.path, folders, strict=True):
            if pattern in (SUBJECT, PART):
                value_by_placeholder[pattern] = folder
            elif pattern != folder:
                return None
        return Key(value_by_placeholder.get(SUBJECT, ""), value_by_placeholder.get(PART))

    def overlaps(self, other: Layout) -> bool:
        """Return whether an output of this layout and one of another could have the same folder.

            ("{subject}", "{part}", "index") and ("{subject}", "{part}", "blend")    False
            ("{subject}", "handoff")         and ("{subject}", "{part}")             True

        Args:
            other: The layout of another stage.
        """
        if self.folder != other.folder or len(self.path) != len(other.path):
            return False
        for folder, other_folder in zip(self.path, other.path, strict=True):
            are_fixed = {folder, other_folder}.isdisjoint({SUBJECT, PART})
            if are_fixed and folder != other_folder:
                return False
        return True


@dataclass(slots=True)
class ReadingBudget:
    """A limit on the bytes that all stages together read before a build, to plan it."""

    bytes_left: int
    """Bytes that may still be read."""

    def spend(self, size: int) -> bool:
        """Ask whether some bytes may be read, and subtract them from the budget if so.

        With 100 bytes left, `spend(80)` returns True and leaves 20. Then `spend(30)` returns False,
        and still leaves 20.

        Args:
            size: Number of bytes that the caller wants to read.

        Returns:
            Whether the caller may read them.
        """
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        return True


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of one version of an output, which the terminal, JSON and the UI render."""

    figures: Mapping[str, int] = field(default_factory=dict)
    """Name → count.

    If outputs share a row of `nanoset status`, their `bytes` are added up.
    """
    details: Mapping[str, str] = field(default_factory=dict)
    """Heading of a column → text; shown in tables only."""
    warnings: Sequence[str] = ()
    """Faults that the settings allow: clauses that name the files."""
    rejects: Sequence[str] = ()
    """Paths of the files that list rejected lines."""
    preview: str = ""
    """An excerpt as Markdown, for the UI."""


class Stage(ABC):
    """One kind of output of the pipeline."""

    layout: Layout
    """Where its outputs are stored."""
    kind: str
    """What rows of `nanoset status` call its outputs, such as `corpus`.

    Outputs of one kind and subject share a row, whatever their stage.
    """
    version: int
    """Version of the algorithm. Raise it if the same inputs give other bytes than before."""
    reads_raw_text: bool = False
    """Whether it reads the raw text of its corpus. Before it starts, a build says how much that is.
    """

    def __init__(self) -> None:
        """Check that the class of the stage says what each stage has to say.

        Raises:
            TypeError: The class lacks an attribute. Python raises the same for a missing method.
        """
        for attribute in ("layout", "kind", "version"):
            if not hasattr(self, attribute):
                name = type(self).__name__
                raise TypeError(f"the class {name} of a stage has no attribute `{attribute}`")

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to recreate the stage from a pickle: a function and its arguments."""
        return _unpickled_stage, (type(self), self.layout, vars(self))

    @abstractmethod
    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the outputs that a configuration requests.

        Args:
            config: The settings of nanoset.yaml.
            corpora: Names of the corpora that exist in the raw folder.
        """

    @abstractmethod
    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides the bytes of an output.

        Args:
            project: The project.
            key: The output.
            parents: Name of each input → its digest.
        """

    @abstractmethod
    def make(self, project: Project, key: Key) -> Manifest:
        """Make an output from the current versions of its inputs, and make it current.

        Args:
            project: The project.
            key: The output.

        Returns:
            Manifest of the new version, or of an existing one with the same recipe.
        """

    def report_name(self, key: Key) -> str:
        """Return what reports call an output: its path below the root, such as datasets/web.

        Args:
            key: The output.
        """
        return self.layout.path_of(key)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the outputs that an output is made from.

        Args:
            config: The settings of nanoset.yaml.
            key: The output.

        Returns:
            Name of the input in the recipe, such as `dataset` → the output. The default is for
            stages that read raw text only.
        """
        return {}

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        """Check an output of this stage: that its files are intact and contain what they should.

        `nanoset verify` prints the result, and each build shows it in Dagster's UI.

        Args:
            project: The project.
            key: Which output of the stage.
            deep: Read every byte; otherwise large files are sampled.
            run: Does checks that are divided into parts, in this process or on other machines.

        Returns:
            The errors and warnings, and what was measured. The default is a report without any.
        """
        return Report(self.report_name(key))

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return the figures and warnings of a version that `nanoset status` and the UI show.

        Args:
            project: The project.
            manifest: Manifest of the version.
        """
        return Summary()

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return the digests of versions that a version needs in addition to its inputs.

        `nanoset gc`, which deletes versions that nothing needs, keeps them.

        Args:
            outputs: The outputs of the project.
            manifest: Manifest of the version.
        """
        return ()


class PerCorpus(Stage):
    """A stage whose outputs belong to corpora: the subjects of its keys are names of corpora.

    Where nanoset.yaml allows names of views and packs, too, `keys` has to leave these out: they are
    the names in `config.derived`.
    """


class CorpusStage(PerCorpus):
    """A stage with an output for every corpus.

    Its outputs are part of the corpus's own row of `nanoset status`. A stage that needs a row of
    its own overrides `kind`.
    """

    kind = "corpus"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return a key for each corpus that exists in the raw folder.

        Args:
            config: Not used.
            corpora: Names of these corpora.
        """
        return map(Key, corpora)


class Planned(Stage):
    """A stage that can tell from settings and existing outputs that an output cannot be made."""

    @abstractmethod
    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why making an output would fail, or None if no reason is known.

        Args:
            project: The project.
            key: The output.
            recipe: Recipe that the output would have; None before text that it depends on was read.
            reading: Limits the bytes that may be read to find out.
        """


class Advising(Stage):
    """A stage that can tell from nanoset.yaml that an output is allowed but rarely intended."""

    @abstractmethod
    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        """Return warnings about the settings of an output.

        Args:
            config: The settings of nanoset.yaml.
            key: The output.

        Returns:
            Clauses, such as "packs have an order of their own".
        """


class WarnsBeforeReplacing(Stage):
    """A stage that can tell that another program may still need an output which a build replaces.

    For example, a training run may have begun with the files of an output, and has to continue with
    the same ones.
    """

    @abstractmethod
    def replacement_warning(
        self, project: Project, manifest: Manifest, changed_inputs: Collection[str]
    ) -> str | None:
        """Return what a user should know before a build replaces an output.

        Args:
            project: The project.
            manifest: Manifest of the current version, which is replaced.
            changed_inputs: Names of the inputs that the build makes from other settings or text,
                such as {"train"}.

        Returns:
            Sentences without the last full stop; None if nothing depends on the current version.
        """


class Estimated(Stage):
    """A stage whose outputs are so large that their size is estimated before a build."""

    estimated_as: str
    """What its outputs are called in estimates: shards, datasets, tars …"""

    @abstractmethod
    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Return how many bytes an output will take.

        If the outputs are the parts of another output (`InParts`), this is called for one of them
        only: all parts count as equally large.

        Args:
            project: The project.
            key: The output.
            text_of: Returns an estimate of the text of a corpus, by its name.
        """


class OutsideFiles(Stage):
    """A stage whose outputs need files outside their own folders, such as the shards of a set.

    These files may be damaged although all files in the output's own folder are whole.
    """

    @abstractmethod
    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Check the files outside an output's own folder that it needs.

        Args:
            project: The project.
            key: The output.
            manifest: Manifest of its current version.

        Returns:
            What is wrong with one of these files, in words; None if all are whole.
        """


class SharedFileNames(NamedTuple):
    """Shared files of a stage, as they are before a build; by their names in the shared folder."""

    needed: Set[str]
    """Files that the build would need."""
    existing: Set[str]
    """Files that exist, needed or not."""


class SharesFiles(Stage):
    """A stage whose versions share files in a folder next to them.

    The splits of a nanoset share index files in this way.
    """

    shared_folder: str
    """Name of the folder of shared files, which is in the folder of each subject."""

    @abstractmethod
    def shared_files(self, manifest: Manifest) -> set[str]:
        """Return the shared files that a version needs, by their names in the shared folder.

        Args:
            manifest: Manifest of the version.

        Raises:
            FormatError: A file of the version, which would name them, is damaged.
        """

    def planned_files(self, project: Project, key: Key) -> SharedFileNames | None:
        """Predict which files in the shared folder a build of an output would need.

        With these names, `nanoset diff` tells how many files would be written.

        Args:
            project: The project.
            key: The output that would be built.

        Returns:
            The names of the files that the build would need, and of those that exist; None if they
            cannot be predicted, which is the default.
        """
        return None


class InParts(Stage):
    """A stage whose outputs are the parts of one output of another stage.

    The groups of tars of a webdataset are such parts.
    """

    NOT_WRITTEN = Reason("it is not written yet")
    """The problem of a part that does not exist yet."""
    parts_name: str
    """What the parts are called when they are counted."""
    listed_folder: str | None = None
    """First folder of the outputs that `part_problem` looks at, so that it is listed once for all
    parts; None for the folder of the stage itself.
    """

    @abstractmethod
    def part_digest(self, recipe: Recipe) -> str:
        """Return a digest that identifies a part, which has no version in a folder of its own.

        Args:
            recipe: Recipe of the part.
        """

    @abstractmethod
    def part_problem(self, project: Project, key: Key, recipe: Recipe) -> Reason | None:
        """Find out whether a part of an output, such as a group of tars, has to be written.

        Args:
            project: The project.
            key: The part.
            recipe: The recipe that follows from the present inputs and settings.

        Returns:
            Why it has to be written: `NOT_WRITTEN` if it does not exist. None if it was made by
            this recipe and its files are whole.
        """


class Forbidding(Stage):
    """A stage whose outputs may forbid making other outputs.

    For example, a search has found texts of an evaluation in a corpus, and no training run may read
    them. Outputs for such runs name the search as an input whose name begins with AFTER, but only
    if the present settings forbid them to contain what the search finds.

    The options of its recipes may depend on the subject of a key, but not on its part: when the
    search of one corpus was checked, those of other corpora need not be compared with all settings.
    """

    @abstractmethod
    def check_allowed(self, project: Project, key: Key, manifest: Manifest) -> None:
        """Check that outputs which are made after an output of this stage are allowed.

        Args:
            project: The project.
            key: The output of this stage, such as the search of a corpus.
            manifest: Manifest of its current version.

        Raises:
            ForbiddenError: They are not: it names the first document that they must not contain.
        """


class BoundToMachine(Stage):
    """A stage whose recipes contain paths of this machine.

    Other machines cannot verify its outputs.
    """


class Resumable(Stage):
    """A stage whose builds continue with the files that an interrupted build wrote."""

    def sweep(self, outputs: OutputRoot) -> None:
        """Remove temporary files of killed processes from complete outputs.

        Args:
            outputs: The outputs of the project.
        """
        return

    @abstractmethod
    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an unfinished version, which has no manifest yet.

        Args:
            access: Reads the files.
            folder: Folder of the version.

        Returns:
            Their names, or None if the folder contains files that this project may not have
            written.
        """

    def unfinished_version(self, manifest: Manifest) -> str | None:
        """Return which unfinished output belongs to a plan, so that it is not deleted.

        Some stages first store a plan, and then make an output by it, which may take long and be
        interrupted:

            shuffle_plans/web/3f9c…    the plan: which sample goes into which tar file
            webdatasets/web/a07e…      the tars, 20 of 100 so far

        Until the output is finished, nothing refers to its folder, and `nanoset gc` deletes such
        folders. So it calls this method for each output that it keeps. For the plan, the result is
        "a07e…", and it keeps that folder, too. Most stages have no plans: they need not override
        this.

        Args:
            manifest: Manifest of an output of any stage, which describes it.

        Returns:
            The digest of the unfinished output, which is the name of its folder; None if `manifest`
            is not that of a plan of this stage.
        """
        return None


class InternalStage(Stage):
    """A stage for the pieces that the outputs of another stage consist of, such as shards.

    For example, the tokens of a corpus are thousands of shards. The stage that tokenizes makes the
    shards, and the manifest of its output lists their digests. A piece belongs to an output only
    because it is listed there. So no setting requests a piece, and none is marked as the current
    version.
    """

    def __init__(self, layout: Layout, listed_by: Stage) -> None:
        """Describe the pieces: where they are stored, and which stage makes and lists them.

        Args:
            layout: Where the pieces are stored.
            listed_by: The stage that makes the pieces, and lists them in its manifests.
        """
        self.layout = layout
        self.listed_by = listed_by
        # Pieces are shown and made as a part of the output that lists them.
        self.kind = listed_by.kind
        self.version = listed_by.version
        super().__init__()  # checks that the attributes of every stage are set

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


def _unpickled_stage(
    stage_class: type[Stage], layout: Layout, attributes: Mapping[str, object]
) -> Stage:
    """Return the stage that a process, such as a worker of a cluster, has received as a pickle.

    Stages are compared by identity, so this is the object in the process's own list of stages.
    Python has just imported the module of the class. If the stage is of another package, this
    usually adds it to the list. If it does not, the stage is created as it was pickled.

    Args:
        stage_class: The class of the stage.
        layout: Its layout. The list has no two stages with the same class and layout.
        attributes: The attributes that the object had in addition to those of its class.
    """
    from nanoset_core.stages.registry import stages

    for stage in stages():
        if type(stage) is stage_class and stage.layout == layout:
            return stage
    created_stage = object.__new__(stage_class)
    vars(created_stage).update(attributes)
    return created_stage


class RowName(NamedTuple):
    """Names a row of `nanoset status`."""

    kind: str
    """What the stage calls its outputs: corpus, nanoset, webdataset …"""
    subject: str
    """Name of the corpus, nanoset or webdataset."""
    part: str | None
    """A split, a view or `handoff`; None for subjects with one row."""

    @property
    def label(self) -> str:
        """Kind, subject and part in one text, such as `nanoset pretrain train`."""
        return " ".join(name for name in self if name)

    @property
    def is_corpus(self) -> bool:
        """Whether it is the row of a corpus: the list of its files, its tokens and its dataset.

        Other outputs of a corpus, such as its columns, have rows of their own.
        """
        return self.kind == CorpusStage.kind


@dataclass(frozen=True, slots=True)
class Node:
    """One output of one stage: a node of the graph of a project's outputs."""

    stage: Stage
    """The stage that makes the output."""
    key: Key
    """Which of the stage's outputs it is."""

    @property
    def name(self) -> str:
        """Path of the folder of its versions below the stage's folder, such as web."""
        return self.stage.layout.name_of(self.key)

    @property
    def path(self) -> str:
        """Path of the folder of its versions below the root, such as datasets/web."""
        return self.stage.layout.path_of(self.key)

    @property
    def is_of_corpus(self) -> bool:
        """Whether its subject is a corpus."""
        return is_of_corpora(self.stage)

    @property
    def row(self) -> RowName:
        """Name of its row in `nanoset status`."""
        part = self.key.part
        if isinstance(self.stage, InParts):
            # Parts are shown in the row of the output that they belong to.
            part = None
        elif part is None:
            # For example, the path {subject}/handoff gives the row `nanoset pretrain handoff`.
            part = self._fixed_name
        return RowName(self.stage.kind, self.key.subject, part)

    @property
    def _fixed_name(self) -> str | None:
        """Last folder of the layout if it is a fixed name, such as `handoff`; otherwise None."""
        last_folder = self.stage.layout.path[-1]
        return None if last_folder in (SUBJECT, PART) else last_folder

    def inputs(self, config: ProjectConfig) -> Mapping[str, Node]:
        """Return the outputs that must be built before this one, by their names in its recipe.

        Args:
            config: The settings of nanoset.yaml.
        """
        return self.stage.inputs(config, self.key)

    def deciding_inputs(self, config: ProjectConfig) -> list[DecidingInput]:
        """Return the inputs that decide whether this output may be made; usually none.

        Args:
            config: The settings of nanoset.yaml.
        """
        deciding: list[DecidingInput] = []
        for name, node in self.inputs(config).items():
            if name.startswith(AFTER) and isinstance(node.stage, Forbidding):
                deciding.append(DecidingInput(node, node.stage))
        return deciding

    def read_inputs(self, config: ProjectConfig) -> list[Node]:
        """Return the inputs that this output is made from: all but those that only decide.

        Args:
            config: The settings of nanoset.yaml.
        """
        inputs = self.inputs(config)
        return [node for name, node in inputs.items() if not name.startswith(AFTER)]

    def direct_inputs(self, config: ProjectConfig) -> list[Node]:
        """Return the inputs of this output, without those that another input is made from.

        For example, a view (a selection of documents) is made from the dataset of a corpus and from
        the columns of its documents. The columns are made from the dataset:

            dataset ──→ columns ──→ view
               └───────────────────→

        Whoever waits for the columns need not wait for the dataset, so only the columns are
        returned.

        Args:
            config: The settings of nanoset.yaml.
        """
        inputs = list(self.inputs(config).values())
        indirect_inputs: set[Node] = set()
        for node in inputs:
            indirect_inputs.update(node.inputs(config).values())
        unique_inputs = dict.fromkeys(inputs)  # in their order
        return [node for node in unique_inputs if node not in indirect_inputs]


class DecidingInput(NamedTuple):
    """An input that decides whether an output may be made, such as a search for evaluation texts.

    It has the same stage twice, since types do not say that the stage of a node is `Forbidding`.
    """

    node: Node
    """The input."""
    stage: Forbidding
    """Its stage."""


def is_of_corpora(stage: Stage) -> bool:
    """Return whether the subjects of a stage's outputs are corpora, and not nanosets, for example.

    Args:
        stage: The stage.
    """
    return isinstance(stage, PerCorpus)


def settings_warnings(stage: Stage, config: ProjectConfig, key: Key) -> list[str]:
    """Return warnings about settings of an output that are allowed, but rarely intended.

    Args:
        stage: The step of the pipeline that makes the output. Most stages never warn; those that
            may are `Advising`.
        config: The settings of nanoset.yaml.
        key: Which output of the stage.

    Returns:
        Clauses, such as "packs have an order of their own".
    """
    if not isinstance(stage, Advising):
        return []
    return list(stage.settings_warnings(config, key))


def current_version(project: Project, stage: Stage, key: Key) -> CurrentVersion:
    """Return the current version of an output, or why there is none.

    A build that changes an output makes a new version next to the old one. Then it makes the new
    one the current version, which is the one that is read from then on.

    Some stages (`InParts`) only write parts of the output of another stage: some of the tars of a
    webdataset, for example. Only the whole output has versions.

    Args:
        project: The project.
        stage: The step of the pipeline that makes the output.
        key: Which output of the stage.

    Returns:
        The version. If there is no usable one, `problem` has the reason: "not built yet", also for
        parts, or "damaged: web.bin is missing".
    """
    if isinstance(stage, InParts):
        return CurrentVersion(manifest=None)  # not built yet
    return project.outputs.current_version(stage.layout.folder, stage.layout.name_of(key))


def find_current(project: Project, stage: Stage, key: Key) -> Manifest | None:
    """Return the manifest of an output's current version, or None if it cannot be read.

        the version, and its files are whole           its manifest
        the output is not built yet                    None
        a file is missing, or has another size         None
        the manifest itself is no valid JSON           FormatError

    Call `require` if the output is needed: it raises an error instead of returning None.

    Args:
        project: The project.
        stage: The step of the pipeline that makes the output.
        key: Which output of the stage.

    Raises:
        FormatError: The manifest, or the file that names the current version, is not valid.
    """
    return project.outputs.current(stage.layout.folder, stage.layout.name_of(key))


def require(
    project: Project, stage: Stage, key: Key, remedy: str = "run `nanoset build` first"
) -> Manifest:
    """Return the manifest of an output that is needed to make another one.

    For example, the dataset of a corpus is needed to make its index files. Its manifest says where
    its files are, and what they contain.

    Args:
        project: The project.
        stage: The step of the pipeline that makes the needed output.
        key: Which output of that stage.
        remedy: What the error says to do.

    Raises:
        MissingError: The output has not been built, or a file of it is missing or damaged.
    """
    layout = stage.layout
    return project.outputs.require(layout.folder, layout.name_of(key), remedy=remedy)


def check_recipe(manifest: Manifest, expected: Recipe) -> None:
    """Check that an output was made from the present inputs and settings, so that it can be used.

    A recipe is everything that decides the bytes of an output. If the seed in the settings was
    changed after the output was made, the error says `found: seed: 7 → 8`.

    Args:
        manifest: Manifest of the output, which has the recipe that made it.
        expected: The recipe by which it would be made now.

    Raises:
        StaleError: The recipes differ.
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
    """Return the large files of an output in a bucket whose build was interrupted.

    A build uploads the large files of an output first, and its manifest last: without the manifest,
    the output does not count as complete. The next build continues with these files.

        web_text_document.bin    large: returned
        manifest.json            missing, so the output is unfinished

    Args:
        layout: Says by which endings the large files of the stage are recognised, such as `.bin`.
        access: Lists the folder.
        folder: Folder of the output.

    Returns:
        Names of the large files, perhaps none. None if the folder is not one of an interrupted
        upload: it contains other files, or is on a disk, where outputs appear only when complete.
    """
    large_file_endings = layout.uploaded_first
    is_on_disk = not access.takes_requests
    if is_on_disk or not large_file_endings:
        return None
    names: set[str] = set()
    for name in access.names(folder):
        if name.startswith(UNFINISHED):
            continue  # a temporary file of an upload
        if not name.endswith(large_file_endings):
            return None
        names.add(name)
    return names


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of an output's own files, without ranges of other outputs' files.

    Args:
        manifest: Manifest of the output, which lists its files with their sizes.
    """
    return sum(fact.size for fact in manifest.files.values() if not fact.is_in_other_output)


def counted(manifest: Manifest, *names: str) -> dict[str, int]:
    """Return some facts of a version, and its size as `bytes`, as figures of a summary.

    Args:
        manifest: Manifest of the version.
        names: Names of facts that are counts.
    """
    figures = {name: int(manifest.facts[name]) for name in names}
    figures["bytes"] = size_bytes(manifest)
    return figures
