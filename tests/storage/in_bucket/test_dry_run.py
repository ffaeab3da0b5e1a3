"""`nanoset build --dry-run` of a project with outputs in a bucket writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers import buckets
from helpers.command import invoke_nanoset
from nanoset_core.storage.stores.s3.store import S3Store


def dry_run(config: Path) -> dict[str, Any]:
    """Return the plan of a build, which must succeed."""
    arguments = ["build", "--dry-run", "--json", "--config", str(config)]
    result = invoke_nanoset(arguments, catch_exceptions=False)
    assert result.exit_code == 0
    plan: dict[str, Any] = json.loads(result.stdout)
    return plan


@contextmanager
def check_nothing_is_written(place: S3Store, folder: Path) -> Iterator[None]:
    """Check that a block writes neither to a bucket nor to a local folder."""
    objects_before = buckets.objects(place)
    files_before = sorted(folder.rglob("*"))
    yield
    assert buckets.objects(place) == objects_before
    assert sorted(folder.rglob("*")) == files_before


def test_a_dry_run_before_the_first_build_writes_nothing(remote_project, place, tmp_path):
    config = remote_project()

    with check_nothing_is_written(place, tmp_path):
        plan = dry_run(config)

    assert plan["steps"] > 0
    assert plan["root"] == place.url()
    assert plan["free_bytes"] is None  # a bucket is never full


def test_a_dry_run_plans_what_another_machine_has_not_built_and_writes_nothing(
    remote_project, filled, tmp_path
):
    config = remote_project()
    (config.parent / "raw/web/new.jsonl").write_text('{"text": "a new document"}\n')

    with check_nothing_is_written(filled, tmp_path):
        plan = dry_run(config)

    assert "raw_jsonl [web]" in plan["outputs"][0]["steps"]
