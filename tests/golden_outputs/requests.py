"""Count the requests that commands send to a bucket, for a small project with every stage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from golden_outputs.command import run
from golden_outputs.projects import GOLDEN, write_inputs

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
"""The commands in their order."""
CONFIG = """
raw: raw
root: {root}
tokenizer: {{path: tokenizer.json, eod: "<|endoftext|>"}}
documents: {{max_rejected_fraction: 0.2}}
tokenization: {{range_mib: 0.02, workers: 1, engine: numpy}}
pbin: [web]
nanosets:
  weighted:
    blend: {{web: 0.7, code: 0.3}}
    sequence_length: 32
    split: "1,0,0"
    samples: {{train: 400}}
webdatasets:
  shuffled: {{corpora: [web, code], sequence_length: 33, samples_per_shard: 64, member: npy, groups: 1}}
storage: {{endpoint_url: "{endpoint}"}}
"""


def requests_sent(folder: Path) -> list[tuple[str, int]]:
    """Run the commands on a new bucket, and return how many requests each of them sent.

    Args:
        folder: An empty folder for raw text and settings, which becomes the current one.
    """
    write_inputs(folder)
    shutil.rmtree(folder / "raw" / "books")
    os.chdir(folder)
    counts = []
    with s3_server() as endpoint:
        root = f"s3://{new_bucket(endpoint).bucket}/data"
        (folder / "nanoset.yaml").write_text(CONFIG.format(root=root, endpoint=endpoint))
        for number, command in enumerate(COMMANDS):
            if number == len(COMMANDS) - 1:
                # As on another machine, which has no copies of what is in the bucket.
                shutil.rmtree(folder / ".nanoset")
            n_before = requests_answered[endpoint]
            run(command.split())
            counts.append((command, requests_answered[endpoint] - n_before))
    return counts
