"""The pages of the documentation, and a small project with the names that their examples use."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.building import build_all
from helpers.command import json_of
from helpers.sample_project import jsonl, sentences

TOP = Path(__file__).parents[2]
PAGES = (
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    TOP / "SECURITY.md",
    TOP / "CHANGELOG.md",
    TOP / "deploy" / "README.md",
    *sorted((TOP / "docs").glob("**/*.md")),
)

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

DEMO = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
nanosets:
  pretrain:
    blend: {stdlib: 0.6, libraries: 0.4}
    sequence_length: 32
    split: "90,5,5"
webdatasets:
  shuffled:
    corpora: [stdlib, libraries]
    sequence_length: 33
    samples_per_shard: 64
    member: npy
pbin: [stdlib]
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    page: str
    line: int
    info: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(info: str) -> list[Block]:
    """Return the blocks of all pages that are marked with a language, such as `python`."""
    marked_blocks = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match["info"] == info:
                # The code begins on the line after that of the fence.
                line = text.count("\n", 0, match.start()) + 2
                name = page.relative_to(TOP).as_posix()
                marked_blocks.append(Block(name, line, info, match["code"]))
    return marked_blocks


def without_code(text: str) -> str:
    """Return a page with empty lines instead of its blocks of code."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A folder with a built project in `demo`."""
    folder = tmp_path_factory.mktemp("docs")
    for corpus in ("stdlib", "libraries"):
        file = folder / "demo" / "raw" / corpus / f"{corpus}.jsonl"
        file.parent.mkdir(parents=True)
        file.write_bytes(jsonl(sentences(corpus, 200)))
    (folder / "demo" / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "demo" / "nanoset.yaml").write_text(DEMO)
    build_all(folder / "demo" / "nanoset.yaml")
    write_loss_spike(folder)
    return folder


def write_loss_spike(folder: Path) -> None:
    """Write the files that docs/tracing.md reads after a loss spike.

    These are a log of losses, and the documents that some steps read.
    """
    losses = [2.0] * 10 + [9.0]
    rows = [f"{step},{loss}\n" for step, loss in enumerate(losses, start=1)]
    (folder / "loss.csv").write_text("iteration,loss\n" + "".join(rows))

    run = "data_parallel_size: 1\nmicro_batch_size: 1\nglobal_batch_size: 2\n"
    handoff = folder / "demo" / "data" / "nanosets" / "pretrain" / "handoff" / "current"
    (folder / "run.yaml").write_text(f"handoff: {handoff}\n{run}")
    arguments = ["explain", "--run", str(folder / "run.yaml"), "--step", "10..11", "--json"]
    steps = json_of(*arguments, "--config", folder / "demo")
    (folder / "steps.json").write_text(json.dumps(steps))
