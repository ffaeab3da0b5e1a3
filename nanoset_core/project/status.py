"""`nanoset status`: report which outputs are up to date, stale, missing or failing.

A line of its table, a *row*, stands for outputs that are made in sequence, such as the inventory,
the shards and the dataset of a corpus. For example, the row of the corpus `web` is stale because
`1 file added (c.jsonl)`. Raw text is not read, except for a few files that were written again; see
`project/survey.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.current import Reason
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import requested_corpora
from nanoset_core.project.survey import CorpusFindings, CorpusSurvey
from nanoset_core.stages.inventory.corpora import scan_names
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.shards.options import check_tokenizer
from nanoset_core.stages.stage import (
    InParts,
    Node,
    Planned,
    ReadingBudget,
    RowName,
    Summary,
    settings_warnings,
)
from nanoset_core.storage.leases import Work, under_way
from nanoset_core.text.notices import Notice

State = Literal["up to date", "stale", "missing", "failing", "being built", "not read"]
PLANNED_BYTES = 64 << 20
"""Outputs that are not built are planned, to find out whether they can be built. Planning ends once
this many bytes of .idx were read.
"""


@dataclass(frozen=True, slots=True)
class StatusRow:
    """The state of the outputs that are shown together, or of a folder that is no corpus."""

    kind: str
    """What the stage calls its outputs: corpus, nanoset, webdataset …; `folder` for a folder that
    is not read.
    """
    name: str
    """Name of the corpus, nanoset or webdataset."""
    part: str | None
    """A split, a view, `handoff` …; None for subjects with one row."""
    state: State
    """What a build would find."""
    why: tuple[str, ...]
    """Why it is in this state: what changed, or what has to change; empty if it is up to date. For
    a folder that is not read, what it is.
    """
    figures: Mapping[str, int] = field(default_factory=dict)
    """Counts of the current version by name: files, documents, tokens, rejected, samples, shards,
    bytes …
    """
    made_at: float | None = None
    """When the current version was made, in seconds since 1970."""
    busy: Work | None = None
    """The work on it of a running build, or None."""
    rejects: tuple[str, ...] = ()
    """Files that list rejected lines."""
    warnings: tuple[str, ...] = ()
    """Faults that the settings tolerate, as clauses that name the files."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Column → text that only tables show, such as epochs and tokens dropped."""
    notices: tuple[Notice, ...] = ()
    """Notices on the files of a corpus."""

    @property
    def label(self) -> str:
        """Kind, name and part, separated by spaces."""
        return RowName(self.kind, self.name, self.part).label

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values for JSON, such as {"kind": "corpus", "name": "web", …}.

        Each figure is a key of its own. `host` and `share` describe the work of a running build.
        """
        values: dict[str, Any] = {
            "kind": self.kind,
            "name": self.name,
            "part": self.part,
            "state": self.state,
            "why": list(self.why),
            **self.figures,
            "made_at": self.made_at,
            "building": self.busy is not None,
        }
        if self.busy is not None:
            values["host"] = self.busy.host
            values["share"] = self.busy.share
        values["rejects"] = list(self.rejects)
        values["warnings"] = list(self.warnings)
        values["notices"] = [notice.to_json() for notice in self.notices]
        return values


def project_status(project: Project) -> Iterator[StatusRow]:
    """Yield the state of every requested output, row by row, as soon as it is known.

    Unlike a build, this does not consider failed checks in Dagster.

    Args:
        project: Its nanoset.yaml and the folders of its raw text decide which outputs are
            requested.

    Yields:
        Files next to the corpora, which no build reads; then the corpora; then everything that is
        made from them, such as nanosets. A row stands for outputs that are shown in one line, such
        as the inventory, the shards and the dataset of a corpus.

    Raises:
        ConfigError: nanoset.yaml or the raw folder is not valid.
        MissingError: There is no raw folder, or no tokenizer.
    """
    check_tokenizer(project)
    raw_folders = scan_names(project)
    # Corpora are the folders with text, and those that nanoset.yaml names.
    corpora = sorted({*raw_folders.corpora, *requested_corpora(project.config)})
    work_by_name = under_way(project.outputs.access)  # of running builds

    yield from _rows_of_unread_folders(raw_folders.unread_entries)
    for row in _rows_of_requests(project, corpora):
        work = work_by_name.get(row.name)
        yield row if work is None else _with_work(row, work)


def _rows_of_requests(project: Project, corpora: Sequence[str]) -> Iterator[StatusRow]:
    """Yield the rows of all requested outputs, after a look at the files of each corpus.

    Args:
        project: Its outputs and raw text are looked at.
        corpora: Names of the corpora, whether they have text or not.

    Yields:
        The rows of corpora first, and then those of the outputs that are made from corpora.
    """
    # The graph knows which output is made from which. The survey adds which files each corpus has
    # now. From both follows what every output should be made from.
    graph = Graph(project, known={}, corpora=corpora)
    survey = CorpusSurvey(graph)
    # To say whether a build would fail, some rows read tables: all together, this many bytes.
    planning_budget = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        corpus = _corpus_of(nodes)
        findings = CorpusFindings()  # nothing was found, as for a row that has no raw files
        if corpus is not None:
            findings = survey.look_at(corpus)
        yield status_row(graph, nodes, planning_budget, findings)


def graph_status(graph: Graph, unread_entries: Mapping[str, str]) -> Iterator[StatusRow]:
    """Yield what `nanoset status` would show, without looking for changed files of raw text.

    This is for the end of a build, which has just looked at all files.

    Args:
        graph: The project's outputs, with what each should be made from.
        unread_entries: Each file or folder in the raw folder that is no corpus → what it is, such
            as {"notes.txt": "a file, not a folder"}.

    Yields:
        A row for each of these entries, and then the rows of the outputs.
    """
    yield from _rows_of_unread_folders(unread_entries)

    # To say whether a build would fail, some rows read tables: all together, this many bytes.
    planning_budget = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        notices = _notices_after_build(graph, _corpus_of(nodes))
        yield status_row(graph, nodes, planning_budget, CorpusFindings(notices=notices))


def _notices_after_build(graph: Graph, corpus: str | None) -> tuple[Notice, ...]:
    """Return the notices on the files of a corpus, such as files that are not read.

    Args:
        graph: The project's outputs.
        corpus: Name of the corpus; None for a row that is not that of a corpus.

    Returns:
        The notices; none if the corpus was removed since the build.
    """
    if corpus is None:
        return ()
    try:
        return tuple(corpus_notices(graph.project_of(inventory_node(corpus)), corpus))
    except (NanosetError, OSError):
        return ()


def _rows_of_unread_folders(unread_entries: Mapping[str, str]) -> Iterator[StatusRow]:
    """Yield a row for each entry of the raw folder that is no corpus, such as a file.

    Args:
        unread_entries: Name of each of these entries → what it is, as a clause.
    """
    for name, what in unread_entries.items():
        yield StatusRow("folder", name, part=None, state="not read", why=(what,))


def _corpus_of(nodes: Sequence[Node]) -> str | None:
    """Return the corpus whose inventory is in a row, or None if the row has no inventory.

    Args:
        nodes: The outputs of the row. Those of a corpus begin with its inventory, a list of files.
    """
    corpus = nodes[0].key.subject
    return corpus if inventory_node(corpus) in nodes else None


def _with_work(row: StatusRow, work: Work) -> StatusRow:
    """Return a row that says that a running build works on its outputs.

    Args:
        row: The row, whose state was found without regard to running builds.
        work: What the build is doing.

    Returns:
        The row with the work. Outputs that the build may still have to make are "being built".
    """
    if row.state not in ("missing", "stale"):
        return replace(row, busy=work)
    return replace(row, busy=work, state="being built", why=(str(work),))


def status_row(
    graph: Graph, nodes: Sequence[Node], planning: ReadingBudget, findings: CorpusFindings
) -> StatusRow:
    """Return what `nanoset status` shows of some outputs in one row: state, reasons and figures.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.
        planning: How many bytes may still be read to find out whether stale outputs can be made.
        findings: For the row of a corpus: notices on its files, or why they cannot be read.
    """
    # A build would fail if the corpus's files cannot be read; or, if the row is stale, because an
    # output of it cannot be made.
    failure = findings.failure
    reasons: list[str] = []
    if failure is None:
        reasons = _reasons_of_row(graph, nodes)
    if reasons:
        failure = _first_refusal(graph, nodes, planning)

    # If a build would fail, show only why, and warnings about settings, which may explain it.
    summary = _summary_of_row(graph, nodes)
    warnings = _settings_warnings(graph, nodes)
    if failure is None:
        warnings += summary.warnings
    else:
        reasons = [failure]

    name = nodes[0].row
    last_version = graph.current(nodes[-1])
    return StatusRow(
        kind=name.kind,
        name=name.subject,
        part=name.part,
        state=_state(failure, reasons, exists=last_version.exists),
        why=tuple(reasons),
        figures=summary.figures,
        made_at=last_version.made_at,
        rejects=tuple(summary.rejects),
        warnings=tuple(warnings),
        details=summary.details,
        notices=findings.notices,
    )


def _state(failure: str | None, reasons: Sequence[str], *, exists: bool) -> State:
    """Return the state of a row, in the word that `nanoset status` shows.

    Args:
        failure: Why a build of the row would fail, or None.
        reasons: Why a build would have work to do; empty if everything is up to date.
        exists: Whether the last output of the row was ever built.
    """
    if failure is not None:
        return "failing"
    if not reasons:
        return "up to date"
    return "stale" if exists else "missing"


def _settings_warnings(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """Return what people should know about the settings of some outputs.

    Args:
        graph: The project's outputs.
        nodes: The outputs.

    Returns:
        Warnings about settings that are allowed but rarely intended, as clauses.
    """
    warnings: list[str] = []
    for node in nodes:
        warnings += settings_warnings(node.stage, graph.project.config, node.key)
    return warnings


def _summary_of_row(graph: Graph, nodes: Sequence[Node]) -> Summary:
    """Return the figures, details and warnings of a row: those of its outputs, combined.

    Args:
        graph: The project's outputs.
        nodes: The outputs of the row, in the order in which they are made.
    """
    summaries = [_summary_of_output(graph, node) for node in nodes]
    details: dict[str, str] = {}
    warnings: list[str] = []
    rejects: list[str] = []
    for summary in summaries:
        details.update(summary.details)
        warnings += summary.warnings
        rejects += summary.rejects
    return Summary(_combined_figures(summaries), details, warnings, rejects)


def _summary_of_output(graph: Graph, node: Node) -> Summary:
    """Return the figures, details and warnings of the current version of an output.

    Args:
        graph: The project's outputs.
        node: The output. If it was not built, the summary is empty.
    """
    manifest = graph.current(node).manifest
    if manifest is None:
        return Summary()
    try:
        return node.stage.show(graph.project, manifest)
    except NanosetError as error:
        # Versions that it needs, such as its shards, cannot be read.
        return Summary(warnings=[one_line(error)])


def _combined_figures(summaries: Iterable[Summary]) -> dict[str, int]:
    """Combine the figures of outputs that share a row: sizes are added up, others replaced.

    For example, {"files": 2, "bytes": 10} of an inventory and {"tokens": 7, "bytes": 5} of shards
    give {"files": 2, "tokens": 7, "bytes": 15}.

    Args:
        summaries: Summaries of the outputs. A later figure replaces an earlier one of its name.
    """
    figures: dict[str, int] = {}
    sizes: list[int] = []  # of the outputs that show a size
    for summary in summaries:
        figures.update(summary.figures)
        if "bytes" in summary.figures:
            sizes.append(summary.figures["bytes"])

    # The size is the last figure, as tables and JSON show it.
    figures.pop("bytes", None)
    if sizes:
        figures["bytes"] = sum(sizes)
    return figures


def _first_refusal(graph: Graph, nodes: Sequence[Node], planning: ReadingBudget) -> str | None:
    """Return why making the outputs of a row would fail, or None if no reason is known.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.
        planning: How many bytes may still be read to find out. What is read is subtracted.

    Returns:
        The reason of the first output that cannot be made, such as that a corpus has fewer
        documents than the settings request.
    """
    for node in nodes:
        if not isinstance(node.stage, Planned):
            continue  # nothing about it can be found out before the build
        recipe = graph.recipe(node)
        if recipe is not None:
            refusal = node.stage.refusal(graph.project, node.key, recipe, planning)
            if refusal is not None:
                return refusal
    return None


def _reasons_of_row(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Return why a row is not up to date, without what follows from an earlier reason.

    For example, a file was added to a corpus. So its inventory, its shards and its dataset are
    stale, but only "1 file added (c.jsonl)" is returned.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.

    Returns:
        The reasons, each once; empty if the row is up to date.
    """
    row = _stale_row(graph, nodes)
    if not row.reasons_by_node:
        return []
    texts = []
    for node, reasons in row.reasons_by_node.items():
        texts += [reason.text for reason in reasons if row.is_original(node, reason)]

    # An output that is written in parts, such as groups of tars: say how many are written, unless
    # the parts have to wait for something else.
    if row.parts and row.can_write_parts:
        texts.append(row.part_count())
    return list(dict.fromkeys(texts))


