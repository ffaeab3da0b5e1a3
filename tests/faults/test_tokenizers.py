"""A seeded share of the campaign on tokenizers: files changed in one setting, and made-up strings."""

from __future__ import annotations

import json
from itertools import islice

from faults.runner import run_campaign
from faults.tokenizer_mutations import mutated, mutations
from faults.tokenizers import strings


def test_no_changed_setting_gives_wrong_tokens(tmp_path):
    total = run_campaign(tmp_path, "tokenizers", "--select", "llama?,*", "--trials", "30", "--strings", "100")[0][-1]
    assert total["numpy"] >= 2, "some changed files are still understood"
    assert total["bad"] == 0


def test_every_field_is_changed(tokenizer_file):
    parsed = json.loads(tokenizer_file.read_bytes())
    model, token = parsed["model"], parsed["added_tokens"][0]
    model |= {"merges": model["merges"][:20], "vocab": dict(islice(model["vocab"].items(), 40))}
    changed = set()
    for mutation in mutations(parsed):
        content = mutated(parsed, mutation)
        other = json.loads(content) if content else parsed
        changed |= _differing("", parsed, other)
        changed |= _differing("model.", model, other.get("model"))
        changed |= _differing("token.", token, (other.get("added_tokens") or [None])[0])
    assert changed == {*parsed, *(f"model.{key}" for key in model), *(f"token.{key}" for key in token)}


def _differing(prefix, here, there):
    return {prefix + key for key, value in here.items() if (there or {}).get(key) != value}


def test_strings_are_seeded_and_different():
    first = list(islice(strings(1, ["<mask>"]), 300))
    assert first == list(islice(strings(1, ["<mask>"]), 300))
    assert len(set(first)) == 300
    assert any("<mask>" in text for text in first)
    assert max(map(len, first)) > 200
