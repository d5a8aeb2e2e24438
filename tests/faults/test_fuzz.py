"""Whatever the files of a run contain, a command ends with a status and one sentence.

A file of a finished run is replaced by bytes, by any JSON, or by its own JSON with a part replaced.
All checksums then fit, so that every reader has to cope with it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults.harm import accepted
from tests.runs import Command

pytest_plugins = ["tests.run_fixtures"]

FILES = (
    "config.json",
    "metrics.jsonl",
    "stages/001/rollouts/manifest.json",
    "stages/001/scores/manifest.json",
    "stages/001/plan/manifest.json",
    "stages/001/rollouts/shard-00001.parquet",
    "stages/001/scores/shard-00001.parquet",
    "stages/001/plan/shard-00000.parquet",
    "checkpoints/update-000006/sha256.json",
    "checkpoints/update-000006/stages.json",
    "checkpoints/update-000006/trainer.json",
    "checkpoints/update-000006/config.json",
    "evaluations/update-000006/rollouts/manifest.json",
    "evaluations/update-000006/scores/manifest.json",
    "samples/update-000006.json",
)
APPENDED = ("metrics.jsonl", "lock")  # the others are only ever replaced

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
deep = st.just("[" * 10_000)


def replaced(draw: st.DrawFn, value: Any) -> Any:
    """Return `value` with one part, anywhere in it, replaced by another value or left out."""
    keys = list(value) if isinstance(value, dict) else []
    keys = list(range(len(value))) if isinstance(value, list) else keys
    if not keys or draw(st.integers(0, 3)) == 0:
        return draw(trees)
    key = draw(st.sampled_from(keys))
    copy = value.copy()
    if draw(st.integers(0, 5)) == 0:
        del copy[key]
    else:
        copy[key] = replaced(draw, value[key])
    return copy


@st.composite
def contents(draw: st.DrawFn, original: bytes) -> bytes:
    """Draw bytes, JSON, or the original with a part replaced."""
    kind = draw(st.sampled_from(["bytes", "json", "part", "part", "part", "flip", "deep"]))
    if kind == "bytes":
        return draw(st.binary(max_size=64))
    if kind == "deep":
        return draw(deep).encode()
    if kind == "json":
        return json.dumps(draw(trees)).encode() + b"\n"
    if kind == "part":
        lines = original.splitlines()
        try:
            if len(lines) > 1 and lines[0].endswith(b"}"):  # one object a line
                number = draw(st.integers(0, len(lines) - 1))
                lines[number] = json.dumps(replaced(draw, json.loads(lines[number]))).encode()
                return b"\n".join(lines) + b"\n"
            return json.dumps(replaced(draw, json.loads(original))).encode()
        except ValueError:  # no JSON
            pass
    at, bit = draw(st.integers(0, len(original) - 1)), draw(st.integers(0, 7))
    return original[:at] + bytes([original[at] ^ (1 << bit)]) + original[at + 1 :]


def fresh(reference: Path, folder: Path) -> Path:
    """Return a copy of a run that shares the files which are never written to."""
    shutil.rmtree(folder, ignore_errors=True)

    def copy(source: str, target: str) -> None:
        # `accepted` edits these in place, so a link would change the reference too
        changed = Path(source).name in APPENDED or source.endswith(".json")
        (shutil.copy if changed else os.link)(source, target)

    return Path(shutil.copytree(reference, folder, copy_function=copy))


def survives(
    data: st.DataObject, run_dir: Path, command: Command, *lines: Sequence[object]
) -> None:
    """Replace a file of the run, and check what the commands say of it."""
    name = data.draw(st.sampled_from(FILES))
    path = run_dir / name
    content = data.draw(contents(path.read_bytes()))
    path.unlink()
    path.write_bytes(content)
    accepted(run_dir)
    for words in lines:
        ended = command(words[0], run_dir, *words[1:])
        assert ended.status in (0, 2, 3, 4), ended
        assert ended.status == 0 or ended.err.count("mugrpo: ") == 1, ended


def fuzzed(examples: int) -> settings:
    """Return settings for `examples`, which are not shrunk: each takes seconds."""
    health = list(HealthCheck)
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=health,
        phases=[Phase.explicit, Phase.generate],
    )


TRAIN, REPAIR = ["train"], ["repair"]


@fuzzed(4)
@given(data=st.data())
def test_any_content_of_any_file_ends_in_a_sentence(
    reference: Path, tmp_path: Path, command: Command, data: st.DataObject
):
    report = ["report", "--out", tmp_path / "report.html"]
    survives(data, fresh(reference, tmp_path / "run"), command, TRAIN, report, REPAIR, TRAIN)


@pytest.mark.long
@fuzzed(2_000)
@given(data=st.data())
def test_two_thousand_contents_end_in_a_sentence(
    reference: Path, tmp_path: Path, command: Command, data: st.DataObject
):
    survives(data, fresh(reference, tmp_path / "run"), command, TRAIN, REPAIR, TRAIN)
