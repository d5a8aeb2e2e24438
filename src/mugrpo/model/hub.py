"""Whether the Hugging Face hub can be reached."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import is_offline_mode
from huggingface_hub.constants import ENDPOINT


@cache
def hub_answers() -> bool:
    """Return whether the hub can be reached. Libraries would try for half a minute."""
    if is_offline_mode():
        return False
    if getproxies().keys() - {"no"}:
        return True  # they may know the way
    hub = urlsplit(ENDPOINT)
    try:
        port = hub.port or (443 if hub.scheme == "https" else 80)
        socket.create_connection((hub.hostname, port), timeout=3).close()
    except OSError:
        return False
    return True
