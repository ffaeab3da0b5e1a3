"""`nanoset takedown`: leave documents out of the views of a project.

A view selects documents of a corpus, and may exclude those whose ids a file lists. The command adds
ids to this file, prints which outputs contain the documents, and rebuilds these outputs. Unlike
`nanoset purge`, it leaves the tokens in the corpus.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.copies import MAX_SHOWN, print_copies
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    CONFIG_OPTION,
    FILE,
    IDS_FILE_OPTION,
    build_of,
    flag,
    option,
    requested_ids,
)
from nanoset_core.cli.terminal import Row, print_notices, print_rows
from nanoset_core.errors import ConfigError, NanosetError, one_line_with_remedy
from nanoset_core.storage.location import is_remote
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.exclusion import DatasetUse, SharedId
    from nanoset_core.project.project import Project
    from nanoset_core.project.settings import ProjectConfig


@click.command("takedown", short_help="Leave documents out of views.")
@click.argument("ids", nargs=-1)
@CONFIG_OPTION
@option("--reason", "Why; it is written into the list, with the day.", required=True)
@IDS_FILE_OPTION
@option(
    "--list list_file",
    "The list to add the ids to, which a view must exclude; a relative path starts in the current "
    "folder. Default: the one file that views exclude.",
    type=FILE,
)
@flag("--no-build", "Only add the ids, and show what contains the documents; do not build.")
@click.pass_context
def command(
    context: click.Context,
    ids: tuple[str, ...],
    config: Path,
    reason: str,
    ids_file: Sequence[str],
    list_file: Path | None,
    no_build: bool,
) -> None:
    """Leave the documents with these IDS out of views.

    `nanoset takedown` adds the ids to a file that your views name in their key `exclude`. It shows
    which outputs, such as views and nanosets, contain the documents now, and rebuilds what has
    changed. The tokens of the documents stay in the corpus, but outputs that read these views no
    longer contain them.

    A nanoset, webdataset, export or .pbin file may read the corpus itself, or a view that does not
    name the file in `exclude`. It still contains the documents. The command names each such output,
    and the view that it should read instead. The exit code is 1 if there is one, or if the build
    fails.

    If no document has one of the IDS, or several documents of a corpus have it, the command says
    so, and the exit code is 0.
    """
    from nanoset_core.lineage.exclusion import check_is_excluded
    from nanoset_core.lineage.takedown import add_ids
    from nanoset_core.project.project import Project
    from nanoset_core.stages.views.ids import listed_ids

    all_ids = requested_ids(context, ids, ids_file)
    project = Project.open(config)
    if not all_ids:
        return

    # Before anything is written, check that a build is possible, and warn if one is running.
    build = None if no_build else build_of(context, config)
    _warn_of_running_builds(project, builds_afterwards=build is not None)

    # Add the ids to the list.
    if list_file is None:
        list_file = _only_list(project.config)
    list_file = Path(os.path.abspath(list_file))  # so that messages show where it is
    check_is_excluded(project, list_file)
    today = datetime.date.today().isoformat()
    added_ids = add_ids(list_file, all_ids, reason, today)
    n_known = len(set(all_ids)) - len(added_ids)
    echo(f"{list_file}: {format_count(len(added_ids), 'id')} added, {n_known:,} already listed")

    # Show which outputs hold the documents now.
    _print_holdings(project, all_ids)
    # Other documents may have the same text. The list may have their ids already: these are taken
    # down, too, and not shown.
    ignored_ids = listed_ids(list_file.parent, [list_file.name]).to_pylist()
    print_copies(project, all_ids, fate="not taken down", ignored_ids=ignored_ids)

    # Show what the list does not achieve: nobody should believe that the documents are taken out.
    # This is shown even if some outputs cannot be built.
    try:
        if build is not None:
            build()
    except (SystemExit, NanosetError):
        _print_remaining_uses(project, all_ids, list_file)
        raise
    if _print_remaining_uses(project, all_ids, list_file):
        sys.exit(1)


def _warn_of_running_builds(project: Project, *, builds_afterwards: bool) -> None:
    """Warn if a build is running, since it may include documents that the user wants to leave out.

    A build reads the lists of such documents when it starts. An id that is added later has no
    effect on it, so another build has to follow.

    Args:
        project: The project, whose outputs other processes may be building.
        builds_afterwards: Whether this command itself will build, as soon as the running build has
            ended.
    """
    from nanoset_core.storage.in_use.leases import builds_under_way

    remedy = "run `nanoset build` once it has ended"
    if builds_afterwards:
        remedy = "this command waits for it, and builds again"
    notices: list[str] = []
    for running_build in builds_under_way(project.outputs.access):
        notices.append(
            f"a running build may still include these documents: {running_build}; {remedy}"
        )
    print_notices(notices)


def _print_holdings(project: Project, ids: Sequence[str]) -> None:
    """Print which outputs contain given documents now, and where in a training run they are read.

        held by          documents   samples      steps
        corpus web               2
        pretrain train           2   10 to 8,113  1 to 508

    The last row says: of the training samples of "pretrain", numbers 10 and 8,113 are the first and
    the last that contain one of the documents. The trainer reads these in its steps 1 and 508.

    Below the table, outputs are named that could not be searched, since they are damaged.

    Args:
        project: The project with its built outputs.
        ids: Ids of the documents.
    """
    from nanoset_core.lineage.takedown import MAX_PLACED, UnsearchedOutput, holdings

    rows: list[Row] = []
    unsearched: list[UnsearchedOutput] = []
    is_in_part = False
    for holding in holdings(project, ids):
        if isinstance(holding, UnsearchedOutput):
            unsearched.append(holding)
            continue
        rows.append(
            {
                "held by": holding.output,
                "documents": holding.documents,
                "samples": _range_text(holding.samples),
                "steps": _range_text(holding.steps),
            }
        )
        is_in_part |= holding.samples is not None and holding.documents > MAX_PLACED
    print_rows(rows)
    if is_in_part:
        echo(f"samples and steps are those of the first {MAX_PLACED} documents of each dataset")
    for output in unsearched:
        reason = one_line_with_remedy(output.error)
        echo(f"{output.output} may contain the documents, too: {reason}", fg="yellow")


def _print_unexpected_ids(project: Project, ids: Sequence[str]) -> None:
    """Warn of ids that no document has, and of ids that several documents of a corpus have.

    The user may have misspelt the former. The latter may take out more than the user wants:

        no corpus has a document with 2 of these ids, such as 'x9'
        1 of these ids belongs to several documents of corpus web: for example, 2 documents have
        'a7'; a list of ids stands for all of them

    Args:
        project: The project with its built outputs.
        ids: The ids that the user gave.
    """
    from nanoset_core.lineage.exclusion import IdUses

    uses = IdUses.of(project, ids)
    unknown_ids = uses.unknown()
    if unknown_ids:
        count = f"{len(unknown_ids):,}"
        message = f"no corpus has a document with {count} of these ids, such as {unknown_ids[0]!r}"
        echo(message, fg="yellow")

    shared_ids_by_corpus: dict[str, list[SharedId]] = {}
    for shared in uses.shared():
        shared_ids_by_corpus.setdefault(shared.corpus, []).append(shared)
    for corpus, shared_ids in shared_ids_by_corpus.items():
        echo(_shared_ids_warning(corpus, shared_ids), fg="yellow")

    # A corpus that cannot be read may have documents with these ids.
    for corpus, error in uses.error_by_corpus.items():
        reason = one_line_with_remedy(error)
        echo(f"the corpus {corpus} was not searched for these ids: {reason}", fg="yellow")


def _shared_ids_warning(corpus: str, shared_ids: Sequence[SharedId]) -> str:
    """Return the warning about ids that several documents of a text collection have.

    Args:
        corpus: Name of the text collection.
        shared_ids: The ids, at least one, each with the number of its documents.
    """
    verb = "belongs" if len(shared_ids) == 1 else "belong"
    example = shared_ids[0]
    return (
        f"{len(shared_ids):,} of these ids {verb} to several documents of corpus {corpus}: "
        f"for example, {example.documents:,} documents have {example.id!r}; a list of ids "
        "stands for all of them"
    )


def _print_remaining_uses(project: Project, ids: Sequence[str], list_file: Path) -> bool:
    """Print which outputs still read the documents, and which ids are not those of one document.

    Args:
        project: The project. Its datasets are looked up as they are now, after the build.
        ids: The ids that the user gave.
        list_file: The list with the ids.

    Returns:
        Whether some outputs still read the documents.
    """
    from nanoset_core.lineage.exclusion import uses_without_exclusion

    _print_unexpected_ids(project, ids)
    uses = list(uses_without_exclusion(project, ids, list_file))
    if uses:
        _print_uses(project, uses, list_file)
    return bool(uses)


def _print_uses(project: Project, uses: Sequence[DatasetUse], list_file: Path) -> None:
    """Print which outputs do not leave out the documents, and what they should read instead.

        these outputs do not leave out the documents, since no view that they read excludes …:
        output            reads
        nanoset a train   web
        nanoset b train   best-web
        name clean instead of web, wherever they or their views read web

    Args:
        project: The project with the settings of these outputs.
        uses: The outputs, each with a dataset that it reads; at least one.
        list_file: The list with the ids of the documents.
    """
    from nanoset_core.lineage.exclusion import remedies

    echo(
        "these outputs do not leave out the documents, since no view that they read excludes "
        f"{list_file}:",
        fg="red",
    )
    rows: list[Row] = []
    for use in uses[:MAX_SHOWN]:
        rows.append({"output": use.output, "reads": use.dataset})
    print_rows(rows, text=["reads"])
    n_unlisted = len(uses) - len(rows)
    if n_unlisted:
        echo(f"… and {n_unlisted:,} more")
    for remedy in remedies(project, uses, list_file):
        echo(remedy)


def _range_text(numbers: tuple[int, int] | None) -> str:
    """Return the first and the last of some numbers as text, or an empty text for None."""
    if numbers is None:
        return ""
    first, last = numbers
    return f"{first:,} to {last:,}"


def _only_list(config: ProjectConfig) -> Path:
    """Return the only file in which the settings list ids of unwanted documents.

    In the settings, each view (a selection of documents) may name such files, whose documents it
    leaves out: `exclude: [takedowns.txt]`.

    Args:
        config: The project's settings.

    Raises:
        ConfigError: There is no such file, there are several, or it is in a bucket, where it cannot
            be changed.
    """
    names: set[str] = set()
    for view in config.views.values():
        names.update(view.files("exclude") or ())
    file = _only_local_file(config, names)
    if file is None:
        raise ConfigError(
            "it is not clear which list to add to",
            where=f"{config.file}: views",
            found=", ".join(sorted(names)) or "none",
            expected="one local file that views exclude",
            remedy="name it with --list, and in a view's `exclude`",
        )
    return file


def _only_local_file(config: ProjectConfig, names: Iterable[str]) -> Path | None:
    """Return the path of the only list of documents that the settings name, if it can be changed.

        takedowns.txt                the path of this file
        takedowns.txt, lists/*.txt   also the path of takedowns.txt: patterns are not counted
        a.txt, b.txt                 None: there are several
        lists                        None: it is a folder, with several lists in it
        s3://bucket/takedowns.txt    None: it is in a bucket

    Args:
        config: The project's settings.
        names: What is written in the settings: files, folders, addresses and patterns.
    """
    from nanoset_core.stages.given_files import has_wildcard

    files = [name for name in names if not has_wildcard(name)]
    if len(files) != 1 or is_remote(files[0]):
        return None
    path = config.local(files[0], "views.exclude")
    return None if path.is_dir() else path
