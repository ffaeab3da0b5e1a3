"""`automation: host`: Dagster's conditions build what follows, through warnings, and only what has changed."""

from __future__ import annotations

import dagster as dg

from nanoset_assets.checks import LOSSES
from nanoset_assets.definitions import build_definitions
from nanoset_assets.instance_state import CHECK
from nanoset_core.config.project import load_config


class Conditions:
    """A host's automation-condition sensor over a project."""

    def __init__(self, config_file, instance):
        self.definitions = build_definitions(load_config(config_file), automation="host")
        self.instance, self.cursor = instance, None

    def asked(self):
        """Evaluate all conditions once; → assets that are asked for."""
        found = dg.evaluate_automation_conditions(
            self.definitions, self.instance, asset_selection=dg.AssetSelection.all(), cursor=self.cursor
        )
        self.cursor = found.cursor
        return {result.key.to_user_string() for result in found.results if not result.true_subset.is_empty}

    def build_corpora(self, *corpora):
        self.instance.add_dynamic_partitions("corpora", list(corpora))
        for corpus in corpora:
            job = self.definitions.resolve_job_def("corpus")
            done = job.execute_in_process(instance=self.instance, partition_key=corpus)
            assert done.success
        return done


def test_a_rejected_line_is_a_warning_through_which_everything_follows(make_project, instance):
    config = make_project()
    with (config.parent / "raw/web/part-0/web-0.jsonl").open("ab") as lines:
        lines.write(b'{"text": "cut o')
    host = Conditions(config, instance)
    host.asked()
    done = host.build_corpora("books", "code", "web")
    checks = {
        (found.asset_key.to_user_string(), found.check_name): found for found in done.get_asset_check_evaluations()
    }
    assert {key for key, found in checks.items() if not found.passed} == {("tokenized_shards", LOSSES)}
    lost = checks["tokenized_shards", LOSSES]
    assert (lost.severity, lost.blocking) == (dg.AssetCheckSeverity.WARN, False)
    assert "web-0.jsonl" in lost.description
    assert "rejected" in checks["indexed_dataset", CHECK].description
    assert "pretrain/index_mappings" in host.asked()


def test_what_was_made_again_with_the_same_bytes_asks_for_nothing(make_project, instance):
    host = Conditions(make_project(), instance)
    host.asked()
    host.build_corpora("books", "code", "web")
    assert "pretrain/index_mappings" in host.asked()
    assert host.asked() == set()
    host.build_corpora("web")
    assert host.asked() == set()
