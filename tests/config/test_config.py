"""Config files, overrides, and what is refused with which message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mugrpo.config.describe import describe, tables
from mugrpo.config.load import (
    apply_overrides,
    build_config,
    changes,
    load_config,
    on_resume,
    parse_overrides,
)
from mugrpo.config.options import choices
from mugrpo.config.preset import PRESETS
from mugrpo.config.rewards import Reward
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError

ROOT = Path(__file__).parents[2]
CHOICES = RunConfig.choices()
CONFIGS = sorted((ROOT / "configs").glob("**/*.toml"))


def refusal(*overrides: str, file: Path | None = None) -> str:
    """Return the sentence that refuses this command line."""
    with pytest.raises(UsageError) as refused:
        load_config(file, overrides)
    return str(refused.value)


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "run.toml"
        file.write_text(text)
        return file

    return write


# ---- overrides ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-4", 1e-4),
        ("true", True),
        ("[0, 5]", [0, 5]),
        ("[0,5]", [0, 5]),
        ('"3"', "3"),
        ("none", None),
        ("runs/first", "runs/first"),  # not a TOML value, so it is text
        ("cosine", "cosine"),
        ("a = b", "a = b"),
        ("", ""),
    ],
)
def test_override_values_are_toml_or_else_text(text, value):
    (pair,) = parse_overrides([f"--a.b={text}"])
    assert pair == ("a.b", value)
    assert type(pair[1]) is type(value)


def test_both_forms_of_an_override_are_the_same():
    assert list(parse_overrides(["--a.b", "[1, 2]", "--c=x", "--d", "none"])) == [
        ("a.b", [1, 2]),
        ("c", "x"),
        ("d", None),
    ]


def test_dashes_in_names_are_underscores_and_values_keep_theirs():
    (pair,) = parse_overrides(["--schedule.problems-per-update", "two-three"])
    assert pair == ("schedule.problems_per_update", "two-three")


@pytest.mark.parametrize("arguments", [["--a.b"], ["--a.b", "--c", "1"]])
def test_an_override_without_value_is_refused(arguments):
    with pytest.raises(UsageError, match=r"--a\.b has no value: write --a\.b value"):
        list(parse_overrides(arguments))


def test_an_argument_that_is_no_override_is_refused():
    with pytest.raises(UsageError, match=r"'stages' is not an option"):
        list(parse_overrides(["stages", "3"]))


def test_overrides_replace_the_file_and_the_file_the_defaults(toml):
    file = toml("seed = 5\n[schedule]\nstages = 2\nbatches_per_stage = 8\n")
    config = load_config(file, ["--schedule.stages", "3"])
    assert (config.seed, config.schedule.stages, config.schedule.batches_per_stage) == (5, 3, 8)
    assert config.schedule.group_size == RunConfig().schedule.group_size


def test_derived_values_follow_the_overrides(toml):
    file = toml("[schedule]\nstages = 2\nbatches_per_stage = 8\n")
    assert load_config(file).schedule.total_updates == 16
    assert load_config(file, ["--schedule.stages=3"]).schedule.total_updates == 24


def test_none_unsets(toml):
    file = toml('[objective]\nname = "grpo"\ndual_clip = 3.0\n')
    assert load_config(file).objective.knobs["dual_clip"] == 3.0
    assert load_config(file, ["--objective.dual_clip=none"]).objective.knobs["dual_clip"] is None


def test_overrides_leave_the_raw_values_alone():
    raw = {"schedule": {"stages": 2}}
    assert apply_overrides(raw, ["--schedule.stages=3"]) == {"schedule": {"stages": 3}}
    assert raw == {"schedule": {"stages": 2}}


def test_an_option_used_as_a_group_is_refused():
    with pytest.raises(UsageError, match="seed is an option, not a group"):
        apply_overrides({"seed": 3}, ["--seed.x=1"])


# ---- what is refused ----


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("schedule.stage", "schedule.stages"),
        ("schedule.group-sise", "schedule.group_size"),
        ("optimiser.lr", "optimizer.lr"),
        ("micro_batch_tokens", "optimizer.micro_batch_tokens"),
        ("veto.kapa", "veto.kappa"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_name(name, near):
    assert refusal(f"--{name}", "1").endswith(f"did you mean {near}?")


def test_an_unknown_option_far_from_all_others_points_to_the_help():
    sentence = refusal("--zzz.qqq=1")
    assert "there is no option zzz" in sentence and "--help" in sentence


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("schedule.stages=0", "greater than or equal to 1"),
        ("schedule.group_size=1", "greater than or equal to 2"),
        ("optimizer.lr=0", "greater than 0"),
        ("rollouts.temperature=11", "less than or equal to 10"),
        ("optimizer.final_lr_share=1.5", "less than or equal to 1"),
        ("optimizer.lr=nan", "finite"),
        ("optimizer.betas=[0.9, 1.0]", "each must be in [0, 1)"),
        ("objective.dual_clip=1", "greater than 1"),
        ("veto.kappa=-0.1", "greater than or equal to 0"),
        ("veto.scope=prefix", "'suffix'"),
        ("reduction=median", "'token_mean'"),
        ("advantage.eps=0", "greater than 0"),
        ("task.terms=65", "less than or equal to 64"),
        ("schedule.stages=many", "integer"),
        ("seed=-1", "greater than or equal to 0"),
    ],
)
def test_values_out_of_bounds_are_refused_by_name_value_and_bound(override, reason):
    sentence = refusal(f"--{override}")
    name, _, value = override.partition("=")
    group = name.rpartition(".")[0] or name
    assert group in sentence and value in sentence and reason in sentence


@pytest.mark.parametrize("interval", ["[5, 0]", "[1, 1]", "[-0.1, 5]"])
def test_intervals_out_of_order_are_refused(interval):
    sentence = refusal(f"--objective.ratio_clip={interval}")
    assert sentence.startswith("the command line: objective.ratio_clip = ")
    assert "it needs 0 <= low < high" in sentence


@pytest.mark.parametrize("interval", ["[0]", "[0, 1, 2]", "[0, inf]", "5"])
def test_intervals_that_are_not_two_finite_numbers_are_refused(interval):
    assert "objective.ratio_clip" in refusal(f"--objective.ratio_clip={interval}")


def test_every_fault_is_named_at_once():
    sentence = refusal("--schedule.stages=0", "--optimizer.lrr=1", "--veto.kappa=-1")
    assert sentence.count("; ") >= 2
    for name in ("schedule.stages", "optimizer.lrr", "veto.kappa"):
        assert name in sentence


def test_a_fault_names_the_file(toml):
    file = toml("[schedule]\nstages = 0\n")
    assert refusal(file=file).startswith(f"{file}: schedule.stages = 0")


def test_unreadable_files_are_refused_by_name(toml, tmp_path):
    assert refusal(file=tmp_path / "gone.toml").endswith(
        "gone.toml: there is no such config file or run directory"
    )
    assert "run.toml: " in refusal(file=toml("[schedule\n"))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# \xe9\n")
    assert "byte 2 is not UTF-8" in refusal(file=latin)


# ---- choices by name ----


EVERY_CHOICE = [(group, name) for group in sorted(CHOICES) for name in sorted(CHOICES[group])]
NEEDED = {
    "dataset": {"data": "none.jsonl"},
    "file": {"path": "none.py"},
}  # options without a default


@pytest.mark.parametrize(("group", "name"), EVERY_CHOICE)
def test_a_part_is_chosen_by_its_name(group, name):
    given = [f"--{group}.{key}={value}" for key, value in NEEDED.get(name, {}).items()]
    config = load_config(None, [f"--{group}.name={name}", *given])
    chosen = getattr(config, group)
    assert chosen.name == name
    assert type(chosen) is CHOICES[group][name]


def test_a_name_override_starts_its_group_from_the_defaults(toml):
    file = toml('[objective]\nname = "cispo"\nratio_clip = [0.5, 3.0]\n')
    assert load_config(file).objective.knobs == {"ratio_clip": (0.5, 3.0)}
    config = load_config(file, ["--objective.name=pnpo", "--objective.stop_gradient=true"])
    # PNPO's own interval, not the file's
    assert config.objective.knobs == {"ratio_clip": (0.8, 1.2), "stop_gradient": True}


def test_a_name_override_that_repeats_the_file_changes_nothing(toml):
    file = toml('[veto]\nname = "negative_advantage"\nkappa = 0.5\n')
    assert load_config(file, ["--veto.name=negative_advantage"]) == load_config(file)
    file = toml('[objective]\nname = "cispo"\nratio_clip = [0.5, 3.0]\n')
    assert load_config(file, ["--objective.name=cispo"]) == load_config(file)


@pytest.mark.parametrize("group", sorted(CHOICES))
def test_an_unknown_name_is_refused_with_the_choices(group):
    sentence = refusal(f"--{group}.name=nothing")
    assert "no such name 'nothing'" in sentence
    for name in CHOICES[group]:
        assert name in sentence


def test_a_knob_of_another_objective_is_refused_with_that_objective():
    sentence = refusal("--objective.name=cispo", "--objective.dual_clip=3")
    assert "objective.dual_clip is an option if objective.name = 'grpo'" in sentence
    sentence = refusal("--veto.name=off", "--veto.kappa=0.1")
    assert "veto.kappa is an option if veto.name = 'negative_advantage'" in sentence


def test_knobs_are_the_options_that_the_part_alone_declares():
    assert load_config(None, ["--objective.name=m2po"]).objective.knobs == {
        "second_moment_limit": 0.04
    }
    config = load_config(None)
    assert config.objective.knobs == {
        "ratio_clip": (0.0, 5.0),
        "dual_clip": None,
        "level": "token",
        "clip_center": "behavior",
    }
    assert config.veto.knobs == {"kappa": 1e-2, "scope": "suffix"}
    assert config.advantage.knobs == {"std": "unbiased", "eps": 1e-4, "eps_inside": False}
    # options that decide when a part's function is called are not passed to it
    proximal = load_config(None, ["--objective.name=decoupled_ppo"]).objective
    assert proximal.knobs == {"ratio_clip": (0.8, 1.2)} and proximal.proximal_period == 1
    assert load_config(None, ["--reference.name=kl"]).reference.knobs == {"corrected": True}


def test_every_objective_but_file_is_the_module_of_its_name():
    source = ROOT / "src/mugrpo"
    computed = {p.stem for p in source.glob("optimize/objectives/*.py")} - {"__init__"}
    assert computed == set(CHOICES["objective"]) - {"file"}


# ---- the list of options ----


def leaves(tree: dict, prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:  # an empty one is an option that is a table
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def owners_by_name() -> dict[str, Counter[str]]:
    """Dotted name -> how often it is listed for each choice that has it ("" outside a choice)."""
    listed: dict[str, Counter[str]] = {}
    for option in describe():
        listed.setdefault(option.name, Counter()).update(list(option.defaults))
    return listed


def test_every_option_is_listed_once_for_each_choice_that_has_it():
    """Counted in resolved configs: options outside a choice once, others once for each choice."""
    default = RunConfig().model_dump()
    expected = {
        name: Counter([""]) for name in leaves(default) if name.partition(".")[0] not in CHOICES
    }
    for group, members in CHOICES.items():
        for choice in members:
            resolved = build_config({group: {"name": choice, **NEEDED.get(choice, {})}}, "test")
            for name in leaves(resolved.model_dump()[group], f"{group}."):
                expected.setdefault(name, Counter())[choice] += 1
    for choice, reward in choices(Reward).items():
        for name in reward.model_fields:
            expected.setdefault(f"task.rewards[].{name}", Counter())[choice] += 1
    for name in [f"{group}.name" for group in (*CHOICES, "task.rewards[]")]:
        expected[name] = Counter([""])  # the choice itself is listed once for the group
    assert owners_by_name() == expected


@pytest.mark.parametrize(
    ("name", "owners"),
    [
        ("engine.slots", ["continuous"]),
        ("objective.ratio_clip", ["grpo", "cispo", "decoupled_ppo", "minpro", "pnpo"]),
        ("correction.level", ["truncated", "masked"]),
        ("engine.processes", ["continuous", "hf", "vllm"]),
        ("task.workers.count", ["dataset"]),
        ("seed", [""]),
    ],
)
def test_owners_by_hand(name, owners):
    assert owners_by_name()[name] == Counter(owners)


def test_a_default_that_differs_between_choices_is_shown_for_each():
    defaults = {option.name: option.default for option in describe()}
    assert defaults["advantage.zero_variance_mask"] == "true for group; false for shifted, asymre"
    assert defaults["objective.ratio_clip"] == (
        "[0.8, 1.2] for grpo, decoupled_ppo, minpro, pnpo; [0.0, 5.0] for cispo"
    )
    assert defaults["engine.canary_responses"] == "4"


def test_every_option_has_a_description_of_sentences():
    for option in describe():
        if not option.name.endswith(".name"):
            meaning = option.meaning
            assert len(meaning) >= 10 and meaning.endswith("."), f"{option.name}: {meaning!r}"


def test_every_table_says_what_it_is():
    listed = list(tables({"": RunConfig}))[1:]
    assert {"model", "engine", "task.workers", "task.rewards[]"} <= {table.name for table in listed}
    assert all(len(table.meaning) >= 10 and table.meaning.endswith(".") for table in listed)


def test_types_bounds_and_defaults_are_spelled_for_users():
    described = {option.name: (option.kind, option.default) for option in describe()}
    assert described["schedule.stages"] == ("int >= 1", "16")
    assert described["rollouts.temperature"] == ("float >= 0.001, <= 10", "1.0")
    assert described["optimizer.lr_schedule"] == ("constant|linear|cosine", "constant")
    assert described["optimizer.betas"] == ("[float, float]", "[0.9, 0.999]")
    assert described["model.eos_token"] == ("str|none", "none")
    assert described["prompt.chat_template"] == ("str|none", "none")
    assert described["overlap"] == ("bool", "false")
    assert described["task.data"] == ("str", "required")
    assert described["task.rewards"] == ("names or tables", '["math"]')
    assert described["engine.urls"] == ("[str, ...]", '["http://localhost:8000"]')
    assert described["engine.arguments"] == ("table", "{}")
    assert described["veto.name"] == ("name", "off")


# ---- resolved configs ----


def test_changes_lists_what_differs_by_dotted_name():
    old = {"seed": 0, "schedule": {"stages": 4, "group_size": 8}, "gone": 1}
    new = {"seed": 0, "schedule": {"stages": 2, "group_size": 8}, "engine": {"name": "hf"}}
    assert changes(old, new) == [
        ("engine.name", None, "hf"),
        ("gone", 1, None),
        ("schedule.stages", 4, 2),
    ]
    assert changes(old, old) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_resolved_config_survives_json(preset):
    """Resuming relies on this: stored as JSON and read again, a config has not changed.

    That includes the values in which it differs from its preset.
    """
    others = ["--veto.name=off", "--reduction=constant", "--step.name=ess"]
    config = load_config(None, [f"--preset={preset}", "--task.terms=5", *others])
    stored = config.model_dump(mode="json")
    assert build_config(stored, "test") == config
    assert changes(stored, build_config(stored, "test").model_dump(mode="json")) == []


def test_only_what_changes_no_trained_number_is_harmless():
    names = {o.name for o in describe() if on_resume(o.name) == "harmless"}
    assert names == {
        "overlap",
        "backend.address",
        "backend.engine_cpus",
        "backend.gpus",
        "backend.name",
        "backend.rank_cpus",
        "backend.restarts",
        "checkpoint.every",
        "checkpoint.stage_end",
        "checkpoint.keep",
        "optimizer.halve_on_out_of_memory",
        "evaluation.every",
        "evaluation.samples",
        "evaluation.temperature",
        "rewards.failure_limit",
        "engine.canary_warning",
        "engine.restarts",
        "engine.silence",
        "engine.processes",  # affects only rounding, as the trainer's threads do
        "engine.threads",
        "engine.tensor_parallel",
        "engine.gpu_memory_utilization",
        "engine.enforce_eager",
        "engine.concurrency",
        "distributed.processes",
        "distributed.cpu_offload",
        "distributed.reshard_after_forward",
        "samples.every",
        "samples.count",
        "sinks.tensorboard",
        "sinks.trackio",
        "sinks.wandb",
        "task.workers.count",
    }
    assert on_resume("no.such.option") == "forced"


def test_there_are_committed_configs():
    assert CONFIGS


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_committed_config_loads_and_differs_from_the_defaults(file):
    config = load_config(file)
    assert config != RunConfig()


def test_the_order_of_overrides_does_not_matter_to_a_choice():
    for overrides in (
        ["--objective.dual_clip=3", "--objective.name=grpo"],
        ["--objective.name=grpo", "--objective.dual_clip=3"],
    ):
        objective = load_config(None, overrides).objective
        assert (objective.name, objective.dual_clip) == ("grpo", 3.0)


def test_naming_the_default_choice_keeps_what_the_file_says(toml):
    file = toml("[objective]\ndual_clip = 3.0\n")
    assert load_config(file, ["--objective.name=grpo"]).objective.dual_clip == 3.0


@pytest.mark.parametrize(
    ("text", "override"),
    [
        ("[veto]\nkappa = 0.5\n", "--veto.name=negative_advantage"),
        ('preset = "topr"\n[advantage]\nbaseline = 0.7\n', "--advantage.name=shifted"),
        ('preset = "cispo"\n[objective]\nratio_clip = [0.0, 3.0]\n', "--objective.name=cispo"),
    ],
)
def test_naming_the_presets_choice_keeps_what_the_file_says(toml, text, override):
    file = toml(text)
    assert load_config(file, [override]) == load_config(file)


@pytest.mark.parametrize(
    "override", ["--schedule.stages=true", "--schedule.stages='3'", "--engine.name=[1]"]
)
def test_a_value_of_another_type_is_refused(override):
    with pytest.raises(UsageError, match=override[2:].split("=")[0].split(".")[0]):
        load_config(None, [override])
