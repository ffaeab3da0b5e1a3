"""packed_dataset: a corpus as Modalities' .pbin."""

import time
from collections.abc import Iterator

import dagster as dg

from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_assets.ui.metadata import Before, bytes_text, markdown, per_second, plural, result, size_bytes
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import packed


def packed_asset(corpora: tuple[str, ...]) -> dg.AssetsDefinition:
    """The asset that packs `corpora`; its other partitions stay empty, and a run of one of them makes nothing."""

    @dg.asset(
        partitions_def=CORPORA,
        deps=["indexed_dataset"],
        group_name="corpora",
        kinds={"numpy", "file"},
        tags={"nanoset/stage": "packed"},
        code_version=str(packed.VERSION),
        output_required=False,
        description=f"A corpus as one Modalities .pbin, with the tokens of its indexed_dataset. Only {_named(corpora)} "
        "(listed under `packed` in nanoset.yaml): other partitions stay missing, and a run of one makes nothing.",
    )
    def packed_dataset(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[dg.MaterializeResult]:
        started = time.monotonic()
        opened, corpus = project.open(context), context.partition_key
        if corpus not in opened.config.packed:
            listed = _named(opened.config.packed) if opened.config.packed else "no corpus"
            context.log.info(f"{opened.config.file} lists {listed} under `packed`: nothing to make for {corpus}")
            return
        before = Before.versions(opened, packed.STAGE, corpus)
        manifest = packed.pack(opened, corpus)
        facts, seconds = manifest.facts, time.monotonic() - started
        names = ("documents", "tokens", "token_bytes", "left_out")
        metadata = {
            "summary": markdown(_summary(manifest)),
            "file": dg.MetadataValue.path(manifest.url(facts["file"])),
            "dagster/row_count": facts["documents"],
            **{name: facts[name] for name in names},
        }
        if before.is_new(manifest.digest):
            metadata["tokens_per_second"] = per_second(facts["tokens"], seconds)
        yield result(manifest, seconds, metadata)

    return packed_dataset


def _summary(manifest: Manifest) -> str:
    facts = manifest.facts
    left_out = f"; {plural(facts['left_out'], 'document')} left out" if facts["left_out"] else ""
    return (
        f"**{plural(facts['documents'], 'document')}, {plural(facts['tokens'], 'token')}** of "
        f"{facts['token_bytes']} bytes each, {bytes_text(size_bytes(manifest))}{left_out}."
    )


def _named(corpora: tuple[str, ...]) -> str:
    return ", ".join(corpora)
