"""Count the bytes and requests by which a project in a bucket is built, by stage.

    python -m benchmarks.wire [--folder wire] [--megabytes 60] [--ending jsonl]
        [--scratch-mib 0]

Moto plays the bucket in this process; only the bytes of bodies count. `--ending` is jsonl, jsonl.gz
or parquet. `--scratch-mib` is `storage.scratch_mib` of nanoset.yaml, where 0 keeps all copies. The
project has a corpus of four files, two nanosets, a packed dataset, and tars in four groups.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.harness import options
from nanoset_assets.asset_table import SHAPES
from nanoset_core.demo.writing import EOD, libraries, standard_library, write_demo
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.inventory.corpora import corpus_names

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from helpers import s3_server  # of the tests
from helpers.sample_project import encoded

RAW = "raw text"
CONFIG = """\
raw: {raw}
root: {root}
tokenizer: {{path: {tokenizer}, eod: "{eod}"}}
tokenization: {{append_eod: true, range_mib: {range_mib}, workers: 2}}
pbin: [web]
nanosets:
  plain: {{blend: web, sequence_length: 512, split: "90,5,5"}}
  mixed: {{blend: {{web: 1.0}}, sequence_length: 256, split: "90,5,5"}}
webdatasets: {{shuffled: {{corpora: [web], sequence_length: 513, samples_per_shard: 1024, groups: 4, member: npy}}}}
storage: {{endpoint_url: {endpoint!r}{more}}}
"""


@dataclass
class Wire:
    """What passed."""

    text: int = 0
    """Bytes of raw text that were read."""
    down: int = 0
    """Other bytes that were read."""
    up: int = 0
    """Bytes that were sent."""
    requests: int = 0

    def hear(self, path: str, sent: int, answered: int) -> None:
        """Count a request."""
        is_text = f"/{RAW}/" in path
        self.text, self.down = self.text + answered * is_text, self.down + answered * (not is_text)
        self.up, self.requests = self.up + sent, self.requests + 1


def write_project(
    folder: Path, endpoint: str, rows: list[dict[str, str]], tokenizer: Path, **how: Any
) -> Path:
    """Send rows as a corpus to a new bucket; → the nanoset.yaml of a project on it. `how`: ending,
    range_mib, more.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "raw" / "web").mkdir(parents=True)
    ending, step = how.pop("ending"), -(-len(rows) // 4)
    for number in range(4):
        some = rows[number * step : (number + 1) * step]
        (folder / "raw" / "web" / f"{number}.{ending}").write_bytes(
            encoded(f"{number}.{ending}", some, 500)
        )
    place = s3_server.new_bucket(endpoint, "root")
    where = {
        "raw": s3_server.upload_raw(folder / "raw", place).url(),
        "root": place.url(),
        "endpoint": endpoint,
    }
    text = CONFIG.format(tokenizer=tokenizer, eod=EOD, **where, **({"more": ""} | how))
    (folder / "nanoset.yaml").write_text(text, encoding="utf-8")
    return folder / "nanoset.yaml"


def by_stage(config: Path) -> Iterator[tuple[str, str, Wire]]:
    """Build a project stage by stage, and verify it; yield (asset, "made" or "checked", what
    passed).
    """

    def heard(work: Callable[[Project], object]) -> Wire:
        wire = Wire()
        s3_server.listeners.append(wire.hear)
        try:
            work(Project.open(config))
        finally:
            s3_server.listeners.remove(wire.hear)
        return wire

    def verify(project: Project, deep: bool) -> None:
        if faults := [
            one for report in verify_project(project, deep=deep) for one in report.findings
        ]:
            raise RuntimeError(f"{faults}")

    for stage, shape in SHAPES.items():
        name = shape.asset
        keys = [*stage.keys(Project.open(config).config, corpus_names(Project.open(config)))]

        def make(project: Project, stage: Any = stage, keys: Any = keys) -> None:
            for key in keys:
                stage.make(project, key)

        def look(project: Project, stage: Any = stage, keys: Any = keys) -> None:
            for key in keys:
                stage.verify(project, key)

        yield name, "made", heard(make)
        yield name, "checked", heard(look)
    yield "nanoset verify", "checked", heard(lambda project: verify(project, False))
    yield "nanoset verify --deep", "checked", heard(lambda project: verify(project, True))


def sizes(config: Path) -> tuple[int, int]:
    """Return (bytes of the text, bytes of the dataset's tokens) of a project that was built."""
    project = Project.open(config)
    dataset = project.outputs.current("datasets", "web")
    if dataset is None:
        raise RuntimeError("nothing was built")
    text = sum(file.stat().st_size for file in (config.parent / "raw").rglob("*") if file.is_file())
    return text, dataset.files[f"{dataset.facts['prefix']}.bin"].size


def tars(config: Path) -> list[dict[str, Any]]:
    """Return what is noted of the tars of a project that was built."""
    done = Project.open(config).outputs.current("webdatasets", "shuffled")
    return [] if done is None else list(done.facts["shards_written"])


def main() -> None:
    arguments = options(__doc__, folder=Path("wire"), megabytes=60.0, ending="jsonl", scratch_mib=0)
    os.environ.update(s3_server.CREDENTIALS)
    folder, half = arguments.folder.resolve(), int(arguments.megabytes * 500_000)
    write_demo(folder / "demo", megabytes=4, say=print)
    rows = [*chain(standard_library(half), libraries(half))]
    more = f", scratch_mib: {arguments.scratch_mib}" if arguments.scratch_mib else ""
    with s3_server.s3_server() as endpoint:
        how = {"ending": arguments.ending, "range_mib": 16, "more": more}
        config = write_project(
            folder / "project", endpoint, rows, folder / "demo" / "tokenizer.json", **how
        )
        table = [*by_stage(config)]
        text, tokens = sizes(config)
    print(
        f"text {text / 1e6:.1f} MB, tokens {tokens / 1e6:.1f} MB; read as x text + x tokens, sent "
        "as x tokens"
    )
    print(
        "| stage | | text read | other bytes read | sent | requests |\n| --- | --- | ---: | ---: "
        "| ---: | ---: |"
    )
    build = Wire()
    for name, what, wire in table:
        print(row(name, what, wire, text, tokens))
        if not name.startswith("nanoset verify"):
            for field in ("text", "down", "up", "requests"):
                setattr(build, field, getattr(build, field) + getattr(wire, field))
    print(row("all but `verify`", "", build, text, tokens))


def row(name: str, what: str, wire: Wire, text: int, tokens: int) -> str:
    """Return a line of the table."""
    numbers = (
        f"{wire.text / text:.2f} | {wire.down / tokens:.2f} | {wire.up / tokens:.2f} | "
        f"{wire.requests}"
    )
    return f"| {name} | {what} | {numbers} |"


if __name__ == "__main__":
    main()
