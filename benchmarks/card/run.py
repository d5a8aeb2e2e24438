"""Measure on one GPU: `python benchmarks/card/run.py PART ...`; README.md has the parts.

Needs only Python's library, torch and transformers; what else mugrpo needs, `pack.sh` has put in
.card/base. Each command of a part has a limit, and one that fails or hangs does not keep the others
from running. Its last lines are printed; card.log in the output folder has all. --tiny shows on any
machine that a part runs.
"""

import argparse
import importlib.util
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What lasts from call to call.
HOME = Path(tempfile.gettempdir()) / f"mugrpo-card-{sys.version_info[0]}.{sys.version_info[1]}"
LOOK = """
import os, sys, sysconfig, torch, transformers
print(sys.version.split()[0], torch.__version__, transformers.__version__, os.cpu_count(), "cores")
print("Python.h:", os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))
gpu = torch.cuda.is_available()
print(torch.cuda.get_device_properties(0) if gpu else "torch sees no GPU")
"""
SHORT = "--schedule.stages 2 --schedule.batches_per_stage 2 --evaluation.every 0"
VLLM = {  # of its processes
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


@dataclass(frozen=True)
class Command:
    """What Python runs, for at most `seconds`, and how many of its last lines are printed.

    `takes` names what else it is given: the options of benchmarks, the old tree, a run directory.
    """

    seconds: int
    words: str
    lines: int = 40
    takes: str = "options"


PARTS: dict[str, list[Command]] = {
    "look": [Command(60, f"-c {shlex.quote(LOOK)}", takes="")],
    "right": [Command(60, "-m card.sleep"), Command(180, "-m card.right", takes="options, old")],
    "decode": [Command(280, "-m card.decode", 110, "options, old")],
    "update": [Command(330, "-m card.update", 110, "options, old")],
    "big": [Command(200, "-m card.update --big", 60, "options, old")],
    "refresh": [Command(120, "-m card.refresh")],
    "resume": [Command(240, "-m card.resume")],
    "vllm": [
        Command(160, "-m card.beside_vllm --eager"),
        Command(200, "-m card.beside_vllm"),
        Command(
            120,
            f"-m mugrpo demo {SHORT} --engine.name vllm --engine.slots 64 "
            "--engine.gpu_memory_utilization 0.2 "
            "--engine.arguments '{ max_model_len = 128, enforce_eager = true }'",
            8,
            "run",
        ),
    ],
    "demo": [Command(150, "-m mugrpo demo", 8, "run")],
    "tests": [
        Command(
            200,
            "-m pytest -p card.shown -q -n 8 --maxfail 80 -p no:cacheprovider --no-header "
            "--ignore tests/optimize/test_trl_equality.py tests/model tests/optimize tests/engines",
            45,
            takes="",
        )
    ],
}


def install(wheels: Sequence[Path]) -> None:
    """Install the packed wheels in a folder of their own, once, if this Python lacks them."""
    site = HOME / "site"
    if wheels and not (site / "ready").exists() and importlib.util.find_spec("pydantic") is None:
        how = shlex.split("-q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target")
        words = [sys.executable, "-m", "pip", "install", *how, str(site), *map(str, wheels)]
        subprocess.run(words, check=True)
        (site / "ready").touch()


def keep(folder: Path) -> None:
    """Keep a piece for later calls, whole or not at all."""
    if (kept := HOME / "kept" / folder.name).exists():
        return
    shutil.copytree(folder, kept.with_suffix(".new"), dirs_exist_ok=True)
    kept.with_suffix(".new").rename(kept)


def unpacked_vllm() -> Path:
    """Return the folder with vLLM, unpacked from the pieces that were kept, once.

    Raises an error if one is missing or is not whole.
    """
    target, pieces = HOME / "vllm", sorted((HOME / "kept").glob("vllm-*/piece"))
    if pieces and not (target / "ready").exists():
        whole = HOME / "vllm.tar.xz"
        with open(whole, "wb") as file:
            for piece in pieces:
                file.write(piece.read_bytes())
        with tarfile.open(whole) as archive:
            archive.extractall(target, filter="data")
        (target / "ready").touch()
    return target


def run(command: Command, environment: dict[str, str], old: Path | None, options: object) -> bool:
    """Run a command, print its last lines, and log all. Return whether it ended well."""
    output, tiny = vars(options)["output"], vars(options)["tiny"]
    words = shlex.split(command.words)
    title, began = " ".join(words)[:100].splitlines()[0], time.monotonic()
    if "options" in command.takes:
        words += ["--output", str(output), *(["--tiny"] if tiny else [])]
    if "old" in command.takes and old:
        words += ["--old", str(old)]
    if "run" in command.takes:
        words += ["--run-dir", tempfile.mkdtemp(dir=HOME) + "/run"]
        words += shlex.split(f"{SHORT} --schedule.problems_per_update 2") if tiny else []
    said = HOME / f"{os.getpid()}.txt"
    with open(said, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", *words],
            stdout=file,
            stderr=file,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        status: int | str
        try:
            status = process.wait(command.seconds)
        except subprocess.TimeoutExpired:
            status = f"killed after {command.seconds} s"
        with suppress(ProcessLookupError):  # what it started and left, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = said.read_text(errors="replace").splitlines()
    said.unlink()
    ending = f"   ({title}: {time.monotonic() - began:.0f} s, status {status})\n"
    with open(output / "card.log", "a") as log:
        log.write("\n".join([f"== {title}", *lines, ending]) + "\n")
    few = [line[:300] for line in lines if not re.match(r"\d+/\d+  ", line)]
    print("\n".join([*few[-command.lines :], ending]), flush=True)
    return status == 0


def environment_of(base: Path, part: str) -> dict[str, str]:
    own = os.environ.get("PYTHONPATH", "")
    path = [ROOT / "src", ROOT / "benchmarks", base, HOME / "site", own]
    if part == "vllm":
        path.append(unpacked_vllm())
    return os.environ | {
        **(VLLM if part == "vllm" else {}),
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in path if folder),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(HOME / "inductor"),
    }


def main(argv: Sequence[str] | None = None) -> None:
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("parts", nargs="+", help=f"{', '.join(PARTS)}, or keep=NAME")
    cli.add_argument("--tiny", action="store_true", help="only show that the parts run")
    cli.add_argument("--old", type=Path, help="folder with the src of an earlier commit")
    given = os.environ.get("OUT")  # where a lent machine takes results from
    cli.add_argument("--output", type=Path, default=given or ROOT / "benchmarks" / "results")
    options = cli.parse_args(argv)
    if wrong := [p for p in options.parts if p not in PARTS and not p.startswith("keep=")]:
        raise SystemExit(f"there is no part {wrong[0]}; there are {', '.join(PARTS)}")
    # The pack lies in this checkout, or has it.
    base = ROOT.parent if (ROOT.parent / "whl").exists() else ROOT / ".card" / "base"
    packed = base / "old"
    old = options.old or (packed if packed.exists() else None)
    HOME.mkdir(parents=True, exist_ok=True)
    options.output = options.output.absolute()
    options.output.mkdir(parents=True, exist_ok=True)
    install(sorted(base.glob("whl/*.whl")))
    failed = []
    for part in options.parts:
        try:
            if part.startswith("keep="):  # a piece that a later call needs
                keep(base.parent / part.removeprefix("keep="))
                continue
            environment = environment_of(base, part)
        except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
            print(f"{part} is left out: {error}", flush=True)  # a piece is missing, or a part of it
            failed.append(part)
            continue
        ended_well = [run(command, environment, old, options) for command in PARTS[part]]
        failed += [] if all(ended_well) else [part]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
