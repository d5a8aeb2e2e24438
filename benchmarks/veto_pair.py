"""Relaxed clipping with and without the negative-advantage veto, side by side: `make veto-pair`.

Two runs of the demo at a peak learning rate that is high enough for stale negative-advantage
tokens to matter. Prints, for each evaluation of both runs, accuracy and what
the updates since the last one were like.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mugrpo.metrics import read_metrics

DEMO = Path(__file__).parents[1] / "configs" / "demo.toml"


def metrics_of(run_dir: Path, lr: float, kappa: float, more: list[str]) -> list[dict[str, Any]]:
    overrides = ["--optimizer.lr", str(lr), "--veto.kappa", str(kappa), *more]
    command = [sys.executable, "-m", "mugrpo.cli", "train", str(DEMO), "--run-dir", str(run_dir)]
    subprocess.run([*command, *overrides], check=True, stdout=sys.stderr)
    return list(read_metrics(run_dir / "metrics.jsonl"))


def rows(lines: list[dict[str, Any]]) -> dict[int, str]:
    """Update -> accuracy, largest negative ratio, vetoed fraction, since the last evaluation."""
    table, ratios, vetoed = {}, [0.0], [0.0]
    for line in lines:
        if line["kind"] == "update":
            ratio = line["ratio/negative/max"]  # null: none was computed, or it was infinite
            ratios.append(math.inf if ratio is None and line["computed_tokens"] else ratio or 0.0)
            vetoed.append(line["vetoed_fraction"] or 0.0)
        elif line["kind"] == "evaluation":
            mean = sum(vetoed) / len(vetoed)
            table[line["update"]] = f"{line['accuracy']:.3f} | {max(ratios):.3g} | {mean:.4f}"
            ratios, vetoed = [0.0], [0.0]
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--kappa", type=float, default=1e-2)
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        without = rows(metrics_of(Path(folder) / "without", options.lr, 0.0, more))
        with_veto = rows(metrics_of(Path(folder) / "with", options.lr, options.kappa, more))
    columns = "accuracy | largest ratio, A < 0 | vetoed tokens"
    print(f"lr {options.lr:g}, kappa {options.kappa:g}, {' '.join(more)}")
    print(f"| update | without veto: {columns} | with veto: {columns} |")
    print("| --- " * 7 + "|")
    for update, row in without.items():
        print(f"| {update} | {row} | {with_veto[update]} |")


if __name__ == "__main__":
    main()
