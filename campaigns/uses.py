"""One ordinary use of every command of nanoset, and a small folder in which all of them work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from helpers.building import run_stages
from helpers.sample_project import EOD, encoded, jsonl, sentences, tokenizer_json
from nanoset_core.cli import nanoset
from nanoset_core.project.project import Project
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin

_SETTINGS = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
tokenization: {{workers: 2, range_mib: 0.005}}
nanosets:
  pretrain: {{blend: {{a: 0.7, b: 0.3}}, sequence_length: 16, split: "80,20", trainer_path: /data}}
webdatasets:
  shuffled: {{corpora: [a, b], sequence_length: 16, samples_per_shard: 256, member: npy}}
pbin: [a]
views: {{few: {{of: a, exclude: drop.txt, split: {{keep: [0.2, 1]}}}}}}
"""
"""The nanoset.yaml of the folder's project."""


@dataclass(frozen=True, slots=True)
class Use:
    """A command line that works, and what a campaign must know to disturb it.

    All paths are relative to the folder that `make_world` fills.
    """

    words: str
    """The command line. It may contain {input} and {output}, the paths below; {project}, the option
    that names the input as a nanoset.yaml; and {tokenizer}, the options that name a tokenizer.
    """
    input: str | None = None
    """Path of the input."""
    output: str | None = None
    """Path of the output: a new file or folder, in a folder that contains nothing else."""
    onto: tuple[str, ...] = ()
    """Outputs that are the input, or a part of it: the command must refuse each of them."""
    other: str = ""
    """Options that lead to other content of the output."""
    rewrites: tuple[str, ...] = ()
    """Existing files, and folders ending in /, that the command may change."""
    disks: tuple[str, ...] = ()
    """Folders that may be a small disk, in addition to the folder of the output."""

    @property
    def needs_dagster(self) -> bool:
        """Whether the command starts Dagster, which takes many seconds."""
        return self.words.startswith(("build", "demo", "purge"))

    def line(self, *, input: str | None = None, output: str | None = None) -> list[str]:
        """Return the words of the command line.

        Args:
            input: Path to use instead of the usual input.
            output: Path to use instead of the usual output.
        """
        input_path = input or self.input
        output_path = output or self.output
        line = self.words.format(
            input=input_path,
            output=output_path,
            tokenizer=f"--tokenizer tokenizer.json --eod {EOD}",
            project=f"-c {input_path}",
        )
        return line.split()


