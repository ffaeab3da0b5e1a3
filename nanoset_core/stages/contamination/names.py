"""Where the outputs of the stage `contamination` are stored, and its versions.

For example, what the section `evals` finds in the corpus `web` is in `contamination/evals/web/`.
"""

from __future__ import annotations

from nanoset_core.stages.stage import PART, SUBJECT, Layout

FOLDER = "contamination"
"""Folder of the results, below the output root."""
VERSION = 1
"""Version of the search. It is part of every recipe: another version makes other outputs."""
EVALUATION_VERSION = 1
"""The same for the index of evaluation files."""
LAYOUT = Layout(FOLDER, (SUBJECT, PART))
"""The subject is the section of nanoset.yaml, the part is the corpus."""
SHARD_LAYOUT = Layout("contamination_shards", LAYOUT.path)
EVALUATION_LAYOUT = Layout("evaluations")
