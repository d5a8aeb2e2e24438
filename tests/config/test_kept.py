"""The config that a run keeps: stored, compared on resume, and changed."""

from __future__ import annotations

from mugrpo.config.describe import describe
from mugrpo.config.load import (
    build_config,
    changes,
    load_config,
    on_resume,
    with_newer_options,
)
from mugrpo.config.run import PRESETS
from mugrpo.config.training import SuiteUse
from tests.cases import table


def test_changes_lists_what_differs_by_dotted_name():
    old = {"seed": 0, "schedule": {"stages": 4, "group_size": 8}, "gone": 1}
    new = {"seed": 0, "schedule": {"stages": 2, "group_size": 8}, "engine": {"name": "hf"}}
    assert changes(old, new) == [
        ("engine.name", None, "hf"),
        ("gone", 1, None),
        ("schedule.stages", 4, 2),
    ]
    assert changes(old, old) == []


@table("preset", PRESETS)
def test_a_resolved_config_survives_json(preset):
    """Resuming relies on this: stored as JSON and read again, a config has not changed.

    That includes the values in which it differs from its preset.
    """
    others = ["--veto.name=off", "--reduction=constant"]
    config = load_config(None, [f"--preset={preset}", "--task.terms=5", *others])
    stored = config.model_dump(mode="json")
    assert build_config(stored, "test") == config
    assert changes(stored, build_config(stored, "test").model_dump(mode="json")) == []


def test_a_stored_config_that_lacks_an_option_is_read_with_its_presets_value():
    """And it stays as it is if it has an option that is gone."""
    today = load_config(None, ["--preset=mu-grpo"]).model_dump(mode="json")
    stored = today | {"veto": {"name": "negative_advantage", "scope": "suffix"}}
    assert with_newer_options(stored) == today
    assert with_newer_options(stored | {"gone": 1}) == stored | {"gone": 1}


def test_only_what_changes_no_trained_number_is_harmless():
    names = {o.name for o in describe() if on_resume(o.name) == "harmless"}
    assert names == {
        "overlap",
        "backend.name",
        "checkpoint.every",
        "checkpoint.keep",
        "evaluation.every",
        "evaluation.greedy",
        "evaluation.stop_on_collapse",
        "evaluation.end_samples",
        "evaluation.samples",
        "evaluation.suites",
        *(f"evaluation.suites[].{field}" for field in SuiteUse.model_fields),
        "evaluation.temperature",
        "checkpoint.minutes",
        "rewards.failure_limit",
        "rewards.pays_for_nothing",
        "engine.processes",  # affects only rounding, as the trainer's threads do
        "engine.tensor_parallel",
        "engine.gpu_memory_utilization",
        "engine.rest",
        "distributed.processes",
        "sinks.tensorboard",
        "sinks.wandb",
        "workers.count",
        "model.path",  # of these three, the contents are compared
        "task.data",
        "task.eval_data",
    }
    assert on_resume("no.such.option") == "forced"
