"""Presets: what each sets, and how a config's own values replace its values."""

from operator import attrgetter

import pytest

from mugrpo.config.engines import slots_for
from mugrpo.config.load import build_config, load_config
from mugrpo.config.run import PRESETS, ModelOptions, RunConfig, beneath
from mugrpo.disk.errors import UsageError
from mugrpo.optimize.loss import UpdateLoss
from tests.cases import table

CHOICES = RunConfig.choices()


@table("name", PRESETS)
def test_every_preset_loads_to_what_it_says_and_makes_a_loss(name):
    config = load_config(None, [f"--preset={name}"])
    assert config.preset == name
    resolved = config.model_dump()
    for group, value in PRESETS[name].items():
        if isinstance(value, dict):
            assert {key: resolved[group][key] for key in value} == value
        else:
            assert resolved[group] == value
    # A preset sets everything in which methods differ, so nothing comes from another preset.
    assert {"objective", "veto", "reduction"} <= PRESETS[name].keys()
    assert UpdateLoss(config).objective.loss


def test_without_a_preset_it_is_tapered_grpo_in_four_stages():
    config = RunConfig()
    assert config == load_config(None, ["--preset=tapered-grpo"])
    assert config.objective.name == "topr" and config.objective.knobs["taper"] == "prefix"
    assert config.veto.name == "off" and config.reduction == "token_mean"
    assert config.advantage.name == "group" and config.reference.name == "off"
    schedule = config.schedule  # each stage is twice as long as the one before
    assert [schedule.updates(stage) for stage in range(schedule.stages)] == [16, 32, 64, 128]
    assert schedule.total_updates == 240 and schedule.passes_per_batch == 1
    equal = load_config(None, ["--preset=mu-grpo"]).schedule
    assert [equal.updates(stage) for stage in range(equal.stages)] == [64, 64, 64, 64]


@pytest.mark.parametrize(
    ("path", "given", "longest"),
    [
        ("chain", {}, 48),
        ("org/model", {}, 512),
        ("org/model", {"max_new_tokens": 200}, 200),
        ("org/model", {"temperature": 0.5}, 512),
    ],
)
def test_responses_of_other_models_than_the_embedded_may_be_longer(path, given, longest):
    config = build_config({"model": {"path": path}, "rollouts": given}, "test")
    assert config.rollouts.max_new_tokens == longest


@table(("longest", "slots"), [(48, 512), (200, 327), (300, 218), (512, 128), (4096, 128)])
def test_slots_of_a_cpu_hold_65536_response_tokens(longest, slots):
    assert slots_for(longest) == slots


@table(("path", "lr"), [("chain", 1e-4), ("letters", 1e-4), ("smollm2", 3e-6), ("org/model", 3e-6)])
def test_the_default_learning_rate_is_lower_for_pretrained_models(path, lr):
    model = {"model": {"path": path}}
    assert build_config(model, "here").optimizer.lr == lr
    assert build_config({**model, "optimizer": {"warmup_updates": 3}}, "here").optimizer.lr == lr
    named = build_config({**model, "optimizer": {"lr": 1e-4}}, "here")
    assert build_config(named.model_dump(mode="json"), "a stored config") == named
    assert named.optimizer.lr == 1e-4
    assert RunConfig(model=ModelOptions(path=path)).optimizer.lr == lr


PRESET = {
    "reduction": "constant",
    "objective": {"name": "grpo", "ratio_clip": (0.0, 5.0), "level": "sequence"},
    "schedule": {"batches_per_stage": 4, "passes_per_batch": 1},
}


