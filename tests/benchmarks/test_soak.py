"""What the soak counts, and the slopes that it reports, by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import soak

CHILD = """
import subprocess, sys, threading, time
files = [open(sys.argv[1]) for _ in range(7)]
for _ in range(3):
    threading.Thread(target=time.sleep, args=[600], daemon=True).start()
worker = subprocess.Popen(["sleep", "600"]) if "child" in sys.argv else None
print("ready", flush=True)
time.sleep(600)
"""


def counted(*words: str) -> dict[str, dict[str, float]]:
    """Return what is counted of a process with seven files and three threads of its own."""
    command = [sys.executable, "-c", CHILD, __file__, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = soak.processes(process.pid)
        for pid in (*soak._descendants(process.pid), process.pid):
            subprocess.run(["kill", "-KILL", str(pid)], check=True)
    return found


def test_descriptors_threads_and_processes_are_counted_by_role():
    alone = counted()
    assert list(alone) == ["run"]
    assert (alone["run"]["descriptors"], alone["run"]["threads"]) == (3 + 7, 1 + 3)
    assert 1 < alone["run"]["memory"] < 500
    both = counted("child")
    assert both["other"]["processes"] == both["other"]["threads"] == 1
    assert both["run"]["processes"] == 1


def test_what_is_published_is_told_from_the_rest(tmp_path: Path):
    for name, size in (("stages/000/a", 3), ("metrics.jsonl", 1), ("checkpoints/b", 2)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size * 2**20))
    (tmp_path / "handed_over").symlink_to("checkpoints")
    assert soak.disk(tmp_path) == (4, 2)


def test_slopes_by_hand():
    """A line has its slope. What goes up and down within every block has none."""
    hours = [i / 240 for i in range(240)]
    line = soak.slope(hours, [5 + 3 * hour for hour in hours])
    assert (line["per_hour"], line["plus_minus"]) == pytest.approx((3, 0), abs=1e-6)
    assert soak.slope(hours, [7] * 240) == {"per_hour": 0, "plus_minus": 0, "mean": 7}
    jagged = soak.slope(hours, [(-1) ** i for i in range(240)])
    assert jagged["per_hour"] == pytest.approx(0, abs=1e-9)
    steps = soak.slope(hours, [i // 120 for i in range(240)])
    assert abs(steps["per_hour"] - 1.5) < steps["plus_minus"]


def test_the_first_tenth_does_not_count():
    hours = [float(i) for i in range(100)]
    series = {"hours": hours, "memory": [1000.0] * 10 + [50.0] * 90}
    space = {"hours": hours, "stages": [*range(0, 200, 4), *range(200, 250)]}
    found = soak.slopes({"run": series}, space)
    assert found == {"run: memory": {"per_hour": 0, "plus_minus": 0, "mean": 50}}
    assert soak.stages_per_hour(space) == [4, 1]


def test_a_short_soak_is_written_and_drawn(tmp_path: Path, capsys):
    output, picture = tmp_path / "soak.json", tmp_path / "soak.svg"
    by_role = {
        role: {
            "hours": [i / 100 for i in range(100)],
            "memory": [100.0 + i for i in range(100)],
            "descriptors": [9.0] * 100,
            "threads": [2.0] * 100,
            "processes": [1.0] * 100,
        }
        for role in ("run", "engine")
    }
    space = {
        "hours": [i / 20 for i in range(20)],
        "published MiB": [i * 0.5 for i in range(20)],
        "other MiB": [12.0] * 20,
        "stages": [float(i) for i in range(20)],
    }
    table = soak.samples(by_role, space)
    assert table.num_rows == 220 and table.column("of").to_pylist().count("disk") == 20
    pq.write_table(table, output.with_suffix(".parquet"))
    picture.write_text(soak.svg_file(soak.drawn(by_role, space)))
    for word in ("MiB resident", "descriptors", "threads", "MiB on disk", "engine", "hours"):
        assert word in picture.read_text()
    ticks = re.findall(r">([\d,]+)</text>", picture.read_text())
    assert {"150", "8", "12"} <= set(ticks)  # every panel has its own values
    document = {"hours": 1.0, "stages": 19, "stages_per_hour": soak.stages_per_hour(space)}
    document["slopes"] = soak.slopes(by_role, space)
    text = soak.shown(json.loads(json.dumps(document)))
    assert "20 an hour in the first half, 20 in the second" in text
    assert "| engine: descriptors | 9 | +0 ± 0 |" in text and "| disk: published MiB |" in text
