"""`nanoset build --dry-run` of a project whose outputs are in a bucket."""

from __future__ import annotations

import json

from helpers import s3_server
from helpers.command import invoke_nanoset


def dry_run(config):
    words = ["build", "--dry-run", "--json", "--config", str(config)]
    return invoke_nanoset(words, catch_exceptions=False)


def test_nothing_is_written_to_the_bucket_or_here_before_a_build(remote_project, place, tmp_path):
    config = remote_project()
    objects = s3_server.objects(place)
    files = sorted(tmp_path.rglob("*"))
    result = dry_run(config)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["steps"] > 0
    assert found["root"] == place.url()
    assert found["free_bytes"] is None
    assert s3_server.objects(place) == objects
    assert sorted(tmp_path.rglob("*")) == files


def test_nothing_is_written_to_the_bucket_or_here_over_what_another_machine_built(
    remote_project, filled, tmp_path
):
    config = remote_project()
    (config.parent / "raw/web/new.jsonl").write_text('{"text": "a new document"}\n')
    objects = s3_server.objects(filled)
    files = sorted(tmp_path.rglob("*"))
    found = json.loads(dry_run(config).stdout)
    assert "raw_jsonl [web]" in found["outputs"][0]["steps"]
    assert s3_server.objects(filled) == objects
    assert sorted(tmp_path.rglob("*")) == files
