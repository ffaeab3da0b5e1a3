"""Lets a process send failed requests again at once, so that trials need not wait.

A trial's process imports this module. The number of attempts stays the same.
"""

from nanoset_core.storage import requests

requests.FIRST_WAIT_SECONDS = 0.01
