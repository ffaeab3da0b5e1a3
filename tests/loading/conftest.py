import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """What these tests write need not survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
