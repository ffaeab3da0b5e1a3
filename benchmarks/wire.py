"""Count the bytes and requests with which a project in a bucket is built, stage by stage.

    python -m benchmarks.wire [--folder wire] [--megabytes 60] [--ending jsonl]
        [--scratch-mib 0]

The project has a corpus of four files, two nanosets, a .pbin file, and tars in four groups. The
bucket is on a moto server in this process, which counts the bytes of the bodies of requests and
answers. `--ending` is jsonl, jsonl.gz or parquet. `--scratch-mib` is `storage.scratch_mib` of
nanoset.yaml; 0 keeps all copies.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import options
from nanoset_assets.assets.table import SHAPES
from nanoset_core.demo.writing import EOD, libraries, standard_library, write_demo
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.inventory.corpora import corpus_names

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from helpers import buckets, s3_server
from helpers.sample_project import encoded

RAW = "raw text"
"""Part of the address of each object with raw text."""
N_FILES = 4
"""Files of the corpus."""
ROWS_OF_GROUP = 500
"""Rows of a row group or compressed member of a file."""
PROJECT = """\
raw: {raw}
root: {root}
tokenizer: {{path: {tokenizer}, eod: "{eod}"}}
tokenization: {{append_eod: true, range_mib: {range_mib}, workers: {workers}}}
pbin: [web]
nanosets:
  plain: {{blend: web, sequence_length: 512, split: "90,5,5"}}
  mixed: {{blend: {{web: 1.0}}, sequence_length: 256, split: "90,5,5"}}
