"""Records of erased documents: their files are those of earlier versions."""

from helpers.building import output_root
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.purged import ErasedPlace

PLACE = ErasedPlace("a/é.jsonl", 0, 10, "crc32:0", 5)
FILE = "purged/web/c7202872f18a4163311c.json"
CONTENT = b'{"ids":["1","2"],"places":[["a/\\u00e9.jsonl",0,10,"crc32:0",5]]}\n'


def test_a_record_is_written_as_before(tmp_path):
    outputs = output_root(tmp_path)

    purged.add_record(outputs, "web", [PLACE, PLACE], ["2", "1", "2"])

    assert (tmp_path / FILE).read_bytes() == CONTENT


def test_a_record_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)

    erased = purged.read_erased(output_root(tmp_path), "web")

    assert erased.ids == {"1", "2"}
    assert erased.contains(PLACE)
    assert not erased.contains(PLACE._replace(position=6))


def test_what_is_recorded_is_not_recorded_again(tmp_path):
    outputs = output_root(tmp_path)
    other_place = PLACE._replace(position=6)
    purged.add_record(outputs, "web", [PLACE, other_place], ["1"])

    purged.add_record(outputs, "web", [other_place])
    purged.add_record(outputs, "code", [other_place])

    assert len([*(tmp_path / "purged/web").iterdir()]) == 1
    assert len([*(tmp_path / "purged/code").iterdir()]) == 1
