"""Loaded into a process, lets failed requests be sent again at once, as often as ever: trials wait
for nothing else.
"""

from nanoset_core.storage import s3_requests

s3_requests.FIRST_WAIT_SECONDS = 0.01
