"""One ordinary use of every command, in a small folder that has something for each of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from helpers.building import run_stages
from helpers.sample_project import EOD, encoded, jsonl, sentences, tokenizer_json
from nanoset_core.cli import nanoset
from nanoset_core.project.project import Project
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin

_CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
tokenization: {{workers: 2, range_mib: 0.005}}
nanosets:
  pretrain: {{blend: {{a: 0.7, b: 0.3}}, sequence_length: 16, split: "80,15,5", trainer_path: /data}}
webdatasets:
  shuffled: {{corpora: [a, b], sequence_length: 16, samples_per_shard: 64, member: npy}}
pbin: [a]
views: {{few: {{of: a, exclude: drop.txt, split: {{keep: [0.2, 1]}}}}}}
"""


@dataclass(frozen=True, slots=True)
class Use:
    """A command line that works; words between braces are replaced by faults."""

    words: str
    input: str | None
    """what {input} stands for"""
    output: str | None
    """what {output} stands for: something new, in a folder of its own"""
    onto: tuple[str, ...]
    """outputs that would be, or lie in, its own input"""
    other: str
    """words that ask for another output of the same name"""
    rewrites: tuple[str, ...] = ()
    """files, and folders ending in /, that were there before and that it may write anew"""
    disks: tuple[str, ...] = ()
    """folders other than that of its output which a small disk may be"""

    @property
    def needs_dagster(self) -> bool:
        return self.words.startswith(("build", "demo", "purge"))

    def line(self, *, input: str | None = None, output: str | None = None) -> list[str]:
        """The words, with another input or output."""
        text = {
            "tokenizer": f"--tokenizer tokenizer.json --eod {EOD} --workers 2",
            "project": f"-c {input or self.input}",
        }
        return self.words.format(
            input=input or self.input, output=output or self.output, **text
        ).split()


_USES = """\
build                      | build {project} | nanoset.yaml
build, from nothing        | build {project} | unbuilt.yaml
build, by force            | build --force -s a {project} | nanoset.yaml
demo                       | demo {output} --megabytes 3 | | made/demo | nanoset.yaml
diff                       | diff a {project} | nanoset.yaml
explain                    | explain pretrain train 0 {project} | nanoset.yaml
explain, a document        | explain pretrain train --number 3 --corpus a {project} | nanoset.yaml
explain, of tars           | explain shuffled 0 {project} | nanoset.yaml
export                     | export {input} --format datatrove -o {output} | pairs/x | made/out | | --tokenizer-name b
export, in samples         | export {input} --format mds --sequence-length 9 -o {output} | pairs/x | made/out
gc                         | gc --yes --unfinished {project} | nanoset.yaml
import-parquet             | import-parquet {input} --output {output} | table.parquet | made/t.jsonl.gz
                           | table.parquet tables/new.jsonl | --columns text
init                       | init {output} | | made/new | . nanoset.yaml
init, beside text          | init bare
inspect                    | inspect {input} --tokenizer tokenizer.json | pairs/x
map                        | map --data-path {input} --seq-length 16 --data-cache-path {output} | pairs/x | made/cache
                           | pairs
map, of a project          | map {project} | longer.yaml
merge                      | merge --input {input} --output-prefix {output} | pairs | made/all | pairs/x pairs/all
pbin write                 | pack {input} --output {output} {tokenizer} | raw/a | made/a.pbin
                           | raw/a/a.jsonl tokenizer.json | --eod <|pad|>
pbin write, of a pair      | pbin write {input} --output {output} | pairs/x | made/a.pbin | pairs/x.bin pairs/x.idx
                           | --vocab-size 70000
pbin merge                 | pbin merge {input} packs/y.pbin --output {output} | packs/x.pbin | made/m.pbin
                           | packs/x.pbin packs/y.pbin | packs/y.pbin
pbin shuffle               | pbin shuffle {input} --output {output} --seed 1 | packs/x.pbin | made/s.pbin | packs/x.pbin
                           | --seed 2
pbin filter                | pbin filter {input} --output {output} --keep numbers.txt | packs/x.pbin | made/f.pbin
                           | packs/x.pbin numbers.txt | --keep others.txt
pbin repair                | pbin repair {input} --output {output} | packs/x.pbin | made/r.pbin
pbin repair, in place      | pbin repair {input} | packs/x.pbin
pbin raw-index             | pbin raw-index {input} --output {output} | raw/a/a.jsonl | made/a.idx | raw/a/a.jsonl
                           | --drop-faulty
pbin raw-index, beside it  | pbin raw-index {input} | raw/a/a.jsonl
pbin describe              | pbin describe {input} | packs/x.pbin
purge                      | purge a-3 --yes {project} | nanoset.yaml
shuffle                    | shuffle --input {input} --output {output} --seqlen 16 --wds-chunk-size 64 {tokenizer}
                           | raw/a | made/tars | raw/a raw pairs | --seed 5
shuffle, of pairs          | shuffle --input {input} pairs/y --output {output} --seqlen 16 --workers 1 --engine buckets
                           | pairs/x | made/tars | pairs | --seed 5
shuffle, of tars           | shuffle --input {input} --output {output} --shuffle-only --workers 1 | tars | made/tars
                           | tars | --seed 5
status                     | status {project} | nanoset.yaml
takedown                   | takedown a-3 --reason asked --no-build {project} | nanoset.yaml
tokenize                   | tokenize --input {input} --output-prefix {output} --append-eod {tokenizer}
                           | raw/a | made/t | raw/a/a raw/a/b | --preset nemo
tokenize, by file          | tokenize --input {input} --output-prefix {output} --preset nanotron --per-file {tokenizer}
                           | raw/a | made/t | raw/a/a | --append-eod
verify                     | verify --deep {project} | nanoset.yaml
verify, a pair             | verify {input} --deep --tokenizer tokenizer.json --eod <|endoftext|> | pairs/x
view                       | view few {project} | nanoset.yaml
"""
"""name | words | input | output | onto | other"""
_REWRITES = dict.fromkeys(
    ("build", "build, by force", "gc", "map, of a project", "purge"), ("data/",)
)
_REWRITES["takedown"] = ("drop.txt",)
_REWRITES["pbin repair, in place"] = ("packs/x.pbin",)
_DISKS = {"build, from nothing": ("unbuilt", ".dagster", "cache")}


def _use(row: str) -> tuple[str, Use]:
    name, words, *more = re.split(r" *\| ", row)
    source, output, onto, other = [*more, *[""] * 4][:4]
    use = Use(words, source or None, output or None, tuple(onto.split()), other)
    return name, replace(use, rewrites=_REWRITES.get(name, ()), disks=_DISKS.get(name, ()))


USES = dict(map(_use, re.sub(r"\n +\|", " |", _USES).splitlines()))


def commands(group: click.Group = nanoset, before: str = "") -> Iterator[str]:
    """The names of all commands that there are, those of groups after their group's."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue  # a former name of another command
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
    (folder / "longer.yaml").write_text(
        _CONFIG.replace("sequence_length: 16", "sequence_length: 24")
    )
    (folder / "unbuilt.yaml").write_text(_CONFIG.replace("root: data", "root: unbuilt"))
    (folder / "drop.txt").write_text("a-1\n")
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
    for name in ("x", "y"):
        write_dataset_as_pbin(
            folder / f"pairs/{name}", folder / f"packs/{name}.pbin", vocab_size=300
        )
