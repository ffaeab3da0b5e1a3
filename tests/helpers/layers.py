"""The folders of the core in layers: which may import which."""

from __future__ import annotations

LAYERS = (
    ("untrusted",),
    ("errors", "rounding", "wording"),
    ("records",),
    ("storage",),
    ("outputs",),
    ("execution",),
    ("formats",),
    ("text",),
    ("document_tables",),
    ("tokenizers",),
    ("statistics",),
    ("sampling",),
    ("loading",),
    ("stages", "project"),
    ("lineage",),
    ("cli",),
)
"""The folders of each layer, the lowest layer first.

A folder may import itself, and folders of lower layers.
"""
