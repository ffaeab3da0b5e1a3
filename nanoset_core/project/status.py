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

from nanoset_core.errors import NanosetError, StorageError, one_line
from nanoset_core.outputs.differences import Reason
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import inventory_node
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import requested_corpora
from nanoset_core.project.survey import CorpusFindings, survey_project
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
from nanoset_core.storage.in_use.leases import Work, under_way
from nanoset_core.text.files.notices import Notice

State = Literal["up to date", "stale", "missing", "failing", "being built", "not read"]
_STATES_TO_BUILD = ("missing", "stale")
"""States of outputs that the next build makes."""
PLANNED_BYTES = 64 << 20
"""Budget of planning, in bytes.

`nanoset status` plans outputs that are not built, to find out whether they can be built. It plans
no more of them once it has read this many bytes of .idx. A dry run has a second budget of this size
for what it shows about views and nanosets, which also counts the memory that this takes.
"""


@dataclass(frozen=True, slots=True)
class NamedRow:
    """The name of a row of `nanoset status`, to which other classes add what they say about it."""

    kind: str
    """What the stage calls its outputs: corpus, nanoset, webdataset …; `folder` for a folder that
    is not read.
    """
    name: str
    """Name of the corpus, nanoset or webdataset."""
    part: str | None
    """A split, a view, `handoff` …; None for subjects with one row."""

    @property
    def row_name(self) -> RowName:
        """Kind, name and part, by which rows are looked up."""
        return RowName(self.kind, self.name, self.part)

    @property
    def label(self) -> str:
        """Kind, name and part, separated by spaces."""
        return self.row_name.label


@dataclass(frozen=True, slots=True)
class StatusRow(NamedRow):
    """The state of the outputs that are shown together, or of a folder that is no corpus."""

    state: State
    """What a build would find."""
    why: tuple[str, ...]
    """Why it is in this state: what changed, or what has to change; empty if it is up to date. For
    a folder that is not read, what it is.
    """
    consequences: Sequence[str] = ()
    """The texts of `why` that only follow from another row, such as "web changed" if the row of web
    is stale, too.
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
    def is_done(self) -> bool:
        """Whether a build has nothing to do for it: it is up to date, or a folder without text."""
        return self.state in ("up to date", "not read")

    def to_json(self) -> dict[str, Any]:
        """Return a row of `nanoset status` as plain values, for JSON. For example:

            {"kind": "corpus", "name": "web", "part": None,    a text collection
             "state": "stale", "why": ["1 file added"],        it has to be rebuilt
             "files": 3, "tokens": 31000,                      counts, with a key each
             "made_at": 1767225600.0,                          when it was built, by Unix time
             "building": False}                                no build works on it now

        There are also lists of files with rejected lines, of warnings and of notices. If a build
        works on it, `host` and `share` say on which machine, and how much of the work is done.
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
    """Yield the state of every output that a project should have: the command `nanoset status`.

    For example:

        corpus   web         stale       1 file added (c.jsonl)
        nanoset  pretrain    missing     not built yet

    A row may show several outputs: a corpus (a collection of texts) has a list of its files,
    tokens, and a dataset.

    Args:
        project: The project, whose settings and folder of raw text request the outputs.

    Yields:
        First, files next to the corpora, which no build reads; then the corpora; then everything
        that is made from them, such as nanosets. Failed checks in Dagster are not considered.

    Raises:
        ConfigError: nanoset.yaml or the raw folder is not valid.
        MissingError: There is no raw folder, or no tokenizer.
    """
    check_tokenizer(project)
    raw_folders = scan_names(project)
    # Corpora are the folders with text, and those that nanoset.yaml names.
    corpora = sorted({*raw_folders.corpora, *requested_corpora(project.config)})
    work_by_name = under_way(project.outputs.access)  # what running builds are doing

    yield from _rows_of_unread_folders(raw_folders.unread_entries)
    rows = list(_rows_of_requests(project, corpora))
    yield from _rows_with_work(rows, work_by_name)


