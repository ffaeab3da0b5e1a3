"""Commands send no more requests to a bucket than they did at commit e05abfcc."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_outputs.requests import FILE, requests_sent

from helpers.s3_server import CREDENTIALS
from nanoset_core.outputs import notebook, root

SLACK = {"build": 1.15}
"""How many times as many requests a command may send. What a build saw some seconds ago, it looks
at again: this happens more often on a busy machine.
"""


def test_no_command_sends_more_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    # Commands look again at what they saw ten seconds ago. On a busy machine, they all take longer.
    for module in (root, notebook):
        monkeypatch.setattr(module, "SEEN_SECONDS", 3600.0)
    recorded = json.loads(FILE.read_bytes())

    sent = requests_sent(tmp_path)

    assert [command for command, _ in sent] == [command for command, _ in recorded]
    for (command, n_sent), (_, n_recorded) in zip(sent, recorded, strict=True):
        limit = n_recorded * SLACK.get(command, 1)
        assert n_sent <= limit, command
