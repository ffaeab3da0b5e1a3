"""views: a corpus's dataset and the tables of its documents → datasets of documents that were chosen."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.config.project import ProjectConfig
from nanoset_core.config.views import ViewSpec, base_of, chain_of
from nanoset_core.errors import ConfigError, MissingError, NanosetError, one_line
from nanoset_core.execution.progress import Meter
from nanoset_core.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline import tokenization
from nanoset_core.pipeline.columns import AlignedColumns, column_nodes, columns_of
from nanoset_core.pipeline.contamination import CONTAMINATION, contaminated_documents
from nanoset_core.pipeline.given import given_files
from nanoset_core.pipeline.indexed import DATASET, PIECES, shards_of
from nanoset_core.pipeline.project import Project, holding
from nanoset_core.pipeline.stage import Budget as ReadingBudget
from nanoset_core.pipeline.stage import Key, Node, Stage, size_bytes
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import claim_scratch, sha256_file, sweep_abandoned
from nanoset_core.storage.leases import leased
from nanoset_core.tokenization.document_table import DocumentRows
from nanoset_core.tokenization.framing import pair_name
from nanoset_core.tokenization.shards import DOCUMENTS
from nanoset_core.views.conditions import Range, parse_condition
from nanoset_core.views.ids import Ids, read_ids
from nanoset_core.views.rules import Budget, Listed, Order, Repeat, Rule, Split, Step, Where, Without
from nanoset_core.views.selection import Selection, select
from nanoset_core.views.writing import write_view_idx

VERSION = 1
STAGE = "views"
_OWN = frozenset({"file", "line", "byte_offset", "id", "tokens"})
"""Columns that every table of documents has."""
_MISSING = "missing"
_AT_ONCE = 64
"""Tables that are fetched together from a bucket."""
_BAR = 20
"""Characters of a full bar."""
_LISTS: tuple[Literal["include", "exclude"], ...] = ("include", "exclude")


def dataset_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that holds the dataset of a corpus or view."""
    return Node(VIEW, Key(base_of(config.views, name), name)) if name in config.views else Node(DATASET, Key(name))


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the current dataset of a corpus or view; MissingError where it was not made yet."""
    node = dataset_node(project.config, name)
    return node.stage.require(project, node.key)


def is_view(dataset: Manifest) -> bool:
    """Return whether a dataset is that of a view."""
    return dataset.stage == STAGE


def corpus_of(dataset: Manifest) -> str:
    """Return the corpus that the documents of a dataset are from."""
    return str(dataset.facts["corpus"]) if is_view(dataset) else dataset.name


def chosen_from(outputs: OutputRoot, dataset: Manifest) -> Manifest:
    """Return the dataset that a view was chosen from, any other one itself; MissingError where it is gone."""
    if not is_view(dataset):
        return dataset
    folder = outputs.folder / DATASET.folder / corpus_of(dataset) / dataset.recipe["parents"]["dataset"]
    if (found := outputs.manifest_at(folder)) is None:
        what, remedy = "the dataset that a view was chosen from is gone", "run `nanoset build`: it makes it again"
        raise MissingError(what, where=outputs.access.url(folder), remedy=remedy)
    return found


class _TableGroup:
    """A row group of a shard's tables."""

    def __init__(self, tables: _Tables, number: int, first: int, rows: int) -> None:
        self._tables, self._number, self.first, self.rows = tables, number, first, rows

    def read(self, columns: list[str]) -> Any:
        import pyarrow as pa

        documents, aligned, files = self._tables
        own = [name for name in columns if name in _OWN]
        table = documents.columns(self._number, own) if own else pa.table({})
        others = {} if aligned is None else aligned.read(files, self._number, columns)
        return pa.table({name: table.column(name) for name in own} | others)

    def statistics(self) -> Mapping[str, Range]:
        documents, aligned, files = self._tables
        found = statistics_of(documents.metadata(self._number))
        for group, names in aligned.statistics(files, self._number) if aligned is not None else ():
            found |= {name: known for name, known in statistics_of(group).items() if name in names}
        return found


class _Tables(NamedTuple):
    """The table of a shard's documents, and those of what else is known of them."""

    documents: DocumentRows
    aligned: AlignedColumns | None
    files: list[Any]


def statistics_of(group: Any) -> dict[str, Range]:
    """Return what the statistics of a Parquet row group say of its columns."""
    found = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if (known := column.statistics) is not None:
            low, high = (known.min, known.max) if known.has_min_max else (None, None)
            nulls = known.null_count if known.has_null_count else None
            found[column.path_in_schema] = Range(low, high, nulls, group.num_rows)
    return found


