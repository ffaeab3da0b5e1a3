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

    Outputs that are shown together are a row: a corpus (a collection of texts) has a list of its
    files, tokenized pieces, and a dataset. A nanoset is a mixture of corpora for training. A row is
    yielded as soon as it is known.

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
    for row in _rows_of_requests(project, corpora):
        if row.name in work_by_name:
            row = _with_work(row, work_by_name[row.name])
        yield row


def _rows_of_requests(project: Project, corpora: Sequence[str]) -> Iterator[StatusRow]:
    """Yield what `nanoset status` shows of each requested output, after a look at the raw files.

    A corpus is a collection of texts. If a file was added to it, its dataset is out of date, and so
    is everything that is made from the dataset. So the files of each corpus are looked at first.

    Args:
        project: The project.
        corpora: Names of the corpora, whether they have text or not.

    Yields:
        The rows of corpora, and then those of outputs that are made from corpora.
    """
    # The graph knows which output is made from which. The survey tells it which files each corpus
    # has now. Then it knows what every output should be made from.
    graph = Graph(project, known={}, corpora=corpora)
    survey = CorpusSurvey(graph)

    # For some outputs, tables are read to find out whether a build would fail. That must not take
    # long: the rows may read PLANNED_BYTES together, and each takes its share from this budget.
    planning_budget = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        corpus = _corpus_of(nodes)
        if corpus is not None:
            findings = survey.look_at(corpus)
        else:
            findings = CorpusFindings()  # empty: this row has no raw files
        yield status_row(graph, nodes, planning_budget, findings)


def graph_status(graph: Graph, unread_entries: Mapping[str, str]) -> Iterator[StatusRow]:
    """Yield what `nanoset status` would show, at the end of a build.

    A build has just looked at all raw files, so this does not look for changes again. What it found
    is in the graph.

    Args:
        graph: The project's outputs, with what each should be made from.
        unread_entries: What the folder of raw text contains in addition to the collections of
            texts, and why it is not read, such as {"notes.txt": "a file, not a folder"}.

    Yields:
        A row for each of these entries, such as "notes.txt: a file, not a folder", and then the
        rows of the outputs.
    """
    yield from _rows_of_unread_folders(unread_entries)

    # A row also says if the next build would fail. Suppose that a selection of 1,000 documents is
    # requested: to know whether there are so many, the table of all documents is read. That must
    # not take long, so all rows together may read PLANNED_BYTES.
    planning_budget = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        notices = _notices_after_build(graph, _corpus_of(nodes))  # such as on files not read
        yield status_row(graph, nodes, planning_budget, CorpusFindings(notices=notices))