USES: dict[str, Use] = {
    "build": Use("build {project}", input="nanoset.yaml", rewrites=("data/",)),
    "build, from nothing": Use(
        "build {project}", input="unbuilt.yaml", disks=("unbuilt", ".dagster", "cache")
    ),
    "build, by force": Use(
        "build --force -s a {project}", input="nanoset.yaml", rewrites=("data/",)
    ),
    "columns": Use("columns a {project}", input="nanoset.yaml"),
    "demo": Use("demo {output} --megabytes 3", output="made/demo", onto=("nanoset.yaml",)),
    "diff": Use("diff a {project}", input="nanoset.yaml"),
    "explain": Use("explain pretrain train 0 {project}", input="nanoset.yaml"),
    "explain, a document": Use(
        "explain pretrain train --number 3 --corpus a {project}", input="nanoset.yaml"
    ),
    "explain, of tars": Use("explain shuffled 0 {project}", input="nanoset.yaml"),
    "export": Use(
        "export {input} --format datatrove -o {output}",
        input="pairs/x",
        output="made/out",
        other="--tokenizer-name b",
    ),
    "export, in samples": Use(
        "export {input} --format mds --sequence-length 9 -o {output}",
        input="pairs/x",
        output="made/out",
    ),
    "gc": Use("gc --yes --unfinished {project}", input="nanoset.yaml", rewrites=("data/",)),
    "import-parquet": Use(
        "import-parquet {input} --output {output}",
        input="table.parquet",
        output="made/t.jsonl.gz",
        onto=("table.parquet", "tables/new.jsonl"),
        other="--columns text",
    ),
    "init": Use("init {output}", output="made/new", onto=(".", "nanoset.yaml")),
    "init, beside text": Use("init bare"),
    "inspect": Use("inspect {input} --tokenizer tokenizer.json", input="pairs/x"),
    "map": Use(
        "map --data-path {input} --seq-length 16 --data-cache-path {output}",
        input="pairs/x",
        output="made/cache",
        onto=("pairs",),
    ),
    "map, of a project": Use("map {project}", input="longer.yaml", rewrites=("data/",)),
    "merge": Use(
        "merge --input {input} --output-prefix {output}",
        input="pairs",
        output="made/all",
        onto=("pairs/x", "pairs/all"),
    ),
    "pbin write": Use(
        "pack {input} --output {output} {tokenizer} --workers 1",
        input="raw/a",
        output="made/a.pbin",
        onto=("raw/a/a.jsonl", "tokenizer.json"),
        other="--eod <|pad|>",
    ),
    "pbin write, by workers": Use(
        "pack {input} --output {output} {tokenizer} --workers 2",
        input="raw/a",
        output="made/a.pbin",
    ),
    "pbin write, of a pair": Use(
        "pbin write {input} --output {output}",
        input="pairs/x",
        output="made/a.pbin",
        onto=("pairs/x.bin", "pairs/x.idx"),
        other="--vocab-size 70000",
    ),
    "pbin merge": Use(
        "pbin merge {input} packs/y.pbin --output {output}",
        input="packs/x.pbin",
        output="made/m.pbin",
        onto=("packs/x.pbin", "packs/y.pbin"),
        other="packs/y.pbin",
    ),
    "pbin shuffle": Use(
        "pbin shuffle {input} --output {output} --seed 1",
        input="packs/x.pbin",
        output="made/s.pbin",
        onto=("packs/x.pbin",),
        other="--seed 2",
    ),
    "pbin filter": Use(
        "pbin filter {input} --output {output} --keep numbers.txt",
        input="packs/x.pbin",
        output="made/f.pbin",
        onto=("packs/x.pbin", "numbers.txt"),
        other="--keep others.txt",
    ),
    "pbin repair": Use(
        "pbin repair {input} --output {output}", input="packs/x.pbin", output="made/r.pbin"
    ),
    "pbin repair, in place": Use(
        "pbin repair {input}", input="packs/x.pbin", rewrites=("packs/x.pbin",)
    ),
    "pbin raw-index": Use(
        "pbin raw-index {input} --output {output}",
        input="raw/a/a.jsonl",
        output="made/a.idx",
        onto=("raw/a/a.jsonl",),
        other="--drop-faulty",
    ),
    "pbin raw-index, beside it": Use("pbin raw-index {input}", input="raw/a/a.jsonl"),
    "pbin describe": Use("pbin describe {input}", input="packs/x.pbin"),
    "purge": Use("purge a-3 --yes {project}", input="nanoset.yaml", rewrites=("data/",)),
    "shuffle": Use(
        "shuffle --input {input} --output {output} --seqlen 16 --wds-chunk-size 64 {tokenizer}"
        " --workers 1",
        input="raw/a",
        output="made/tars",
        onto=("raw/a", "raw", "pairs"),
        other="--seed 5",
    ),
    "shuffle, by workers": Use(
        "shuffle --input {input} --output {output} --seqlen 16 --wds-chunk-size 64 {tokenizer}"
        " --workers 2",
        input="raw/a",
        output="made/tars",
    ),
    "shuffle, of pairs": Use(
        "shuffle --input {input} pairs/y --output {output} --seqlen 16 --workers 1 --engine buckets",
        input="pairs/x",
        output="made/tars",
        onto=("pairs",),
        other="--seed 5",
    ),
    "shuffle, of tars": Use(
        "shuffle --input {input} --output {output} --shuffle-only --workers 1",
        input="tars",
        output="made/tars",
        onto=("tars",),
        other="--seed 5",
    ),
    "status": Use("status {project}", input="nanoset.yaml"),
    # No document has this id. The takedown of any other would fail, as some outputs read `a` itself.
    "takedown": Use(
        "takedown nobody --reason asked --no-build {project}",
        input="nanoset.yaml",
        rewrites=("drop.txt",),
    ),
    "tokenize": Use(
        "tokenize --input {input} --output-prefix {output} --append-eod {tokenizer} --workers 2",
        input="raw/a",
        output="made/t",
        onto=("raw/a/a", "raw/a/b"),
        other="--preset nemo",
    ),
    "tokenize, by file": Use(
        "tokenize --input {input} --output-prefix {output} --preset nanotron --per-file {tokenizer}"
        " --workers 2",
        input="raw/a",
        output="made/t",
        onto=("raw/a/a",),
        other="--append-eod",
    ),
    "verify": Use("verify --deep {project}", input="nanoset.yaml"),
    "verify, a pair": Use(
        "verify {input} --deep --tokenizer tokenizer.json --eod <|endoftext|>", input="pairs/x"
    ),
    "view": Use("view few {project}", input="nanoset.yaml"),
}
"""Name of a use → the use. A name is that of a command, and after a comma what is special."""


