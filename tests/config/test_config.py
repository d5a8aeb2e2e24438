"""Config files, overrides, and what is refused with which message."""

import re
from pathlib import Path

import pytest

from mugrpo.config.describe import as_toml, describe
from mugrpo.config.load import (
    ELSEWHERE,
    build_config,
    changes,
    load_config,
    on_resume,
    parse_overrides,
    read_toml,
    require_places,
    with_newer_options,
)
from mugrpo.config.run import PRESETS, RunConfig
from mugrpo.config.training import SuiteUse
from mugrpo.disk.errors import UsageError
from tests.cases import table

ROOT = Path(__file__).parents[2]
CHOICES = RunConfig.choices()

# ---- overrides ----


@table(
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
def test_override_values_are_toml_or_else_text_in_both_forms(text, value):
    for words in ([f"--a.b={text}"], ["--a.b", text]):
        ((name, found),) = parse_overrides(words)
        assert (name, found) == ("a.b", value) and type(found) is type(value)


def test_overrides_replace_the_file_and_the_file_the_defaults(toml):
    file = toml("seed = 5\n[schedule]\nstages = 2\nbatches_per_stage = 8\n")
    config = load_config(file, ["--schedule.stages", "3"])
    assert (config.seed, config.schedule.stages, config.schedule.batches_per_stage) == (5, 3, 8)
    assert config.schedule.group_size == RunConfig().schedule.group_size
    assert config.schedule.total_updates == 8 + 16 + 32  # tapered-grpo: growth = 2
    assert load_config(file, ["--schedule.growth=1"]).schedule.total_updates == 8 + 8
    file = toml('[objective]\nname = "grpo"\ndual_clip = 3.0\n')
    assert load_config(file).objective.knobs["dual_clip"] == 3.0
    assert load_config(file, ["--objective.dual_clip=none"]).objective.knobs["dual_clip"] is None


# ---- what is refused ----


@table(
    ("name", "near"),
    [
        ("schedule.stage", "schedule.stages"),
        ("schedule.group-sise", "schedule.group_size"),
        ("optimiser.lr", "optimizer.lr"),
        ("micro_batch_tokens", "optimizer.micro_batch_tokens"),
        ("veto.treshold", "veto.threshold"),
        ("optimizer.beta", "optimizer.betas"),  # a slip, not TRL's beta
        # Names of TRL, verl and prime-rl, in any section
        ("optimizer.learning_rate", "optimizer.lr"),
        ("schedule.num_generations", "schedule.group_size"),
        ("num-generations", "schedule.group_size"),
        ("optimizer.beta1.num_generations", "schedule.group_size"),
        ("actor_rollout_ref.rollout.n", "schedule.group_size"),
        ("actor_rollout_ref.actor.optim.lr", "optimizer.lr"),
        ("actor_rollout_ref.actor.clip_ratio", "objective.ratio_clip"),
        ("data.train_batch_size", "schedule.batches_per_stage"),
        ("algorithm.adv_estimator", "advantage.name"),
        ("model.name", "model.path"),
        ("training.micro_batch_tokens", "optimizer.micro_batch_tokens"),
        ("task.beta", "reference.coefficient"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_name(refusal, name, near):
    assert refusal(f"--{name}", "1").endswith(f"did you mean {near}?")


def test_a_name_like_no_other_of_its_section_is_answered_with_the_section(refusal):
    assert refusal("--optimizer.clip=1").endswith(
        "optimizer.max_grad_norm, optimizer.micro_batch_tokens"
    )
    assert "task.name" not in refusal("--model.nme=x")


def test_trls_names_are_answered_as_the_table_of_its_page_says():
    """Each row has fields of the installed TRL, and the options that are answered, in order."""
    from trl import GRPOConfig

    ours = {option.name for option in describe()}
    assert set(ELSEWHERE.values()) <= ours
    page = (ROOT / "src" / "mugrpo" / "extensions" / "trl.md").read_text()
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| `")]
    assert len(rows) > 15
    for theirs, here in rows:
        names = re.findall("`([a-z_0-9]+)`", theirs)
        assert set(names) <= GRPOConfig.__dataclass_fields__.keys()
        told = [name for name in re.findall("`([a-z_.]+)`", here) if name in ours]
        answered = [ELSEWHERE[name] for name in names]
        assert [*dict.fromkeys(answered)] == told[: len(set(answered))]


@table(
    ("text", "place"),
    [
        ('[task]\nname = "dataset"\ndata = "here.jsonl"', "task.data: there is no file here.jsonl"),
        (
            '[task]\nname = "dataset"\ndata = "x"\nrewards = ["math", "here.py:f"]',
            "task.rewards: there is no file here.py",
        ),
    ],
)
def test_a_path_beside_the_config_is_refused_with_both_folders(
    toml, tmp_path, monkeypatch, text, place
):
    file = toml(text)
    for name in ("here.jsonl", "here.py"):
        (file.parent / name).write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    raw = read_toml(file)
    with pytest.raises(UsageError) as refused:
        require_places(raw, file.parent)
    name = place.rpartition(" ")[2]
    assert str(refused.value) == (
        f"{place} in {elsewhere}, the working directory, where paths are looked up, but the "
        f"config's folder has one; go there, or name {file.parent / name}"
    )
    monkeypatch.chdir(file.parent)
    require_places(raw, file.parent)


def test_files_that_are_refused_are_named_with_the_command_line(refusal, toml, tmp_path):
    assert refusal(file=tmp_path / "gone.toml").endswith(
        "gone.toml: there is no such config file or run directory; name one before any options"
    )
    assert "run.toml: " in refusal(file=toml("[schedule\n"))
    misspelled = refusal(file=tmp_path / "rnu.toml")
    assert misspelled.endswith(f"run directory; did you mean {tmp_path / 'run.toml'}?")
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# \xe9\n")
    assert "byte 2 is not UTF-8" in refusal(file=latin)
    latin.write_bytes("\ufeff[schedule]\r\nstages = 7\r\n".encode())  # as Notepad saves it
    assert load_config(latin).schedule.stages == 7
    file = toml("[optimizer]\nlearning_rate = 1\n")
    found = refusal("--engine.name=zzz", file=file)
    assert found.startswith(f"{file} --engine.name=zzz: ")
    assert "optimizer.lr?" in found and "'zzz'" in found


# ---- choices by name ----


EVERY_CHOICE = [(group, name) for group in sorted(CHOICES) for name in sorted(CHOICES[group])]


@pytest.mark.parametrize(("group", "name"), EVERY_CHOICE)
def test_a_part_is_chosen_by_its_name(group, name, required):
    given = [f"--{group}.{key}={as_toml(value)}" for key, value in required.get(name, {}).items()]
    config = load_config(None, [f"--{group}.name={name}", *given])
    chosen = getattr(config, group)
    assert chosen.name == name
    assert type(chosen) is CHOICES[group][name]


def test_a_name_override_starts_its_group_from_the_defaults(toml):
    file = toml('[objective]\nname = "cispo"\nratio_clip = [0.5, 3.0]\n')
    assert load_config(file).objective.knobs == {"ratio_clip": (0.5, 3.0)}
    config = load_config(file, ["--objective.name=minpro"])
    # MinPRO's own interval, not the file's
    assert config.objective.knobs == {"ratio_clip": (0.8, 1.2)}


@table("order", [1, -1])
def test_the_order_of_overrides_does_not_matter_to_a_choice(order):
    words = ["--objective.dual_clip=3", "--objective.name=grpo"][::order]
    objective = load_config(None, words).objective
    assert (objective.name, objective.dual_clip) == ("grpo", 3.0)


@table(
    ("text", "override"),
    [
        (
            '[veto]\nname = "negative_advantage"\nscope = "trigger"\n',
            "--veto.name=negative_advantage",
        ),
        ('[objective]\nname = "cispo"\nratio_clip = [0.5, 3.0]\n', "--objective.name=cispo"),
        ('preset = "mu-grpo"\n[veto]\nthreshold = 0.5\n', "--veto.name=negative_advantage"),
        ('preset = "mu-grpo"\n[objective]\ndual_clip = 3.0\n', "--objective.name=grpo"),
        ('preset = "topr"\n[advantage]\nbaseline = 0.7\n', "--advantage.name=shifted"),
        ('preset = "cispo"\n[objective]\nratio_clip = [0.0, 3.0]\n', "--objective.name=cispo"),
    ],
)
def test_naming_the_choice_that_is_there_keeps_what_the_file_says(toml, text, override):
    file = toml(text)
    assert load_config(file, [override]) == load_config(file)


def test_knobs_are_the_options_that_the_part_alone_declares():
    assert load_config(None, ["--objective.name=m2po"]).objective.knobs == {}
    config = load_config(None, ["--preset=mu-grpo"])
    assert config.objective.knobs == {
        "ratio_clip": (0.0, 5.0),
        "dual_clip": None,
        "level": "token",
        "clip_center": "behavior",
    }
    assert config.veto.knobs == {"threshold": 1e-2, "scope": "suffix"}
    assert config.advantage.knobs == {"std": "unbiased"}
    # options that decide when a part's function is called are not passed to it
    proximal = load_config(None, ["--objective.name=decoupled_ppo"]).objective
    assert proximal.knobs == {"ratio_clip": (0.8, 1.2)} and proximal.proximal_period == 1
    assert load_config(None, ["--reference.name=kl"]).reference.knobs == {}


def test_every_objective_but_file_is_the_module_of_its_name():
    source = ROOT / "src/mugrpo"
    computed = {p.stem for p in source.glob("optimize/objectives/*.py")} - {"__init__"}
    assert computed == set(CHOICES["objective"]) - {"file"}


@table(
    ("words", "part"),
    [
        ("--a.b", "--a.b has no value"),
        ("stages 3", "'stages' is not an option"),
        ("--preset=mu-grpo --objective.ratio_clip=[5,0]", "it needs 0 <= low <= 1 <= high"),
        ("--preset=dapo --objective.ratio_clip=[0.2,0.28]", "epsilon of 0.2 is [0.8, 1.2]"),
        ("--schedule.stages=0 --optimizer.lrr=1", "schedule.stages"),  # every fault at once
        ("--schedule.stages=0 --optimizer.lrr=1", "optimizer.lrr"),
        ("--veto.name=nothing", "negative_advantage"),  # the choices
        ("--veto.name=off --veto.threshold=0.1", "an option if veto.name = 'negative_advantage'"),
        ("--engine=3", "it should be a table of options"),
        ("--model=gpt2", "it should be a table of options"),
        (f"--seed={'9' * 5000}", "seed"),
        ("--task.split=test", "an option if task.name = 'dataset'"),
        ("--task.name=dataset", "task.data must be given"),
        ("--zzz.qqq=1", "there is no option zzz"),
        ("--zzz.qqq=1", "--help"),
        ("--rollouts.temperature=0", "evaluation.greedy = true"),
        ("--evaluation.temperature=0", "--temperature 0.01"),
        ("--schedule.growth=1 --schedule.stages=100000", "1,600,000 updates"),
        ("--schedule.stages=1001 --schedule.growth=1.1", "lower stages or growth"),
        ("--preset=mu-grpo --objective.ratio_clip=[0]", "objective.ratio_clip.1 must be given"),
        ("--preset=mu-grpo --objective.ratio_clip=[0,1,2]", "(0, 1, 2): tuple should have at most"),
        ("--preset=mu-grpo --objective.ratio_clip=[0,inf]", "ratio_clip.1 = inf: input should be"),
        ("--preset=mu-grpo --objective.ratio_clip=5", "ratio_clip = 5: it should be a list"),
        ("--schedule.stages=true", "schedule.stages = True: input should be a valid integer"),
        ("--schedule.stages='3'", "schedule.stages = '3': input should be a valid integer"),
        ("--schedule.stages=0", "schedule.stages = 0: input should be greater than or equal to 1"),
        ("--schedule.group_size=1", "group_size = 1: input should be greater than or equal to 2"),
        ("--optimizer.lr=0", "optimizer.lr = 0: input should be greater than 0"),
        ("--rollouts.temperature=11", "temperature = 11: input should be less than or equal to 10"),
        ("--optimizer.lr=nan", "optimizer.lr = nan: input should be a finite"),
        ("--optimizer.betas=[0.9,1.0]", "betas = [0.9, 1.0]: each must be in [0, 1)"),
        ("--preset=mu-grpo --objective.dual_clip=1", "dual_clip = 1: input should be greater than"),
        ("--preset=mu-grpo --veto.threshold=-0.1", "threshold = -0.1: input should be greater"),
        ("--preset=mu-grpo --veto.scope=prefix", "veto.scope = 'prefix': input should be 'suffix'"),
        ("--reduction=median", "reduction = 'median': input should be 'token_mean'"),
        ("--task.terms=129", "task.terms = 129: input should be less than or equal to 128"),
        ("--schedule.stages=many", "schedule.stages = 'many': input should be a valid integer"),
        ("--seed=-1", "seed = -1: input should be greater than or equal to 0"),
        ("--engine.name=[1]", "engine.name: no such name (1,): choose among continuous, hf, "),
    ],
)
def test_words_that_make_no_config_are_refused(refusal, words, part):
    assert part in refusal(*words.split(" "))


# ---- what a run keeps ----


def test_changes_lists_what_differs_by_dotted_name():
    old = {"seed": 0, "schedule": {"stages": 4, "group_size": 8}, "gone": 1}
    new = {"seed": 0, "schedule": {"stages": 2, "group_size": 8}, "engine": {"name": "hf"}}
    found = changes(old, new)
    assert found == [("engine.name", None, "hf"), ("gone", 1, None), ("schedule.stages", 4, 2)]
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


HARMLESS = """
overlap backend.name checkpoint.every checkpoint.keep checkpoint.minutes
evaluation.every evaluation.greedy evaluation.stop_on_collapse evaluation.end_samples
evaluation.samples evaluation.suites evaluation.temperature
rewards.failure_limit rewards.pays_for_nothing workers.count
engine.processes engine.tensor_parallel engine.gpu_memory_utilization engine.rest
distributed.processes sinks.tensorboard sinks.trackio sinks.wandb
model.path task.data task.eval_data
"""  # processes affect only rounding; of paths and data, the contents are compared


def test_only_what_changes_no_trained_number_is_harmless():
    names = {o.name for o in describe() if on_resume(o.name) == "harmless"}
    suites = {f"evaluation.suites[].{field}" for field in SuiteUse.model_fields}
    assert names == {*HARMLESS.split()} | suites
    assert on_resume("no.such.option") == "forced"
