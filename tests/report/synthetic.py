"""Synthetic runs: the files that a report reads, with chosen numbers and without training."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mugrpo.disk.publishing import with_checksum
from mugrpo.disk.run_dir import FORMAT, RunDir

HOSTILE = (
    "</script><img src=x onerror=alert(1)>\"'><style>*{display:none}</style>]]><!-- --!>"
    "\x00\x07\x1b[31m\x85\u202ereversed\u2066\u200b\udfff\ud800\ufffe&amp;<svg onload=alert(2)>"
)


def write_config(root: Path, *, document: dict[str, Any] | None = None, **schedule: int) -> None:
    """Write a run's config.json: 2 stages of 4 updates unless `schedule` says otherwise."""
    root.mkdir(parents=True, exist_ok=True)
    stages = {"stages": 2, "batches_per_stage": 4, "passes_per_batch": 1}
    stages |= {"problems_per_update": 16, "group_size": 8, **schedule}
    options = {
        **{"seed": 7, "preset": "mu-grpo", "reduction": "token_mean", "schedule": stages},
        **{"model": {"path": "chain"}, "task": {"name": "chain"}, "advantage": {"name": "group"}},
        "objective": {"name": "grpo", "ratio_clip": [0.0, 5.0]},
        "veto": {"name": "negative_advantage", "threshold": 0.01},
        "optimizer": {"lr": 2e-4, "lr_schedule": "linear"},
        "rollouts": {"temperature": 1.0, "max_new_tokens": 48},
    }
    provenance = {"mugrpo": "0.1.0", "torch": "2.13.0"}
    stored = {"format": FORMAT, "config": options, "provenance": provenance, **(document or {})}
    (root / "config.json").write_text(json.dumps(with_checksum(stored)))


def write_metrics(root: Path, lines: Sequence[dict[str, Any]], *, torn: str = "") -> None:
    text = "".join(json.dumps(with_checksum(line)) + "\n" for line in lines)
    (root / "metrics.jsonl").write_text(text + torn)


def refresh(update: int, stage: int, **values: Any) -> dict[str, Any]:
    return {"kind": "refresh", "update": update, "stage": stage, **values}


def update(number: int, **values: Any) -> dict[str, Any]:
    return {"kind": "update", "update": number, **values}


def evaluation(number: int, accuracy: float | None, **values: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "update": number, "accuracy": accuracy, **values}


def write_samples(
    root: Path, number: int, samples: Sequence[dict[str, Any]], kind: str = "update", **about: Any
) -> Path:
    path = RunDir(root).samples(number, kind)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(with_checksum({"update": number, **about, "samples": samples})))
    return path


def answered(text: str, **values: Any) -> dict[str, Any]:
    """Return a response of a group."""
    return {"text": text, "status": "right", "reward": 1.0, **values}


def sample(tokens: Sequence[str], ratios: Sequence[float], **values: Any) -> dict[str, Any]:
    """Return a sample whose tokens had probability 1/2 under the behavior policy."""
    behavior = [math.log(0.5)] * len(tokens)
    return {
        **{"problem_id": "train-12", "occurrence": 0, "sample": 3, "prompt": "3+2-1="},
        **{"status": "right", "reward": 1.0, "advantage": 0.7, "finish_reason": "stop"},
        **{"tokens": list(tokens), "behavior_logprobs": behavior},
        "logprobs": [old + math.log(r) for old, r in zip(behavior, ratios, strict=True)],
        "entropies": [0.5] * len(tokens),
        "marks": {},
        **values,
    }


def timed_run(root: Path, *, refresh_seconds: float | None = 2.0, updates: int = 8) -> None:
    """Write a run of two stages of four updates: 2 x (10 + 1) s of rollouts, 8 x 3 s of updates."""
    write_config(root)
    lines = [evaluation(0, 0.25, problems=512, **{"time/evaluate": 5.0, "status/right": 128})]
    for number in range(1, updates + 1):
        if number in (1, 5):
            extra = {"rollouts": 512, "tokens": 20480, "behavior_reward": 0.5}
            seconds = {"time/generate": 10.0, "time/score": 1.0, "time/refresh": refresh_seconds}
            lines.append(refresh(number - 1, number // 5, **extra, **seconds))
        lines.append(update(number, skipped=int(number == 2), entropy=0.5, **{"time/update": 3.0}))
    lines.append(evaluation(updates, 0.75, problems=512, **{"time/evaluate": 5.0}))
    write_metrics(root, lines)


def long_run(root: Path, *, stages: int, per_stage: int) -> None:
    """Write a finished run with all kinds of numbers, drawn at random."""
    rng = np.random.default_rng(0)
    write_config(root, stages=stages, batches_per_stage=per_stage)
    total, lines = stages * per_stage, []
    for number in range(total + 1):
        stage, staleness = divmod(number, per_stage)
        counts = {
            f"status/{name}": int(rng.integers(99)) for name in ("right", "wrong", "truncated")
        }
        if number % max(1, total // 16) == 0:
            times = {"time/evaluate": 1.2}
            lines.append(evaluation(number, rng.random(), problems=512, **counts, **times))
        if number == total:
            break
        if staleness == 0:
            shares = {name: rng.random() for name in ("behavior_reward", "zero_variance_share")}
            shares |= {f"groups_right/{k / 8:.3f}": int(rng.integers(99)) for k in range(9)}
            shares |= {f"time/{name}": rng.random() for name in ("generate", "score", "refresh")}
            about = {"rollouts": 512, "tokens": 20480, "mean_length": 40.0}
            lines.append(refresh(number, stage, **about, **counts, **shares))
        values = {name: rng.random() for name in _OF_UPDATES}
        lines.append(update(number + 1, stage=stage, staleness=staleness, skipped=0, **values))
        if staleness == per_stage - 1 and stage < 12:
            write_samples(root, number + 1, _samples(rng), stage=stage, staleness=staleness)
    write_metrics(root, lines)


_RATIOS = ("p01", "p50", "mean", "p99", "max")
_OF_UPDATES = [
    *("behavior_reward", "batch_reward", "loss", "grad_norm", "lr", "tokens", "entropy"),
    *("kl_behavior", "tv_token", "tv_sequence", "zero_variance_share", "failed_share"),
    *("truncated_share", "padding_share", "clipped_fraction", "vetoed_fraction"),
    *("time/update", "time/read", "time/checkpoint"),
    *(f"ratio/{sign}/{name}" for sign in ("positive", "negative") for name in _RATIOS),
]


def _samples(rng: np.random.Generator) -> list[dict[str, Any]]:
    tokens = [*"3+2=5,5-4=1,\n", "so", " 1", "<eos>"] * 3
    marks = {"clipped": [3, 7], "vetoed": [*range(9, 40)]}
    ratios = [np.exp(rng.normal(0, 1.1, len(tokens))).clip(1e-3, 90).tolist() for _ in range(4)]
    return [sample(tokens, each, sample=n, marks=marks) for n, each in enumerate(ratios)]
