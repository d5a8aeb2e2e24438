"""What a run that wants Ray is told where there is none. Runs on Ray: tests/targets/test_ray.py."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from mugrpo.config.backends import RayBackend
from mugrpo.disk.errors import UsageError
from mugrpo.processes.cluster import connected
from tests.runs import ENVIRONMENT


def test_without_ray_the_install_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs Ray: pip install 'mugrpo\[ray\]'"):
        connected(RayBackend())


def test_where_nobody_listens_it_is_refused_at_once():
    with socket.socket() as taken:  # and not listened to
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"no Ray answers at {address} \(Connection refused"):
            connected(RayBackend(address=address))


def test_the_local_backend_imports_no_ray():
    words = "import sys, mugrpo.pipeline, mugrpo.stages.ranks; assert 'ray' not in sys.modules"
    environment = {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
