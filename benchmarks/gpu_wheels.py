"""The wheels that `gpu.sh` needs on a bare machine: `make gpu-wheels` here, unpacked there.

A machine with torch and transformers lacks few of our dependencies, and what `gpu.py` measures
needs few of them. `collect` downloads these for Linux on x86-64 and Python 3.12, in the versions of
constraints.txt, and refuses if they and the repository are larger together than what can be
carried. `unpack` puts those packages into a folder that the machine's Python cannot import. It
needs neither a network nor pip, because a wheel is a zip archive.

    python benchmarks/gpu_wheels.py collect FOLDER
    python benchmarks/gpu_wheels.py unpack FOLDER TARGET
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 64 * 2**20  # bytes that are carried
# The module that shows whether a machine has a package, and the distributions that it consists of.
NEEDED = {
    "pydantic": (
        "pydantic",
        "pydantic_core",
        "annotated-types",
        "typing-inspection",
        "typing_extensions",
    ),
    "peft": ("peft",),
    "accelerate": ("accelerate",),
    "psutil": ("psutil",),
}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def pinned(constraints: str) -> dict[str, str]:
    """Return the lines of constraints.txt by the plain name of their distribution."""
    lines = [line for line in constraints.split() if "==" in line]
    return {plain(line.partition("==")[0]): line for line in lines}


def collect(folder: Path) -> None:
    """Download the wheels into `folder`. Exits if they and the repository are too large."""
    pins = pinned((ROOT / "constraints.txt").read_text())
    names = [pins[plain(name)] for names in NEEDED.values() for name in names]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    python = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"]
    subprocess.run([*pip, *python, *platforms, "--dest", str(folder), *names], check=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    check_size(list(folder.glob("*.whl")), [file for file in files if file.is_file()])


def check_size(wheels: Sequence[Path], files: Sequence[Path]) -> None:
    """Print how many bytes are carried. Exits if they are more than MOST."""
    own, all_of_them = (sum(f.stat().st_size for f in some) for some in (wheels, [*wheels, *files]))
    text = f"{len(wheels)} wheels of {own / 2**20:.1f} MiB, {all_of_them / 2**20:.1f} with the code"
    if all_of_them > MOST:
        raise SystemExit(f"{text}: more than the {MOST / 2**20:.0f} MiB that can be carried")
    print(text)


def unpack(folder: Path, target: Path) -> list[str]:
    """Unpack the wheels of packages that cannot be imported into `target`, and return their names.

    Exits if such a package has no wheel in `folder`.
    """
    wheels = {plain(wheel.name.partition("-")[0]): wheel for wheel in folder.glob("*.whl")}
    missing = [name for name in NEEDED if find_spec(name) is None]
    for distribution in (plain(d) for name in missing for d in NEEDED[name]):
        if distribution not in wheels:
            raise SystemExit(
                f"this Python lacks {distribution}, and {folder} has no wheel of it; run `make "
                "gpu-wheels` on a machine with a network and bring that folder"
            )
        with zipfile.ZipFile(wheels[distribution]) as wheel:
            wheel.extractall(target)
    return missing


def main(argv: Sequence[str]) -> None:
    command, folder, *target = argv
    if command == "collect":
        collect(Path(folder))
    else:
        names = unpack(Path(folder), Path(*target))
        print(f"unpacked: {', '.join(names) or 'nothing'}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
