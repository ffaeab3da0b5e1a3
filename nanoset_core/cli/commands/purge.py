"""`nanoset purge`: erase documents from all outputs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.copies import print_copies
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, IDS_FILE_OPTION, build_of, flag, option
from nanoset_core.cli.terminal import print_rows
from nanoset_core.records.text import format_bytes

if TYPE_CHECKING:
    from nanoset_core.project.project import Project
    from nanoset_core.project.purge_plan import PurgePlan

_SHOWN = 50


@click.command("purge", short_help="Erase documents from all outputs.")
@click.argument("ids", nargs=-1)
@CONFIG_OPTION
@IDS_FILE_OPTION
@option(
    "--corpus corpora", "Only documents of this corpus; may be given several times.", multiple=True
)
@flag("--yes", "Erase what is listed; without this, nothing is changed.")
@click.pass_context
def command(
    context: click.Context,
    ids: tuple[str, ...],
    config: Path,
    ids_file: Sequence[str],
    corpora: tuple[str, ...],
    yes: bool,
) -> None:
    """Erase the documents of these IDS: from shards, datasets and tables, and with every version
    made of them.

    Without --yes nothing is changed, and what would be erased is listed. The raw text is yours: its
    lines are named, and left out from now on, but not touched. Nothing is tokenized again; a
    receipt says what was erased and what is there instead.
    """
    from nanoset_core.project.project import Project
    from nanoset_core.project.purge import purge
    from nanoset_core.project.purge_plan import plan_purge
    from nanoset_core.project.purge_receipt import is_unfinished

    wanted = list(dict.fromkeys(filter(None, [*ids, *ids_file])))
    if not wanted:
        raise click.UsageError("Missing argument 'IDS...'.", context)
    project = Project.open(config)
    plan = plan_purge(project, wanted, corpora)
    if not plan.documents and not is_unfinished(project, wanted, corpora):
        echo("no output holds a document with one of these ids")
        _print_erased(project, wanted)
        return
    _print_plan(project, plan)
    print_copies(project, wanted, corpora, fate="not erased")
    if not yes:
        echo("nothing was erased yet: add --yes to erase it")
        return
    path = purge(project, plan, build_of(context, config), datetime.date.today().isoformat())
    echo(f"erased; the receipt: {project.outputs.access.url(path)}")


def _print_erased(project: Project, ids: Sequence[str]) -> None:
    """Print which of some ids an earlier purge erased."""
    from nanoset_core.outputs.erasures import erasure_of_id
    from nanoset_core.stages.shards.purged import id_digest

    for identity in ids[:_SHOWN]:
        erasure = erasure_of_id(project.outputs.access, id_digest(identity))
        if erasure is not None:
            echo(f"{identity}: {erasure}")


def _print_plan(project: Project, plan: PurgePlan) -> None:
    rows = [
        {
            "document": row.id,
            "raw text": str(folder / f"{row.file}:{row.line}"),
            "tokens": f"{row.tokens:,}",
        }
        for corpus, found in plan.current.items()
        for folder in [project.config.corpus_folder(corpus)]
        for row in found
    ]
    print_rows(rows[:_SHOWN])
    if len(rows) > _SHOWN:
        echo(f"… and {len(rows) - _SHOWN:,} documents more")
    print_rows(
        [{"version": one.path, "size": format_bytes(one.size)} for one in plan.versions[:_SHOWN]]
    )
    known = {row.id for found in plan.documents.values() for row in found}
    if unknown := [one for one in plan.ids if one not in known]:
        echo(f"no output holds a document with {len(unknown):,} of these ids, as {unknown[0]!r}")
    size = format_bytes(sum(one.size for one in plan.versions))
    echo(
        f"{len(rows):,} documents; {len(plan.versions):,} versions of outputs, {size}, were made of them"
    )
