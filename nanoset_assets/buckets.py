"""The project's bucket for assets of one's own beside these: dagster-aws' S3Resource, set up as `storage` says."""

from __future__ import annotations

from typing import Any

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.location import is_in_bucket


def bucket_resources(config: ProjectConfig) -> dict[str, Any]:
    """`s3` where raw text or outputs live in a bucket, and dagster-aws is installed; without credentials."""
    if not (is_in_bucket(config.raw) or is_in_bucket(config.root)):
        return {}
    try:
        from dagster_aws.s3 import S3Resource
    except ImportError:
        return {}
    storage = config.storage
    return {
        "s3": S3Resource(
            endpoint_url=storage.endpoint_url,
            region_name=storage.region,
            profile_name=storage.profile,
            use_unsigned_session=storage.anonymous,
        )
    }
