"""`nanoset view`: what a view chooses, before it is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nanoset_core.cli.options import CONFIG_OPTION, flag
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.terminal import print_json, print_notices, print_rows


@click.command("view", short_help="Show what a view chooses.")
@click.argument("name")
@CONFIG_OPTION
@flag("--json as_json", "Print JSON.")
def command(name: str, config: Path, as_json: bool) -> None:
    """Show what the view NAME would choose of its corpus's current dataset, rule by rule; nothing
    is written.

    `nanoset build` makes its dataset.
    """
    from nanoset_core.project.orders import view_order_warnings
    from nanoset_core.project.project import Project
    from nanoset_core.stages.views.choosing import plan_view
    from nanoset_core.stages.views.facts import GAPS, gap_warnings, step_rows

    with progress_bars() as (listener, _):
        project = Project.open(config, listener)
        chosen = plan_view(project, name)
    print_notices(view_order_warnings(project.config.views, name))
    facts = chosen.facts
    if as_json:
        keys = ("view", "rule", "documents", "tokens")
        steps: list[dict[str, Any]] = [dict(zip(keys, row, strict=True)) for row in facts["steps"]]
        values = {
            "name": name,
            "steps": steps,
            "missing_ids": facts["missing_ids"],
            GAPS: facts.get(GAPS, []),
        }
        print_json(values, ensure_ascii=False)
        return
    rows, before = [], None
    for row in step_rows(facts):
        away = "" if before is None else before.documents - row.documents
        rows.append(
            {"of": row.view, "rule": row.step, "documents": row.documents, "tokens": row.tokens}
        )
        rows[-1] |= {"taken away": away, "left": row.bar}
        before = row
    print_rows(rows, text=["rule", "left"])
    print_notices(
        f"{count:,} ids of {key} are of no document" for key, count in facts["missing_ids"].items()
    )
    print_notices(gap_warnings(facts, name))
