"""Screenshots of the live UI over the demo project, for docs/dagster.md: `make tour`.

Builds nothing: the demo is there already (`make demo`). Its UI is opened on a free port, and ended
afterwards.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from live.browser import Browser, browsing, chromium
from live.dagster_dev import dagster_dev
from live.host import write_host

from helpers.daemons import until

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 200_000
PIXELS = 1600
_GROUPS = ",".join(f"global@global:{group}" for group in ("corpora", "pretrain", "shuffled"))
_SETTLED_SECONDS = 2.0


class Scene(NamedTuple):
    """One screenshot: its file's name, path and query of the page, texts that it shows, height and
    width.
    """

    name: str
    page: str
    texts: tuple[str, ...]
    height: int
    width: int = 1600


SCENES = (
    Scene(
        "graph", f"/asset-groups?expanded={_GROUPS}", ("raw_jsonl", "tars", "handoff"), 860, 2150
    ),
    Scene("overview", "/assets/overview", ("made_of_them", "shuffled"), 1130),
    Scene(
        "corpus",
        "/assets/tokenized_shards?view=partitions&partition=libraries",
        ("token_lengths",),
        900,
    ),
    Scene(
        "documents",
        "/assets/indexed_dataset?view=partitions&partition=stdlib",
        ("first_documents",),
        900,
    ),
    Scene(
        "blend",
        "/assets/pretrain/blend?view=partitions&partition=train",
        ("first_samples", "explain"),
        940,
    ),
    Scene("webdataset", "/assets/shuffled/shuffle_plan", ("evenly_shuffled", "order"), 1260, 1900),
    Scene(
        "checks",
        "/assets/indexed_dataset?view=checks&checkDetail=verified",
        ("verified", "Passed"),
        800,
    ),
)

_HOST_GROUPS = ",".join(
    f"global@global:{group}" for group in ("lake", "training", "llm_corpora", "llm_pretrain")
)
HOST = Scene(
    "your_dagster",
    f"/asset-groups?expanded={_HOST_GROUPS}",
    ("web_dedup", "handoff", "model"),
    860,
    2150,
)
"""Of somebody else's project, for docs/your_dagster.md."""


def main() -> None:
    """Take all of them, of the demo project in the folder that is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo", type=Path, default=Path("demo"), help="folder of the demo project"
    )
    program, demo = chromium(), parser.parse_args().demo.resolve()
    if program is None or not (demo / ".dagster").is_dir():
        parser.error("needs Chromium (apt-get install chromium) and the built demo (make demo)")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tour-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        home = demo / ".dagster"
        with (
            dagster_dev(demo / "nanoset.yaml", home, scratch / "dev.log") as address,
            browsing(program, scratch) as page,
        ):
            for scene in SCENES:
                _photograph(page, address, scene)
        acme, home = scratch / "acme", scratch / "home"
        more = write_host(acme, home, (demo / "tokenizer.json").read_bytes())
        with (
            dagster_dev(
                acme, home, scratch / "host.log", module="acme.definitions", more=more
            ) as address,
            browsing(program, home) as page,
        ):
            _photograph(page, address, HOST)


def _photograph(browser: Browser, address: str, scene: Scene) -> None:
    file = SCREENSHOTS / f"{scene.name}.png"
    browser.resize(scene.width, scene.height, PIXELS)
    browser.open(address + scene.page, *scene.texts)
    _settle(browser)
    browser.photograph(file)
    print(f"{file} {file.stat().st_size:,} bytes (at most {MOST_BYTES:,} are welcome)")


def _settle(browser: Browser) -> None:
    """Wait until the page has shown the same text for a while, and so has loaded everything and
    drawn it.
    """
    seen, since = "", time.monotonic()

    def is_settled() -> bool:
        nonlocal seen, since
        text = re.sub(r"\d+", "", browser.text())  # "Loaded 44 seconds ago" goes on counting
        if text != seen:
            seen, since = text, time.monotonic()
        return time.monotonic() - since > _SETTLED_SECONDS

    until(is_settled, 30, lambda: f"the page keeps changing:\n{seen}")


if __name__ == "__main__":
    main()
