"""Erased documents are recorded in files of the same format as by earlier versions."""

from __future__ import annotations

from helpers.building import output_root
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.purged import ErasedPlace

PLACE = ErasedPlace("a/é.jsonl", 0, 10, "crc32:0", 5)
FILE = "purged/web/c7202872f18a4163311c.json"
"""Name of the record of this place and two ids in an earlier version."""
CONTENT = b'{"ids":["1","2"],"places":[["a/\\u00e9.jsonl",0,10,"crc32:0",5]]}\n'


def test_a_record_has_the_format_of_earlier_versions(tmp_path):
    outputs = output_root(tmp_path)

    purged.add_record(outputs, "web", [PLACE, PLACE], ["2", "1", "2"])

    assert (tmp_path / FILE).read_bytes() == CONTENT


def test_a_record_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)

    erased = purged.read_erased(output_root(tmp_path), "web")

    other_place = PLACE._replace(position=6)
    assert erased.ids == {"1", "2"}
    assert erased.contains(PLACE)
    assert not erased.contains(other_place)


def test_an_erased_place_is_recorded_once(tmp_path):
    outputs = output_root(tmp_path)
    other_place = PLACE._replace(position=6)
    purged.add_record(outputs, "web", [PLACE, other_place], ["1"])

    purged.add_record(outputs, "web", [other_place])

    assert len([*(tmp_path / "purged/web").iterdir()]) == 1


def test_an_erased_place_of_another_corpus_is_recorded(tmp_path):
    outputs = output_root(tmp_path)
    purged.add_record(outputs, "web", [PLACE])

    purged.add_record(outputs, "code", [PLACE])

    assert len([*(tmp_path / "purged/code").iterdir()]) == 1
