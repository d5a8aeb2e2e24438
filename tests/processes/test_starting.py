"""What a run starts: no module of the working directory runs, and no port is open to a network."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import LOOPBACK, listening
from tests.runs import ENVIRONMENT, read_metrics, write_config
from tests.test_layers import FILES, module_of
from tests.waiting import ranks_of, until


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
