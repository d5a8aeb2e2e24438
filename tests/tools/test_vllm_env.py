"""The environment with vLLM: which commands make it, and what is refused."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.tools import vllm_env
from mugrpo.tools.vllm_env import make_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that are run. Each succeeds, unless it contains "that-fails".

    Only venv itself is run.
    """
    run: list[str] = []
    original = subprocess.run

    def stand_in(
        command: list[str], *, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[bytes]:
        run.append(" ".join(command))
        if "venv" in command:
            assert env["PYTHONSAFEPATH"]  # no venv.py or pip.py of the working directory is run
            original([*command, "--without-pip"], check=True)
        return subprocess.CompletedProcess(command, int("that-fails" in run[-1]))

    monkeypatch.setattr(vllm_env.subprocess, "run", stand_in)
    return run


@pytest.mark.parametrize("gpu", [True, False])
def test_a_gpu_gets_vllms_own_wheel_and_a_cpu_its_build(tmp_path, commands, monkeypatch, gpu):
    monkeypatch.setattr(
        vllm_env.shutil,
        "which",
        lambda name: gpu and "/bin/nvidia-smi" if name == "nvidia-smi" else None,
    )
    folder = tmp_path / "env"
    said: list[str] = []
    make_environment(folder, said.append)
    assert said[-1] == f"use it with --engine.name vllm --engine.python {folder}/bin/python"
    assert (folder / "installed").exists()
    pip = f"{folder}/bin/python -m pip"
    installed = [f"{pip} install -qq vllm==0.32.* transformers<5.20"]
    if not gpu:
        vllm, torch = vllm_env._VLLM, vllm_env._TORCH
        installed = [
            f"{pip} install -qq {torch}",
            f"{pip} install -qq {vllm} {torch} transformers<5.20",
            f"{pip} uninstall -qq --yes torchvision torchaudio torchcodec",
        ]
    venv = f"{sys.executable} -m venv --clear --prompt mugrpo-vllm {folder}"
    assert commands == [venv, *installed]


def test_the_documents_name_the_tested_version():
    text = (ROOT / "docs" / "engines.md").read_text()
    assert f"{vllm_env._TESTED} is tested" in text


def test_what_a_failed_step_leaves_is_made_again_with_its_own_python(
    tmp_path: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "env"
    monkeypatch.setattr(vllm_env, "_TORCH", "torch-that-fails")
    monkeypatch.setattr(vllm_env.shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match=f" failed; .*`mugrpo vllm-env {folder}` again"):
        make_environment(folder, lambda _: None)
    assert len(commands) == 2 and not (folder / "installed").exists()
    monkeypatch.setattr(vllm_env, "_TORCH", "torch")
    python = folder / "bin" / "python"
    python.unlink()
    python.symlink_to("/bin/false")
    make_environment(folder, lambda _: None)
    assert (folder / "installed").exists()
    assert python.resolve() == Path(sys.executable).resolve()


def test_a_finished_environment_is_left_alone_and_named(tmp_path: Path, commands: list[str]):
    said: list[str] = []
    make_environment(tmp_path / "env", said.append)
    ours = len(commands)
    make_environment(tmp_path / "env", said.append)
    assert len(commands) == ours
    assert said[-1].startswith(f"{tmp_path / 'env'} is an environment with vLLM already")
    assert said[-1].endswith(said[-2])  # how to use it


@pytest.mark.parametrize("file", ["notes.txt", "pyvenv.cfg", "installed"])
def test_what_is_no_environment_of_ours_is_left_alone(tmp_path, commands, monkeypatch, file):
    (tmp_path / file).touch()
    with pytest.raises(UsageError, match="is not empty; name another folder, or remove this one"):
        make_environment(tmp_path, lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(UsageError, match="is the environment of mugrpo itself"):
        make_environment(tmp_path, lambda _: None)
    assert commands == []
