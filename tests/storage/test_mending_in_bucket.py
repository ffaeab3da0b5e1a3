"""Wrong tokens in a bucket: one machine makes them again, and no other goes on with the copies that it has."""

from __future__ import annotations

import hashlib

import pytest
from s3_server import objects
from sabotage import Sabotaged, Shortened, poison, sabotaged
from sample_project import outputs_of

from nanoset_core.lineage.documents import Lineage
from nanoset_core.pipeline import indexed, raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.versions.status import project_status


@pytest.fixture
def sabotage(monkeypatch):
    yield from sabotaged(monkeypatch)


def without_audit(config):
    text = config.read_text()
    config.write_text(text.replace("tokenization: {", "tokenization: {audit: 0, "))
    return config


def make(config):
    """All that is made of one corpus by itself."""
    raw.make_inventory(Project.open(config), "web")
    tokenization.tokenize(Project.open(config), "web")
    indexed.index(Project.open(config), "web")


def read(config):
    """(sha256 of every file of web's shards and dataset as this machine reads them, tokens of its documents)."""
    outputs = Project.open(config).outputs
    dataset = outputs.current("datasets", "web")
    origins = Lineage(outputs, dataset).origins(range(dataset.facts["documents"]))
    made = [dataset, *outputs.versions("shards", "web")]
    files = {(one.stage, one.digest, name): one.path(name).read_bytes() for one in made for name in one.files}
    return {key: hashlib.sha256(data).hexdigest() for key, data in files.items()}, [one.tokens for one in origins]


@pytest.mark.parametrize("kind", [Sabotaged, Shortened])
def test_another_machine_takes_what_was_made_again(remote_project, place, built_here, sabotage, kind):
    """The copies that it has may be of the very same size."""
    one, other = (without_audit(remote_project(name)) for name in ("one", "other"))
    sabotage(lambda text: "7: " in text[:10], kind)
    make(one)
    make(other)
    wrong = read(other)
    poison(one)
    make(one)
    right = {name: digest for name, digest in outputs_of(built_here).items() if name.startswith("datasets/web/")}
    assert {name: digest for name, digest in objects(place).items() if name in right} == right
    files, tokens = read(other)
    assert (files, tokens) == read(one)
    assert files.keys() == wrong[0].keys()
    assert files != wrong[0]
    assert sum(tokens) == Project.open(other).outputs.current("datasets", "web").facts["tokens"]
    assert (tokens != wrong[1]) == (kind is Shortened)
    assert all("wrong tokens" not in " ".join(row.why) for row in project_status(Project.open(other)))
