"""The cores of a machine, how long threads spin on them, and who else uses them."""

import os
import subprocess
import sys

import pytest

from mugrpo.config import cores
from mugrpo.config.base import WorkerOptions
from mugrpo.tools import doctor
from tests.cases import table


def test_without_affinity_as_on_macos_all_cores_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores.cores() == [0, 1, 2, 3, 4, 5]
    assert WorkerOptions().processes == 6
    assert doctor._CHECKS["CPU"]()[0].startswith("6 cores")


@table(
    ("first", "setting", "expected"),
    [
        ("", {}, ("1000", None)),
        ("", {"GOMP_SPINCOUNT": "7"}, ("7", None)),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, (None, "ACTIVE")),
        ("import sys; sys.modules['torch'] = sys", {}, (None, None)),  # too late
    ],
)
def test_spinning_is_bounded_before_torch_unless_the_user_says_otherwise(first, setting, expected):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {k: v for k, v in os.environ.items() if k not in names} | setting
    code = f"{first}\nimport mugrpo, os\nprint(*map(os.environ.get, {names}))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(value) for value in expected]


def test_windows_gets_a_sentence_before_anything_that_it_lacks_is_imported():
    code = """
import sys
sys.platform = "win32"
sys.modules |= dict.fromkeys(["fcntl", "resource", "pwd", "termios"])
from mugrpo.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "WSL" in done.stderr and done.stderr.count("\n") == 1
