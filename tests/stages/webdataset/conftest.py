from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden():
    return Path(__file__).parents[1] / "golden" / "webdataset"
