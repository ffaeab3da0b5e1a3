"""What a build shows at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nanoset_core.mapping.splits import SPLITS
from nanoset_core.pipeline import indexed, mapping, packed, raw, shuffling, tokenization
from nanoset_core.pipeline.project import Project

if TYPE_CHECKING:
    from rich.table import Table

    from nanoset_assets.build import BuildReport


def summary(project: Project, report: BuildReport) -> Iterator[Table]:
    """A table of corpora, one of packed corpora, one of nanosets, one of webdatasets, as they are after the build."""
    corpora = sorted({step.partition for step in report.steps if step.asset == ("raw_jsonl",) and step.partition})
    yield _corpora(project, report, corpora)
    if project.config.packed:
        yield _packed(project, report)
    if project.config.nanosets:
        yield _nanosets(project, report)
    if project.config.webdatasets:
        yield _webdatasets(project, report)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _seconds(report: BuildReport, labels: list[str]) -> str:
    spent = [report.made[label] for label in labels if label in report.made]
    return f"{sum(spent):.1f}" if spent else "up to date"


def _corpora(project: Project, report: BuildReport, corpora: list[str]) -> Table:
    table = _table("corpus", "files", "documents", "tokens", "rejected", "seconds")
    for corpus in corpora:
        inventory = project.outputs.current(raw.STAGE, corpus)
        tokens = project.outputs.current(tokenization.STAGE, corpus)
        complete = project.outputs.current(indexed.STAGE, corpus)
        facts = tokens.facts if tokens is not None else None
        assets = ("raw_jsonl", "tokenized_shards", "indexed_dataset")
        labels = [f"{asset} [{corpus}]" for asset in assets]
        failed = any(label in report.failed for label in labels)
        table.add_row(
            corpus,
            f"{inventory.facts['files']:,}" if inventory else "-",
            f"{facts['documents']:,}" if facts and not failed else "-",
            f"{facts['tokens']:,}" if facts and not failed else "-",
            f"{facts['rejected'] + facts['faults']:,}" if facts and not failed else "-",
            "failed" if failed or complete is None else _seconds(report, labels),
        )
    return table


def _packed(project: Project, report: BuildReport) -> Table:
    table = _table("packed", "documents", "tokens", "bytes a token", "left out", "seconds")
    for corpus in project.config.packed:
        done = project.outputs.current(packed.STAGE, corpus)
        label = f"packed_dataset [{corpus}]"
        if done is None or label in report.failed:
            table.add_row(corpus, "-", "-", "-", "-", "not made")
            continue
        counts = [f"{done.facts[key]:,}" for key in ("documents", "tokens", "token_bytes", "left_out")]
        table.add_row(corpus, *counts, _seconds(report, [label]))
    return table


def _nanosets(project: Project, report: BuildReport) -> Table:
    table = _table("nanoset", "split", "samples", "tokens", "epochs", "seconds")
    for name in project.config.nanosets:
        for split in SPLITS:
            labels = [f"{name}/{asset} [{split}]" for asset in ("index_mappings", "blend")]
            facts = mapping.current_facts(project, name, split)
            if facts is None:
                table.add_row(name, split, "-", "-", "-", "not made")
                continue
            passes = [member["epochs"] for member in facts["members"]] or [0]
            least, most = f"{min(passes):.2f}", f"{max(passes):.2f}"
            epochs = least if least == most else f"{least} to {most}"
            samples = facts["samples"]
            tokens = samples * project.nanoset(name).sequence_length
            table.add_row(name, split, f"{samples:,}", f"{tokens:,}", epochs, _seconds(report, labels))
    return table


def _webdatasets(project: Project, report: BuildReport) -> Table:
    table = _table("webdataset", "shards", "sequences", "tokens", "tokens dropped", "seconds")
    for name, spec in project.config.webdatasets.items():
        labels = [f"{name}/shuffle_plan", f"{name}/manifest", *(f"{name}/tars [{g}]" for g in range(spec.groups))]
        done = project.outputs.current(shuffling.STAGE, name)
        if done is None:
            table.add_row(name, "-", "-", "-", "-", "not made")
            continue
        counts = [f"{done.facts[key]:,}" for key in ("shards", "sequences", "tokens", "tokens_dropped")]
        table.add_row(name, *counts, _seconds(report, labels))
    return table


def next_steps(project: Project) -> Iterator[str]:
    """What to do with the result."""
    config = project.config
    root = config.root_folder if config.root_place is None else config.root_place.url
    live = "`current`" if config.root_place is None else "`current.json`"
    yield f"Outputs are below {root}; {live} in each folder names the live version."
    for name in config.nanosets:
        endpoint = config.storage.endpoint_url
        imports, storage = "load_nanoset", ""
        if config.root_place is not None and endpoint is not None:
            imports, storage = "StorageSpec, load_nanoset", f", StorageSpec('{endpoint}')"
        yield (
            f'Read samples: python -c "from nanoset_core import {imports}; '
            f"print(load_nanoset('{root}', '{name}', 'train'{storage})[0])\""
        )
        break
    yield f"Look at it: NANOSET_CONFIG={project.config.file} dagster dev   (`make dev` for the demo)"
