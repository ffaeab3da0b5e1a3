"""The Dagster platform with raw text and outputs in a bucket: its sensor sees text that arrives
there, and assets of users can access it.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from helpers import buckets, s3_server
from helpers.sample_platform import Platform
from helpers.sample_project import jsonl, sentences
from nanoset_assets.buckets import bucket_resources
from nanoset_core.storage.stores.s3.store import S3Store

SETTLE_SECONDS = 2
SECRETS = (
    s3_server.CREDENTIALS["AWS_ACCESS_KEY_ID"],
    s3_server.CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
)


@pytest.fixture
def raw(place: S3Store) -> S3Store:
    """The place of the raw text, next to that of the outputs."""
    return S3Store(place.bucket, "raw text", place.endpoint_url)


@pytest.fixture
def platform(remote_project, raw: S3Store, tmp_path: Path) -> Iterator[Platform]:
    """The platform of a project with its raw text in the bucket, which nothing has been built of."""
    config = remote_project()
    local_raw = config.parent / "raw"
    for path in local_raw.rglob("*.*"):
        raw.put_file(path.relative_to(local_raw).as_posix(), path)
    settings = config.read_text().replace("raw: raw", f"raw: {raw.url()}")
    config.write_text(f"{settings}\nautomation: {{settle_seconds: {SETTLE_SECONDS}}}\n")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Platform(config, instance)


def wait_until_settled() -> None:
    """Wait until raw text that was just uploaded is old enough to be built."""
    time.sleep(SETTLE_SECONDS + 1)


def log_of(instance: dg.DagsterInstance) -> str:
    """Return all events of all runs as text."""
    lines: list[str] = []
    for run in instance.get_runs():
        lines.extend(str(record) for record in instance.all_logs(run.run_id))
    return "\n".join(lines)


def test_text_that_arrives_in_a_bucket_is_built_once_it_has_settled(platform, raw, place):
    # The first look registers the corpora. They are built once their files have settled.
    platform.look()
    assert platform.corpora == {"books", "code", "web"}
    wait_until_settled()
    assert platform.tick() == ["books", "code", "web"]
    assert platform.look().skip_message == f"3 corpora, 6 files in {raw.url()}: nothing has changed"
    digests_before = buckets.objects(place)

    # A new file and a new corpus are built, too.
    raw.put("web/new.jsonl", jsonl(sentences("new", 20)))
    raw.put("poems/all.jsonl", jsonl(sentences("poems", 20)))
    assert platform.tick() == [], "the new files have not settled yet"
    wait_until_settled()
    assert platform.tick() == ["poems", "web"]
    digests_after = buckets.objects(place)

    # The objects of before are unchanged, except for the pointers to current versions.
    for name, digest in digests_before.items():
        assert name in digests_after
        if not name.endswith("current.json"):
            assert digests_after[name] == digest

    # Of the corpus web, only the new file was tokenized.
    new_names = digests_after.keys() - digests_before.keys()
    new_shards = {str(Path(name).parent) for name in new_names if name.startswith("shards/web/")}
    assert len(new_shards) == 1

    # The log of the runs names the bucket, and no secrets.
    log = log_of(platform.instance)
    assert place.bucket in log
    for secret in SECRETS:
        assert secret not in log


def test_an_asset_of_a_user_accesses_the_bucket_with_the_settings_of_the_project(platform, raw):
    from dagster_aws.s3 import S3Resource

    # Dagster looks at the annotation, which must not be a string, since S3Resource is a local name.
    @dg.asset
    def listing(s3: dg.ResourceParam[S3Resource]) -> list[str]:
        response = s3.get_client().list_objects_v2(Bucket=raw.bucket, Prefix=raw.prefix)
        return sorted(entry["Key"] for entry in response["Contents"])

    definitions = dg.Definitions.merge(
        platform.definitions,
        dg.Definitions(assets=[listing], resources=bucket_resources(platform.config)),
    )
    job = definitions.resolve_implicit_global_asset_job_def()

    result = job.execute_in_process(asset_selection=[listing.key])

    assert "raw text/books/books.jsonl.zst" in result.output_for_node("listing")
