"""YAML within bounds."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from nanoset_core.config.project import load_config
from nanoset_core.errors import ConfigError
from nanoset_core.serialization.yaml_text import MOST_BYTES, read_yaml
from nanoset_core.shuffling.dclm import load_sampling

LAUGHS = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30))
HOSTILE = {
    "aliases of aliases": LAUGHS,
    "merges of merges": MERGES,
    "deep nesting": "[" * 20_000,
    "deep blocks": "".join(" " * n + "a:\n" for n in range(400)),
    "a long number": "a: " + "9" * 5000,
    "a long number to the base of 60": "a: 1" + ":1" * 30_000,
    "code": "a: !!python/object/apply:os.mkdir [should-not-exist]",
    "another tag": "a: !!timestamp x",
    "no number": 'a: !!int ""',
    "no truth": "a: !!bool x",
    "no mapping": "a: !!map [b]",
    "no base64": "a: !!binary é",
    "a list as a key": "? [a]\n: b\n",
    "a tab": "a:\n\t- b",
    "a NUL": "a: \0",
    "half a surrogate": 'a: "\\ud800"\nb: [',
    "an alias of nothing": "a: *b",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nanoset.yaml"
    file.write_text(HOSTILE[name])
    for read, is_traced in ((load_config, True), (load_sampling, False)):
        if is_traced:
            tracemalloc.start()
        begun = time.process_time()
        try:
            with pytest.raises(ConfigError, match=r"nanoset\.yaml") as caught:
                read(file)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()
        assert time.process_time() - begun < 100, "more than linear in the size of the file"
        assert len(str(caught.value)) < 3000
    assert [path.name for path in tmp_path.iterdir()] == ["nanoset.yaml"]


def test_too_long(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(ConfigError, match="too long"):
        read_yaml(tmp_path / "a.yaml", remedy="shorten it")


def test_aliases_are_values(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    assert read_yaml(tmp_path / "a.yaml", remedy="") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": [{"x": 1}, {"x": 1}],
    }
    (tmp_path / "a.yaml").write_text("")
    assert read_yaml(tmp_path / "a.yaml", remedy="") is None
