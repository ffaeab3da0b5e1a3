"""What others write as YAML: refused with a ConfigError, or plain values."""

from __future__ import annotations

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.project.settings import load_config
from nanoset_core.records.yaml_text import located, read_yaml
from nanoset_core.stages.webdataset.standalone.sampling import load_sampling

WRONG = {
    "deep nesting": "[" * 2_000,
    "deep blocks": "".join(" " * n + "a:\n" for n in range(400)),
    "a long number": "a: " + "9" * 5000,
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
    "a value that holds itself": "a: &a [*a]",
}


@pytest.mark.parametrize("read", [load_config, load_sampling])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_yaml_is_a_short_error(name, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nanoset.yaml"
    file.write_text(WRONG[name])
    with pytest.raises(ConfigError, match=r"nanoset\.yaml") as caught:
        read(file)
    assert len(str(caught.value)) < 7000
    assert [path.name for path in tmp_path.iterdir()] == ["nanoset.yaml"]


def test_aliases_are_values(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    expected = {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}
    assert read_yaml(tmp_path / "a.yaml", remedy="")[0] == expected
    (tmp_path / "a.yaml").write_text("")
    assert read_yaml(tmp_path / "a.yaml", remedy="")[0] is None


def test_errors_are_told_with_their_lines_in_their_order(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("# settings\na:\n  web.v2: {x: 1}\n  b:\n  - {c: 1}\n  - {c: 2,\n     d: 3}\n")
    lines = {
        "a.b[1].d": 7,
        "a.web.v2.x": 3,
        "a.b[1].missing.e": 6,
        "other": 2,
        "a.b[1].c": 6,
        "a.b[9]": 4,
    }
    found = located(
        file, file.read_text(), [ConfigError("wrong", where=f"{file}: {key}") for key in lines]
    )
    expected = sorted(lines.items(), key=lambda item: item[1])
    assert found.what.splitlines() == [
        f"{len(lines)} mistakes:",
        *(f"  {file}:{line}: {key}: wrong" for key, line in expected),
    ]