def _notices_after_build(graph: Graph, corpus: str | None) -> tuple[Notice, ...]:
    """Return what users should know about the files of a collection of texts, after a build.

    For example, that a file has an ending which is not read. This is only in addition to the result
    of the build, so no error is raised if the files cannot be listed any more.

    Args:
        graph: The project's outputs.
        corpus: Name of the collection; None if a row of `nanoset status` is that of another output.
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
    """Return the text collection (corpus) that a row of `nanoset status` is about, if any.

    Each row shows outputs that are made in sequence:

        list of the files of web, its shards (tokens), its dataset    "web"
        index and blend of a training                                 None

    Only the outputs of a corpus begin with a list of files, the inventory.

    Args:
        nodes: The outputs of the row.
    """
    corpus = nodes[0].key.subject
    return corpus if inventory_node(corpus) in nodes else None


def _with_work(row: StatusRow, work: Work) -> StatusRow:
    """Add to a row of `nanoset status` that a running build works on it. For example:

        before    web    stale          1 file added (c.jsonl)
        after     web    being built    tokenized_shards 42%, on host-a

    Args:
        row: The row, whose state was found without regard to running builds.
        work: What the build is doing.

    Returns:
        The row. Outputs that are up to date, or cannot be built, keep their state.
    """
    if row.state in ("missing", "stale"):
        return replace(row, busy=work, state="being built", why=(str(work),))
    return replace(row, busy=work)


def status_row(
    graph: Graph, nodes: Sequence[Node], planning: ReadingBudget, findings: CorpusFindings
) -> StatusRow:
    """Return a row of `nanoset status`: the state of some outputs, the reasons, and counts.

    For example, for the outputs of the text collection `web` (list of files, tokens, dataset):

        web    stale     1 file added (c.jsonl)                      3 files, 1,200 documents
        web    failing   a.jsonl is not UTF-8: nothing can be built

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs of the row, in the order in which they are made.
        planning: How many bytes may still be read to find out whether a build would fail.
        findings: What was found in the files of a text collection: notices, or why they cannot be
            read.
    """
    # Why a build has work to do. If there is a reason, find out whether the build would fail.
    failure = findings.failure
    reasons: list[str] = []
    if failure is None:
        reasons = _reasons_of_row(graph, nodes)
    if reasons:
        failure = _first_refusal(graph, nodes, planning)

    # If it would fail, show only why, and warnings about settings, which may explain it.
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
    manifest = graph.current(node).manifest
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


def _first_refusal(graph: Graph, nodes: Sequence[Node], planning: ReadingBudget) -> str | None:
    """Return why a build would fail to make some outputs, if this can be found out without a build.

    Some mistakes show only when settings and data are compared. For example, a user asks for a
    selection (view) of 1,000 documents of a text collection that has 800:

        dataset of the collection   nothing to find out before a build
        view                        it requests more documents than there are

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs, in the order in which they are made.
        planning: Tables may be read to find out. This says how many bytes may still be read, and is
            reduced by what is.

    Returns:
        The reason of the first output that cannot be made; None if no reason is known.
    """
    for node in nodes:
        stage = node.stage  # the code that makes the output
        if not isinstance(stage, Planned):
            continue  # nothing can be found out before the build
        recipe = graph.recipe(node)  # what it would be made from
        if recipe is None:
            continue  # this is not known
        refusal = stage.refusal(graph.project, node.key, recipe, planning)
        if refusal is not None:
            return refusal
    return None


def _reasons_of_row(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Return why some outputs are not up to date, without what only follows from other reasons.

    For example, a file was added to a text collection. Its outputs are made from each other:

        list of files     "1 file added (c.jsonl)"              returned: the original reason
        shards (tokens)   "files changed since it was built"    left out: follows from the 1st
        dataset           "shards changed"                      left out: follows from the 2nd

    An output may also be written in parts. Then the parts that are not written yet are not listed
    one by one, but counted:

        group 200 of tar files    "it is not written yet"
        …                         …
        group 999 of tar files    "it is not written yet"    returned: "200 of 1,000 groups written"

    Args:
        graph: The project's outputs, with what each should be made from.
        nodes: The outputs, in the order in which they are made.

    Returns:
        The reasons, each once; none if all outputs are up to date.
    """
    # Find all reasons, by output; which outputs are parts; and whether these can be written now.
    all_reasons = _find_reasons_to_rebuild(graph, nodes)
    if not all_reasons.reasons_by_node:
        return []
    texts = []
    for node, reasons in all_reasons.reasons_by_node.items():
        for reason in reasons:
            if all_reasons.is_original(node, reason):
                texts.append(reason.text)

    # Count the parts that are written, unless they have to wait for something else: groups of tar
    # files for their plan, which says which text gets into which group.
    has_parts = len(all_reasons.parts) > 0
    if has_parts and all_reasons.can_write_parts:
        texts.append(all_reasons.part_count())
    return list(dict.fromkeys(texts))  # each once, in their order


