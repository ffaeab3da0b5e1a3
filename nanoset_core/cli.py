"""The `nanoset` command. Every subcommand is a thin call; those that need Dagster come from nanoset_assets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from nanoset_core.errors import NanosetError

PLUGINS = "nanoset.commands"


class _Commands(click.Group):
    """Subcommands of this module, and those that installed packages add; the latter are imported when used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *(entry.name for entry in entry_points(group=PLUGINS))})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if (command := super().get_command(context, name)) is not None:
            return command
        for entry in entry_points(group=PLUGINS, name=name):
            return entry.load()
        return None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nanoset-platform", prog_name="nanoset")
def nanoset() -> None:
    """From raw text to training data: tokenized, indexed, blended and shuffled."""


@nanoset.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"))
@click.option("--megabytes", default=24.0, show_default=True, help="About how much text to take.")
@click.pass_context
def demo(context: click.Context, folder: Path, megabytes: float) -> None:
    """Write an example project of real text into FOLDER (default: demo) and build it."""
    from nanoset_core.config import CONFIG_FILE
    from nanoset_core.demo.writing import write_demo

    if not write_demo(folder, megabytes=megabytes, say=lambda line: click.echo(f"{line} …", err=True)):
        click.echo(f"{folder / CONFIG_FILE} is there already: building what is missing or stale", err=True)
    build = nanoset.get_command(context, "build")
    if build is None:
        raise click.ClickException("`nanoset build` is not installed: install nanoset-platform whole")
    context.invoke(build, config=folder / CONFIG_FILE)


@nanoset.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(folder: Path) -> None:
    """Write a nanoset.yaml to start from into FOLDER, naming the corpora that its raw folder holds."""
    from nanoset_core.starting import write_config

    path = write_config(folder)
    click.echo(f"wrote {path}: read it, name your tokenizer, then run `nanoset build`")


@nanoset.command()
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option("--tokenizer", type=click.Path(path_type=Path, dir_okay=False), help="A tokenizer.json to decode with.")
@click.option("--sequences", default=3, show_default=True, help="How many sequences to show.")
def inspect(prefix: Path, tokenizer: Path | None, sequences: int) -> None:
    """Show what the indexed dataset at PREFIX (.bin/.idx) holds, and its first sequences."""
    from nanoset_core.inspection.summary import describe_dataset

    for line in describe_dataset(prefix, tokenizer, sequences):
        click.echo(line)


class _ManyValued(click.Command):
    """Takes several values after one flag, as the peers' tools do: --input a b c."""

    many = ("--input", "--json-keys", "--json-key")

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        flag: str | None = None
        for argument in args:
            if argument.startswith("--"):
                flag = argument if argument in self.many else None
                if flag is None:
                    spread.append(argument)
            elif flag is not None:
                spread += [flag, argument]
            else:
                spread.append(argument)
        return super().parse_args(context, spread)


