"""What a run starts: no module of the working directory runs, and no port is open to a network."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.model.pretrained import fetch_wheel
from tests.runs import ENVIRONMENT, read_metrics, write_config
from tests.test_layers import FILES, module_of
from tests.waiting import until

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
LISTENS = "0A"


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules of somebody else, which create the file "ran"."""
    folder = tmp_path / "theirs"
    for name in ("mugrpo/__init__.py", "pip.py", "torch.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(folder)
    return folder


def ranks_of(run: subprocess.Popen[bytes]) -> list[int]:
    """Return the process ids of torchrun and the ranks that `run` has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MUGRPO_DRIVER={run.pid} ".encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def listening(pids: list[int]) -> Iterator[str]:
    """Yield the addresses, in hexadecimal, at which the processes `pids` accept connections."""
    own = {os.readlink(fd) for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                yield local.partition(":")[0]


def test_ranks_of_one_machine_run_nothing_of_the_working_directory_and_listen_on_loopback(
    traps: Path, tmp_path: Path
):
    """A port of torchrun's would take pickles, so code, from every user of the network."""
    run_dir, config = tmp_path / "run", write_config(tmp_path)
    words = ["train", config, "--run-dir", run_dir, "--distributed.processes", "2"]
    words += ["--engine.processes", "1", "--schedule.stages", "1"]
    command = [sys.executable, "-P", "-m", "mugrpo", *map(str, words)]
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            until(lambda: any(line["kind"] == "update" for line in read_metrics(run_dir)), 120)
            pids = ranks_of(run)
            addresses = list(listening(pids))
            assert run.wait(120) == 0
        finally:
            run.kill()
    assert len(pids) == 3 and len(addresses) >= 2
    assert set(addresses) <= LOOPBACK
    assert not (traps / "ran").exists()


def test_pip_of_the_working_directory_is_not_run(traps: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="pip could not fetch"):
        fetch_wheel("no-such-package===never", tmp_path / "wheels", lambda _: None)
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
