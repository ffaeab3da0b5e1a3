"""How many requests commands send to a bucket, for a small project with every stage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from golden_outputs.command import run
from golden_outputs.projects import GOLDEN, NEOX, RAW, TOKENIZER

from helpers.s3_server import new_bucket, requests_answered, s3_server

FILE = GOLDEN / "requests.json"
COMMANDS = (
    "build",
    "build",
    "status",
    "verify",
    "verify --deep",
    "gc",
    "explain weighted train 3",
    "build",
)
"""Run in turn; before the last one the copies of the bucket are removed, as for another machine."""
CONFIG = """
raw: raw
root: {root}
tokenizer: {{path: tokenizer.json, eod: "<|endoftext|>"}}
documents: {{max_rejected_fraction: 0.2}}
tokenization: {{range_mib: 0.005, workers: 1, engine: numpy}}
pbin: [web]
nanosets:
  weighted:
    blend: {{web: 0.7, code: 0.3}}
    sequence_length: 32
    split: "80,15,5"
    samples: {{train: 400}}
webdatasets:
  shuffled: {{corpora: [web, code, books], sequence_length: 33, samples_per_shard: 64, member: npy, groups: 2}}
storage: {{endpoint_url: "{endpoint}"}}
"""


def requests_sent(folder: Path) -> list[tuple[str, int]]:
    """Run the commands over a new bucket; → each with the number of requests that it sent.

    Args:
        folder: an empty one, for raw text and settings; it becomes the current folder.
    """
    shutil.copytree(RAW, folder / "raw")
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")
    shutil.copyfile(NEOX, folder / "neox.json")
    os.chdir(folder)
    sent = []
    with s3_server() as endpoint:
        place = new_bucket(endpoint)
        (folder / "nanoset.yaml").write_text(
            CONFIG.format(root=f"s3://{place.bucket}/data", endpoint=endpoint)
        )
        for number, command in enumerate(COMMANDS):
            if number == len(COMMANDS) - 1:
                shutil.rmtree(folder / ".nanoset")
            before = requests_answered[endpoint]
            run(command.split())
            sent.append((command, requests_answered[endpoint] - before))
    return sent
