"""Screenshots of the live UI over the demo project, for docs/dagster.md: `make tour`.

Builds nothing: the demo is there already (`make demo`). Its UI is opened on a free port, and ended afterwards.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons import until
from live.browser import Browser, browsing, chromium
from live.dagster_dev import dagster_dev
from live.host import write_host

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 200_000
PIXELS = 1600
_GROUPS = ",".join(f"global@global:{group}" for group in ("corpora", "pretrain", "shuffled"))
_SETTLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One screenshot."""

    name: str
    """of the file, without its ending"""
    page: str
    """path and query of the page"""
    texts: tuple[str, ...]
    """what the page shows once it is there"""
    height: int
    """of the window"""
    width: int = 1600
    """of the window; the screenshot has 1,600 pixels"""


SCENES = (
    Scene("graph", f"/asset-groups?expanded={_GROUPS}", ("raw_jsonl", "tars", "handoff"), 860, 2150),
    Scene("corpus", "/assets/tokenized_shards?view=partitions&partition=libraries", ("token_lengths",), 900),
    Scene("documents", "/assets/indexed_dataset?view=partitions&partition=stdlib", ("first_documents",), 900),
    Scene("blend", "/assets/pretrain/blend?view=partitions&partition=train", ("first_samples", "explain"), 940),
    Scene("webdataset", "/assets/shuffled/shuffle_plan", ("evenly_shuffled", "order"), 1260, 1900),
    Scene("checks", "/assets/indexed_dataset?view=checks&checkDetail=verified", ("verified", "Passed"), 800),
)

_HOST_GROUPS = ",".join(f"global@global:{group}" for group in ("lake", "training", "llm_corpora", "llm_pretrain"))
HOST = Scene("your_dagster", f"/asset-groups?expanded={_HOST_GROUPS}", ("web_dedup", "handoff", "model"), 860, 2150)
"""Of somebody else's project, for docs/your_dagster.md."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="folder of the demo project")
    parser.add_argument("--output", type=Path, default=SCREENSHOTS, help="folder of the screenshots")
    parser.add_argument("--only", help="one screenshot, by name")
    options = parser.parse_args(arguments)
    program, demo = chromium(), options.demo.resolve()
    if program is None or not (demo / ".dagster").is_dir():
        parser.error("needs Chromium (apt-get install chromium) and the built demo (make demo)")
    options.output.mkdir(parents=True, exist_ok=True)
    scenes = [scene for scene in SCENES if options.only in (None, scene.name)]
    with tempfile.TemporaryDirectory(prefix="tour-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        with (
            dagster_dev(demo / "nanoset.yaml", demo / ".dagster", scratch / "dev.log") as address,
            browsing(program, scratch) as browser,
        ):
            for scene in scenes:
                _photograph(browser, address, scene, options.output / f"{scene.name}.png")
        if options.only in (None, HOST.name):
            home = scratch / "home"
            more = write_host(scratch / "acme", home, (demo / "tokenizer.json").read_bytes())
            with (
                dagster_dev(
                    scratch / "acme", home, scratch / "host.log", module="acme.definitions", more=more
                ) as address,
                browsing(program, home) as browser,
            ):
                _photograph(browser, address, HOST, options.output / f"{HOST.name}.png")
    return 0


def _photograph(browser: Browser, address: str, scene: Scene, file: Path) -> None:
    browser.resize(scene.width, scene.height, PIXELS)
    browser.open(address + scene.page, *scene.texts)
    _settle(browser)
    browser.photograph(file)
    size = file.stat().st_size
    print(f"{file} {size:,} bytes")
    if size > MOST_BYTES:
        print(f"  more than {MOST_BYTES:,}", file=sys.stderr)


def _settle(browser: Browser) -> None:
    """Wait until the page has shown the same text for a while, and so has loaded everything and drawn it."""
    seen, since = "", time.monotonic()

    def is_settled() -> bool:
        nonlocal seen, since
        text = re.sub(r"\d+", "", browser.text())  # "Loaded 44 seconds ago" goes on counting
        if text != seen:
            seen, since = text, time.monotonic()
        return time.monotonic() - since > _SETTLED_SECONDS

    until(is_settled, 30, lambda: f"the page keeps changing:\n{seen}")


if __name__ == "__main__":
    sys.exit(main())
