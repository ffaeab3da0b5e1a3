"""One ordinary use of every command, in a small folder that has something for each of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from faults.settings import tokenizer_json
from sample_project import EOD, encoded, jsonl, run_stages, sentences

from nanoset_core.cli import nanoset
from nanoset_core.pipeline.project import Project

_CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
tokenization: {{workers: 2, range_mib: 0.005}}
nanosets:
  pretrain: {{blend: {{a: 0.7, b: 0.3}}, sequence_length: 16, split: "80,15,5", trainer_path: /data}}
webdatasets:
  shuffled: {{corpora: [a, b], sequence_length: 16, samples_per_shard: 64, member: npy}}
packed: [a]
"""


@dataclass(frozen=True, slots=True)
class Use:
    """A command line that works; words between braces are replaced by faults."""

    words: str
    input: str | None = None
    """what {input} stands for"""
    output: str | None = None
    """what {output} stands for: something new, in a folder of its own"""
    onto: tuple[str, ...] = ()
    """outputs that would be, or lie in, its own input"""
    disks: tuple[str, ...] = ()
    """folders other than that of its output which a small disk may be"""
    other: str = ""
    """words that ask for another output of the same name"""
    rewrites: tuple[str, ...] = ()
    """files, and folders ending in /, that were there before and that it may write anew"""
    code: int = 0
    """its exit code where nothing goes wrong"""
    needs_dagster: bool = False

    def line(self, *, input: str | None = None, output: str | None = None) -> list[str]:
        """The words, with another input or output."""
        words = self.words.format(input=input or self.input, output=output or self.output)
        return words.split()


_TOKENS = f"--tokenizer tokenizer.json --eod {EOD}"
_CONFIGURATION = "nanoset.yaml"
USES = {
    "build": Use("build -c {input}", _CONFIGURATION, rewrites=("data/",), needs_dagster=True),
    "build, from nothing": Use(
        "build -c {input}", "unbuilt.yaml", disks=("unbuilt", ".dagster", "cache"), needs_dagster=True
    ),
    "build, by force": Use("build --force -s a -c {input}", _CONFIGURATION, rewrites=("data/",), needs_dagster=True),
    "demo": Use("demo {output} --megabytes 3", output="made/demo", onto=("nanoset.yaml",), needs_dagster=True),
    "diff": Use("diff a -c {input}", _CONFIGURATION),
    "explain": Use("explain pretrain train 0 -c {input}", _CONFIGURATION),
    "explain, a document": Use("explain pretrain train --number 3 --corpus a -c {input}", _CONFIGURATION),
    "explain, of tars": Use("explain shuffled 0 -c {input}", _CONFIGURATION),
    "gc": Use("gc --yes --unfinished -c {input}", _CONFIGURATION, rewrites=("data/",)),
    "import-parquet": Use(
        "import-parquet {input} --output {output}",
        "table.parquet",
        "made/t.jsonl.gz",
        ("table.parquet", "tables/new.jsonl"),
        other="--columns text",
    ),
    "init": Use("init {output}", output="made/new", onto=(".", "nanoset.yaml")),
    "init, beside text": Use("init bare"),
    "inspect": Use("inspect {input} --tokenizer tokenizer.json", "pairs/x"),
    "map": Use(
        "map --data-path {input} --seq-length 16 --data-cache-path {output}", "pairs/x", "made/cache", ("pairs",)
    ),
    "map, of a project": Use("map -c {input}", "longer.yaml", rewrites=("data/",)),
    "merge": Use("merge --input {input} --output-prefix {output}", "pairs", "made/all", ("pairs/x", "pairs/all")),
    "pack write": Use(
        f"pack {{input}} --output {{output}} --workers 1 {_TOKENS}",
        "raw/a",
        "made/a.pbin",
        ("raw/a/a.jsonl", "tokenizer.json"),
        other="--eod <|pad|>",
    ),
    "pack write, of a pair": Use(
        "pack write {input} --output {output}",
        "pairs/x",
        "made/a.pbin",
        ("pairs/x.bin", "pairs/x.idx"),
        other="--vocab-size 70000",
    ),
    "pack merge": Use(
        "pack merge {input} packs/y.pbin --output {output}",
        "packs/x.pbin",
        "made/m.pbin",
        ("packs/x.pbin", "packs/y.pbin"),
        other="packs/y.pbin",
    ),
    "pack shuffle": Use(
        "pack shuffle {input} --output {output} --seed 1",
        "packs/x.pbin",
        "made/s.pbin",
        ("packs/x.pbin",),
        other="--seed 2",
    ),
    "pack filter": Use(
        "pack filter {input} --output {output} --keep numbers.txt",
        "packs/x.pbin",
        "made/f.pbin",
        ("packs/x.pbin", "numbers.txt"),
        other="--keep others.txt",
    ),
    "pack repair": Use("pack repair {input} --output {output}", "packs/x.pbin", "made/r.pbin", ()),
    "pack repair, in place": Use("pack repair {input}", "packs/x.pbin", rewrites=("packs/x.pbin",)),
    "pack raw-index": Use(
        "pack raw-index {input} --output {output}",
        "raw/a/a.jsonl",
        "made/a.idx",
        ("raw/a/a.jsonl",),
        other="--drop-faulty",
    ),
    "pack raw-index, beside it": Use("pack raw-index {input}", "raw/a/a.jsonl"),
    "pack describe": Use("pack describe {input}", "packs/x.pbin"),
    "shuffle": Use(
        f"shuffle --input {{input}} --output {{output}} --seqlen 16 --workers 1 {_TOKENS}",
        "raw/a",
        "made/tars",
        ("raw/a", "raw", "pairs"),
        other="--seed 5",
    ),
    "shuffle, of pairs": Use(
        "shuffle --input {input} pairs/y --output {output} --seqlen 16 --workers 1",
        "pairs/x",
        "made/tars",
        ("pairs",),
        other="--seed 5",
    ),
    "shuffle, of tars": Use(
        "shuffle --input {input} --output {output} --shuffle-only --workers 1",
        "tars",
        "made/tars",
        ("tars",),
        other="--seed 5",
    ),
    "status": Use("status -c {input}", _CONFIGURATION),
    "tokenize": Use(
        f"tokenize --input {{input}} --output-prefix {{output}} --append-eod --workers 1 {_TOKENS}",
        "raw/a",
        "made/t",
        ("raw/a/a", "raw/a/b"),
        other="--preset nemo",
    ),
    "tokenize, by file": Use(
        f"tokenize --input {{input}} --output-prefix {{output}} --preset nanotron --per-file --workers 1 {_TOKENS}",
        "raw/a",
        "made/t",
        ("raw/a/a",),
        other="--append-eod",
    ),
    "verify": Use("verify --deep -c {input}", _CONFIGURATION),
    "verify, a pair": Use(f"verify {{input}} --deep {_TOKENS}", "pairs/x"),
}


