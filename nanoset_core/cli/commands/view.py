"""`nanoset view`: print which documents a view chooses, before it is built.

A view selects documents of a corpus by rules in nanoset.yaml, such as `quality >= 3`. The command
applies the rules one by one, and prints how many documents and tokens each of them leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import Row, print_json, print_notices, print_rows
from nanoset_core.records.text import format_count


@click.command("view", short_help="Show what a view chooses.")
@click.argument("name")
@CONFIG_OPTION
@JSON_OPTION
def command(name: str, config: Path, as_json: bool) -> None:
    """Show which documents the view NAME would choose, rule by rule.

    The rules are applied to the current dataset of the view's corpus. Nothing is written; `nanoset
    build` makes the view's dataset.

    For a rule `top`, the command also shows a histogram of the column, and where the rule cuts it.
    """
    from nanoset_core.project.orders import view_order_warnings
    from nanoset_core.project.project import Project
    from nanoset_core.stages.views.choosing import plan_view

    # Apply the rules, which reads the tables of all documents.
    with shown_progress() as progress:
        project = Project.open(config, progress)
        plan = plan_view(project, name)
    print_notices(view_order_warnings(project.config.views, name))
    if as_json:
        print_json(_to_json(name, plan.facts), ensure_ascii=False)
        return
    _print_steps(plan.facts)
    _print_tops(plan.facts)
    print_notices(_notices(name, plan.facts))


def _notices(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what may be a mistake: ids that match no document, and rules that take too little.

    Args:
        name: Name of the view.
        facts: What the view's manifest would record about the choice.

    Yields:
        Sentences without their full stop.
    """
    from nanoset_core.stages.views.facts import gap_warnings, top_warnings

    for key, count in facts["missing_ids"].items():
        yield f"{format_count(count, 'id')} of {key} match no document"
    yield from gap_warnings(facts, name)
    yield from top_warnings(facts, name)


def _to_json(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many documents a view would choose, rule by rule, as plain values for JSON.

    Args:
        name: Name of the view.
        facts: The facts that the view's manifest would record about the choice.

    Returns:
        `name`; `steps`, such as `{"view": "good", "rule": "quality >= 3", "documents": 400,
        "tokens": 30000}` for each rule; and what may be a mistake.
    """
    from nanoset_core.stages.views.facts import GAPS, TOPS

    # What is left after each rule. A view can be made from another view, whose rules come first.
    steps: list[dict[str, Any]] = []
    for view, rule, documents, tokens in facts["steps"]:
        steps.append({"view": view, "rule": rule, "documents": documents, "tokens": tokens})
    return {
        "name": name,
        "steps": steps,
        "missing_ids": facts["missing_ids"],
        GAPS: facts.get(GAPS, []),  # budgets that are far from full
        TOPS: facts.get(TOPS, []),  # at which value each rule `top` ends
    }


def _print_steps(facts: Mapping[str, Any]) -> None:
    """Print a table of the rules, and how many documents each removes and leaves.

    For example, the view "good" of the corpus "web":

        of     rule           documents   tokens   taken away   left
               all                 1000    50000                ██████████ 100.0%
        good   quality >= 3         400    30000          600   ████ 40.0%

    Args:
        facts: What the view's manifest would record about the choice.
    """
    from nanoset_core.stages.views.facts import step_rows

    rows: list[Row] = []
    n_before: int | None = None  # documents that the rule before left
    for step in step_rows(facts):
        rows.append(
            {
                "of": step.view,
                "rule": step.step,
                "documents": step.documents,
                "tokens": step.tokens,
                # The first row is all documents: no rule was applied yet.
                "taken away": "" if n_before is None else n_before - step.documents,
                "left": step.bar,  # the share of all documents
            }
        )
        n_before = step.documents
    print_rows(rows, text=["rule", "left"])


def _print_tops(facts: Mapping[str, Any]) -> None:
    """Print a histogram for each rule `top`, which shows the values that the rule chooses.

    For example, of the rule `top: {by: quality, documents: 300}`:

        top 300 documents by quality: the cut is at quality = 3. Documents with higher values …

        quality
        value   documents   tokens   chosen
        4             100     5000      100   ████
        3             400    20000      200   ████████░░░░░░░░
        2             500    25000        0   ░░░░░░░░░░░░░░░░░░░░

    Args:
        facts: The facts that the view's manifest would record about the choice.
    """
    from nanoset_core.stages.views.facts import TOPS, cut_text, top_table

    for top in facts.get(TOPS, []):
        echo("")
        echo(cut_text(top))
        print_rows(top_table(top), text=[" "], title=top["column"])
