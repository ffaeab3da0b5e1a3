"""What a build did: the outputs that it made, those that failed, and those that it skipped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nanoset_assets.assets.output_names import label_of
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.step import Step
from nanoset_core.stages.stage import Node, RowName


@dataclass(slots=True)
class BuildReport:
    """What a build did."""

    steps: list[Step]
    """Every step that the build considered, whether or not it was selected."""
    graph: Graph
    """The outputs of the project, those that the build made included."""
    unread_entries: Mapping[str, str] = field(default_factory=dict)
    """Entry of the raw folder that is no corpus → why it is not read."""
    has_all_corpora: bool = True
    """Whether all corpora were examined, and not only those that `--corpus` names."""
    selected: frozenset[Node] | None = None
    """The outputs that the user wanted to build; None for all outputs of the project."""
    made: dict[str, float] = field(default_factory=dict)
    """Label of each step that ran → seconds of its run, shared evenly by the steps of the run."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Label of each step that failed → the error."""
    skipped: list[str] = field(default_factory=list)
    """Labels of steps that did not run because one that they need failed."""
    replaced: dict[str, list[str]] = field(default_factory=dict)
    """Label of each step that replaces a version with other settings → the changes, each as `name:
    before → now`.
    """
    seconds: float = 0.0
    """How long the whole build took."""

    @property
    def given_up(self) -> set[str]:
        """Labels of the steps that failed, or need one that failed."""
        return {*self.failed, *self.skipped}

    def was_made(self, node: Node) -> bool:
        """Return whether the build made an output, instead of finding it up to date.

        Args:
            node: An output of the project, such as the dataset of the text collection `web`.
        """
        return label_of(node) in self.made

    def has_failed(self, node: Node) -> bool:
        """Return whether the build has tried to make an output, and failed.

        Args:
            node: An output of the project.
        """
        return label_of(node) in self.failed

    def examined_rows(self) -> set[RowName]:
        """Return what this build knows about, as rows of `nanoset status`.

        A row stands for several outputs. For example, the list of files, the tokens and the dataset
        of the text collection `web` have the row ("corpus", "web", None).

        Returns:
            The rows of the outputs that were requested, and of those that were made for them or
            have failed.
        """
        rows: set[RowName] = set()
        for step in self.steps:
            is_requested = self.selected is None or step.node in self.selected
            if is_requested or self.was_made(step.node):
                rows.add(step.node.row)
        # If the files of a text collection cannot be listed, it has no steps. It has failed.
        rows.update(node.row for node in self.graph.nodes() if self.has_failed(node))
        return rows

    def nodes_given_up(self) -> set[Node]:
        """Return the outputs that could not be made: those that failed, or need one that failed.

        If the tokens of the text collection `web` failed, the dataset that is made from them is
        returned, too.
        """
        given_up = self.given_up
        return {step.node for step in self.steps if label_of(step.node) in given_up}

    def seconds_of(self, node: Node) -> float:
        """Return how long making an output took, in seconds; 0 if it was not made.

        Args:
            node: An output of the project.
        """
        return self.made.get(label_of(node), 0.0)

    def replaced_settings(self, node: Node) -> list[str]:
        """Return the changes of settings between an output and the version that it replaced.

        Such as `["seed: 7 → 8"]`. Empty if no setting has changed, and only the text has, or if
        there was no version before.

        Args:
            node: An output of the project.
        """
        return self.replaced.get(label_of(node), [])

    def add_first_build(self, first: BuildReport) -> None:
        """Add what an earlier build of the same command has made, so that one report tells of both.

        `nanoset build` begins again if it finds a tokenizing engine faulty. For example, the
        first build has made the nanoset `pretrain`, after its seed was changed. Then the second
        build has made the dataset of `web`, and this is its report:

            field       before                        after
            made        {"indexed_dataset [web]"}     {"indexed_dataset [web]", "pretrain/blend …"}
            replaced    {}                            {"pretrain/blend [train]": ["seed: 7 → 8"]}

        What failed in the first build is not added, since the second one has tried it again.

        Args:
            first: What the first build did.
        """
        # The step of an output says why it was made, so take it from the build that has made it.
        made_first: dict[Node, Step] = {}
        for step in first.steps:
            if first.was_made(step.node) and not self.was_made(step.node):
                made_first[step.node] = step
        self.steps = [made_first.get(step.node, step) for step in self.steps]

        self.made = first.made | self.made
        self.replaced = first.replaced | self.replaced

    def skip(self, nodes: Collection[Node]) -> None:
        """Record that outputs were not made because something has failed before.

        Outputs that are recorded as failed themselves are left out. So a caller may pass all the
        outputs of a run that has failed, apart from those made before.

        Args:
            nodes: The outputs, such as the dataset of the text collection `web`, after making its
                tokens has failed.
        """
        for node in nodes:
            label = label_of(node)  # such as "indexed_dataset [web]"
            if label not in self.failed:
                self.skipped.append(label)