def commands(group: click.Group = nanoset, before: str = "") -> Iterator[str]:
    """The names of all commands that there are, those of groups after their group's."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def make_world(folder: Path) -> None:
    """Fill an empty folder with text, pairs, packs, a table and a built project."""
    for name in ("raw/a", "raw/b", "pairs", "packs", "tables", "hollow", "made", "bare/raw/c"):
        (folder / name).mkdir(parents=True)
    rows = sentences("a", 60)
    (folder / "raw/a/a.jsonl").write_bytes(jsonl(rows[:50]))
    (folder / "raw/b/b.jsonl.gz").write_bytes(encoded(".gz", sentences("b", 40), 40))
    (folder / "bare/raw/c/c.jsonl").write_bytes(jsonl(rows))
    (folder / "raw/a/a_rejects.jsonl").write_bytes(jsonl(rows[:9]))
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "nanoset.yaml").write_text(_CONFIG)
    (folder / "longer.yaml").write_text(_CONFIG.replace("sequence_length: 16", "sequence_length: 24"))
    (folder / "unbuilt.yaml").write_text(_CONFIG.replace("root: data", "root: unbuilt"))
    (folder / "numbers.txt").write_text("0\n3\n5\n")
    (folder / "others.txt").write_text("1\n")
    (folder / "table.parquet").write_bytes(encoded(".parquet", rows, 60))
    project = Project.open(folder / "nanoset.yaml")
    run_stages(project)
    (folder / "raw/a/a.jsonl").write_bytes(jsonl(rows))
    run_stages(project)  # so that there are old versions, too
    for corpus, name in (("a", "x"), ("b", "y")):
        made = project.outputs.folder / "datasets" / corpus / "current"
        for ending in ("bin", "idx"):
            (found,) = made.glob(f"*.{ending}")
            (folder / f"pairs/{name}.{ending}").write_bytes(found.read_bytes())
    tars = project.outputs.folder / "webdatasets/shuffled/current"
    shutil.copytree(tars, folder / "tars")
    _write_packs(folder)


def _write_packs(folder: Path) -> None:
    from nanoset_core.packed import pack_indexed_dataset

    for name in ("x", "y"):
        pack_indexed_dataset(folder / f"pairs/{name}", folder / f"packs/{name}.pbin", vocab_size=300)