def _stale_row(graph: Graph, nodes: Sequence[Node]) -> _StaleRow:
    """Find out which outputs of a row of `nanoset status` are stale, and why.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.
    """
    reasons_by_node = _stale_outputs(graph, nodes)

    # A webdataset, for example, is written in parts: groups of tars, which are made from its plan.
    # While the plan is stale, no part can be written.
    parts = [node for node in nodes if isinstance(node.stage, InParts)]
    inputs_of_parts: set[Node] = set()
    for part in parts:
        inputs_of_parts.update(graph.inputs(part).values())
    has_stale_input = any(node in reasons_by_node for node in inputs_of_parts)
    return _StaleRow(graph, reasons_by_node, parts, can_write_parts=not has_stale_input)


def _stale_outputs(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Sequence[Reason]]:
    """Return each stale output of a row → the reasons, at least one.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.
    """
    # The last output may consist of parts, perhaps thousands of groups of tars. If it is up to
    # date, so are they: save the time to look at each.
    last_is_up_to_date = not graph.stale_reasons(nodes[-1])
    reasons_by_node: dict[Node, Sequence[Reason]] = {}
    for node in nodes:
        is_part = isinstance(node.stage, InParts)
        if is_part and last_is_up_to_date:
            continue
        reasons = graph.stale_reasons(node)
        if reasons:
            reasons_by_node[node] = reasons
    return reasons_by_node