def _rows_of_requests(project: Project, corpora: Sequence[str]) -> Iterator[StatusRow]:
    """Yield the rows of `nanoset status` on all requested outputs, after a look at the raw files.

    Args:
        project: The project.
        corpora: Names of the text collections, whether they have text or not.

    Yields:
        The rows of text collections, and then those of outputs that are made from them.
    """
    # Look at the raw files first. They decide what each output should be made from.
    survey = survey_project(project, corpora)
    for examined_row in examined_rows(survey.graph, survey.findings):
        yield examined_row.row


def graph_status(graph: Graph, unread_entries: Mapping[str, str]) -> Iterator[StatusRow]:
    """Yield the rows of `nanoset status` at the end of a build, without reading raw files again.

    For example, the text collection `news` has a damaged file, and the nanoset `pretrain` (data for
    a training) is made from web and news:

        corpus     web              up to date
        corpus     news             failing       a.jsonl is not UTF-8
        nanoset    pretrain train   stale         waits for corpus news, which fails

    Args:
        graph: The outputs of the project. The build has listed the raw files, so the graph knows
            what each output should be made from. This adds which of them cannot be built.
        unread_entries: What the folder of raw text contains in addition to text collections, and
            why it is not read, such as {"notes.txt": "a file, not a folder"}.

    Yields:
        A row for each of these entries, and then the rows of the outputs.
    """
    yield from _rows_of_unread_folders(unread_entries)

    # The graph has learned from the build which collections cannot be read. It does not know the
    # notices, such as that an ending is not read, which are shown in the rows, too.
    findings_by_corpus: dict[str, CorpusFindings] = {}
    for corpus in graph.corpora:
        notices = _notices_after_build(graph, corpus)
        findings_by_corpus[corpus] = CorpusFindings(notices=notices)
    for examined_row in examined_rows(graph, findings_by_corpus):
        yield examined_row.row


@dataclass(frozen=True, slots=True)
class ExaminedRow:
    """A row of `nanoset status`, with the outputs that it shows."""

    nodes: Sequence[Node]
    """The outputs, in the order in which they are made."""
    row: StatusRow
    """What is said about them."""


def examined_rows(graph: Graph, findings: Mapping[str, CorpusFindings]) -> Iterator[ExaminedRow]:
    """Yield all outputs of a project with their states, in the order in which they are made.

    Every command that shows the state of an output uses this function, so that they agree. For
    example, one row shows all outputs of the text collection `news`:

        list of files, tokens, dataset     corpus news    failing    a.jsonl is not UTF-8

    Args:
        graph: The project's outputs, with what each should be made from. This adds which of them
            cannot be built, so that others wait for them.
        findings: Text collection → what was found in its files, such as {"news": …}.
    """
    # A row also says whether a build would fail, such as because a selection requests more
    # documents than there are. To find out, files with the lengths of documents (.idx) may have to
    # be read. The budget limits how many bytes are read for all rows together.
    budget = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():  # the outputs that are shown in one row
        findings_of_row = CorpusFindings()  # nothing, if the row is not that of a text collection
        corpus = _corpus_of(nodes)
        if corpus is not None:
            findings_of_row = findings[corpus]
        row = _status_row(graph, nodes, budget, findings_of_row)
        if row.state == "failing":
            # Later rows of what is made from these outputs will say that they wait for this one.
            graph.set_failing(nodes, row.label)
        yield ExaminedRow(nodes, row)


def _notices_after_build(graph: Graph, corpus: str) -> tuple[Notice, ...]:
    """Return what users should know about the files of a text collection, after a build.

    For example, that a file has an ending which is not read.

    Args:
        graph: The project's outputs.
        corpus: Name of the collection.
    """
    project = graph.versions.project_of(inventory_node(corpus))
    try:
        return tuple(corpus_notices(project, corpus))
    except (NanosetError, OSError):
        return ()  # the files cannot be listed any more, which is no reason to fail after a build


