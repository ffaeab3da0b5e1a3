"""`nanoset init`: write a configuration to start from, and print what was chosen.

The command looks at the text in the folder `raw`, and writes a nanoset.yaml that fits it: keys of
text and ids, length of samples, splits. It prints each choice, such as `chose text_key: text`, and
what the user has to do next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import FOLDER, PATH, flag, option
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.untrusted import Multiline, shell_line
from nanoset_core.wording import format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.first_config.write import Start
    from nanoset_core.text.files.survey import RawText

_MAX_SHOWN = 3
"""How many files that are not read are named in a line."""


@click.command("init", short_help="Write a nanoset.yaml to start from.")
@click.argument("folder", type=FOLDER, default=Path())
@option("--text-key", "Key of the text, if the first lines do not show which one it is.")
@option("--tokenizer", "The tokenizer's file or folder; default: the one in FOLDER.", type=PATH)
@flag("--schema", "Only print the JSON schema of nanoset.yaml.")
def command(folder: Path, text_key: str | None, tokenizer: Path | None, schema: bool) -> None:
    """Write a nanoset.yaml to start from into FOLDER.

    FOLDER contains a tokenizer and a folder `raw`, with a folder of text for each corpus. The
    command chooses settings that fit them:

    From the first lines of each corpus, it finds out which keys contain the text and the ids. From
    the names of files, it sees which of them are for validation and tests.

    From the amount of text, it computes the length of samples, the splits and the length of the
    run.

    The command prints every choice that it makes, and explains it by a comment in the file. On a
    terminal, it asks you what it cannot decide.

    A JSON schema is written next to nanoset.yaml, so that editors complete keys and show mistakes.
    """
    from nanoset_core.project.first_config.template import schema_text
    from nanoset_core.project.first_config.write import write_config

    if schema:
        echo(Multiline(schema_text()), nl=False)
        return
    start = write_config(
        folder, text_key=text_key, tokenizer=tokenizer, ask=_ask, show_text=_print_text
    )
    if start.beside:
        _print_text_beside(folder / "raw", start.beside)
    error = _configuration_error(start.path)
    _print_result(start, error)
    if error is not None:
        echo(f"notice: {one_line(error)}: {error.remedy}", fg="yellow")
        if _is_about_tokenizer(error):
            echo(_how_to_name_tokenizer(start.path))


def _print_text(text: RawText) -> None:
    """Print which collections of texts (corpora) were found, and which files are not read.

        found web: 4 files, 1.2 GB
        notice: web: …
        not read: notes.docx, readme.pdf: no text that nanoset reads

    Args:
        text: What the folder `raw` contains.
    """
    from nanoset_core.wording import abbreviated

    # Corpora, with notices on their files, and folders that are no corpora.
    for name, corpus in text.corpora.items():
        n_files = format_count(len(corpus.texts), "file")
        echo(f"found {name}: {n_files}, {format_bytes(corpus.size)}")
        for notice in corpus.notices():
            echo(f"notice: {name}: {notice.text}", fg="yellow")
    for reason, names in _names_by_reason(text.unread_entries).items():
        echo(f"not read: {abbreviated(names, _MAX_SHOWN)}: {reason}", fg="yellow")


def _print_text_beside(raw: Path, names: Sequence[str]) -> None:
    """Print which files of text are in the wrong folder, and where to move them.

    Text has to be in the folder `raw`, in a subfolder for each corpus (a collection of texts).
    Users often put it next to `raw` at first:

        web.jsonl          not read
        raw/web/a.jsonl    read

    Args:
        raw: The folder `raw`.
        names: The files next to it, such as ["web.jsonl"].
    """
    from nanoset_core.wording import abbreviated

    n_files = format_count(len(names), "file")
    echo(
        f"not read: {n_files} of text outside of {raw}: {abbreviated(names, _MAX_SHOWN)}: "
        f"to have it read, move it to {raw / 'NAME'}, a folder for each corpus",
        fg="yellow",
    )


def _names_by_reason(reason_by_name: Mapping[str, str]) -> dict[str, list[str]]:
    """Group files that are not read by the reason, so that each reason is printed once.

    For example, {"a": "is empty", "b": "is empty"} becomes {"is empty": ["a", "b"]}.

    Args:
        reason_by_name: Name of a file → why it is not read.
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reason_by_name.items():
        names_by_reason.setdefault(reason, []).append(name)
    return names_by_reason