def _find_reasons_to_rebuild(graph: Graph, nodes: Sequence[Node]) -> _ReasonsToRebuild:
    """Find out which of some outputs have to be rebuilt, why, and whether all can be written now.

    Large outputs are written in parts. For example, a webdataset (tar files with texts) has a plan,
    which says which texts each tar file gets, and then 1,000 groups of tar files, each of which is
    a part. The groups are made from the plan, so they cannot be written before it:

                    after a change of the seed     after an interruption
        plan        "seed: 7 → 8"                  up to date
        group 0     "it is not written yet"        up to date
        group 1     "it is not written yet"        "it is not written yet"
        …
        result      `can_write_parts` is False     `can_write_parts` is True

    Args:
        graph: The project's outputs, with what each is made from.
        nodes: The outputs to look at, such as this plan and these groups.
    """
    reasons_by_node = _stale_outputs(graph, nodes)
    parts = [node for node in nodes if isinstance(node.stage, InParts)]  # the groups, if any

    inputs_of_parts: set[Node] = set()  # what the groups are made from: the plan
    for part in parts:
        inputs_of_parts.update(graph.inputs(part).values())
    inputs_to_rebuild = inputs_of_parts & reasons_by_node.keys()
    return _ReasonsToRebuild(
        graph, reasons_by_node, parts, can_write_parts=len(inputs_to_rebuild) == 0
    )


def _stale_outputs(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Sequence[Reason]]:
    """Return which of some outputs are not up to date, each with the reasons.

    The outputs may include the parts of a large output, such as 1,000 groups of tar files. To look
    at all of them takes long. But the last output of a row is made from all others: the webdataset
    as a whole is up to date only if all groups are. Then the groups are skipped.

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
        if is_part and last_is_up_to_date:
            continue
        reasons = graph.stale_reasons(node)
        if reasons:
            reasons_by_node[node] = reasons
    return reasons_by_node


@dataclass(frozen=True, slots=True)
class _ReasonsToRebuild:
    """Which outputs of a row of `nanoset status` have to be rebuilt, and why."""

    graph: Graph
    reasons_by_node: Mapping[Node, Sequence[Reason]]
    """Each output that has to be rebuilt → the reasons, at least one."""
    parts: Sequence[Node]
    """The parts of an output that is written in parts, such as groups of tars, whether they have to
    be rebuilt or not.
    """
    can_write_parts: bool
    """Whether everything that the parts are made from is up to date."""

    def is_original(self, node: Node, reason: Reason) -> bool:
        """Return whether a reason is worth showing, because it does not follow from another one.

        For example, a file was added to a text collection, and a setting (dtype) was changed. The
        dataset has two reasons then:

            list of files       "1 file added (c.jsonl)"    True
            shards (tokens)     "files changed since …"     False: the list is to be rebuilt, too
            dataset             "shards changed"            False: so are the shards
            dataset             "dtype: uint16 → int32"     True

        The parts of a large output, such as its 1,000 groups of tar files, have other rules:

            the plan of the groups has to be rebuilt    False: the plan has the original reason
            otherwise, "it is not written yet"          False: the caller shows how many are written
            otherwise, a group is damaged               True

        Args:
            node: An output that is not up to date.
            reason: One of the reasons.
        """
        is_part = isinstance(node.stage, InParts)  # such as a group of tar files
        if is_part:
            # If the parts cannot be written yet, nothing of them is shown.
            return self.can_write_parts and reason != InParts.NOT_WRITTEN

        # A reason such as "shards changed" names an input, "shards". It follows from the reasons of
        # this input if the input has to be rebuilt, too.
        if reason.input is None:
            return True  # such as "dtype: uint16 → int32"
        changed_input = self.graph.inputs(node).get(reason.input)
        return changed_input not in self.reasons_by_node

    def part_count(self) -> str:
        """Return how many parts are written, such as "200 of 1,000 groups written"."""
        stale_parts = self.reasons_by_node.keys() & set(self.parts)
        n_written = len(self.parts) - len(stale_parts)
        return f"{n_written:,} of {len(self.parts):,} {_parts_name(self.parts[0])} written"


def _parts_name(node: Node) -> str:
    """Return what the parts of an output are called when they are counted."""
    return node.stage.parts_name if isinstance(node.stage, InParts) else "parts"