def _rows_of_unread_folders(unread_entries: Mapping[str, str]) -> Iterator[StatusRow]:
    """Yield a row for each entry of the raw folder that is no corpus, such as a file.

    Args:
        unread_entries: Name of each of these entries → what it is, as a clause.
    """
    for name, what in unread_entries.items():
        yield StatusRow("folder", name, part=None, state="not read", why=(what,))


def _corpus_of(nodes: Sequence[Node]) -> str | None:
    """Return the text collection (corpus) whose outputs a row of `nanoset status` shows, if any.

    Args:
        nodes: The outputs that are shown in the row, such as the list of the files of `web`, its
            tokens and its dataset.

    Returns:
        Such as "web"; None for a row of other outputs, such as those of a training.
    """
    row_name = nodes[0].row  # the same for all outputs of the row
    return row_name.subject if row_name.is_corpus else None


def _rows_with_work(
    rows: Sequence[StatusRow], work_by_name: Mapping[str, Work]
) -> Iterator[StatusRow]:
    """Yield the rows of `nanoset status`, with what running builds do.

    A build makes the outputs of a name, such as `web`, in the order of the rows. So it works on the
    first one that is not up to date:

        row             without the build        with it
        corpus web      stale                    being built
        columns web     stale                    stale; waits for corpus web, which is being built

    If all are up to date, the build has been forced, and works on one of them.

    Args:
        rows: The rows, whose states were found without regard to running builds.
        work_by_name: Name of an output → what a build that makes it is doing.
    """
    first_row_to_build: dict[str, StatusRow] = {}  # name → its first row that is not up to date
    for row in rows:
        if not row.is_done:
            first_row_to_build.setdefault(row.name, row)  # does nothing for later rows of the name

    for row in rows:
        work = work_by_name.get(row.name)
        if work is None or row.state == "not read":
            yield row  # no build works on it
            continue
        built_row = first_row_to_build.get(row.name)  # such as that of the corpus web
        if built_row is None or built_row is row:
            yield _with_work(row, work)
        else:
            yield _with_waiting(row, built_row)


def _with_waiting(row: StatusRow, built_row: StatusRow) -> StatusRow:
    """Add to a row of `nanoset status` that it waits for another row, which is being built.

    Args:
        row: The row, such as that of the columns of web. It is returned unchanged if a build has
            nothing to do for one of both rows, or would fail.
        built_row: The other row, such as that of the corpus web.
    """
    if row.state not in _STATES_TO_BUILD or built_row.state not in _STATES_TO_BUILD:
        return row
    waiting = f"waits for {built_row.label}, which is being built"
    return replace(row, why=(*row.why, waiting))


def _with_work(row: StatusRow, work: Work) -> StatusRow:
    """Add to a row of `nanoset status` that a running build works on it. For example:

        before    web    stale          1 file added (c.jsonl)
        after     web    being built    1 file added (c.jsonl); tokenized_shards 42%, on host-a

    Args:
        row: The row, whose state was found without regard to running builds.
        work: What the build is doing.

    Returns:
        The row. Outputs that are up to date, or cannot be built, keep their state.
    """
    if row.state in _STATES_TO_BUILD:
        return replace(row, busy=work, state="being built", why=(*row.why, str(work)))
    return replace(row, busy=work)