def _configuration_error(config: Path) -> NanosetError | None:
    """Return what the user has to correct in a new settings file before a build, or None.

    Usually it is the tokenizer, if the command did not find one. The error is that of a build.

    Args:
        config: The settings file, nanoset.yaml.
    """
    from nanoset_core.project.project import Project
    from nanoset_core.stages.shards.options import check_tokenizer

    try:
        check_tokenizer(Project.open(config))
    except NanosetError as error:
        return error
    return None


def _print_result(start: Start, error: NanosetError | None) -> None:
    """Print which settings were chosen and written, and what the user has to do next.

        chose text_key: body
        wrote nanoset.yaml: read it, name your tokenizer, then run `nanoset build`

    Args:
        start: The new settings file, nanoset.yaml, and the choices in it.
        error: What the user has to correct before a build, or None.
    """
    if not start.made:
        echo(
            f"nothing was changed: {start.path} already is what would be written now; "
            f"run `{build_command(start.path)}`"
        )
        return

    for choice in start.chosen:
        echo(f"chose {choice}")
    result = f"wrote {start.path}"
    has_text = bool(start.text.corpora)
    if not has_text:
        raw = start.path.parent / "raw"
        result += f", which names no corpus, since there is no text in {raw}"
    tasks = ", ".join(_next_tasks(start, error))
    echo(f"{result}: {tasks}")


def _next_tasks(start: Start, error: NanosetError | None) -> list[str]:
    """Return what the user has to do after the settings file was written.

        usually                   ["read it", "then run `nanoset build`"]
        no tokenizer was found    ["read it", "name your tokenizer", "then run `nanoset build`"]
        no text was found         ["put a folder for each corpus there", …]

    Args:
        start: The new settings file. "There" is the folder for text, which the caller names.
        error: What the user has to correct before a build, or None.
    """
    has_text = bool(start.text.corpora)
    tasks = ["read it"]
    if not has_text:
        tasks = ["put a folder for each corpus there", "name them below nanosets"]
    if error is not None and _is_about_tokenizer(error):
        tasks.append("name your tokenizer")
    tasks.append(f"then run `{build_command(start.path)}`")
    return tasks


def _is_about_tokenizer(error: NanosetError) -> bool:
    """Return whether a user has to correct the section `tokenizer` of nanoset.yaml."""
    # Such an error names the place as in "nanoset.yaml: tokenizer.file".
    return ": tokenizer." in str(error.where)


def _how_to_name_tokenizer(config: Path) -> str:
    """Return how a user can name the tokenizer after the settings file was written without one.

    The command does not change an existing file. So to let it choose the settings again, the user
    has to remove the file:

        to name your tokenizer, put it into projects/web, remove projects/web/nanoset.yaml and run
        `nanoset init projects/web` again; or set …

    Args:
        config: The settings file, nanoset.yaml.
    """
    folder = config.parent
    return (
        f"to name your tokenizer, put it into {folder.resolve()}, remove {config} and run "
        f"`{_init_command(folder)}` again; or set tokenizer.path and tokenizer.eod in {config}"
    )


def _init_command(folder: Path) -> str:
    """Return the command that writes the settings of a project, for the current folder.

    Args:
        folder: The project's folder.
    """
    if folder.resolve() == Path.cwd():
        return "nanoset init"
    return shell_line("nanoset", "init", _path_argument(folder))


def build_command(config: Path) -> str:
    """Return the command with which the user can build a project from the current folder.

        nanoset build                    the project is in the current folder
        nanoset build -c projects/web    it is in another folder

    Args:
        config: The project's settings file, nanoset.yaml.
    """
    folder = config.parent
    # With NANOSET_CONFIG, the command without a folder would build another project.
    is_here = folder.resolve() == Path.cwd() and not os.environ.get("NANOSET_CONFIG")
    if is_here:
        return "nanoset build"
    return shell_line("nanoset", "build", "-c", _path_argument(folder))


def _path_argument(folder: Path) -> str:
    """Return a path as the argument of a command, which must not look like an option."""
    path = str(folder)
    return f"./{path}" if path.startswith("-") else path


def _ask(question: str, answers: Sequence[str]) -> str | None:
    """Ask the user a question, and return the answer.

    Args:
        question: The question, without the list of answers.
        answers: The possible answers. The first one is the default.

    Returns:
        The answer; None if nobody can answer, since the command does not run in a terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    answer: str = click.prompt(question, type=click.Choice(answers), default=answers[0])
    return answer
