"""Write data.yaml, the sections of a trainer's YAML that name its data."""

from __future__ import annotations

from typing import Any

DATA = "data.yaml"
"""Name of the file in a handoff."""


def yaml_file(sections: dict[str, Any]) -> dict[str, str]:
    """Return the name and the content of data.yaml.

    Args:
        sections: The sections that the user merges into the YAML file of the trainer.

    Returns:
        {"data.yaml": the sections as YAML}.
    """
    import yaml

    return {DATA: yaml.safe_dump(sections, sort_keys=False)}