def document_groups(
    project: Project, corpus: str, dataset: Manifest, used: Collection[str] = ()
) -> Iterator[_TableGroup]:
    """Yield the row groups of a dataset's tables of documents, in order; raises as `shards_of` and `columns_of`.

    `used`: columns beside those that every table of documents has.
    """
    tokenized, access = shards_of(project.outputs, dataset), project.outputs.access
    aligned = columns_of(project, corpus, tokenized, used)
    shards, first = tokenization.some_shards(project, corpus, tokenized.facts[tokenization.SHARDS]), 0

    def opened(number: int) -> _Tables:
        shard = shards[number]
        rows = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        return _Tables(rows, aligned, [] if aligned is None else aligned.files_of(number))

    step = _AT_ONCE if access.has_copies and access.capacity is None else 1
    for begin in range(0, len(shards), step):
        for tables in access.each(opened, range(len(shards))[begin : begin + step]):
            groups = tables.documents.groups
            for number, (start, end) in enumerate(groups):
                yield _TableGroup(tables, number, first + start, end - start)
            first += groups[-1][1] if groups else 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a view chooses, before its dataset is written."""

    name: str
    rule: Rule
    selection: Selection
    lists: Mapping[str, Ids]
    """Key of nanoset.yaml → the ids that its files hold."""

    @property
    def facts(self) -> dict[str, Any]:
        """Counts: what each step left, and the ids that no document has."""
        steps = [[left.view, left.step, left.documents, left.tokens] for left in self.selection.left]
        missing = {key: ids.missing for key, ids in self.lists.items() if ids.missing}
        return {"steps": steps, "missing_ids": missing}


class StepRow(NamedTuple):
    """What one rule of a view leaves."""

    view: str
    """That the rule is of; empty for the corpus."""
    step: str
    documents: int
    tokens: int
    share: float
    """Of the documents of the corpus."""

    @property
    def bar(self) -> str:
        """The share as a bar and in percent."""
        return f"{'█' * round(min(self.share, 1) * _BAR)} {self.share:.1%}"


def step_rows(facts: Mapping[str, Any]) -> list[StepRow]:
    """Return what each rule of a view leaves, by its facts."""
    total = max(facts["steps"][0][2], 1)
    return [StepRow(view, step, count, tokens, count / total) for view, step, count, tokens in facts["steps"]]


def choose(project: Project, corpus: str, names: Sequence[str], scratch: Path) -> list[Chosen]:
    """Choose the documents of some views of a corpus by its current dataset, in one pass over its tables.

    Raises:
        MissingError: the dataset, its tables, columns, or a file of ids is not there.
        ConfigError, InputError: a condition does not fit the columns; a file of ids is not text.
    """
    dataset = DATASET.require(project, Key(corpus))
    rules = [_rule(project, name) for name in names]
    meter = Meter(project.listener, STAGE, corpus, int(dataset.facts["documents"]))
    used = {column for name in names for column in _kept(project, dataset, name)}
    groups = document_groups(project, corpus, dataset, used)
    found = select(groups, [rule for rule, _ in rules], scratch, meter.advance)
    return [
        Chosen(name, rule, selection, lists) for name, (rule, lists), selection in zip(names, rules, found, strict=True)
    ]


def plan_view(project: Project, name: str) -> Chosen:
    """Return what a view would choose from the corpus's current dataset; nothing is written. Raises as `choose`."""
    if name not in project.config.views:
        what, remedy = "no such view", "correct the name, or add it there"
        expected = ", ".join(project.config.views) or "none: it is empty"
        raise ConfigError(what, where=f"{project.config.file}: views", found=name, expected=expected, remedy=remedy)
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as folder:
        found = choose(project, base_of(project.config.views, name), [name], Path(folder))[0]
    return found


def _used(config: ProjectConfig, name: str) -> frozenset[str]:
    """Return the columns that the rules of a view need, beside those of every table of documents."""
    used = set[str]()
    for spec in (config.views[one] for one in chain_of(config.views, name)):
        used |= parse_condition(spec.where, "").columns if spec.where is not None else frozenset()
        order = None if isinstance(spec.order, str) else spec.order.by
        used.update(one for one in (spec.split and spec.split.by, order) if one)
    return frozenset(used - _OWN)


def _kept(project: Project, dataset: Manifest, name: str) -> frozenset[str]:
    """Return the columns that a view needs beside the documents' own; ConfigError where one is not kept."""
    used, corpus = _used(project.config, name), dataset.name
    aligned = columns_of(project, corpus, shards_of(project.outputs, dataset), used) if used else None
    known = () if aligned is None else aligned.schema.names
    if missing := sorted(used.difference(known)):
        what, remedy = "no such column", "correct the view's rules, or keep the column with documents.columns"
        where, expected = f"{project.config.file}: views.{name}", f"one of {', '.join(sorted({*_OWN, *known}))}"
        raise ConfigError(what, where=where, found=", ".join(missing), expected=expected, remedy=remedy)
    return used


