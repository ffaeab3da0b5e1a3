"""contamination: a corpus's dataset and files of evaluations → the documents that hold texts of
these.

What is looked for is an output of its own, and so is what was found in each shard, as its facts:
after an append the new shards alone are looked through.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import (
    ConfigError,
    InputError,
    MissingError,
    NanosetError,
    StaleError,
    one_line,
)
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, despite_lost_copies
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.text import format_count
from nanoset_core.stages.contamination.search import Evaluation, Match, TextSource, facts_of
from nanoset_core.stages.contamination.texts import read_texts
from nanoset_core.stages.contamination.words import WordVocabulary
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.given_files import GivenFiles, given_files
from nanoset_core.stages.per_shard import PLACE, DocumentsTask, Sharded, make_per_shard, write_rows
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.stage import (
    AFTER,
    PART,
    SUBJECT,
    InternalStage,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Summary,
    counted,
    require,
)
from nanoset_core.stages.views.settings import base_of, chain_of
from nanoset_core.storage.identity import first_repeated, names_of_both
from nanoset_core.storage.leases import leased
from nanoset_core.tokenizers.engines.reference import reference_engine

VERSION = 1
STAGE = "contamination"
MATCHES = "matches.parquet"
TEXTS = "texts.parquet"
_SHARDS = "shards"
"""Fact: digests of what was found in each shard."""
_MISSING = "missing"
_SHOWN = 8
BOILERPLATE_DOCUMENTS = 100
"""Documents that hold one text of an evaluation, from which on the text is taken for boilerplate."""
_BOILERPLATE = "boilerplate"
"""Fact: a `MatchSummary` as a mapping, of outputs with so many matches that they may hold
boilerplate.
"""
_FOUND_THERE = (
    ("evaluation_file", "string"),
    ("evaluation_line", "int64"),
    ("share", "float64"),
    ("words", "string"),
)


def trained_names(config: ProjectConfig) -> list[str]:
    """Return the corpora and views that training reads."""
    nanosets = (
        name for one in config.nanosets.values() for name in one.corpora if one.trains_on(name)
    )
    tars = (name for one in config.webdatasets.values() for name in one.corpora)
    return list(dict.fromkeys([*nanosets, *tars, *config.pbin]))


def searched_corpora(config: ProjectConfig, section: str) -> list[str]:
    """Return the corpora that a section of `contamination` looks through."""
    given = config.contamination[section].of
    return list(
        given or dict.fromkeys(base_of(config.derived, name) for name in trained_names(config))
    )


def is_clean(config: ProjectConfig, section: str, name: str) -> bool:
    """Return whether a corpus or view leaves out what a section finds."""
    chain = chain_of(config.derived, name) if name in config.derived else []
    return any(section in config.views[one].clean_of for one in chain if one in config.views)


def unclean_names(config: ProjectConfig, section: str, corpus: str) -> list[str]:
    """Return what training reads of a corpus with what a section finds in it."""
    names = (name for name in trained_names(config) if base_of(config.derived, name) == corpus)
    return [name for name in names if not is_clean(config, section, name)]


def gates(config: ProjectConfig, names: Iterable[str]) -> dict[str, Node]:
    """Return name → what has to be checked before training may read some corpora and views."""
    return {
        f"{AFTER}{section} of {corpus}": Node(CONTAMINATION, Key(section, corpus))
        for section, spec in config.contamination.items()
        for name in names
        if spec.policy == "block"
        and (corpus := base_of(config.derived, name)) in searched_corpora(config, section)
        and not is_clean(config, section, name)
    }


def _given(project: Project, section: str) -> list[GivenFiles]:
    patterns = project.config.contamination[section].patterns
    return [given_files(project, pattern, f"contamination.{section}.files") for pattern in patterns]


def _distinct(project: Project, section: str) -> list[GivenFiles]:
    """Return the files of a section; ConfigError if two of its names lead to the same file."""
    files = _given(project, section)
    repeated = first_repeated([given.folder / name for given in files for name in given.names])
    if repeated is not None:
        raise ConfigError(
            "a file of evaluations is named twice",
            where=f"{project.config.file}: contamination.{section}.files",
            found=names_of_both(*repeated),
            expected="each file once, by whatever path, pattern or link",
            remedy="remove one of the names, or the link",
        )
    return files


def _evaluation_options(project: Project, section: str) -> dict[str, Any]:
    spec, content = project.config.contamination[section], list[Any]()
    with contextlib.suppress(MissingError, InputError):  # `make` and `refusal` say what is wrong
        content = [[list(given.names), given.digest] for given in _given(project, section)]
    own = {"files": content or _MISSING, "text_keys": list(spec.keys), "ngram": spec.ngram}
    return own | {"tokenizer": project.tokenizer.fingerprint}


def _evaluation(project: Project, section: str) -> Manifest:
    """Read the files of a section and write what is looked for, where that is not there."""
    spec, file = project.config.contamination[section], project.config.tokenizer_file
    recipe = Recipe(
        _EVALUATIONS.layout.folder, section, VERSION, {}, _evaluation_options(project, section)
    )

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        source, names = (
            TextSource(reference_engine(file), WordVocabulary.of_tokenizer(file)),
            list[str](),
        )
        for given in _distinct(project, section):
            for stat in given.stats:
                source.add(
                    len(names), read_texts(given.folder, stat, spec.keys), given.folder / stat.path
                )
                names.append(stat.path)
        grams = source.grams(spec.ngram)
        Evaluation(source.vocabulary, grams).save(folder)
        files, lines = zip(*source.places, strict=True)
        columns = {
            "file": pa.array(names).take(pa.array(files)),
            "line": pa.array(lines, pa.int64()),
        }
        pq.write_table(pa.table(columns), folder / TEXTS, compression="zstd")
        return facts_of(source, grams), {}

    return project.outputs.commit(recipe, write)


@lru_cache(maxsize=2)
def _loaded(folder: Path) -> Evaluation:
    return Evaluation.load(folder)


def _search(evaluation: Manifest, task: DocumentsTask) -> str:
    """Look through one shard, and store what was found; return the digest of that."""
    with task.root.in_task() as root:
        evaluation, dataset = root.rebase(evaluation), root.rebase(task.dataset)

        def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
            for name in evaluation.files:
                evaluation.path(name)
            looked, threshold = _loaded(evaluation.folder), task.recipe.options["threshold"]
            found = looked.search(open_dataset(dataset), task.first, task.count, threshold)
            return {"matches": [[one.document - task.first, *one[1:]] for one in found]}, {}

        return root.commit(task.recipe, write).digest


def find_contamination(project: Project, section: str, corpus: str) -> Manifest:
    """Look through the shards of a corpus's current dataset that were not yet; make what was found
    current.

    Raises:
        MissingError: the dataset, or a file of evaluations is not there.
        StaleError: the dataset is of another tokenizer.
        InputError, FormatError: a file of evaluations cannot be read, or holds no text.
    """
    with leased(project.outputs.access, {section, corpus}, section):
        return despite_lost_copies(project.outputs.access, lambda: _find(project, section, corpus))


def _find(project: Project, section: str, corpus: str) -> Manifest:
    outputs, key = project.outputs, Key(section, corpus)
    dataset = require(project, DATASET, Key(corpus))
    if dataset.recipe["options"]["tokenizer"] != project.tokenizer.fingerprint:
        what, remedy = "the dataset is of another tokenizer", "run `nanoset build`"
        raise StaleError(what, where=dataset.url(), remedy=remedy)
    recipe = CONTAMINATION.recipe(project, key, {"dataset": dataset.digest})
    if not project.rebuild and (made := outputs.find(recipe)) is not None:
        return outputs.make_current(made)
    evaluation, sharded = _evaluation(project, section), Sharded.of(project, dataset)
    name, options = CONTAMINATION.layout.name_of(key), {"threshold": recipe.options["threshold"]}
    recipes = [
        Recipe(
            _FOUND.layout.folder,
            name,
            VERSION,
            {"evaluation": evaluation.digest, "shard": shard},
            options,
        )
        for shard in sharded.shards
    ]
    label = STAGE, f"{section} {corpus}"
    digests = make_per_shard(project, sharded, recipes, partial(_search, evaluation), label)
    found = outputs.each_version(_matches_of, _FOUND.layout.folder, name, digests)
    rows = _rows(project, sharded, evaluation, found)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        write_rows(folder / MATCHES, rows, (*PLACE, *_FOUND_THERE))
        counts = {
            "documents": int(sharded.firsts[-1]),
            "contaminated": len({row["document"] for row in rows}),
        }
        texts = {f"evaluation_{name}": count for name, count in evaluation.facts.items()}
        shown: dict[str, Any] = {
            "first": [{**row, "share": round(row["share"], 4)} for row in rows[:_SHOWN]]
        }
        if len(rows) >= BOILERPLATE_DOCUMENTS:
            shown[_BOILERPLATE] = summarize(rows)._asdict()
        return counts | {
            "matches": len(rows),
            "evaluation": evaluation.digest,
            _SHARDS: digests,
        } | texts | shown, {}

    return outputs.make_current(outputs.commit(recipe, write))


def _matches_of(outputs: OutputRoot, place: Path) -> list[Match]:
    manifest = outputs.manifest_at(place)
    return [] if manifest is None else [Match(*one) for one in manifest.facts["matches"]]


def _rows(
    project: Project, sharded: Sharded, evaluation: Manifest, found: Sequence[Sequence[Match]]
) -> list[dict[str, Any]]:
    """Return the rows of the table of matches: what was found in each shard, with where both texts
    come from.
    """
    import pyarrow.parquet as pq

    matches = [
        one._replace(document=first + one.document)
        for first, some in zip(sharded.firsts.tolist(), found, strict=False)
        for one in some
    ]
    if not matches:
        return []
    texts, rows = pq.read_table(evaluation.path(TEXTS)), list[dict[str, Any]]()
    for match, place in zip(
        matches, sharded.places(project, [one.document for one in matches]), strict=True
    ):
        names = {
            f"evaluation_{name}": texts.column(name)[match.text].as_py()
            for name in ("file", "line")
        }
        rows.append({**place, **names, "share": match.share, "words": match.words})
    return rows


class MatchSummary(NamedTuple):
    """What was found in a corpus, with boilerplate apart.

    A text of an evaluation that very many documents hold is rarely a question that leaked: mostly
    it is boilerplate, such as an instruction or a licence, that evaluation and documents have in
    common.
    """

    contaminated: int
    """Documents that hold a text which is no boilerplate."""
    first: Mapping[str, Any] | None
    """The first match of such a text, a row of the table of matches."""
    boilerplate_texts: int
    """Texts that are held by BOILERPLATE_DOCUMENTS documents or more."""
    boilerplate_documents: int
    """Documents that hold no other text than these."""
    most_common: Mapping[str, Any] | None
    """The first match of the text that most documents hold, if it is boilerplate."""
    most_common_documents: int
    """Documents that hold this text."""


def summarize(rows: Sequence[Mapping[str, Any]]) -> MatchSummary:
    """Summarize the rows of a table of matches, each of which is one document and one text that it
    holds.
    """
    documents_by_text: dict[tuple[str, int], int] = Counter()
    for row in rows:
        documents_by_text[_text_of(row)] += 1
    boilerplate = {
        text for text, count in documents_by_text.items() if count >= BOILERPLATE_DOCUMENTS
    }

    own_rows = [row for row in rows if _text_of(row) not in boilerplate]
    own_documents = {row["document"] for row in own_rows}
    all_documents = {row["document"] for row in rows}

    most_common: Mapping[str, Any] | None = None
    most_common_documents = 0
    if boilerplate:
        # Of texts that equally many documents hold, the first one of the table.
        most_common = max((row for row in rows), key=lambda row: documents_by_text[_text_of(row)])
        most_common_documents = documents_by_text[_text_of(most_common)]
    return MatchSummary(
        contaminated=len(own_documents),
        first=_shown(own_rows[0]) if own_rows else None,
        boilerplate_texts=len(boilerplate),
        boilerplate_documents=len(all_documents - own_documents),
        most_common=None if most_common is None else _shown(most_common),
        most_common_documents=most_common_documents,
    )


def _text_of(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["evaluation_file"], row["evaluation_line"]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "share": round(row["share"], 4)}


def summary_of(manifest: Manifest) -> MatchSummary:
    """Return the summary of what was found in a corpus; of an older output from its table of
    matches.
    """
    import pyarrow.parquet as pq

    facts = manifest.facts
    if _BOILERPLATE in facts:
        return MatchSummary(**facts[_BOILERPLATE])
    if facts["matches"] < BOILERPLATE_DOCUMENTS:
        first = facts["first"][0] if facts["first"] else None
        return MatchSummary(facts["contaminated"], first, 0, 0, None, 0)
    return summarize(pq.read_table(manifest.path(MATCHES)).to_pylist())


def boilerplate_text(section: str, summary: MatchSummary) -> str:
    """Describe the boilerplate of a section in one clause; empty if there is none."""
    if summary.most_common is None:
        return ""
    _, held = places_text(summary.most_common)
    texts = format_count(summary.boilerplate_texts, "text")
    documents = format_count(summary.boilerplate_documents, "document")
    verb = "is" if summary.boilerplate_texts == 1 else "are"
    return (
        f"{texts} of {section} {verb} in {BOILERPLATE_DOCUMENTS} documents or more, probably as boilerplate: "
        f"{documents} hold nothing else of {section}; {summary.most_common_documents:,} hold {held}"
    )


def contaminated_documents(project: Project, section: str, corpus: str) -> NDArray[np.int64]:
    """Return the numbers of the documents of a corpus's current dataset that a section found,
    int64, ascending.

    MissingError where it was not looked through; StaleError where that was another dataset.
    """
    import pyarrow.parquet as pq

    found, dataset = (
        require(project, CONTAMINATION, Key(section, corpus)),
        require(project, DATASET, Key(corpus)),
    )
    if found.recipe["parents"]["dataset"] != dataset.digest:
        what, remedy = (
            "another dataset was looked through than the current one",
            "run `nanoset build`",
        )
        raise StaleError(what, where=found.url(), expected=dataset.url(), remedy=remedy)
    documents = (
        pq.read_table(found.path(MATCHES), columns=["document"]).column("document").to_numpy()
    )
    return np.unique(documents.astype(np.int64))


def places_text(match: Mapping[str, Any]) -> tuple[str, str]:
    """Return (where a document is, what it holds) of a match, in words."""
    where = f"{match['file']}:{match['line']}"
    held = f"{match['share']:.0%} of {match['evaluation_file']}:{match['evaluation_line']}: {match['words']!r}"
    return where, held


class ContaminationStage(Planned):
    """Documents of a corpus that contain texts of evaluations."""

    layout = Layout(STAGE, (SUBJECT, PART))
    kind = STAGE
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [
            Key(section, corpus, requested_at=f"{STAGE}.{section}.of")
            for section in config.contamination
            for corpus in searched_corpora(config, section)
        ]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"dataset": Node(DATASET, Key(key.part or ""))}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        threshold = project.config.contamination[key.subject].threshold
        options = _evaluation_options(project, key.subject) | {"threshold": threshold}
        return Recipe(STAGE, self.layout.name_of(key), VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return find_contamination(project, key.subject, key.part or "")

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.held_out.verify import verify_contamination

        return verify_contamination(project, key.subject, key.part or "", deep)

    def refusal(
        self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return that a file of evaluations is missing or named twice."""
        try:
            _distinct(project, key.subject)
        except NanosetError as error:
            return one_line(error)
        return None

    def show(self, project: Project, manifest: Manifest) -> Summary:
        facts = manifest.facts
        found = summary_of(manifest)
        figures = counted(manifest, "documents", "contaminated") | {
            "contaminated": found.contaminated
        }
        details = {
            "texts": f"{facts['evaluation_texts']:,}",
            "too short": f"{facts['evaluation_too_short']:,}",
        }
        if found.boilerplate_texts:
            details["boilerplate only"] = f"{found.boilerplate_documents:,}"
        return Summary(figures, details, self._warnings(project, manifest))

    def _warnings(self, project: Project, manifest: Manifest) -> list[str]:
        key = self.layout.key_of(manifest.name)
        if (
            key is None
            or key.subject not in project.config.contamination
            or not manifest.facts["contaminated"]
        ):
            return []
        readers = unclean_names(project.config, key.subject, key.part or "")
        if project.config.contamination[key.subject].policy != "warn" and not readers:
            return []

        warnings: list[str] = []
        found = summary_of(manifest)
        if found.first is not None:
            where, text = places_text(found.first)
            verb = "holds" if found.contaminated == 1 else "hold"
            documents = format_count(found.contaminated, "document")
            warnings.append(f"{documents} {verb} texts of {key.subject}; {where} holds {text}")
        if found.boilerplate_texts:
            warnings.append(boilerplate_text(key.subject, found))
        return warnings

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        return [str(manifest.facts["evaluation"]), *map(str, manifest.facts[_SHARDS])]


CONTAMINATION = ContaminationStage()
_EVALUATIONS = InternalStage(Layout("evaluations"), CONTAMINATION)
_FOUND = InternalStage(Layout("contamination_shards", CONTAMINATION.layout.path), CONTAMINATION)
INTERNAL = (_EVALUATIONS, _FOUND)
