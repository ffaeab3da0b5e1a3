"""The Dagster project of another team ("host"), with assets of its own and two nanoset components.

Its files are laid out as `create-dagster` does.
"""

from __future__ import annotations

from pathlib import Path

from helpers.sample_project import write_raw

HOST = '''
"""An executor, a resource, a job, names and automation of the host's own."""

import json
import os
from pathlib import Path

import dagster as dg

RAW = Path(os.environ["HOST_RAW"])


class Lake(dg.ConfigurableResource):
    owner: str = "the host"


@dg.asset(group_name="lake")
def crawl() -> None:
    """Pages of the web."""


@dg.asset(key=["lake", "web_dedup"], deps=[crawl], group_name="lake")
def web_dedup(project: Lake) -> dg.MaterializeResult:
    """Lands the text of the corpus web."""
    (RAW / "web").mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(300):
        text = f"document {number} of the web, deduplicated by {project.owner} " * 9
        lines.append(json.dumps({"text": text}) + "\\n")
    (RAW / "web" / "deduplicated.jsonl").write_text("".join(lines))
    return dg.MaterializeResult(metadata={"documents": len(lines)})


@dg.asset
def raw_jsonl() -> None:
    """Has a name that a project without prefix uses, too."""


@dg.asset(deps=[web_dedup], automation_condition=dg.AutomationCondition.eager(), group_name="lake")
def report() -> None:
    """Is built by the host's own automation, which covers everything."""


@dg.asset(deps=[dg.AssetKey(["llm", "pretrain", "handoff"])], group_name="training")
def model(context) -> dg.MaterializeResult:
    """Trains on the nanoset."""
    from nanoset_assets import load_materialized

    handoff = dg.AssetKey(["llm", "pretrain", "handoff"])
    train = load_materialized(context.instance.get_latest_materialization_event(handoff), "train")
    return dg.MaterializeResult(metadata={"samples": len(train)})


@dg.definitions
def host() -> dg.Definitions:
    everything = dg.AutomationConditionSensorDefinition(
        "everything", target=dg.AssetSelection.all(), default_status=dg.DefaultSensorStatus.RUNNING
    )
    return dg.Definitions(
        assets=[crawl, web_dedup, raw_jsonl, report, model],
        jobs=[dg.define_asset_job("corpus", selection=[raw_jsonl])],
        sensors=[everything],
        resources={"project": Lake()},
        executor=dg.multiprocess_executor,
    )
'''
"""The module of the host's own definitions."""

COMPONENT = """\
type: nanoset_assets.NanosetComponent
attributes:
  key_prefix: [{name}]
  corpora:
    web: {{deps: [lake/web_dedup]}}
  project:
    raw: {folder}/{name}/raw
    root: {folder}/{name}/data
    tokenizer: {{path: {folder}/tokenizer.json, eod: "<|endoftext|>"}}
    automation: {{sensor_seconds: 2, settle_seconds: 3}}
    nanosets:
      pretrain: {{blend: {{{corpora}}}, sequence_length: 32, split: "80,15,5"}}
    webdatasets:
      shuffled: {{corpora: [web], sequence_length: 33, samples_per_shard: 64, groups: 1}}
"""
"""The defs.yaml of a nanoset project."""
PYPROJECT = """\
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "acme"
code_location_name = "acme.definitions"
"""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def write_host(folder: Path, home: Path, tokenizer: bytes) -> dict[str, str]:
    """Write the project with two components and an empty history; return the environment it needs.

    The component `llm` has text of the corpus `code` already. The other one, `small`, has none.

    Args:
        folder: The folder of the project.
        home: The folder of the history.
        tokenizer: The content of the tokenizer file of both components.
    """
    files = {
        "pyproject.toml": PYPROJECT,
        "src/acme/__init__.py": "",
        "src/acme/definitions.py": DEFINITIONS,
        "src/acme/defs/__init__.py": "",
        "src/acme/defs/host.py": HOST.lstrip("\n"),
        "src/acme/defs/llm/defs.yaml": COMPONENT.format(
            name="llm", folder=folder, corpora="web: 0.7, code: 0.3"
        ),
        "src/acme/defs/small/defs.yaml": COMPONENT.format(
            name="small", folder=folder, corpora="web: 1.0"
        ),
    }
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "tokenizer.json").write_bytes(tokenizer)

    # Raw text: that of one corpus of the sample project.
    write_raw(folder / "text")
    (folder / "small" / "raw").mkdir(parents=True)
    (folder / "llm" / "raw").mkdir(parents=True)
    (folder / "text" / "code").rename(folder / "llm" / "raw" / "code")

    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    return {"PYTHONPATH": str(folder / "src"), "HOST_RAW": str(folder / "llm" / "raw")}
