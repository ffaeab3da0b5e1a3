"""`nanoset explain`: trace training samples back to documents, and documents to samples.

`nanoset explain pretrain train 1024` prints the documents of a sample, with file, line and text;
`--document ID` finds the samples that contain a document. With `--run run.yaml`, the command says
which training step, rank and micro-batch read a sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, FILE, JSON_OPTION, option
from nanoset_core.cli.origin_lines import (
    context_lines,
    places_lines,
    reading_lines,
    sample_lines,
    step_lines,
)
from nanoset_core.cli.terminal import print_json
from nanoset_core.errors import NanosetError
from nanoset_core.untrusted import Multiline

if TYPE_CHECKING:
    from nanoset_core.project.project import Project


_MAX_NAMES = 10
"""How many nanosets and webdatasets an error names."""


class StepsType(click.ParamType):  # type: ignore[type-arg]
    """A step as a number, or several as A..B, the last included."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the text that a user gave for --step to a range of training steps.

            "7"        range(7, 8)
            "7..9"     range(7, 10): the last step is included

        Args:
            value: The text. click may also pass a range that was converted before.
            param: The option, for errors.
            ctx: The command, for errors.

        Raises:
            BadParameter: The text is neither a number from 1 on nor two of them in order.
        """
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"([1-9][0-9]{0,11})(?:\.\.([1-9][0-9]{0,11}))?", value)
        if match is None:
            self.fail(f"{value!r} is not a step, such as 7, or a range of steps, 7..9.", param, ctx)
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first:
            self.fail(f"{value!r} ends before it begins.", param, ctx)
        return range(first, last + 1)


class _ExplainCommand(click.Command):
    """A command whose last argument may be a negative number: a sample counted from the end."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments that the user gave; click calls this.

        Args:
            ctx: click's state of the command.
            args: The arguments, such as ["pretrain", "train", "-1", "--json"].
        """
        options_with_value: list[str] = []
        for param in self.params:
            if isinstance(param, click.Option) and not param.is_flag:
                options_with_value += param.opts
        return super().parse_args(ctx, _with_negative_number_last(args, options_with_value))


def _with_negative_number_last(args: list[str], options_with_value: Sequence[str]) -> list[str]:
    """Move a negative number to the end of a command's arguments, so that it is no option.

        pretrain train -1 --json       pretrain train --json -- -1
        --number -1 pretrain           unchanged: it is the value of --number

    Args:
        args: The arguments.
        options_with_value: Options that are followed by a value, such as "--number".
    """
    if "--" in args:
        return args  # the user has said where the options end
    for position, argument in enumerate(args):
        is_negative = re.fullmatch(r"-[0-9]+", argument) is not None
        is_value = position > 0 and args[position - 1] in options_with_value
        if is_negative and not is_value:
            return [*args[:position], *args[position + 1 :], "--", argument]
    return args


@click.command(
    "explain",
    cls=_ExplainCommand,
    short_help="Show the documents of a sample or a step, or a document's samples and steps.",
)
@click.argument("nanoset", metavar="NAME", required=False)
@click.argument("split", required=False)
@click.argument("sample", type=int, required=False)
@CONFIG_OPTION
@option("--document identity", "Find the samples that contain the document with this id.")
@option(
    "--file",
    "Find the samples that contain the document of this line: corpus/file:line, as explain prints "
    "it, or file:line, relative to the folder of the corpus. --line may give the line separately.",
)
@option("--line", "Line of --file, from 1; for a table its row.", type=click.IntRange(1))
@option(
    "--number",
    "Find the samples that contain the document with this number in its corpus, from 0, as explain "
    "prints it.",
    type=click.IntRange(0),
)
@option("--corpus", "Look for the document in this corpus only.")
@option(
    "--run",
    "A training run, in place of NAME: its run.yaml, completed from the one in the handoff.",
    type=FILE,
)
@option(
    "--step",
    "With --run: a step, numbered from 1 as in the trainer's log; or several, as A..B.",
    type=StepsType(),
)
@option("--rank", "With --step: only this data-parallel rank.", type=click.IntRange(0))
@option(
    "--from-log",
    "With --run: complete run.yaml from this log of Megatron-LM, and print it.",
    type=FILE,
)
@JSON_OPTION
@option(
    "--show", "How many samples to list.", type=click.IntRange(0), default=20, show_default=True
)
def command(
    nanoset: str | None,
    split: str | None,
    sample: int | None,
    config: Path,
    identity: str | None,
    file: str | None,
    line: int | None,
    number: int | None,
    corpus: str | None,
    run: Path | None,
    step: range | None,
    rank: int | None,
    from_log: Path | None,
    as_json: bool,
    show: int,
) -> None:
    """Trace training samples back to documents, and documents to samples.

    To show the documents of a sample, with file, line and text, give the name of the nanoset, the
    split and the number of the sample: `nanoset explain pretrain train 3`. Negative numbers count
    from the end: -1 is the last sample.

    For a sample of a webdataset, give the name of the webdataset, and then the key of the sample
    (00000003_00000017), its number over all tars (6161), or a tar and the number in this tar
    (shard-00000003.tar 17).

    To show which samples contain a document, give NAME, and SPLIT if it is a nanoset. Name the
    document by --document, --file or --number.

    To show what a step of a training run read, describe the run in a file `run.yaml`, and pass
    `--run run.yaml --step 12345` instead of NAME. To show which steps read a document, pass --run
    and the document.
    """
    document = {
        "identity": identity,
        "file": file,
        "line": line,
        "number": number,
        "corpus": corpus,
    }
    if run is None:
        if step is not None or rank is not None or from_log is not None:
            raise click.UsageError(
                "--step, --rank and --from-log need --run, with the run.yaml of a training run"
            )
        if nanoset is None:
            raise click.UsageError(f"Missing argument 'NAME'{_possible_names(config)}")
        _explain_dataset(config, nanoset, split, sample, document, show=show, as_json=as_json)
    elif from_log is not None:
        if as_json:
            raise click.UsageError("--from-log prints a run.yaml, which is no JSON: omit --json")
        _complete_run(run, from_log)
    elif nanoset is not None:
        raise click.UsageError(
            "give NAME or --run, not both: run.yaml names the handoffs, and so the nanosets"
        )
    else:
        _explain_run(config, run, step, rank, document, show=show, as_json=as_json)


def _possible_names(config: Path) -> str:
    """Return the names that the argument NAME may have, as the rest of a sentence.

    For example: ": a nanoset or webdataset of nanoset.yaml, one of pretrain, plain, shuffled". It
    is empty if the settings cannot be read, or have neither.

    Args:
        config: The project's settings file.
    """
    from nanoset_core.project.project import Project
    from nanoset_core.wording import abbreviated

    try:
        settings = Project.open(config).config
    except NanosetError:
        return ""
    names = [*settings.nanosets, *settings.webdatasets]
    if not names:
        return ""
    return f": a nanoset or webdataset of {config}, one of {abbreviated(names, _MAX_NAMES)}"


def _explain_run(
    config: Path,
    run: Path,
    step: range | None,
    rank: int | None,
    document: Mapping[str, Any],
    *,
    show: int,
    as_json: bool,
) -> None:
    """Print what steps of a training run have read, or which steps have read a document.

        --run run.yaml --step 7           which samples and documents step 7 has read
        --run run.yaml --document x7      in which steps the document with the id x7 was read

    Args:
        config: The project's nanoset.yaml.
        run: The file run.yaml, which describes the training run.
        step: Numbers of the steps; None to look for a document.
        rank: Only what this process of the trainer (a data-parallel rank) has read; None for all.
        document: The options that name a document: parameter → value or None.
        show: How many samples to list.
        as_json: Whether to print JSON.

    Raises:
        UsageError: Not exactly one of steps and a document is given.
    """
    has_steps = step is not None
    has_document = _names_document(document)
    if has_steps == has_document:  # both are given, or neither
        ways = "--step N, --step A..B, --document ID, --file F --line N, --number N"
        raise click.UsageError(f"with --run give one of: {ways}")
    if step is not None:
        _explain_steps(config, run, step, rank, show=show, as_json=as_json)
        return
    if rank is not None:
        raise click.UsageError("--rank needs --step")
    _find_steps(config, run, document, show=show, as_json=as_json)


def _names_document(document: Mapping[str, Any]) -> bool:
    """Return whether the user named a document, by its id, file or number.

        --document x7                     yes
        --file web/a.jsonl --line 3       yes
        --corpus web                      no: this only limits where to look for a document

    Args:
        document: The options about a document: parameter → value or None.
    """
    return any(document[option] is not None for option in ("identity", "file", "number"))


def _explain_dataset(
    config: Path,
    name: str,
    split: str | None,
    sample: int | None,
    document: Mapping[str, Any],
    *,
    show: int,
    as_json: bool,
) -> None:
    """Print the documents of a training sample, or the samples that contain a document.

    Samples are stored in two ways. The user names them accordingly:

        pretrain train 1024             sample 1024 of a nanoset, whose samples index files list
        shuffled shard-3.tar 17         sample 17 of a tar of a webdataset, which is a set of tars
        pretrain train --document x7    all samples that contain the document with the id x7

    Args:
        config: The project's nanoset.yaml.
        name: The nanoset or webdataset.
        split: A split of the nanoset; or the tar, key or number of a sample of the webdataset.
        sample: Number in the split or tar.
        document: The options that name a document: parameter → value or None.
        show: How many samples to list.
        as_json: Whether to print JSON.

    Raises:
        UsageError: Both a sample and a document are given, or neither of them, or no split.
    """
    from nanoset_core.project.project import Project

    project = Project.open(config)
    is_webdataset = _names_webdataset(project, name, split)
    if split is None and not is_webdataset:
        raise click.UsageError("Missing argument 'SPLIT': train, valid or test")

    # A sample of a nanoset is given by a split and a number. One of a webdataset can be given by
    # its key alone, which is then the argument `split`.
    if is_webdataset:
        has_sample = split is not None
    else:
        has_sample = sample is not None
    _check_one_way(document, has_sample=has_sample)

    with project.outputs.access.named():
        if not has_sample:
            searched_split = None if is_webdataset else split
            answer = _explain_document(project, name, searched_split, document, show)
        elif is_webdataset:
            answer = _explain_context(project, name, str(split), sample)
        else:
            answer = _explain_sample(project, name, str(split), int(sample or 0))
    _print(answer.values, answer.lines, as_json=as_json)


def _check_one_way(document: Mapping[str, Any], *, has_sample: bool) -> None:
    """Check that the user gave either a training sample or a document.

    Args:
        document: The options about a document: parameter → value or None.
        has_sample: Whether a sample was given.

    Raises:
        UsageError: Both were given, or neither.
    """
    # Some options, such as --file, name a document only together with others.
    has_document_option = any(value is not None for value in document.values())
    if has_sample and has_document_option:
        raise click.UsageError("give a SAMPLE, or a document to look for, not both")
    if not has_sample and not _names_document(document):
        raise click.UsageError(
            "give a SAMPLE, or a document to look for: "
            "--document ID, --file F --line N, or --number N"
        )


class _OriginAnswer(NamedTuple):
    """What the command prints."""

    values: Any
    """Plain values, for JSON."""
    lines: Iterable[str]
    """Lines of text."""


def _explain_document(
    project: Project, name: str, split: str | None, document: Mapping[str, Any], show: int
) -> _OriginAnswer:
    """Find the training samples that contain a document.

    Args:
        project: The project with its built outputs.
        name: Where to look for samples: in a nanoset (index files) or a webdataset (tars).
        split: A split of the nanoset, such as "train"; None for a webdataset.
        document: The options that name the document, such as {"identity": "x7", "file": None, …}.
        show: How many samples to list.

    Returns:
        The document with its samples, as plain values and as lines.
    """
    from nanoset_core.lineage.find import find_document

    documents = find_document(project, name, split, **document)
    return _OriginAnswer(_to_json(documents), places_lines(documents, split, show))


def _explain_context(project: Project, name: str, place: str, number: int | None) -> _OriginAnswer:
    """Find the documents from which a training sample in a tar was made.

    A webdataset stores samples in tars. There are three ways to name one:

        place "shard-00000003.tar", number 17    by its tar, and its number in the tar
        place "00000003_00000017"                by its key
        place "6161"                             by its number over all tars

    Args:
        project: The project with its built outputs.
        name: The webdataset.
        place: A tar; or the key or number of the sample.
        number: Number of the sample in the tar, if `place` is one.

    Returns:
        The sample with its documents, as plain values and as lines.
    """
    from nanoset_core.lineage.webdataset import explain_context

    context = explain_context(project, name, place, number)
    return _OriginAnswer(asdict(context), context_lines(context))


def _explain_sample(project: Project, name: str, split: str, sample: int) -> _OriginAnswer:
    """Find the documents from which a training sample was made.

    Args:
        project: The project with its built outputs.
        name: The nanoset, a blend of datasets for training. Index files store the order of its
            samples.
        split: The split: train, valid or test.
        sample: Number of the sample, from 0.

    Returns:
        The sample with its documents, as plain values and as lines.
    """
    from nanoset_core.lineage.explain import explain_sample

    sample_origin = explain_sample(project, name, split, sample)
    return _OriginAnswer(asdict(sample_origin), sample_lines(sample_origin))


def _names_webdataset(project: Project, name: str, second_argument: str | None) -> bool:
    """Return whether a name is that of a webdataset, and not of a nanoset.

    Both are training data: a webdataset stores its samples in tars, a nanoset has index files.

    Args:
        project: The project with its nanoset.yaml.
        name: The name that the user gave.
        second_argument: The argument after it, or None.
    """
    from nanoset_core.sampling.splits import SPLITS

    if name in project.config.webdatasets:
        return True
    if name in project.config.nanosets:
        return False
    # The name may have been removed from nanoset.yaml. A user names a split only of a nanoset, as
    # in `pretrain train 1024`.
    is_split = second_argument in SPLITS
    return not is_split


def _explain_steps(
    config: Path, run: Path, steps: range, rank: int | None, *, show: int, as_json: bool
) -> None:
    """Print what steps of a training run have read: each sample, and the documents in it.

    Args:
        config: The project's nanoset.yaml.
        run: The file run.yaml, which describes the training run.
        steps: Numbers of the steps, such as range(7, 10).
        rank: Only what this process of the trainer (a data-parallel rank) has read; None for all.
        show: How many samples of each step to list; JSON has all of them.
        as_json: Whether to print JSON.
    """
    from nanoset_core.lineage.run import explain_steps
    from nanoset_core.project.project import Project

    project = Project.open(config)
    max_samples = None if as_json else show  # of each step
    with project.outputs.access.named():
        origins = explain_steps(project, run, steps, rank, max_samples)

    # A single step is printed as an object, and only a range A..B as a list.
    values: Any = _to_json(origins)
    if len(steps) == 1:
        values = values[0]
    _print(values, step_lines(origins), as_json=as_json)


def _find_steps(
    config: Path, run: Path, document: Mapping[str, Any], *, show: int, as_json: bool
) -> None:
    """Print in which steps of a training run a document was read.

    Args:
        config: The project's nanoset.yaml.
        run: The file run.yaml, which describes the training run.
        document: The options that name the document, such as {"identity": "x7", "file": None, …}.
        show: How many steps to list; JSON has all of them.
        as_json: Whether to print JSON.
    """
    from nanoset_core.lineage.run import find_steps
    from nanoset_core.project.project import Project

    project = Project.open(config)
    with project.outputs.access.named():
        documents = find_steps(project, run, **document)
    _print(_to_json(documents), reading_lines(documents, show), as_json=as_json)


def _complete_run(run: Path, log: Path) -> None:
    """Print a run.yaml, the description of a training run, completed from the log of that run.

    The log says, for example, how large the batches were. If run.yaml says something else, there is
    a warning.

    Args:
        run: The run.yaml, which is not changed.
        log: A log of Megatron-LM, the trainer.
    """
    from nanoset_core.stages.handoff.train_log import complete_run_yaml

    completed = complete_run_yaml(run, log)
    echo(Multiline(completed.text), nl=False)
    for difference in completed.differences:
        echo(f"warning: {difference}", err=True)


def _to_json(records: Iterable[Any]) -> list[dict[str, Any]]:
    """Return dataclasses as plain values."""
    return [asdict(record) for record in records]


def _print(values: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the answer of the command.

    Args:
        values: The answer as plain values, for JSON.
        lines: The answer as lines of text.
        as_json: Whether to print JSON.
    """
    if as_json:
        print_json(values, ensure_ascii=False)
        return
    for line in lines:
        echo(line)
