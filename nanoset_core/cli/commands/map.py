"""`nanoset map`: index mappings and blends before the trainer starts, or just their plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nanoset_core.cli.options import CONFIG_OPTION, ManyValued
from nanoset_core.errors import ConfigError
from nanoset_core.mapping.presets import PRESETS
from nanoset_core.mapping.splits import SPLITS, SplitName

if TYPE_CHECKING:
    from nanoset_core.mapping.coverage import MemberCoverage


@click.command("map", cls=ManyValued)
@click.argument("nanosets", nargs=-1)
@CONFIG_OPTION
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be built; build nothing.")
@click.option("--split-name", type=click.Choice(SPLITS), multiple=True, help="Only this split; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--data-path", multiple=True, help="Without a project: prefixes, or pairs of weight and prefix.")
@click.option("--train-data-path", multiple=True, help="The same for one split of its own.")
@click.option("--valid-data-path", multiple=True)
@click.option("--test-data-path", multiple=True)
@click.option("--data-args-path", type=click.Path(path_type=Path, dir_okay=False), help="A file with --data-path.")
@click.option(
    "--per-split-data-args-path", type=click.Path(path_type=Path, dir_okay=False), help="A JSON file with all three."
)
@click.option("--split", default="969,30,1", show_default=True, help="Shares of train, valid and test.")
@click.option("--seq-length", type=click.IntRange(1), help="Tokens of a sample.")
@click.option("--seed", default=1234, show_default=True)
@click.option("--train-samples", type=click.IntRange(1))
@click.option("--valid-samples", type=click.IntRange(1))
@click.option("--test-samples", type=click.IntRange(1))
@click.option("--train-iters", type=click.IntRange(1), help="With the next three: the samples a run will ask for.")
@click.option("--global-batch-size", type=click.IntRange(1))
@click.option("--eval-interval", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--eval-iters", type=click.IntRange(0), default=100, show_default=True)
@click.option("--data-cache-path", type=click.Path(path_type=Path, file_okay=False), help="Where index files go.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="megatron", show_default=True)
@click.option("--tokenizer-identifiers", default="{}", help="JSON, or a file of it: the trainer tokenizer's own.")
@click.option("--trainer-path", multiple=True, help="HERE=THERE: the trainer spells paths that begin so otherwise.")
@click.option("--max-epochs", type=click.FloatRange(1), help="How often a dataset may be read at most.")
@click.option(
    "--on-exhaustion", type=click.Choice(["raise", "repeat", "stop", "redistribute"]), default="raise",
    show_default=True,
)  # fmt: skip
def command(
    nanosets: tuple[str, ...],
    config: Path,
    plan_only: bool,
    split_name: tuple[SplitName, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Build the index files that a trainer looks for, so that it starts at once; or, with --plan, show what they hold.

    In a project, for NANOSETS (default: all). With Megatron-LM's data arguments, for any .bin/.idx without a project.
    """
    data = ("data_path", "train_data_path", "valid_data_path", "test_data_path", "data_args_path")
    splits = split_name or SPLITS
    given = click.get_current_context().get_parameter_source
    if any(options[key] for key in (*data, "per_split_data_args_path")):
        _check_unused(list(nanosets), "--data-path and the like name the data", "leave the names of nanosets out")
        _map_alone(options, splits, plan_only=plan_only, as_json=as_json)
    else:
        unused = [f"--{key.replace('_', '-')}" for key in sorted(options) if given(key) is ParameterSource.COMMANDLINE]
        _check_unused(
            unused, "a project's nanosets have their settings in nanoset.yaml", "add --data-path, or leave it out"
        )
        _map_project(config, nanosets, splits, plan_only=plan_only, as_json=as_json)


def _check_unused(given: list[str], why: str, remedy: str) -> None:
    if given:
        raise ConfigError(
            "this would have no effect", found=", ".join(given), expected=f"nothing, since {why}", remedy=remedy
        )