@table(
    ("raw", "expected"),
    [
        ({}, PRESET),
        ({"reduction": "token_mean", "seed": 3}, {**PRESET, "reduction": "token_mean", "seed": 3}),
        (  # groups are merged key by key
            {"schedule": {"batches_per_stage": 2, "stages": 8}},
            {**PRESET, "schedule": {"batches_per_stage": 2, "stages": 8, "passes_per_batch": 1}},
        ),
        (  # without a name, the preset's choice stays
            {"objective": {"level": "token"}},
            {**PRESET, "objective": {"name": "grpo", "ratio_clip": (0.0, 5.0), "level": "token"}},
        ),
        (  # the same name keeps the preset's other options
            {"objective": {"name": "grpo", "ratio_clip": (0.5, 2.0)}},
            {
                **PRESET,
                "objective": {"name": "grpo", "ratio_clip": (0.5, 2.0), "level": "sequence"},
            },
        ),
        (  # another name drops them
            {"objective": {"name": "cispo"}},
            {**PRESET, "objective": {"name": "cispo"}},
        ),
        ({"objective": {"name": None}}, {**PRESET, "objective": {"name": None}}),
        ({"objective": None, "schedule": 3}, {**PRESET, "objective": None, "schedule": 3}),
    ],
)
def test_beneath_by_hand(raw, expected):
    before = repr((PRESET, raw))
    assert beneath(PRESET, raw) == expected
    assert repr((PRESET, raw)) == before


def test_a_file_replaces_its_presets_values_and_the_command_line_the_files(toml):
    file = toml('preset = "gspo"\nreduction = "constant"\n[objective]\nratio_clip = [0.9, 1.1]\n')
    config = load_config(file, ["--objective.dual_clip=3"])
    assert config.objective.knobs == {
        "ratio_clip": (0.9, 1.1),
        "dual_clip": 3.0,
        "level": "sequence",  # the preset's
        "clip_center": "behavior",
    }
    assert config.reduction == "constant" and config.veto.name == "off"
    other = load_config(file, ["--preset=mu-grpo"])
    assert other.objective.knobs["level"] == "token" and other.veto.name == "negative_advantage"


# batches per stage, passes per batch
@table(
    ("name", "batches", "passes"),
    [("on-policy", 1, 1), ("grpo", 4, 1), ("sample-reuse", 1, 10), ("off-policy-grpo", 10, 1)],
)
def test_batches_and_passes_of_a_stage_are_those_of_the_literature(name, batches, passes):
    schedule = load_config(None, [f"--preset={name}", "--schedule.stages=3"]).schedule
    assert (schedule.batches_per_stage, schedule.passes_per_batch) == (batches, passes)
    assert schedule.updates_per_stage == batches * passes
    assert schedule.total_updates == 3 * batches * passes


@table(
    ("below", "over", "fault"),
    [
        ('[objective]\nname = "grpo"', "--preset m2po", "objective.name = 'm2po'.*'grpo'"),
        ('preset = "grpo"\n[objective]\nname = "topr"', "--preset m2po", "objective.name"),
        ('reduction = "constant"', "--preset m2po", None),  # its name says it
        ('[objective]\nname = "grpo"', "--preset m2po --objective.name m2po", None),
        ('[objective]\nname = "grpo"', "--preset m2po --objective.name grpo", None),
        ('preset = "m2po"\n[objective]\nname = "grpo"', "--preset m2po", None),  # it is one config
        ('[objective]\nname = "grpo"', "--preset grpo", None),
        ("[schedule]\nbatches_per_stage = 3", "--preset dapo", None),  # no part of the method
    ],
)
def test_a_later_preset_does_not_lose_in_silence_to_what_a_file_says(toml, below, over, fault):
    words = over.split()
    if fault is None:
        load_config(toml(below), words)
        return
    with pytest.raises(UsageError, match=f"the preset {words[1]} has {fault}"):
        load_config(toml(below), words)