webdatasets: {{shuffled: {{corpora: [web], sequence_length: 513, samples_per_shard: 1024, groups: 4, member: npy}}}}
storage: {{endpoint_url: {endpoint!r}, scratch_mib: {scratch_mib}}}
"""


@dataclass
class Traffic:
    """What was transferred between this process and the bucket."""

    text_read: int = 0
    """Bytes of raw text that were read."""
    other_read: int = 0
    """Other bytes that were read."""
    sent: int = 0
    """Bytes that were sent."""
    requests: int = 0
    """Number of requests."""

    def count(self, path: str, bytes_sent: int, bytes_answered: int) -> None:
        """Count a request.

        Args:
            path: Address of its object.
            bytes_sent: Bytes of its body.
            bytes_answered: Bytes of the body of its answer.
        """
        if f"/{RAW}/" in path:
            self.text_read += bytes_answered
        else:
            self.other_read += bytes_answered
        self.sent += bytes_sent
        self.requests += 1

    def add(self, other: Traffic) -> None:
        """Add other traffic."""
        self.text_read += other.text_read
        self.other_read += other.other_read
        self.sent += other.sent
        self.requests += other.requests


class Sizes(NamedTuple):
    """Sizes of a built project, in bytes."""

    text: int
    """Of its raw text."""
    tokens: int
    """Of the tokens of its dataset."""


class Step(NamedTuple):
    """A step of building or verifying a project, and what it transferred."""

    name: str
    """Name of the asset, or a command."""
    action: str
    """`made` or `checked`."""
    traffic: Traffic


def main() -> None:
    """Build a project, and print a row for each step."""
    arguments = options(__doc__, folder=Path("wire"), megabytes=60.0, ending="jsonl", scratch_mib=0)
    os.environ.update(s3_server.CREDENTIALS)
    folder = arguments.folder.resolve()
    write_demo(folder / "demo", megabytes=4, say=print)
    bytes_of_each_kind = int(arguments.megabytes * 1e6 / 2)
    rows = [*chain(standard_library(bytes_of_each_kind), libraries(bytes_of_each_kind))]

    with s3_server.s3_server() as endpoint:
        config = write_project(
            folder / "project",
            endpoint,
            rows,
            folder / "demo" / "tokenizer.json",
            ending=arguments.ending,
            range_mib=16,
            scratch_mib=arguments.scratch_mib or None,
        )
        steps = list(build_and_verify(config))
        sizes = sizes_of(config)

    print(
        f"text {sizes.text / 1e6:.1f} MB, tokens {sizes.tokens / 1e6:.1f} MB; text read as a "
        "multiple of the text, other bytes as multiples of the tokens"
    )
    print("| stage | | text read | other bytes read | sent | requests |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    total = Traffic()
    for step in steps:
        print_row(step, sizes)
        if not step.name.startswith("nanoset verify"):
            total.add(step.traffic)
    print_row(Step("all but `verify`", "", total), sizes)


def write_project(
    folder: Path,
    endpoint: str,
    rows: Sequence[dict[str, str]],
    tokenizer: Path,
    *,
    ending: str = "jsonl",
    range_mib: float = 16,
    scratch_mib: int | None = None,
    workers: int = 2,
) -> Path:
    """Write a project whose text and outputs are in a new bucket; return its nanoset.yaml.

    Args:
        folder: Receives nanoset.yaml, and a copy of the text.
        endpoint: Address of the server.
        rows: The documents of the corpus.
        tokenizer: The tokenizer.json.
        ending: Ending of the files with text, which says their format.
        range_mib: `tokenization.range_mib`.
        scratch_mib: `storage.scratch_mib`; None keeps all copies.
        workers: `tokenization.workers`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    corpus = folder / "raw" / "web"
    corpus.mkdir(parents=True)
    rows_of_file = -(-len(rows) // N_FILES)  # rounded up
    for number in range(N_FILES):
        name = f"{number}.{ending}"
        start = number * rows_of_file
        data = encoded(name, rows[start : start + rows_of_file], ROWS_OF_GROUP)
        (corpus / name).write_bytes(data)

    place = s3_server.new_bucket(endpoint, "root")
    text = PROJECT.format(
        raw=buckets.upload_raw(folder / "raw", place).url(),
        root=place.url(),
        tokenizer=tokenizer,
        eod=EOD,
        range_mib=range_mib,
        endpoint=endpoint,
        scratch_mib="null" if scratch_mib is None else scratch_mib,
        workers=workers,
    )
    config = folder / "nanoset.yaml"
    config.write_text(text, encoding="utf-8")
    return config


def build_and_verify(config: Path) -> Iterator[Step]:
    """Build a project stage by stage and check each stage, then verify the project.

    Args:
        config: The nanoset.yaml.

    Yields:
        Each step, after it was done.
    """
    for stage, shape in SHAPES.items():
        project = Project.open(config)
        keys = list(stage.keys(project.config, corpus_names(project)))

        def make(project: Project, stage: Any = stage, keys: Any = keys) -> None:
            for key in keys:
                stage.make(project, key)

        def check(project: Project, stage: Any = stage, keys: Any = keys) -> None:
            for key in keys:
                stage.verify(project, key)

        yield Step(shape.asset, "made", traffic_of(make, config))
        yield Step(shape.asset, "checked", traffic_of(check, config))
    yield Step("nanoset verify", "checked", traffic_of(verify, config))
    yield Step("nanoset verify --deep", "checked", traffic_of(verify_deep, config))


def traffic_of(work: Callable[[Project], object], config: Path) -> Traffic:
    """Do some work with a project that was just opened, and return what it transferred."""
    traffic = Traffic()
    s3_server.listeners.append(traffic.count)
    try:
        work(Project.open(config))
    finally:
        s3_server.listeners.remove(traffic.count)
    return traffic


def verify(project: Project, *, deep: bool = False) -> None:
    """Verify a project.

    Raises:
        RuntimeError: Something is wrong with its outputs.
    """
    for report in verify_project(project, deep=deep):
        if report.findings:
            raise RuntimeError(f"{report.findings}")


def verify_deep(project: Project) -> None:
    """Verify a project, and read everything.

    Raises:
        RuntimeError: Something is wrong with its outputs.
    """
    verify(project, deep=True)


def sizes_of(config: Path) -> Sizes:
    """Return the sizes of a project that was built.

    Raises:
        RuntimeError: It was not built.
    """
    dataset = Project.open(config).outputs.current("datasets", "web")
    if dataset is None:
        raise RuntimeError("nothing was built")
    files = [path for path in (config.parent / "raw").rglob("*") if path.is_file()]
    text = sum(path.stat().st_size for path in files)
    return Sizes(text, dataset.files[f"{dataset.facts['prefix']}.bin"].size)


def written_tars(config: Path) -> list[dict[str, Any]]:
    """Return what the manifest of a built project records about each tar."""
    manifest = Project.open(config).outputs.current("webdatasets", "shuffled")
    return [] if manifest is None else list(manifest.facts["shards_written"])


def print_row(step: Step, sizes: Sizes) -> None:
    """Print what a step transferred, relative to the sizes of the project."""
    cells = [
        step.name,
        step.action,
        f"{step.traffic.text_read / sizes.text:.2f}",
        f"{step.traffic.other_read / sizes.tokens:.2f}",
        f"{step.traffic.sent / sizes.tokens:.2f}",
        str(step.traffic.requests),
    ]
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
