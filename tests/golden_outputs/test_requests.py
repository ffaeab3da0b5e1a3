"""Commands send no more requests to a bucket than they did at commit 8b69ae2.

`verify --deep` may send seven more, since it also checks the plans of webdatasets.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_outputs.requests import FILE, requests_sent

from helpers.s3_server import CREDENTIALS

SLACK = {"build": 1.15}
"""A build looks again at what it saw some seconds ago: more often on a busy machine."""


def test_no_command_sends_more_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    held = json.loads(FILE.read_bytes())
    found = requests_sent(tmp_path)
    assert [command for command, _ in found] == [command for command, _ in held]
    for (command, sent), (_, most) in zip(found, held, strict=True):
        assert sent <= most * SLACK.get(command, 1), command
