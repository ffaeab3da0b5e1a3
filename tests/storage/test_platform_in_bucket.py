"""Dagster's side over a bucket: the sensor sees what lands there, and one's own assets reach it
too.
"""

import time

import dagster as dg
import pytest

from helpers import s3_server
from helpers.sample_platform import Platform
from helpers.sample_project import jsonl, sentences
from nanoset_assets.buckets import bucket_resources
from nanoset_core.storage.s3 import S3Store

SETTLE_SECONDS = 2


@pytest.fixture
def raw(place) -> S3Store:
    """The folder of raw text, beside that of the outputs."""
    return S3Store(place.bucket, "raw text", place.endpoint_url)


@pytest.fixture
def platform(remote_project, raw, tmp_path):
    config = remote_project()
    for path in (config.parent / "raw").rglob("*.*"):
        raw.put_file(path.relative_to(config.parent / "raw").as_posix(), path)
    text = config.read_text().replace("raw: raw", f"raw: {raw.url()}")
    config.write_text(f"{text}\nautomation: {{settle_seconds: {SETTLE_SECONDS}}}\n")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Platform(config, instance)


def test_what_lands_in_a_bucket_is_registered_built_and_built_again(platform, raw, place):
    platform.look()
    assert platform.corpora == {"books", "code", "web"}
    time.sleep(SETTLE_SECONDS + 1)
    assert platform.tick() == ["books", "code", "web"]
    assert f"3 corpora, 6 files in {raw.url()}: nothing has changed" == platform.look().skip_message
    before = s3_server.objects(place)
    raw.put("web/new.jsonl", jsonl(sentences("new", 20)))
    raw.put("poems/all.jsonl", jsonl(sentences("poems", 20)))
    assert platform.tick() == [], "not settled yet"
    time.sleep(SETTLE_SECONDS + 1)
    assert platform.tick() == ["poems", "web"]
    after = s3_server.objects(place)
    assert (
        before.items()
        <= (
            after | {name: before[name] for name in before if name.endswith("current.json")}
        ).items()
    )
    made = {
        name.rpartition("/")[0]
        for name in after.keys() - before.keys()
        if name.startswith("shards/web/")
    }
    assert len(made) == 1, "one range of one corpus was tokenized"
    told = [
        str(log)
        for run in platform.instance.get_runs()
        for log in platform.instance.all_logs(run.run_id)
    ]
    assert any(place.bucket in line for line in told)
    for secret in (
        s3_server.CREDENTIALS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    ):
        assert not any(secret in line for line in told)


def test_own_assets_reach_the_bucket(platform, raw):
    from dagster_aws.s3 import S3Resource

    @dg.asset
    def listing(s3: dg.ResourceParam[S3Resource]) -> list[str]:
        found = s3.get_client().list_objects_v2(Bucket=raw.bucket, Prefix=raw.prefix)
        return sorted(entry["Key"] for entry in found["Contents"])

    host = dg.Definitions(assets=[listing], resources=bucket_resources(platform.config))
    mine = dg.Definitions.merge(platform.definitions, host)
    result = mine.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=[listing.key]
    )
    assert "raw text/books/books.jsonl.zst" in result.output_for_node("listing")