@dataclass(frozen=True, slots=True)
class _StaleRow:
    """The stale outputs of a row of `nanoset status`, with the reasons."""

    graph: Graph
    reasons_by_node: Mapping[Node, Sequence[Reason]]
    """Each stale output → the reasons, at least one."""
    parts: Sequence[Node]
    """The parts of an output that is written in parts, such as groups of tars, stale or not."""
    can_write_parts: bool
    """Whether everything that the parts are made from is up to date."""

    def is_original(self, node: Node, reason: Reason) -> bool:
        """Return whether a reason does not follow from the reason of another output of the row.

        Args:
            node: A stale output.
            reason: One of the reasons why it is stale. That a part is missing is not original,
                since missing parts are counted instead.
        """
        if isinstance(node.stage, InParts):
            return self.can_write_parts and reason != InParts.NOT_WRITTEN
        if reason.input is None:
            return True  # such as a changed setting
        changed_input = self.graph.inputs(node).get(reason.input)
        return changed_input not in self.reasons_by_node

    def part_count(self) -> str:
        """Return how many parts are written, as a clause."""
        stale_parts = self.reasons_by_node.keys() & set(self.parts)
        n_written = len(self.parts) - len(stale_parts)
        return f"{n_written:,} of {len(self.parts):,} {_parts_name(self.parts[0])} written"


def _parts_name(node: Node) -> str:
    """Return what the parts of an output are called when they are counted."""
    return node.stage.parts_name if isinstance(node.stage, InParts) else "parts"
