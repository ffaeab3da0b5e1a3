import pytest
from locations import GOLDEN_FILES


@pytest.fixture(scope="session")
def golden():
    return GOLDEN_FILES / "webdataset"
