"""Unfinished runs, and metrics that no run should have written."""

from __future__ import annotations

import random

import pytest

from mugrpo.disk.run_dir import RunDir
from tests.cases import some
from tests.report.parsed import report
from tests.report.synthetic import (
    evaluation,
    refresh,
    timed_run,
    update,
    write_config,
    write_metrics,
)

UPDATE_KEYS = (
    *("staleness", "behavior_reward", "batch_reward", "loss", "grad_norm", "lr", "skipped"),
    *("zero_variance_share", "truncated_share", "failed_share", "padding_share", "entropy"),
    *("kl_behavior", "tv_token", "tv_sequence", "clipped_fraction", "time/update", "time/read"),
    *("variance_weight", "bound/surrogate", "bound/stated", "bound/factor_one"),
    *(f"ratio/{sign}/{q}" for sign in ("positive", "negative") for q in ("p01", "p50", "max")),
)

REFRESH_KEYS = (
    *("behavior_reward", "status/right", "time/generate", "time/refresh", "rollouts"),
    *(f"groups_right/{share}" for share in ("0.000", "0.500", "1.000", "2", "nan", "", "x")),
)


def begun(root) -> None:
    write_config(root)


def generating(root) -> None:
    write_config(root)
    (root / "metrics.jsonl").write_text("")


def evaluated(root) -> None:
    write_config(root)
    write_metrics(root, [evaluation(0, None)])


def optimizing(root) -> None:
    write_config(root)
    lines = [refresh(0, 0, behavior_reward=0.5), update(1, entropy=None), update(2, entropy=1.0)]
    write_metrics(root, lines, torn='{"kind": "update", "upda')


def between_stages(root) -> None:
    timed_run(root, updates=4)
    RunDir(root).shards(1, "rollouts").mkdir(parents=True)


@pytest.mark.parametrize("state", [begun, generating, evaluated, optimizing, between_stages])
def test_an_unfinished_run_has_a_report(tmp_path, state):
    state(tmp_path / "run")
    page = report(tmp_path / "run")
    updates = len([line for line in _lines(tmp_path / "run") if '"kind": "update"' in line])
    assert page.rows()["updates made"] == [str(updates)] and "of 8 planned" in page.text


def _lines(root) -> list[str]:
    path = root / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("seed", some(3, range(12)))
def test_no_metrics_are_too_odd(tmp_path, seed):
    rng = random.Random(seed)
    odd = [None, 0, 1, -1, 1e-320, 1e308, -1e308, 1e30, "x", [], {}, True, 10**400, 0.5]
    lines = []
    for number in range(rng.randrange(1, 40)):
        values = {key: rng.choice(odd) for key in UPDATE_KEYS if rng.random() < 0.8}
        lines.append(update(number, **values))
        if rng.random() < 0.3:
            lines.append(refresh(number, 0, **{key: rng.choice(odd) for key in REFRESH_KEYS}))
        if rng.random() < 0.3:
            seconds = {"time/evaluate": rng.choice(odd), "problems": rng.choice(odd)}
            lines.append(evaluation(number, rng.choice(odd), **seconds))
    write_config(tmp_path / "run")
    write_metrics(tmp_path / "run", lines)
    page = report(tmp_path / "run")
    names = ("d", "transform", "x2", "y2", "width", "height")
    outlines = [a[name].lower() for _, a in page.elements for name in names if a.get(name)]
    assert outlines and not any("nan" in one or "inf" in one for one in outlines)
