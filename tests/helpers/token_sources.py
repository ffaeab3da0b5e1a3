"""Token sources of a few numbers, tars of them, and what tars hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nanoset_core.loading.tar_files import iterate_shard
from nanoset_core.stages.webdataset.lists import write_lists
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.stages.webdataset.writing import write_shards


def source_in_memory(name, tokens):
    """Return a source whose tokens are in memory, for tests that read no file."""
    source = TokenSource(name, Path(name), tokens.dtype.name, len(tokens))
    vars(source)["tokens"] = tokens
    return source


def source_in_file(folder, name, tokens):
    """Write tokens to a file, and return it as a source."""
    path = folder / f"{name}.bin"
    tokens.tofile(path)
    return TokenSource.of_file(name, path, tokens.dtype.name)


def plan_of(sources, **changes):
    """Plan tars with npy members; `changes` are settings."""
    options = {
        "sequence_length": 10,
        "samples_per_shard": 4,
        "seed": 1234,
        "member": "npy",
    } | changes
    return plan_shuffle(sources, PlanSettings(**options))


def write_tars(
    plan, sources, folder, shards=None, *, force=False, made_from="these tokens", **options
):
    """Write some tars of a plan, or all if none is named, and return their facts."""
    numbers = range(plan.shards) if shards is None else shards
    return write_shards(
        plan, sources, numbers, folder, WriteOptions(**options), made_from=made_from, force=force
    )


def write_webdataset(plan, sources, folder, **options):
    """Write all tars and the lists that name them; return the facts of both."""
    facts = write_tars(plan, sources, folder, **options)
    return facts, write_lists(plan, facts, folder, name="nanoset")


def read_tar(path):
    """Return all contexts of a tar, shape (samples, length)."""
    return np.stack(list(iterate_shard(path)))
