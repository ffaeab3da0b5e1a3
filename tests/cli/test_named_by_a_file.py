"""Commands take the path of a .bin or .idx for the prefix of the pair."""

from __future__ import annotations

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_pairs import write_pair

COMMANDS = [
    pytest.param(["export", "--format", "mds", "--sequence-length", 5, "-o", "out"], id="export"),
    pytest.param(["inspect"], id="inspect"),
    pytest.param(["pbin", "-o", "web.pbin"], id="pbin"),
    pytest.param(["shuffle", "--seqlen", 5, "--output", "out", "--input"], id="shuffle"),
    pytest.param(["verify"], id="verify"),
]
"""Commands that read a pair, with all arguments but its path, which follows."""


@pytest.mark.parametrize("ending", [".bin", ".idx"])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_pair_may_be_named_by_one_of_its_files(tmp_path, monkeypatch, arguments, ending):
    monkeypatch.chdir(tmp_path)
    write_pair("web", [10] * 20)

    result = invoke_nanoset([*arguments, f"web{ending}"])

    assert result.exit_code == 0, result.output