@table(
    ("raw", "name"),
    [
        ({"preset": "m2po"}, "m2po"),
        ({}, "tapered-grpo"),
        ({"preset": "m2po", "objective": {"name": "grpo"}}, "m2po with objective grpo"),
        ({"preset": "dapo", "sampling": {"surplus": 1}}, "dapo with sampling.surplus = 1.0"),
        (
            {"preset": "grpo", "objective": {"ratio_clip": [0, 5]}, "reduction": "constant"},
            "grpo with objective.ratio_clip = [0.0, 5.0] and reduction constant",
        ),
        ({"preset": "grpo", "schedule": {"stages": 2}, "task": {"name": "letters"}}, "grpo"),
    ],
)
def test_a_methods_name_is_that_of_what_is_trained(raw, name):
    assert build_config(raw, "a test").method == name


def test_a_fault_of_the_whole_config_names_its_option_and_not_every_value(refusal):
    found = refusal("--preset=nothing", "--seed=3")
    assert found.startswith(
        "on the command line: preset = 'nothing': no such preset; choose among "
    )
    assert all(name in found for name in PRESETS)


def test_a_moving_reference_needs_the_policies_of_stage_ends(refusal):
    words = ["--preset=grpo", "--reference.name=kl", "--reference.period=1"]
    found = refusal(*words)
    assert found.startswith("on the command line: reference.period")
    assert "needs checkpoint.every = 0" in found
    load_config(None, [*words, "--checkpoint.every=0"])
    load_config(None, words[:2])  # the initial model is always there


VLLM = "engine.name=vllm engine.arguments="


def config_of(words: str) -> RunConfig:
    return load_config(None, [f"--{word}" for word in words.split()])


@table(
    ("words", "fault"),
    [
        (f"{VLLM}{{quantization='fp8'}}", "quantization changes the distribution"),
        (f"{VLLM}{{quantization_config={{linear='mxfp8'}}}}", "quantization_config changes the"),
        *(
            (f"{VLLM}{{{name}=1}}", f"{name} changes the distribution")
            for name in ("top_p", "top_k", "min_tokens", "generation_config")
        ),
        ("engine.name=vllm rollouts.temperature=0.005", "from 0.01 to 2, not at 0.005"),
        ("engine.name=vllm rollouts.temperature=2.5", "from 0.01 to 2, not at 2.5"),
        ("lora.rank=513 engine.name=vllm", "vLLM takes adapters up to rank 512"),
    ],
)
def test_what_would_change_the_distribution_of_vllm_is_refused(words, fault):
    with pytest.raises(UsageError, match=fault):
        config_of(words)
    if "temperature" in words:
        config_of(words.partition(" ")[2])  # our own engine accepts it


def test_a_table_without_a_name_has_its_groups_default():
    config = RunConfig.model_validate({"engine": {"slots": 3}, "correction": {}, "task": {}})
    found = (config.engine.name, config.correction.name, config.task.name)
    assert found == ("continuous", "off", "chain")
    again = RunConfig(engine=config.engine, veto=config.veto, correction=config.correction)
    assert (again.engine, again.veto) == (config.engine, config.veto)  # options may be objects


@table(
    ("words", "name", "value"),
    [
        ("preset=mu-grpo", "proximal_period", 1),
        ("preset=decoupled-ppo", "proximal_period", 4),
        ("preset=cispo", "proximal_period", 1),  # it uses no proximal policy
        ("reference.name=off", "reference_period", 0),
        ("reference.name=kl", "reference_period", 0),
        ("reference.name=kl reference.period=2", "reference_period", 2),
        ("engine.name=continuous", "engine.max_model_len", None),
        ("engine.name=vllm", "engine.max_model_len", None),
        (f"{VLLM}{{max_model_len=4096}}", "engine.max_model_len", 4096),
        ("engine.name=continuous", "engine_in_process", True),
        ("engine.name=hf", "engine_in_process", True),
        ("engine.name=hf engine.processes=1", "engine_in_process", False),
        ("engine.name=continuous backend.name=ray", "engine_in_process", False),
        ("engine.name=vllm", "engine_in_process", False),
        ("seed=0", "engine.slots", 0),  # as many as fit
    ],
)
def test_what_follows_from_the_options(words, name, value):
    found = attrgetter(name)(config_of(words))
    assert found == value and type(found) is type(value)
