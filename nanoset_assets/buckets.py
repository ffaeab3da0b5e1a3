"""Access to the project's bucket as a Dagster resource, which your assets can use, too.

It is the S3Resource of dagster-aws, configured by `storage` in nanoset.yaml.
"""

from __future__ import annotations

from typing import Any

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.location import is_s3_url


def bucket_resources(config: ProjectConfig) -> dict[str, Any]:
    """Return the resource `s3`, by which your own Dagster assets can access the project's bucket.

    It is configured like the project itself. It contains no credentials: botocore, which sends the
    requests, finds them in the environment.

    Args:
        config: The settings of nanoset.yaml, which say where raw text and outputs are, and how the
            bucket is accessed.

    Returns:
        `{"s3": …}`. Empty if neither raw text nor outputs are in a bucket of S3, or if the package
        dagster-aws, which defines the resource, is not installed.
    """
    if not is_s3_url(config.raw) and not is_s3_url(config.root):
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