def commands(group: click.Group = nanoset, prefix: str = "") -> Iterator[str]:
    """Yield the names of all commands, such as `build` and `pbin merge`.

    Args:
        group: The commands to list, with those of the groups in it.
        prefix: Name of the group and a space; empty for the top level.
    """
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        # A hidden command is a former name of another one.
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name


def make_world(folder: Path) -> None:
    """Fill an empty folder with inputs for every use: text, pairs, packs, a table, and a project."""
    for name in ("raw/a", "raw/b", "pairs", "packs", "tables", "hollow", "made", "bare/raw/c"):
        (folder / name).mkdir(parents=True)
    rows = sentences("a", 60)
    _write_inputs(folder, rows)

    # Build twice, with more text the second time, so that there are old versions of outputs. One
    # process is enough here: the start of workers would take most of the time.
    config = folder / "nanoset.yaml"
    config.write_text(_SETTINGS.replace("workers: 2", "workers: 1"))
    project = Project.open(config)
    (folder / "raw/a/a.jsonl").write_bytes(jsonl(rows[:50]))
    run_stages(project)
    (folder / "raw/a/a.jsonl").write_bytes(jsonl(rows))
    run_stages(project)
    config.write_text(_SETTINGS)

    _copy_outputs(project, folder)


def _write_inputs(folder: Path, rows: list[dict[str, str]]) -> None:
    """Write the text, the tokenizer, the settings and the lists that commands take.

    Args:
        folder: The folder.
        rows: Documents of most of the text.
    """
    (folder / "raw/b/b.jsonl.gz").write_bytes(encoded(".gz", sentences("b", 40), 40))
    (folder / "bare/raw/c/c.jsonl").write_bytes(jsonl(rows))
    # Looks like the list of rejects that `tokenize` would write there.
    (folder / "raw/a/a_rejects.jsonl").write_bytes(jsonl(rows[:9]))
    (folder / "table.parquet").write_bytes(encoded(".parquet", rows, 60))
    (folder / "tokenizer.json").write_bytes(tokenizer_json())

    longer_samples = _SETTINGS.replace("sequence_length: 16", "sequence_length: 24")
    (folder / "nanoset.yaml").write_text(_SETTINGS)
    (folder / "longer.yaml").write_text(longer_samples)
    (folder / "unbuilt.yaml").write_text(_SETTINGS.replace("root: data", "root: unbuilt"))

    # Ids to leave out of the view, and numbers of documents to keep.
    (folder / "drop.txt").write_text("a-1\n")
    (folder / "numbers.txt").write_text("0\n3\n5\n")
    (folder / "others.txt").write_text("1\n")


def _copy_outputs(project: Project, folder: Path) -> None:
    """Copy outputs of a project to where commands take them as inputs: pairs, packs and tars."""
    for corpus, name in (("a", "x"), ("b", "y")):
        dataset = project.outputs.folder / "datasets" / corpus / "current"
        for ending in ("bin", "idx"):
            (path,) = dataset.glob(f"*.{ending}")
            (folder / f"pairs/{name}.{ending}").write_bytes(path.read_bytes())
        pbin = folder / f"packs/{name}.pbin"
        write_dataset_as_pbin(folder / f"pairs/{name}", pbin, vocab_size=300)
    shutil.copytree(project.outputs.folder / "webdatasets/shuffled/current", folder / "tars")