def _rule(project: Project, name: str, *, is_made: bool = True) -> tuple[Rule, dict[str, Ids]]:
    """Return the steps from the corpus to a view, and the lists of ids that they look into.

    is_made: whether all that the view is made from is there; else what needs that is passed over.
    """
    steps, lists, order = list[Step](), dict[str, Ids](), None
    for one in chain_of(project.config.views, name):
        spec = project.config.views[one]
        for key in _LISTS:
            for pattern in spec.files(key) or ():
                found = given_files(project, pattern, f"views.{one}.{key}")
                lists[f"views.{one}.{key}: {pattern}"] = ids = read_ids(found.folder, found.names)
                steps.append(Listed(one, ids, key == "include", f"{key} {pattern}"))
        steps += _clean(project, one) if is_made else ()
        if spec.where is not None:
            steps.append(Where(one, parse_condition(spec.where, f"{project.config.file}: views.{one}.where")))
        if spec.split is not None:
            steps.append(Split(one, spec.split.by, *spec.split.keep))
        for unit, most in (("documents", spec.documents), ("tokens", spec.tokens)):
            if most is not None:
                steps.append(Budget(one, unit, int(most)))
        if spec.repeat != 1:
            steps.append(Repeat(one, spec.repeat))
        if not isinstance(spec.order, str):
            order = Order(spec.order.by, spec.order.descending, spec.order.seed)
    return Rule(tuple(steps), order), lists


def _clean(project: Project, name: str) -> Iterator[Step]:
    """Yield the steps of a view that leave out what holds texts of evaluations."""
    corpus = base_of(project.config.views, name)
    for section in project.config.views[name].clean_of:
        yield Without(name, contaminated_documents(project, section, corpus), f"clean of {section}")


@holding
def make_view(project: Project, name: str) -> Manifest:
    """Choose a view's documents and publish its dataset; other stale views of the corpus are made in the same pass.

    Raises as `choose`, for this view.
    """
    corpus = base_of(project.config.views, name)
    dataset = DATASET.require(project, Key(corpus))
    wanted = VIEW.recipe(project, Key(corpus, name), _parents(project, Key(corpus, name), dataset))
    found = None if project.rebuild else project.outputs.find(wanted)
    if found is not None:
        return project.outputs.make_current(found)
    recipes, made = {name: wanted, **_stale(project, corpus, dataset, {name})}, dict[str, Manifest]()
    folder = project.outputs.folder / STAGE
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    with leased(project.outputs.access, {*recipes}, corpus), claim_scratch(folder / "choosing") as scratch:
        for chosen in choose(project, corpus, [*recipes], scratch):
            write = _writer(project, dataset, recipes, chosen)
            made[chosen.name] = project.outputs.make_current(project.outputs.commit(recipes[chosen.name], write))
    return made[name]


def _stale(project: Project, corpus: str, dataset: Manifest, done: Collection[str]) -> dict[str, Recipe]:
    """Return the recipes of the other views of a corpus that are not there, as far as their rules can be read."""
    found = {}
    for name in project.config.views:
        if name not in done and base_of(project.config.views, name) == corpus:
            with contextlib.suppress(NanosetError):
                recipe = VIEW.recipe(project, Key(corpus, name), _parents(project, Key(corpus, name), dataset))
                if project.outputs.find(recipe) is None:
                    _rule(project, name)
                    _kept(project, dataset, name)
                    found[name] = recipe
    return found


def _parents(project: Project, key: Key, dataset: Manifest) -> dict[str, str]:
    """Return name → digest of what a view is made from now."""
    inputs = VIEW.inputs(project.config, key)
    others = {name: node.stage.require(project, node.key).digest for name, node in inputs.items() if name != "dataset"}
    return {"dataset": dataset.digest} | others


def _writer(
    project: Project, dataset: Manifest, recipes: Mapping[str, Recipe], chosen: Chosen
) -> Callable[[Path], tuple[dict[str, Any], dict[str, str | FileFact]]]:
    config, corpus = project.config, dataset.name
    prefix = pair_name(config.tokenization.preset, chosen.name, config.documents_of(corpus).text_key)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
        base = read_idx(idx_path(dataset.path(f"{dataset.facts['prefix']}.idx").with_suffix("")), validate=False)
        index = idx_path(folder / prefix)
        sequences, documents = write_view_idx(index, base, chosen.selection.chunks)
        counts = {"documents": documents, "sequences": sequences, "tokens": chosen.selection.tokens}
        facts = {"prefix": prefix, "corpus": corpus, **counts, "dtype": dataset.facts["dtype"], **chosen.facts}
        files: dict[str, str | FileFact] = {index.name: sha256_file(index)}
        return facts, files | _tokens(project, dataset, recipes[chosen.name], folder, prefix)

    return write