def _status_row(
    graph: Graph, nodes: Sequence[Node], budget: ReadingBudget, findings: CorpusFindings
) -> StatusRow:
    """Return a row of `nanoset status`: the state of some outputs, the reasons, and counts.

    For example, for the outputs of the text collection `web` (list of files, tokens, dataset):

        web    stale     1 file added (c.jsonl)                      3 files, 1,200 documents
        web    failing   a.jsonl is not UTF-8: nothing can be built

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.
        budget: How many bytes may still be read to find out whether a build would fail.
        findings: What was found in the files of a text collection: notices, or why they cannot be
            read.
    """
    # Why a build has something to do. If the files cannot be read, this is not known.
    stale_reasons: list[str] = []
    if findings.failure is None:
        stale_reasons = _reasons_of_row(graph, nodes)
    consequences: list[str] = []
    if stale_reasons:
        consequences = _consequences(graph, nodes)
    failure = _failure_of_row(graph, nodes, stale_reasons, budget, findings)

    # If a build fails, show only why, and warnings about settings, which may explain it.
    summary = _summary_of_row(graph, nodes)
    warnings = _settings_warnings(graph, nodes)
    if failure is None:
        shown_reasons = stale_reasons
        warnings += summary.warnings
    else:
        shown_reasons = [failure]

    row_name = nodes[0].row  # the same for all outputs of the row
    last_version = graph.versions.of(nodes[-1])  # of the last output, which is made from the others
    return StatusRow(
        kind=row_name.kind,
        name=row_name.subject,
        part=row_name.part,
        state=_state(failure, stale_reasons, exists=last_version.is_built),
        why=tuple(shown_reasons),
        consequences=consequences,
        figures=summary.figures,
        made_at=last_version.made_at,
        rejects=tuple(summary.rejects),
        warnings=tuple(warnings),
        details=summary.details,
        notices=findings.notices,
    )


