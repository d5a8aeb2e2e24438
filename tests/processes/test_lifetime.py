"""What a run starts ends with it, runs nothing of the working directory and opens no port."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.engines.vllm import vllm_host
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.lifetime import DRIVER, let_segments_grow, passed_on
from mugrpo.processes.ranks import joined
from tests.cases import table
from tests.ports import LOOPBACK, listening
from tests.runs import ENVIRONMENT, read_metrics, write_config
from tests.test_layers import FILES, module_of
from tests.waiting import alive, ranks_of, soon, until

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


GROWING = "expandable_segments:True"


@table(
    ("users", "ours", "vllms"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": GROWING}, {"PYTORCH_ALLOC_CONF": ""}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": f"max_split_size_mb:64, {GROWING}"},
            {"PYTORCH_CUDA_ALLOC_CONF": f"max_split_size_mb:64, {GROWING}"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
            {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
            {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
        ),
    ],
)
def test_segments_grow_in_every_process_but_vllms(monkeypatch, users, ours, vllms):
    """Unless the user has set the allocator; vLLM's sleep mode fails with such segments in any
    case. Other settings stay."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    let_segments_grow()
    assert {n: v for n, v in passed_on().items() if n.endswith("ALLOC_CONF")} == ours
    host = vllm_host(Vocabulary(8, [1]), ModelOptions(), LoRAOptions(), VLLMOptions(), Path("log"))
    child = passed_on(**host.environment)
    assert {n: v for n, v in child.items() if n.endswith("ALLOC_CONF")} == vllms
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)  # what this test has set


@pytest.mark.long
def test_ranks_of_one_machine_run_nothing_of_the_working_directory_and_listen_on_loopback(
    traps: Path, tmp_path: Path
):
    run_dir, config = tmp_path / "run", write_config(tmp_path)
    words = ["train", config, "--run-dir", run_dir, "--distributed.processes", "2"]
    words += ["--engine.processes", "1", "--schedule.stages", "1"]
    command = [sys.executable, "-P", "-m", "mugrpo", *map(str, words)]
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            until(lambda: any(line["kind"] == "update" for line in read_metrics(run_dir)), 120)
            pids = ranks_of(run.pid)
            addresses = list(listening(pids))
            assert run.wait(120) == 0
        finally:
            run.kill()
    assert len(pids) == 2 and len(addresses) >= 2
    assert set(addresses) <= LOOPBACK
    assert not (traps / "ran").exists()


def test_every_process_is_started_with_a_chosen_environment():
    """A new place that starts one must say which: `passed_on` is for all but a user's command."""
    calls = [
        f"{module_of(file)}: {ast.unparse(node)}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("subprocess.")
        and not any(keyword.arg == "env" for keyword in node.keywords)
    ]
    assert calls == []
