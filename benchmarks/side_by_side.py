"""Measure sides in turn within one run, and write their ratios as JSON and a table.

A machine's speed drifts and its cores are shared, so times of different runs cannot be compared.
The ratio of two sides that took turns can. Every repetition calls each side once, in an order that
reverses each time, and gives one ratio. The result is the median of the ratios, with the least and
the greatest.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mugrpo.config.cores import cores

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "trl", "accelerate")


@dataclass(frozen=True)
class Measured:
    """One call of a side: `work` units done in `seconds`, and `notes` to store with them."""

    seconds: float
    work: float = 1.0
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.work / self.seconds


Side = Callable[[int], Measured]  # called with the repetition's number, from 0


@dataclass(frozen=True)
class Ratio:
    """The speed of `side` relative to `peer`, and its target."""

    side: str
    peer: str
    label: str
    target: float | None = None
    # Or "floor", if it is a share of what the machine allows; or "own", against our own other way,
    # which is not drawn.
    kind: str = "peer"


def alternate(
    sides: Mapping[str, Side],
    repetitions: int,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    time_left: Callable[[], bool] = lambda: True,
) -> dict[str, list[Measured]]:
    """Call each side once per repetition, in an order that reverses each time.

    Only the first repetition starts without `time_left`. Return each side's measurements.
    """
    results: dict[str, list[Measured]] = {name: [] for name in sides}
    for repetition in range(repetitions):
        if repetition and not time_left():
            break
        order = list(sides.items())
        for name, side in order if repetition % 2 == 0 else reversed(order):
            gc.collect()  # now, rather than during a turn
            measured = side(repetition)
            results[name].append(measured)
            say(f"{repetition + 1}/{repetitions}  {name}: {measured.seconds:.2f} s")
    return results


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def compared(results: Mapping[str, Sequence[Measured]], ratio: Ratio) -> dict[str, Any]:
    """Return the ratio of each repetition, and the spread of all."""
    pairs = zip(results[ratio.side], results[ratio.peer], strict=True)
    values = spread([side.rate / peer.rate for side, peer in pairs])
    names = {"side": ratio.side, "peer": ratio.peer, "label": ratio.label, "kind": ratio.kind}
    return {**names, "target": ratio.target, **values}


def machine() -> dict[str, Any]:
    """Return a description of the machine and the versions of the main packages."""
    import torch

    versions = {"python": platform.python_version(), "date": date.today().isoformat()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "processor": processor(),
        "cores": len(cores()),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        **versions,
    }


def processor() -> str:
    """Return the processor's name if /proc/cpuinfo has it, otherwise its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@dataclass
class Row:
    """A benchmark's outcome, as stored in benchmarks/results/NAME.json."""

    name: str
    title: str
    unit: str  # of the sides' rates
    found: Mapping[str, Sequence[Measured]]
    ratios: Sequence[Ratio]
    details: Mapping[str, Any] = field(default_factory=dict)
    tiny: bool = False

    def document(self) -> dict[str, Any]:
        sides = {
            name: {
                "rate": spread([m.rate for m in measured]),
                "seconds": spread([m.seconds for m in measured]),
                "notes": [dict(m.notes) for m in measured],
            }
            for name, measured in self.found.items()
        }
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "tiny": self.tiny,
            "command": " ".join(["python", *map(relative, sys.argv)]),
            "repetitions": max(map(len, self.found.values()), default=0),
            "machine": machine(),
            "sides": sides,
            "ratios": [compared(self.found, ratio) for ratio in self.ratios],
            "details": dict(self.details),
        }


def relative(argument: str) -> str:
    """Return a path inside the repository relative to its root."""
    return argument.replace(f"{ROOT}{os.sep}", "")


def table(document: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"{document['title']}",
        "",
        f"| side | {document['unit']} | seconds |",
        "| - | - | - |",
    ]
    for name, side in document["sides"].items():
        lines.append(f"| {name} | {shown(side['rate'])} | {shown(side['seconds'])} |")
    lines.append("")
    for ratio in document["ratios"]:
        aim = "" if ratio["target"] is None else f"; target {ratio['target']:g}"
        lines.append(f"{ratio['label']}: {shown(ratio)}{aim}")
    return "\n".join(lines)


def shown(values: Mapping[str, Any]) -> str:
    return f"{values['median']:.4g} ({values['min']:.4g} to {values['max']:.4g})"


def parser(
    description: str, repetitions: int = 3, output: str = "JSON file to write"
) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    cli = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--repetitions", type=int, default=repetitions, help="calls of each side")
    cli.add_argument("--tiny", action="store_true", help="only show in seconds that it runs")
    cli.add_argument("--output", type=Path, help=f"{output} (default: benchmarks/results)")
    return cli


def publish(row: Row, output: Path | None) -> dict[str, Any]:
    """Print the table and write the JSON. A tiny run is written only if `output` is given."""
    document = row.document()
    print(table(document))
    if output is None and not row.tiny:
        output = RESULTS / f"{row.name}.json"
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(document, indent=1) + "\n")
        print(f"\nwritten: {relative(str(output.absolute()))}")
    return document
