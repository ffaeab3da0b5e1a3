"""What lets the platform notice new raw text."""

import dagster as dg

from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Registers every folder of raw text as a partition of `corpora`, so that it can be materialised.",
)
def new_corpora(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SensorResult | dg.SkipReason:
    opened = Project.open(project.config_file)
    try:
        found = raw.corpora(opened)
    except NanosetError as error:
        return dg.SkipReason(str(error))
    known = set(context.instance.get_dynamic_partitions(CORPORA.name or ""))
    if new := [corpus for corpus in found if corpus not in known]:
        return dg.SensorResult(dynamic_partitions_requests=[CORPORA.build_add_request(new)])
    return dg.SkipReason(f"{len(found)} corpora in {opened.config.raw_folder}, none of them new")
