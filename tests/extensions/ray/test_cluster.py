"""What a run that needs Ray is told without it. Runs on Ray are in tests/targets/test_ray.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.runs import ENVIRONMENT


@pytest.mark.long
def test_the_local_backend_imports_no_ray():
    words = "import sys, mugrpo.pipeline, mugrpo.hosts.ranks; assert 'ray' not in sys.modules"
    environment = {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