def _tokens(project: Project, dataset: Manifest, recipe: Recipe, folder: Path, prefix: str) -> dict[str, FileFact]:
    """Put the dataset's .bin beside a view's .idx: a link on this machine, in a bucket a copy that it makes itself."""
    outputs, name, own = project.outputs, f"{dataset.facts['prefix']}.bin", f"{prefix}.bin"
    fact = dataset.files[name]
    if not outputs.access.has_copies:
        link(dataset.folder / name, folder / own, outputs.place(recipe))
        return {own: fact}
    outputs.invalidate(recipe)
    store, at = outputs.access.store, outputs.access.name
    if (found := store.stat(at(dataset.folder / name))) is None:
        raise MissingError("the object is gone", where=dataset.url(name), remedy="run `nanoset build`")
    store.compose(f"{at(outputs.place(recipe))}/{own}", [found], sha256=[fact.sha256])
    if fact.pieces is None:
        return {own: fact}
    (folder / f"{own}{PIECES}").write_bytes(dataset.path(fact.pieces).read_bytes())
    return {own: replace(fact, pieces=f"{own}{PIECES}")}


def link(source: Path, target: Path, place: Path) -> None:
    """Make a file appear at another path: by a hard link, or where these are refused by a relative symbolic one.

    `place`: the folder that the target's will become.
    """
    try:
        os.link(source, target)
    except OSError:
        target.symlink_to(os.path.relpath(source, place))


class ViewStage(Stage):
    """Datasets of documents that were chosen from a corpus."""

    folder, kind, asset, place = STAGE, "view", "views", "{part}"
    job = "{subject}_views"
    named_in = "views.{part}.of"
    counts = ("documents", "tokens")
    to_be_made = "not built"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(base_of(config.views, name), name) for name in config.views]

    def key_of(self, name: str) -> Key | None:
        return None if "/" in name else Key("", name)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        columns = column_nodes(config, key.subject, _used(config, self.name(key)))
        chain = chain_of(config.views, self.name(key))
        sections = dict.fromkeys(section for one in chain for section in config.views[one].clean_of)
        found = {f"clean of {one}": Node(CONTAMINATION, Key(one, key.subject)) for one in sections}
        return {"dataset": Node(DATASET, Key(key.subject)), **columns, **found}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe: the rules of the view and of those that it is of, and the content of their files."""
        name, options = self.name(key), dict[str, Any]()
        chain = chain_of(project.config.views, name)
        for one in chain:
            options |= _options(project, one, project.config.views[one])
        return Recipe(STAGE, name, VERSION, parents, {"of": chain[:-1], **options})

    def make(self, project: Project, key: Key) -> Manifest:
        return make_view(project, self.name(key))

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget) -> str | None:
        """Return that a file of ids is not there."""
        try:
            _rule(project, self.name(key), is_made=False)
        except NanosetError as error:
            return one_line(error)
        return None

    def warnings(self, project: Project, manifest: Manifest) -> Iterable[str]:
        for key, count in manifest.facts["missing_ids"].items():
            yield f"{count:,} ids of {key} are of no document"
        if not manifest.facts["documents"]:
            yield "it holds no document"

    def figures(self, manifest: Manifest) -> Mapping[str, int]:
        tokens = manifest.files[bin_path(manifest.facts["prefix"]).name].size
        counts = {name: int(manifest.facts[name]) for name in self.counts}
        return counts | {"bytes": size_bytes(manifest) - tokens}

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of a view in a bucket that was cut short."""
        names = set(access.names(folder))
        return names if access.has_copies and all(name.endswith((".bin", ".idx", PIECES)) for name in names) else None


def _options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return one view's rules as JSON, without those that it has not: of files of ids their content."""
    options: dict[str, Any] = {}
    for key in _LISTS:
        if (patterns := spec.files(key)) is not None:
            options[key] = [_content(project, pattern, f"views.{name}.{key}") for pattern in patterns]
    if spec.split is not None:
        options["split"] = [spec.split.by, *spec.split.keep]
    if not isinstance(spec.order, str):
        options["order"] = [spec.order.by, spec.order.descending, spec.order.seed]
    repeat = None if spec.repeat == 1 else spec.repeat
    given = {"where": spec.where, "documents": spec.documents, "tokens": spec.tokens, "repeat": repeat}
    options |= {key: value for key, value in given.items() if value is not None}
    return {f"views.{name}.{key}": value for key, value in options.items()}


def _content(project: Project, pattern: str, key: str) -> str:
    with contextlib.suppress(MissingError):  # `make` and `refusal` say which file is not there
        return given_files(project, pattern, key).digest
    return _MISSING


VIEW = ViewStage()
