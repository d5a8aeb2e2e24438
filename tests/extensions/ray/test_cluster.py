"""What a run that needs Ray is told without it. Runs on Ray are in tests/targets/test_ray.py."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.ray import RayBackend
from mugrpo.extensions.ray.cluster import connected
from tests.runs import ENVIRONMENT


def test_without_ray_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs Ray: pip install 'mugrpo\[ray\]'"):
        connected(RayBackend())


def test_an_address_where_nothing_listens_is_refused_at_once():
    with socket.socket() as taken:  # nothing listens on it
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = rf"no Ray cluster answers at {address} \(Connection refused"
        with pytest.raises(UsageError, match=message):
            connected(RayBackend(address=address))


def test_the_local_backend_imports_no_ray():
    words = "import sys, mugrpo.pipeline, mugrpo.stages.ranks; assert 'ray' not in sys.modules"
    environment = {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
