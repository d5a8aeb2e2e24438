"""Ranks end with what started them and with the run that drives them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mugrpo.disk.errors import UsageError
from mugrpo.processes.lifetime import DRIVER
from mugrpo.processes.ranks import joined
from tests.waiting import alive, soon, until

RANK = """
import time
from mugrpo.processes.lifetime import end_with_driver
end_with_driver()
print("ready", flush=True)
"""
DRIVER_OF_ONE = """
import sys
from pathlib import Path
from mugrpo.processes.lifetime import start_rank
print(start_rank([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), {}).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.promise("no orphans")
@pytest.mark.parametrize(
    "doing", ["time.sleep(600)", "import torch, transformers\ntime.sleep(600)"]
)
def test_a_stopped_rank_ends_with_the_process_that_started_it(doing: str, tmp_path: Path):
    """So does one that is still importing."""
    words = [sys.executable, "-c", "import time" + DRIVER_OF_ONE, RANK + doing, tmp_path / "rank"]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    rank = int(driver.stdout.readline())
    until(lambda: (tmp_path / "rank.log").read_text() == "ready\n", 60)
    if "import" not in doing:
        os.kill(rank, signal.SIGSTOP)
    assert alive(rank)
    driver.kill()
    driver.communicate()
    assert soon(lambda: not alive(rank), 2)


def test_a_rank_without_a_gpu_says_so_before_it_meets_the_others(monkeypatch: pytest.MonkeyPatch):
    """The third of four ranks, on a stand-in for a machine with two GPUs."""
    place = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "2", DRIVER: "1 0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"has 2 GPUs.*--distributed.processes 2"), joined():
        pass
