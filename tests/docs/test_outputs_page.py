"""docs/outputs.md lists the folders of all stages below the root."""

from __future__ import annotations

import re
from pathlib import Path

from nanoset_core.project.stored_outputs import stage_folders

PAGE = Path(__file__).parents[2] / "docs" / "outputs.md"


def test_the_folder_of_every_stage_is_in_the_table_of_folders():
    table = re.search(r"^\| folder \| content \|\n(\|.*\n)+", PAGE.read_text(), re.MULTILINE)[0]
    documented = set(re.findall(r"`(\w+)[/`]", table))

    assert set(stage_folders()) - documented == set()
