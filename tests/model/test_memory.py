"""Freed memory goes back to the system when a process holds much of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cases import table
from tests.runs import ENVIRONMENT

HOLDS = """
import sys, torch
from mugrpo.model import hardware
hardware.keep_freed_memory()
hardware.host_memory = lambda: int(sys.argv[1]) << 20
held = [torch.ones(1 << 18) for _ in range(256)]  # 256 MiB in blocks, then every second one goes
del held[::2]
before = hardware._resident()
hardware.give_back_if_tight()
print((before - hardware._resident()) >> 20)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc_trim")
@table(("megabytes", "least", "most"), [(1, 120, 200), (1 << 20, -1, 1)])
def test_what_is_freed_goes_back_only_if_memory_is_tight(megabytes: int, least: int, most: int):
    words = [sys.executable, "-c", HOLDS, str(megabytes)]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert least <= int(done.stdout) <= most