def _map_project(
    config: Path, names: tuple[str, ...], splits: tuple[SplitName, ...], *, plan_only: bool, as_json: bool
) -> None:
    from nanoset_core.cli.terminal import progress_bars
    from nanoset_core.mapping.plan import LengthReader
    from nanoset_core.pipeline import handoff, mapping
    from nanoset_core.pipeline.planning import NanosetContext
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    chosen = names or tuple(project.config.nanosets)
    reader = LengthReader()
    nanosets = {name: NanosetContext(project, name, reader) for name in chosen}
    planned = {(name, split): nanoset.plan(split) for name, nanoset in nanosets.items() for split in splits}
    rows = {key: list(zip(found.corpora, found.members, strict=False)) for key, found in planned.items()}
    _show(rows, {key: found.exceeded for key, found in planned.items()}, as_json)
    if plan_only:
        return
    with progress_bars() as (listener, _):
        project = Project.open(config, listener)
        for name in chosen:
            for split in splits:
                mapping.write_mappings(project, name, split)
                if project.nanoset(name).is_blended:
                    mapping.write_blended(project, name, split)
            if splits == SPLITS:
                click.echo(f"{name}: {handoff.write_handoff(project, name).folder}/START.md says how to start on it")


def _map_alone(options: dict[str, Any], splits: tuple[SplitName, ...], *, plan_only: bool, as_json: bool) -> None:
    from nanoset_core.handoff.arguments import config_from_arguments
    from nanoset_core.loading.builder import NanosetBuilder
    from nanoset_core.mapping.coverage import coverage
    from nanoset_core.mapping.epoch_limits import apply_epoch_limits
    from nanoset_core.mapping.plan import LengthReader, plan_split

    config = config_from_arguments(options, splits)
    most = options["max_epochs"]
    prefixes = [prefix for split in SPLITS for prefix in (config.blend(split) or ([], None))[0]]
    limits = {} if most is None else dict.fromkeys(prefixes, most)
    reader, rows = LengthReader(), {}
    limited = apply_epoch_limits(config, limits, options["on_exhaustion"], reader)
    for split in splits:
        plan = plan_split(limited.config, split, reader)
        members = coverage(plan, limited.config, limits) if plan is not None else []
        rows["data", split] = [(Path(member.prefix).name, member) for member in members]
    exceeded = {
        ("data", split): tuple(one for one in limited.exceeded if one.split == split) for split in splits
    }  # fmt: skip
    _show(rows, exceeded, as_json)
    if not plan_only:
        for split, found in zip(SPLITS, NanosetBuilder(limited.config).build(), strict=True):
            if found is not None:
                folder = found.cache_dir or "memory only: no cache folder can be written"
                click.echo(f"{split}: {len(found):,} samples, {found.unique_description_hash} in {folder}", err=True)


def _show(
    rows: dict[tuple[str, SplitName], list[tuple[str, MemberCoverage]]],
    exceeded: dict[tuple[str, SplitName], tuple[Any, ...]],
    as_json: bool,
) -> None:
    from nanoset_core.cli.plan_table import plan_table
    from nanoset_core.cli.terminal import wide_console

    if as_json:
        plain = [
            {"nanoset": name, "split": split, "members": [{"corpus": corpus, **row.to_json()} for corpus, row in found]}
            for (name, split), found in rows.items()
        ]
        click.echo(json.dumps(plain, indent=1))
        return
    console = wide_console()
    for (name, split), found in rows.items():
        if found:
            console.print(plan_table(f"{name} {split}", found))
        else:
            console.print(f"{name} {split}: no data", highlight=False)
    for splits in exceeded.values():
        for one in splits:
            click.secho(
                f"{Path(one.prefix).name} would have been read {one.epochs:.2f} times in {one.split}, above its limit "
                f"of {one.limit:g}", fg="yellow", err=True,
            )  # fmt: skip
