"""Plan runs, make them, and compare. This is what `benchmarks/planning.py --live` does.

For each model, `mugrpo plan --measure` measures the machine, and a pilot of a few updates gives
lengths and the share of groups whose rewards differ. The plan of every other run comes from these,
and once more from the pilot's seconds, as `mugrpo plan PILOT` does it. vLLM is not what `--measure`
measures, so its run is planned from its pilot only. No planned number has seen the run that it is
compared with.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mugrpo.config.load import load_config
from mugrpo.config.toml import as_document
from mugrpo.extensions.lab.plan.calibrate import measured_by
from mugrpo.extensions.lab.plan.lengths import from_run
from mugrpo.extensions.lab.plan.machine import load_machine
from mugrpo.extensions.lab.plan.schedules import Planner
from mugrpo.extensions.lab.plan.setting import Measured, Setting, as_configured, shape_of
from mugrpo.report.costs import phase_seconds, spans
from mugrpo.report.read import RunData, read_runs
from side_by_side import ROOT

_SMOLLM2: dict[str, Any] = {
    "model": {"path": "smollm2"},
    "task": {
        "name": "dataset",
        "data": str(ROOT / "studies" / "base" / "addition.jsonl"),
        "prompt_template": "What is {prompt}? Answer with just the number.",
        "rewards": "numeric",
    },
    "prompt": {"form": "chat"},
    "rollouts": {"max_new_tokens": 16},
    "optimizer": {"micro_batch_tokens": 2048},
}
_EXPLAIN: dict[str, Any] = {
    "task": {**_SMOLLM2["task"], "prompt_template": "What is {prompt}? Explain in one sentence."},
    "rollouts": {"max_new_tokens": 256},
}
_VLLM = {
    "name": "vllm",
    "python": str(ROOT / ".venv-vllm" / "bin" / "python"),
    "gpu_memory_utilization": 0.25,
    "arguments": {"max_model_len": 128},
}


@dataclass(frozen=True)
class Live:
    """Runs that one pilot goes before: how many updates each of their stages has."""

    name: str
    base: dict[str, Any]
    pilot: tuple[int, int]  # its updates, and those after each refresh
    updates: int  # of each run
    each: tuple[int, ...]  # updates after each refresh, a run for each number
    measured: bool = True  # whether the machine's own numbers plan it, too


_LETTERS = {"model": {"path": "letters"}, "task": {"name": "letters"}}
MACHINE, PILOT = "the machine, and a pilot's lengths", "a pilot"  # what a plan's seconds come from
RUNS = (
    Live("chain", {}, (16, 4), 64, (4, 16, 64)),
    Live("letters", _LETTERS, (16, 4), 64, (4, 16, 64)),
    Live("chain, vLLM", {"engine": _VLLM}, (16, 16), 32, (16,), measured=False),
    Live("SmolLM2", _SMOLLM2, (8, 4), 16, (4, 16)),
    Live("SmolLM2, long tail", {**_SMOLLM2, **_EXPLAIN}, (2, 2), 8, (8,)),
)


def rows(work: Path, python: str, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield a row for each plan: its run, what planned it, planned and taken seconds by part.

    vLLM runs in the interpreter `python`. `names` are those of RUNS, by default all.
    """
    work.mkdir(parents=True, exist_ok=True)
    machines: dict[str, Path] = {}
    for live in [live for live in RUNS if live.name in names or not names]:
        base = live.base
        if not live.measured:
            base = {**base, "engine": {**base["engine"], "python": python}}
        model = live.base.get("model", {"path": "chain"})["path"]
        pilot = _written(work, f"{live.name} pilot", base, *live.pilot)
        if model not in machines:
            machines[model] = work / f"{model}.toml"
            if not machines[model].exists():
                _mugrpo("plan", str(pilot), "--measure", str(machines[model]), "--schedules", "4")
        known = _trained(pilot)
        for each in live.each:
            file = _written(work, f"{live.name} {each}", base, live.updates, each)
            settings = _settings(file, pilot, known, machines[model])
            plans = {source: planned(setting) for source, setting in settings.items()}
            taken = phase_seconds(spans(_trained(file)))
            for source in (MACHINE, PILOT) if live.measured else (PILOT,):
                yield {
                    "run": live.name,
                    "updates": live.updates,
                    "each": each,
                    "from": source,
                    "planned": plans[source],
                    "taken": taken,
                }


def _written(work: Path, name: str, base: dict[str, Any], updates: int, each: int) -> Path:
    """Write a config of `updates` updates, refreshed after `each`, and return its path."""
    raw = {
        "preset": "tapered-grpo",
        "evaluation": {"every": 0},
        "samples": {"every": 0},
        **base,
        "schedule": {
            "stages": updates // each,
            "batches_per_stage": each,
            "growth": 1.0,
            "problems_per_update": 8,
            "group_size": 8,
        },
    }
    file = work / f"{name.replace(',', '').replace(' ', '-')}.toml"
    file.write_text(as_document(raw, ["Written by benchmarks/planning.py."]))
    return file


def _trained(file: Path) -> RunData:
    """Return the run of a config, which is trained if it is not finished."""
    folder = file.with_suffix("")
    _mugrpo("train", str(file), "--run-dir", str(folder))
    return read_runs([folder])[0]


def _mugrpo(*words: str) -> None:
    print("mugrpo", *words, flush=True)
    done = subprocess.run([sys.executable, "-m", "mugrpo", *words], stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 4):  # 4: a short run that learned nothing
        raise SystemExit(f"mugrpo {' '.join(words)} ended with {done.returncode}")


def _settings(file: Path, pilot: Path, known: RunData, machine: Path) -> dict[str, Setting]:
    """Return what plans the run of the config `file`, by what the seconds come from."""
    lengths, measured = from_run(pilot.with_suffix("")), load_machine(str(machine))

    def setting(file: Path) -> Setting:
        config = load_config(file)
        return Setting(config, shape_of(config, None), measured, lengths)

    seconds = measured_by(known, setting(pilot))
    return {
        MACHINE: replace(setting(file), measured=Measured(varied=seconds.varied)),
        PILOT: replace(setting(file), measured=seconds),
    }


def planned(setting: Setting) -> dict[str, float]:
    """Return the seconds of each part that a run measures: all but its last checkpoint."""
    planner = Planner(setting)
    parts = planner.planned(as_configured(setting.config.schedule), "colocated", 1, 1).parts
    return {**parts, "checkpoint": parts["checkpoint"] - planner.checkpoint(1)}


def stored(file: Path) -> list[dict[str, Any]]:
    """Return the rows that an earlier call has kept, none if there was no such call."""
    return json.loads(file.read_text())["runs"] if file.exists() else []
