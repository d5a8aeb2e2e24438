"""Start a vLLM server with the weights in a folder, in place of the one that runs, if any.

    python scripts/serve_vllm.py PYTHON PIDFILE [VLLM OPTIONS ...] URL FOLDER

PYTHON is an interpreter on this machine that has vllm. The server that PIDFILE.PORT names is ended,
and a new one is started at URL. The command returns once it answers.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

PATIENCE = 900.0  # seconds that the server has to load the model


def main(arguments: list[str]) -> None:
    python, pid_file, *options, url, folder = arguments
    address = urlparse(url)
    pid_file += f".{address.port}"
    end(Path(pid_file))
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    command += ["--host", str(address.hostname), "--port", str(address.port)]
    # Report logprobs of the distribution that tokens are drawn from, and ignore the model's own
    # sampler settings.
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", *options]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    Path(pid_file).write_text(f"{server.pid}\n")
    began = time.monotonic()
    while not answers(f"{url}/health"):
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode}")
        if time.monotonic() - began > PATIENCE:
            sys.exit(f"the server has not answered after {PATIENCE:g} s")
        time.sleep(1)


def end(pid_file: Path) -> None:
    """End the server that an earlier call started, and all that it started."""
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
        for _ in range(100):
            time.sleep(0.2)
            os.killpg(pid, 0)
        os.killpg(pid, signal.SIGKILL)
        time.sleep(1)
    pid_file.unlink()  # last, so that an interrupted call leaves the file for the next one


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
