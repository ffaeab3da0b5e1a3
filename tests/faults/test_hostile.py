"""Bombs, traps and lies in files: each is refused, or read without harm, within 400 MiB and a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
READ = {
    "gzip that unpacks to one line": [0, 1, "line_too_long"],
    "zstd that unpacks to one line": [0, 1, "line_too_long"],
    "gzip that unpacks to lines": "enough",
    "zstd that unpacks to blank lines": "enough",
    "json in many brackets": [0, 2, "invalid_json"],
    "json with a number of a million digits": [0, 1, "invalid_json"],
    "json with long ids": [600, True],
    "parquet that claims rows": [0, 1, "corrupt_parquet"],
    "parquet that claims rows of text": [0, 1, "corrupt_parquet"],
    "parquet with a long text": [1, 1, "line_too_long"],
    "parquet with a deep schema": [0, 1, "corrupt_parquet"],
    "arrow of nulls": [0, 1, "corrupt_arrow"],
    "arrow of one run": [0, 1, "corrupt_arrow"],
    "arrow views of one text": [2000, 0, None],
    "arrow list of nulls as id": [1, 0, None],
    "arrow overlapping lists as id": [20_000, 0, None],
    "arrow dictionary of a long id": [200, 0, None],
    "arrow that says it unpacks to 8 GiB": [0, 1, "corrupt_arrow"],
    "arrow stream that says it unpacks to 8 GiB": [0, 1, "corrupt_arrow"],
    "arrow dictionary that says it unpacks to 8 GiB": [0, 1, "corrupt_arrow"],
    "shard of zeros": [],
    "pipes beside text": ["a.jsonl"],
    "links in the output root": ["untouched", False, True],
}
"""What is read, or kept aside as a reject."""
REFUSED = {
    "zstd with a window of 2 GiB": "needs more memory than there is",
    "arrow list of nulls imported": "2,147,483,647 values in lists",
    "tar with a huge member": "more than 67,108,864",
    "shard with a huge member": "more than 67,108,864",
    "tar with a huge extended header": "a header of more than 16,384 bytes",
    "tar with an extended header of digits": "a header of more than 16,384 bytes",
    "tar with a long name": "a header of more than 16,384 bytes",
    "tar with holes": "not a tar",
    "tar of strings": "text among the numbers",
    "tar of zipped strings": "text among the numbers",
    "tar of brackets": "does not hold the tokens of a context",
    "shard with a negative size": "not a plain tar header",
    "list of shards elsewhere": "must name a file below the manifest's folder",
    "device behind a link in a corpus": "leads out of the raw folder",
    "file that became a pipe": "a named pipe",
    "folders in folders": "folders lie too deep in each other",
    "pipe as idx": "a named pipe",
    "device as bin": "a character device",
    "pipe as pbin": "a named pipe",
    "pipe as tar": "a named pipe",
    "pipe as shard": "a named pipe",
    "pipe as list of shards": "a named pipe",
    "pipe as tokenizer": "no tokenizer there",
    "tokenizer in many brackets": "not a tokenizer",
}
"""What the error says; that it names the file is looked at in hostile.py."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])}
    command = [sys.executable, "-m", "faults.hostile"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: outcome for name, *outcome in map(json.loads, done.stdout.splitlines())}


def test_every_case_has_its_outcome(outcomes):
    assert outcomes.keys() == READ.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", READ)
def test_read_without_harm(outcomes, name):
    outcome, value, *_ = outcomes[name]
    assert (outcome, value) == ("read", READ[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(outcomes, name):
    outcome, value, *_ = outcomes[name]
    assert outcome == "refused", value
    assert REFUSED[name] in value
