"""Synthetic runs: the files that a report reads, with chosen numbers and without training."""

from __future__ import annotations

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
    options = {
        "seed": 7,
        "model": {"path": "chain"},
        "task": {"name": "chain"},
        "preset": "mu-grpo",
        "advantage": {"name": "group"},
        "objective": {"name": "grpo", "ratio_clip": [0.0, 5.0]},
        "veto": {"name": "negative_advantage", "threshold": 0.01},
        "reduction": "token_mean",
        "optimizer": {"lr": 2e-4, "lr_schedule": "linear"},
        "rollouts": {"temperature": 1.0, "max_new_tokens": 48},
        "schedule": {
            "stages": 2,
            "batches_per_stage": 4,
            "passes_per_batch": 1,
            "problems_per_update": 16,
            "group_size": 8,
            **schedule,
        },
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
        "problem_id": "train-12",
        "occurrence": 0,
        "sample": 3,
        "prompt": "3+2-1=",
        "status": "right",
        "reward": 1.0,
        "advantage": 0.7,
        "finish_reason": "stop",
        "tokens": list(tokens),
        "behavior_logprobs": behavior,
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


def plausible_run(root: Path, *, stages: int, per_stage: int, seed: int = 0) -> None:
    """Write a finished run with realistic numbers, to look at and to measure a report's size."""
    rng = np.random.default_rng(seed)
    write_config(root, stages=stages, batches_per_stage=per_stage)
    total, lines = stages * per_stage, []
    for stage in range(stages):
        share = 0.25 + 0.7 * (1 - math.exp(-3.0 * stage / stages))
        first = stage * per_stage
        every = max(1, total // 16)
        if stage == 0:
            lines.append(evaluation(0, 0.27, problems=512, **_statuses(512, 0.27)))
        lines.append(_plausible_refresh(first, stage, share, per_stage))
        for staleness in range(per_stage):
            number = first + staleness + 1
            lines.append(_plausible_update(number, stage, staleness / per_stage, share, total, rng))
            lines[-1]["staleness"] = staleness
            if number % every == 0 or number == total:
                accuracy = 0.27 + 0.7 * (1 - math.exp(-4 * number / total)) + rng.normal(0, 0.01)
                counts = _statuses(512, min(0.99, accuracy))
                lines.append(evaluation(number, min(0.99, accuracy), problems=512, **counts))
        if stage < 12:
            write_samples(
                root,
                first + per_stage,
                _plausible_samples(rng),
                stage=stage,
                staleness=per_stage - 1,
            )
    write_metrics(root, lines)


def _statuses(count: int, share: float) -> dict[str, Any]:
    right = round(count * share)
    lost = round((count - right) * 0.12)
    return {
        "status/right": right,
        "status/wrong": count - right - 2 * lost,
        "status/truncated": lost,
        "status/no_answer": lost,
        "time/evaluate": 1.2,
    }


def _plausible_refresh(first: int, stage: int, share: float, per_stage: int) -> dict[str, Any]:
    rollouts = per_stage * 128
    odds = [math.comb(8, k) * share**k * (1 - share) ** (8 - k) for k in range(9)]
    right = {f"groups_right/{k / 8:.3f}": round(16 * per_stage * p) for k, p in enumerate(odds)}
    counts = {k: v for k, v in _statuses(rollouts, share).items() if k != "time/evaluate"}
    return refresh(
        first,
        stage,
        rollouts=rollouts,
        tokens=rollouts * 40,
        mean_length=40.0,
        behavior_reward=share,
        zero_variance_share=0.3,
        **counts,
        **right,
        **{"time/generate": 0.11 * per_stage, "time/score": 0.01 * per_stage, "time/refresh": 0.9},
    )


def _plausible_update(
    number: int, stage: int, along: float, share: float, total: int, rng: np.random.Generator
) -> dict[str, Any]:
    spread = 0.02 + 0.5 * along
    noise = abs(rng.normal(0, 0.1)) + 1
    return update(
        number,
        stage=stage,
        behavior_reward=share,
        batch_reward=share + rng.normal(0, 0.03),
        loss=rng.normal(0, 0.01),
        grad_norm=0.2 * noise + (4 if rng.random() < 0.003 else 0),
        lr=2e-4 * (1 - number / total),
        skipped=0,
        tokens=5200,
        kl_behavior=spread**2 / 8 * noise,
        tv_token=spread / 6 * noise,
        tv_sequence=1 - math.exp(-spread * noise),
        entropy=0.3 * math.exp(-2 * number / total) * noise + 0.02,
        zero_variance_share=min(1.0, 0.1 + 0.5 * number / total + rng.normal(0, 0.05)),
        failed_share=0.0,
        truncated_share=max(0.0, rng.normal(0.02, 0.01)),
        padding_share=max(0.0, rng.normal(0.04, 0.01)),
        clipped_fraction=max(0.0, 0.01 * along * noise),
        vetoed_fraction=max(0.0, 0.05 * (along - 0.3) * noise),
        **{
            f"ratio/{sign}/{name}": value
            for sign, tilt in (("positive", 1.0), ("negative", -1.0))
            for name, value in {
                "p01": math.exp(-3 * spread * noise + 0.2 * tilt * spread),
                "p50": math.exp(0.1 * tilt * spread),
                "mean": math.exp(0.2 * tilt * spread),
                "p99": math.exp(2.5 * spread * noise),
                "max": math.exp(6 * spread * noise),
            }.items()
        },
        **{"time/update": 0.35 * noise, "time/read": 0.01, "time/checkpoint": 0.0},
    )


def _plausible_samples(rng: np.random.Generator) -> list[dict[str, Any]]:
    texts = ["3", "+", "2", "=", "5", ",", "5", "-", "4", "=", "1", ",", "\n", "so", " 1", "<eos>"]
    samples = []
    for index in range(4):
        tokens, sign = texts * 3, 1 if index % 2 else -1
        ratios = np.exp(rng.normal(0, 1.1, len(tokens))).clip(1e-3, 90)
        trigger = int(np.argmin(ratios)) if sign < 0 else len(tokens)
        marks = {
            "clipped": [i for i, r in enumerate(ratios) if r > 5 and sign > 0],
            "vetoed": list(range(trigger + 1, len(tokens))),
        }
        right = sign > 0
        samples.append(
            sample(
                tokens,
                ratios.tolist(),
                problem_id=f"train-{index * 37}",
                sample=index,
                advantage=0.93 * sign,
                status="right" if right else "wrong",
                reward=1.0 if right else 0.0,
                marks=marks,
            )
        )
    return samples
