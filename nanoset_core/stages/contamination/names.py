"""Where the outputs of the stage `contamination` are stored, below the output root.

For example, what the section `evals` finds in the corpus `web` is in `contamination/evals/web/`.
"""

from __future__ import annotations

from nanoset_core.stages.stage import PART, SUBJECT, Layout

STAGE = "contamination"
VERSION = 1
LAYOUT = Layout(STAGE, (SUBJECT, PART))
"""The subject is the section of nanoset.yaml, the part is the corpus."""
SHARD_LAYOUT = Layout("contamination_shards", LAYOUT.path)
EVALUATION_LAYOUT = Layout("evaluations")