def _consequences(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """Return the reasons in a row of `nanoset status` that another row explains.

    For example, a nanoset is made from the corpora web and code. Web was built since then, and a
    file was added to code:

        reason to build the nanoset    row of the input         result
        "seed: 7 → 8"                  (it is a setting)        left out
        "web changed"                  web: up to date          left out: nothing explains it
        "code changed"                 code: "1 file added"     returned

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs. Call this only if they are not up to date: it looks at all of them, of
            which a webdataset has thousands.
    """
    texts: list[str] = []
    for node in nodes:
        inputs = graph.inputs(node)  # name → output: {"web": …, "code": …}
        for reason in graph.stale_reasons(node):
            changed_input = reason.changed_input(inputs)
            if changed_input is not None and graph.stale_reasons(changed_input):
                texts.append(reason.text)
    return texts


def _failure_of_row(
    graph: Graph,
    nodes: Sequence[Node],
    stale_reasons: Sequence[str],
    budget: ReadingBudget,
    findings: CorpusFindings,
) -> str | None:
    """Return why a build of some outputs would fail, or None if no reason is known.

    There may be several reasons. The first of these is returned:

        the text cannot be read                "a.jsonl is not UTF-8"
        the settings forbid what they contain  "2 documents that training reads hold texts of evals"
        settings and data do not fit           a view requests 1,000 documents, and there are 800
        a build has just failed to make them   the error of this build

    Args:
        graph: The project's outputs. It knows the errors of the build that has just ended, if any.
        nodes: The outputs, in the order in which they are made.
        stale_reasons: Why they are not up to date. If they are, no build has to make them, so it
            does not matter whether settings and data fit.
        budget: How many bytes may still be read to find out whether settings and data fit.
        findings: What was found in the files of a text collection.
    """
    if findings.failure is not None:
        return findings.failure
    for node in nodes:
        prohibition = graph.prohibition(node)
        if prohibition is not None:
            return one_line(prohibition)
    if stale_reasons:
        refusal = _first_refusal(graph, nodes, budget)
        if refusal is not None:
            return refusal
    return graph.failure(nodes)


def _state(failure: str | None, reasons: Sequence[str], *, exists: bool) -> State:
    """Return the state of some outputs in a word, as `nanoset status` shows it:

        a build of them would fail                 failing
        all are up to date                         up to date
        something changed since they were built    stale
        they were never built                      missing

    Args:
        failure: Why a build would fail, or None.
        reasons: Why a build would have work to do; empty if everything is up to date.
        exists: Whether they were ever built.
    """
    if failure is not None:
        return "failing"
    if not reasons:
        return "up to date"
    return "stale" if exists else "missing"


def _settings_warnings(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """Return warnings about settings that are allowed, but probably not what the user means.

    For example, a selection of documents (view) is sorted by quality, but the trainer shuffles all
    samples: "… the order has no effect".

    Args:
        graph: The project's outputs, with the settings of the project.
        nodes: The outputs that the warnings are about, which `nanoset status` shows in one row.
    """
    warnings: list[str] = []
    for node in nodes:
        warnings += settings_warnings(node.stage, graph.project.config, node.key)
    return warnings


def _summary_of_row(graph: Graph, nodes: Sequence[Node]) -> Summary:
    """Return what `nanoset status` shows of some outputs together: counts, texts and warnings.

    For example, a text collection has three outputs:

        list of files    2 files
        tokens           7 documents, 31 tokens; "1 line was rejected"
        dataset          62 bytes
        together         2 files, 7 documents, 31 tokens, 62 bytes; "1 line was rejected"

    Args:
        graph: The project's outputs.
        nodes: The outputs, in the order in which they are made.
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
    """Return what `nanoset status` shows of an output: counts, such as its documents, and warnings.

    Args:
        graph: The project's outputs.
        node: The output. If it was not built, the summary is empty. If files that it needs cannot
            be read, the summary is a warning that says so.
    """
    manifest = graph.versions.of(node).manifest
    if manifest is None:
        return Summary()
    try:
        return node.stage.show(graph.project, manifest)
    except NanosetError as error:
        # Versions that it needs, such as its shards, cannot be read.
        return Summary(warnings=[one_line(error)])


def _combined_figures(summaries: Iterable[Summary]) -> dict[str, int]:
    """Combine the counts of several outputs that `nanoset status` shows in one row. For example:

        list of files    {"files": 2, "bytes": 10}
        tokenized text   {"tokens": 7, "bytes": 5}
        together         {"files": 2, "tokens": 7, "bytes": 15}

    Sizes in bytes are added up. Of other counts with the same name, the last one is taken.

    Args:
        summaries: What is shown of each output, with these counts.
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


def _first_refusal(graph: Graph, nodes: Sequence[Node], budget: ReadingBudget) -> str | None:
    """Return why a build would fail to make some outputs, if this can be found out without a build.

    Some mistakes show only when settings and data are compared. For example, a user asks for a
    selection (view) of 1,000 documents of a text collection that has 800:

        dataset of the collection   nothing to find out before a build
        view                        it requests more documents than there are

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs, in the order in which they are made.
        budget: How many bytes of tables may still be read to find out. It is reduced by what is
            read.

    Returns:
        The reason of the first output that cannot be made; None if no reason is known.
    """
    for node in nodes:
        refusal = _refusal_because_of_link(graph.project, node)
        if refusal is not None:
            return refusal

        stage = node.stage  # the code that makes the output, such as that of views
        if isinstance(stage, Planned):  # it compares settings and data before a build
            recipe = graph.recipes.of(node)  # what it would be made from; None if not known yet
            refusal = stage.refusal(graph.project, node.key, recipe, budget)
            if refusal is not None:
                return refusal
    return None


def _refusal_because_of_link(project: Project, node: Node) -> str | None:
    """Return why a build could not set the link `current` of an output, or None if it can.

    A build sets a link to the files that it has made, such as datasets/web/current. It cannot if
    there is a folder of this name, because somebody copied the outputs with a program that turns
    links into folders.

    Args:
        project: The project, whose root folder has the outputs.
        node: The output, such as the dataset of web.
    """
    outputs = project.outputs
    try:
        outputs.check_link_is_no_folder(outputs.folder / node.path)
    except StorageError as error:
        return one_line(error)
    return None


def _reasons_of_row(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Return why some outputs are not up to date, without reasons that follow from others.

    For example, a file was added to a text collection:

        list of files    "1 file added (c.jsonl)"    returned
        dataset          "list of files changed"     left out: it follows from the first one

    A large output, such as 1,000 groups of tar files, may be written in parts. Instead of a reason
    for each part that is not written yet, they are counted: "200 of 1,000 groups written". If the
    parts have to wait for something else, only the reasons of that are returned.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs, in the order in which they are made.

    Returns:
        The reasons, each once; none if all outputs are up to date.
    """
    reasons_by_node = _stale_outputs(graph, nodes)
    if not reasons_by_node:
        return []
    parts = [node for node in nodes if isinstance(node.stage, InParts)]
    can_write_parts = _inputs_are_current(graph, parts, reasons_by_node)

    reasons: list[Reason] = []
    for node in reasons_by_node:
        is_part = isinstance(node.stage, InParts)
        if not is_part:
            reasons += _original_reasons(graph, node, reasons_by_node)
        elif can_write_parts:
            reasons += _faults_of_part(reasons_by_node[node])

    texts = [reason.text for reason in reasons]
    if parts and can_write_parts:
        texts.append(_part_count(parts, reasons_by_node))
    return list(dict.fromkeys(texts))  # each once, in their order


def _faults_of_part(reasons: Iterable[Reason]) -> list[Reason]:
    """Return why a part of a large output has to be written again, such as "damaged: 0001.tar".

    Args:
        reasons: Why it has to be written. That it was never written is left out: such parts are
            only counted.
    """
    return [reason for reason in reasons if reason != InParts.NOT_WRITTEN]


def _inputs_are_current(
    graph: Graph, nodes: Iterable[Node], reasons_by_node: Mapping[Node, object]
) -> bool:
    """Return whether everything that some outputs are made from is up to date.

    Args:
        graph: Says what each output is made from.
        nodes: The outputs.
        reasons_by_node: All outputs that are not up to date.
    """
    for node in nodes:
        for input_node in graph.inputs(node).values():
            if input_node in reasons_by_node:
                return False
    return True


def _stale_outputs(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Sequence[Reason]]:
    """Return which of some outputs are not up to date, each with the reasons.

    The outputs may include the parts of a large output, such as 1,000 groups of tar files. To look
    at all of them takes long. But the last output of a row is made from all others: the webdataset
    as a whole is up to date only if all groups are. Then the groups are skipped, except those whose
    last check has failed: that may have been after the webdataset was completed.

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs, in the order in which they are made.

    Returns:
        For example, dataset → [Reason("shards changed")]. Outputs that are up to date are left out.
    """
    last_is_up_to_date = len(graph.stale_reasons(nodes[-1])) == 0
    reasons_by_node: dict[Node, Sequence[Reason]] = {}
    for node in nodes:
        is_part = isinstance(node.stage, InParts)
        has_failed_check = graph.versions.failed_checks.includes_output(
            node.stage.layout.folder, node.name
        )
        if is_part and last_is_up_to_date and not has_failed_check:
            continue
        reasons = graph.stale_reasons(node)
        if reasons:
            reasons_by_node[node] = reasons
    return reasons_by_node


def _original_reasons(
    graph: Graph, node: Node, reasons_by_node: Mapping[Node, Sequence[Reason]]
) -> list[Reason]:
    """Return why an output is not up to date, without reasons that follow from those of its inputs.

    For example, the dataset of a text collection may have these reasons:

        "dtype: uint16 → int32"      a setting was changed: returned
        "list of files changed"      left out if the list is not up to date either: then the list
                                     has a reason of its own, which is shown

    Args:
        graph: Says what the output is made from.
        node: The output, which is not up to date.
        reasons_by_node: All outputs that are not up to date, with their reasons.
    """
    inputs = graph.inputs(node)  # such as {"list of files": …}
    original = []
    for reason in reasons_by_node[node]:
        changed_input = reason.changed_input(inputs)  # None if it is a setting, for example
        if changed_input not in reasons_by_node:
            original.append(reason)
    return original


def _part_count(parts: Sequence[Node], reasons_by_node: Mapping[Node, object]) -> str:
    """Return how many parts of an output are written, such as "200 of 1,000 groups written".

    Args:
        parts: All parts of the output.
        reasons_by_node: All outputs that are not up to date.
    """
    n_missing = sum(part in reasons_by_node for part in parts)
    n_written = len(parts) - n_missing
    return f"{n_written:,} of {len(parts):,} {_parts_name(parts[0])} written"


def _parts_name(node: Node) -> str:
    """Return what the parts of an output are called when they are counted."""
    return node.stage.parts_name if isinstance(node.stage, InParts) else "parts"
