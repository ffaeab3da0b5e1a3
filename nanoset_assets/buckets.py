"""The project's bucket as a Dagster resource, for your own assets.

It is dagster-aws' S3Resource, configured by `storage` in nanoset.yaml.
"""

from __future__ import annotations

from typing import Any

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.location import is_in_bucket


def bucket_resources(config: ProjectConfig) -> dict[str, Any]:
    """Return the resource `s3`, without credentials.

    Returns nothing unless raw text or outputs are in a bucket and dagster-aws is installed.
    """
    if not is_in_bucket(config.raw) and not is_in_bucket(config.root):
        return {}
    try:
        from dagster_aws.s3 import S3Resource
    except ImportError:
        return {}
    storage = config.storage
    resource = S3Resource(
        endpoint_url=storage.endpoint_url,
        region_name=storage.region,
        profile_name=storage.profile,
        use_unsigned_session=storage.anonymous,
    )
    return {"s3": resource}