@nanoset.command(cls=_ManyValued)
@click.option("--input", "inputs", multiple=True, required=True, help="Files, folders or patterns; several may follow.")
@click.option("--output-prefix", type=click.Path(path_type=Path), required=True, help="Names of the outputs begin so.")
@click.option(
    "--tokenizer",
    "--tokenizer-model",
    "--pretrained-model-name-or-path",
    "tokenizer",
    type=click.Path(path_type=Path),
    required=True,
    help="A tokenizer.json, or the folder that holds one.",
)
@click.option("--json-keys", "--json-key", "keys", multiple=True, default=("text",), show_default=True)
@click.option("--preset", type=click.Choice(["megatron", "nanotron", "nemo"]), default="megatron", show_default=True)
@click.option("--append-eod", "--append-eos", "append_eod", is_flag=True, help="End documents with the EOD token.")
@click.option("--eod", help="The EOD token; default: the one that tokenizer_config.json beside the tokenizer names.")
@click.option("--bos", help="A token to begin every document with.")
@click.option("--workers", type=click.IntRange(1), help="Processes; default: one for each processor.")
@click.option("--partitions", type=click.IntRange(1), default=1, help="Order documents as if dealt to so many files.")
@click.option("--keep-sequential-samples", is_flag=True, help="Keep the input's order whatever the partitions.")
@click.option("--per-file", is_flag=True, help="One pair for each input file, named after it.")
@click.option(
    "--engine", type=click.Choice(["auto", "numpy", "tokenizers", "gigatoken"]), default="auto", show_default=True
)
@click.option("--on-reject", type=click.Choice(["quarantine", "fail"]), default="quarantine", show_default=True)
@click.option("--max-rejected-fraction", type=click.FloatRange(0, 1), default=0.01, show_default=True)
@click.option(
    "--scratch", type=click.Path(path_type=Path, file_okay=False), help="Where to make the folder for unfinished work."
)
def tokenize(
    inputs: tuple[str, ...],
    output_prefix: Path,
    tokenizer: Path,
    append_eod: bool,
    eod: str | None,
    per_file: bool,
    scratch: Path | None,
    **options: object,
) -> None:
    """Tokenize files into .bin/.idx pairs, byte for byte as Megatron-LM's, nanotron's or NeMo's tool."""
    from nanoset_core.terminal import progress_bars
    from nanoset_core.tokenization.inputs import by_file, resolve_inputs
    from nanoset_core.tokenization.preprocess import PreprocessOptions, end_token, preprocess, tokenizer_path
    from nanoset_core.tokenization.shards import engine_choice

    file = tokenizer_path(tokenizer)
    settings = PreprocessOptions(tokenizer=file, eod=end_token(file, eod) if append_eod else None, **options)  # type: ignore[arg-type]
    found = resolve_inputs(inputs)
    jobs = by_file(found, output_prefix) if per_file else [(found, output_prefix)]
    click.echo(f"engine {engine_choice(file, settings.engine)}", err=True)
    with progress_bars() as (listener, _):
        results = [
            result
            for files, prefix in jobs
            for result in preprocess(files, prefix, settings, scratch=scratch, listener=listener)
        ]
    for result in results:
        facts = result.facts
        click.echo(
            f"{result.prefix}: {facts.documents:,} documents, {facts.tokens:,} tokens, "
            f"{facts.rejected + facts.faults:,} rejected" + (f" ({result.rejects})" if result.rejects else "")
        )


@nanoset.command()
@click.option("--input", "folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.option("--output-prefix", type=click.Path(path_type=Path), required=True, help="Of the merged pair.")
def merge(folder: Path, output_prefix: Path) -> None:
    """Join all .bin/.idx pairs of a folder, sorted by name, into one, as Megatron-LM's merge_datasets does."""
    from nanoset_core.errors import MissingError
    from nanoset_core.indexed import MMapIndexedDataset, merge_indexed_datasets

    prefixes = sorted(path.with_suffix("") for path in folder.glob("*.idx"))
    if not prefixes:
        raise MissingError("no datasets to merge", where=folder, expected="pairs of .bin and .idx")
    merge_indexed_datasets(prefixes, output_prefix)
    dataset = MMapIndexedDataset(output_prefix)
    documents = len(dataset.document_indices) - 1
    click.echo(f"{output_prefix}: {len(prefixes):,} datasets, {documents:,} documents, {len(dataset.tokens):,} tokens")


@nanoset.command("import-parquet")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="A .jsonl, .jsonl.gz or .jsonl.zst file."
)
@click.option("--columns", help="Keep only these, in this order: a,b,c.")
def import_parquet(sources: tuple[Path, ...], output: Path, columns: str | None) -> None:
    """Write the rows of Parquet or Arrow SOURCES (files, or folders such as Hugging Face data sets') as JSON lines.

    Corpora may hold .parquet and .arrow files as they are; this is for tools that want JSON lines.
    """
    from nanoset_core.raw.importing import import_parquet as run

    facts = run(sources, output, columns=columns.split(",") if columns else None)
    click.echo(f"{output}: {facts.rows:,} rows of {facts.files:,} files, {facts.written_bytes:,} bytes of JSON lines")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors of ours are shown as text, without a traceback."""
    try:
        nanoset.main(args=arguments, prog_name="nanoset")
    except NanosetError as error:
        click.secho("error: ", fg="red", bold=True, err=True, nl=False)
        click.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
