"""`nanoset view`: print which documents a view chooses, before it is built.

A view selects documents of a corpus by rules in nanoset.yaml, such as `quality >= 3`. The command
applies the rules one by one, and prints how many documents and tokens each of them leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, FILE, JSON_OPTION, option
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import Row, print_json, print_notices, print_rows
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.stages.views.choosing import ChosenView


@click.command("view", short_help="Show what a view chooses.")
@click.argument("name")
@option(
    "--ids ids_file",
    "Write the ids of the chosen documents to this file, one on each line, as `include` and "
    "`exclude` of views read them. An existing file is replaced.",
    type=FILE,
)
@CONFIG_OPTION
@JSON_OPTION
def command(name: str, ids_file: Path | None, config: Path, as_json: bool) -> None:
    """Show which documents the view NAME would choose, rule by rule.

    The rules are applied to the current dataset of the view's corpus, also if the view is built.
    Nothing is written except the file of --ids; `nanoset build` makes the view's dataset.

    For a rule `top`, the command also shows a histogram of the column, and where the rule cuts it.
    """
    from nanoset_core.project.project import Project
    from nanoset_core.stages.order_warnings import view_order_warnings
    from nanoset_core.stages.views.choosing import trial_choice
    from nanoset_core.stages.views.listing import write_ids
    from nanoset_core.storage.regular_files import check_replaceable

    if ids_file is not None:
        check_replaceable(ids_file)

    # Apply the rules, which reads the tables of all documents.
    listed_documents = None
    with shown_progress() as progress:
        project = Project.open(config, progress)
        with trial_choice(project, name) as plan:
            if ids_file is not None:
                listed_documents = write_ids(project, plan, ids_file)
    print_notices(view_order_warnings(project.config.views, name))
    if listed_documents is not None:
        print_notices(listed_documents.warnings())
    if as_json:
        print_json(_as_json(name, plan.facts), ensure_ascii=False)
        return
    _print_steps(plan.facts)
    _print_histograms(plan.facts, plan.name)
    print_notices(_notices(plan))
    if listed_documents is not None:
        echo(f"{format_count(listed_documents.listed, 'id')} written to {ids_file}")


def _notices(plan: ChosenView) -> Iterator[str]:
    """Yield a sentence for each thing about a view that may be a mistake of the user.

    A view is a selection of documents, made by rules in nanoset.yaml. For example:

        3 ids of views.good.exclude: takedown.txt match no document, such as 'x9'
        `top` of 1,000 documents holds 700: 300 documents without a value of quality cannot be …

    Args:
        plan: How many documents each of the view's rules chooses, and what is noticed on the way.
    """
    from nanoset_core.stages.views.facts import (
        empty_column_warnings,
        gap_warnings,
        missing_id_warnings,
        top_warnings,
    )

    yield from missing_id_warnings(plan.facts, plan.name, plan.first_missing_ids)
    yield from empty_column_warnings(plan.facts)
    yield from gap_warnings(plan.facts, plan.name)
    yield from top_warnings(plan.facts, plan.name)


def _as_json(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `nanoset view NAME --json` prints: how many documents a view would choose.

    A view is a selection of the documents of a text collection, made by rules.

    Args:
        name: Name of the view, such as "good".
        facts: How many documents are left after each of its rules, and what was noticed.
    """
    from nanoset_core.stages.views.facts import EMPTY_COLUMNS, GAPS, TOPS

    return {
        "name": name,
        "steps": _steps_as_json(facts),
        "missing_ids": facts["missing_ids"],  # listed ids that no document has
        GAPS: facts.get(GAPS, []),  # limits of tokens that are far from full
        TOPS: facts.get(TOPS, []),  # a histogram for each rule that takes the best documents
        EMPTY_COLUMNS: facts.get(EMPTY_COLUMNS, {}),  # rule → its columns without any value
    }


def _steps_as_json(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how many documents are left after each rule of a view. For example, for one rule:

        {"view": "good", "rule": "quality >= 3", "documents": 400, "tokens": 30000}

    A view may select documents of another view: then the rules of that one come first.

    Args:
        facts: What was found out about the view.
    """
    steps: list[dict[str, Any]] = []
    for view, rule, n_documents, n_tokens in facts["steps"]:
        steps.append({"view": view, "rule": rule, "documents": n_documents, "tokens": n_tokens})
    return steps


def _print_steps(facts: Mapping[str, Any]) -> None:
    """Print a table of a view's rules, with the documents that each removes and leaves.

    For example, the view "good" takes the documents of a corpus with a certain quality:

        of     rule           documents   tokens   taken away   left
               all                 1000    50000                ████████████████████ 100.0%
        good   quality >= 3         400    30000          600   ████████ 40.0%

    Args:
        facts: How many documents are left after each rule. The first row counts the whole corpus.
    """
    from nanoset_core.stages.views.facts import step_rows

    rows: list[Row] = []
    n_before: int | None = None  # documents that the rule before left
    for step in step_rows(facts):
        n_removed: int | str = ""  # for the first row, which is the corpus: there is no rule
        if n_before is not None:
            n_removed = n_before - step.documents  # 1000 - 400
        rows.append(
            {
                "of": step.view,
                "rule": step.step,
                "documents": step.documents,
                "tokens": step.tokens,
                "taken away": n_removed,
                "left": step.bar,  # the share of all documents
            }
        )
        n_before = step.documents
    print_rows(rows, text=["rule", "left"])


def _print_histograms(facts: Mapping[str, Any], view: str) -> None:
    """Print a histogram for each rule of a view that takes the documents with the best values.

    For example, a rule takes the 300 documents with the highest quality:

        top 300 documents by quality: the cut is at quality = 3. Documents with higher values …

        quality
        value   documents   tokens   chosen
        4             100     5000      100   ████
        3             400    20000      200   ████████░░░░░░░░
        2             500    25000        0   ░░░░░░░░░░░░░░░░░░░░

    Args:
        facts: What the rules choose. Those with a histogram are listed in the entry `TOPS`.
        view: Name of the view.
    """
    from nanoset_core.stages.views.facts import TOPS, cut_texts, top_table

    rules = facts.get(TOPS, [])
    for rule, text in zip(rules, cut_texts(facts, view), strict=True):
        echo("")
        echo(text)
        bars_column = " "  # the heading of the last column; only this one may be wrapped
        print_rows(top_table(rule), text=[bars_column], title=rule["column"])
