"""What a run takes of memory, against numbers worked out by hand and what autograd keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.machine import MACHINES
from mugrpo.run.opening import _for_this_machine
from mugrpo.run.progress import Progress
from mugrpo.run.room import (
    GIB,
    Sizes,
    UpdateMemory,
    _generation,
    _on_host,
    memory_table,
    on_this_cpu,
    require_room,
    update_memory,
    with_room,
)
from tests.builders import tiny_config
from tests.cases import table

pytest_plugins = ["tests.run_fixtures"]

H100 = MACHINES / "1xH100.toml"
RECIPES = Path(__file__).parents[2] / "configs" / "recipes"
PROMPT, RESPONSE, ROWS = 16, 48, 4


def config(**options: dict) -> RunConfig:
    raw = {
        "model": {"precision": "fp32"},
        "rollouts": {"max_new_tokens": RESPONSE},
        "optimizer": {"micro_batch_tokens": ROWS * (PROMPT + RESPONSE) + 1},
    }
    return build_config({**raw, **options}, "test")


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in which the first dimension of every parameter is a multiple of four."""
    folder = tmp_path_factory.mktemp("form")
    tiny_config("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def parameters(form: Path) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    assert all(p.shape[0] % 4 == 0 for p in model.parameters())
    return sum(p.numel() for p in model.parameters())


def peak(form: Path, **options: dict) -> UpdateMemory:
    chosen = config(**options)
    return update_memory(chosen, Sizes.of(chosen, form), PROMPT)


@table("ranks", [1, 2, 4])
def test_weights_gradients_and_moments_take_16_bytes_a_parameter_over_the_ranks(
    form: Path, parameters: int, ranks: int
):
    found = peak(form, distributed={"processes": ranks})
    assert (found.sizes.parameters, found.rows) == (parameters, ROWS)
    share = 4 * parameters / ranks
    expected = {"weights": share, "gradients": share, "optimizer": 2 * share}
    assert {kind: found.parts[kind] for kind in expected} == expected
    assert (found.parts["gathered"] > 0) == (ranks > 1)


@table("ranks", [1, 2])
def test_an_adapter_alone_has_gradients_and_moments(form: Path, parameters: int, ranks: int):
    """Two layers of 32 hidden and 48 inner dimensions, with two heads of 8 for keys and values.

    q and o are 32 x 32, k and v 32 x 16, gate, up and down 32 x 48: rank x (128 + 96 + 240). In
    bf16 the model's own weights take 2 bytes; one process has a copy of the adapter, too.
    """
    lora, adapter = {"rank": 8}, 8 * 2 * 464
    found = peak(form, lora=lora, distributed={"processes": ranks})
    assert (found.sizes.parameters, found.sizes.trained) == (parameters, adapter)
    assert found.parts["weights"] == 4 * (parameters + adapter) / ranks
    assert found.parts["gradients"] == 4 * adapter / ranks
    assert found.parts["optimizer"] == 8 * adapter / ranks
    half = peak(form, lora=lora, model={"precision": "bf16"}, distributed={"processes": ranks})
    of_adapter = 6 if ranks == 1 else 4
    assert half.parts["weights"] == (2 * parameters + of_adapter * adapter) / ranks
    on_host = _on_host(config(lora=lora, distributed={"processes": 2}), found)
    assert on_host["checkpoint"] == 12 * adapter
    assert on_host["asleep"] == 4 * parameters + 12 * adapter
    lines, _ = memory_table(config(lora=lora), form=form, prompt_tokens=PROMPT, gpu_gib=80)
    assert lines[0].endswith("billion parameters, an adapter of 0.0 million")


def test_each_sleeping_vllm_keeps_the_base_of_an_adapter_in_the_hosts_memory():
    """In bf16, and only if refreshes hand over adapters and it sleeps while the trainer works."""
    sizes = Sizes(10, 1, ends=2, layers=1, hidden=1, inner=1, cached=1, vocab=1)

    def base(**options: object) -> float:
        run = config(model={"precision": "bf16"}, **options)
        return _on_host(run, UpdateMemory(sizes, 1, 1, {})).get("vLLM's base", 0)

    vllm, lora = {"name": "vllm", "processes": 3}, {"rank": 8}
    assert base(engine=vllm, lora=lora) == 2 * 10 * 3
    assert base(engine=vllm) == base(lora=lora) == 0
    assert base(engine={**vllm, "rest": "stay"}, lora=lora) == 0


@pytest.mark.long
@table(
    ("published", "precision", "ratio"),
    [("qwen2.5-0.5b", "fp32", 1.12), ("qwen3-1.7b", "fp32", 1.0), ("qwen3-1.7b", "bf16", 1.02)],
)
def test_a_layer_keeps_what_autograd_saves(published: str, precision: str, ratio: float):
    """Bytes of distinct tensors that are no weights: those of three layers less those of one."""
    raw = json.loads((RECIPES / "forms" / published / "config.json").read_text())
    raw |= {"vocab_size": 1000, "bos_token_id": None, "eos_token_id": None}
    raw.pop("layer_types", None)

    def saved(layers: int) -> int:
        form = AutoConfig.for_model(**{**raw, "num_hidden_layers": layers})
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        model = AutoModelForCausalLM.from_config(form, dtype=dtype)
        kept = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept.setdefault(storage.data_ptr(), storage.nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model.base_model(torch.zeros(2, 64, dtype=torch.int64), use_cache=False)
        assert output.last_hidden_state.requires_grad
        return sum(kept.values())

    chosen = config(model={"path": str(RECIPES / "forms" / published), "precision": precision})
    estimated = Sizes.of(chosen).kept(precision == "bf16")
    assert estimated / ((saved(3) - saved(1)) / 2 / 128) == pytest.approx(ratio, abs=0.02)


def test_what_is_offloaded_is_not_on_the_gpu(form: Path):
    found = peak(form, distributed={"processes": 4})
    assert found.longest == PROMPT + RESPONSE
    kept = found.parts["gathered"] + found.parts["activations"]
    assert found.on_gpu(offloaded=True) == kept
    assert found.on_gpu(offloaded=False) == sum(found.parts.values())


def test_activations_grow_with_the_tokens(form: Path):
    few = peak(form, optimizer={"micro_batch_tokens": 1})
    assert few.rows == 1
    assert 3 < peak(form).parts["activations"] / few.parts["activations"] <= 4


def test_with_checkpointing_a_layer_keeps_only_its_input(tmp_path: Path):
    """That is one number of four bytes for each of a token's hidden dimensions."""
    deep = tiny_config("llama")

    def activations(layers: int, **options: object) -> float:
        deep.num_hidden_layers = layers
        deep.save_pretrained(tmp_path)
        return peak(tmp_path, model={"precision": "fp32", **options}).parts["activations"]

    checkpointed = {"gradient_checkpointing": True}
    again = activations(4, **checkpointed) - activations(3, **checkpointed)
    assert again == ROWS * (PROMPT + RESPONSE) * deep.hidden_size * 4
    assert activations(3) - activations(2) > 10 * again


def test_the_micro_batch_is_as_full_as_the_trainers(form: Path):
    """127 tokens hold one response of 64, which counts as one of 127."""
    found = peak(form, optimizer={"micro_batch_tokens": 127})
    assert (found.rows, found.longest) == (1, 127)


def test_memory_beside_the_update_is_counted(form: Path):
    """One process also holds the engine's and the reference's copy. It sleeps in generation."""
    raw = {"engine": {"processes": 1}, "reference": {"name": "kl"}}
    plain = memory_table(config(), form=form, prompt_tokens=PROMPT, gpu_gib=80)[0]
    lines = memory_table(config(**raw), form=form, prompt_tokens=PROMPT, gpu_gib=80)[0]
    assert [line.split()[0] for line in lines if line not in plain] == [
        "engine",
        "reference",
        "generate",
        "asleep",
    ]
    assert "AdamW's moments" not in next(line for line in lines if line.startswith("generate"))


def test_ranks_check_an_engine_with_their_shares_and_rest_in_the_hosts_memory(
    form: Path, parameters: int
):
    """Four ranks: a quarter of the weights each, and 12 bytes a parameter asleep, and in a copy."""
    four = {"processes": 4}
    found = peak(form, distributed=four)
    own, _ = _generation(config(distributed=four), found, 80)
    engines_copy, gathered = 4 * parameters, found.sizes.gathered(False)
    assert own * GIB == pytest.approx(parameters + gathered + engines_copy)
    stay, _ = _generation(config(distributed={**four, "rest": "stay"}), found, 80)
    assert (stay - own) * GIB == pytest.approx(2 * parameters)
    assert _on_host(config(distributed=four), found) == {
        "model": 4 * parameters,
        "asleep": 12 * parameters,
        "checkpoint": 12 * parameters,
    }


def test_an_update_that_does_not_fit_is_refused_with_the_remedies(
    form: Path, tmp_path: Path, command
):
    file = tmp_path / "config.toml"
    file.write_text("[optimizer]\nmicro_batch_tokens = 65536\n")
    small = tmp_path / "small.toml"
    small.write_text(re.sub(r"memory_gib = \d+", "memory_gib = 0.01", H100.read_text()))
    words = ["plan", file, "--memory", "--form", form, "--prompt-tokens", PROMPT]
    told = command(*words, "--machine", "1xH100")
    assert told.status == 0 and "optimize    " in told.out, told
    ended = command(*words, "--machine", small)
    assert ended.status == 2 and "lower --optimizer.micro_batch_tokens" in ended.err
    assert "activations" in ended.out


HALF_A_BILLION = {"path": str(RECIPES / "forms" / "qwen2.5-0.5b"), "precision": "fp32"}


def test_default_sizes_fit_a_cpus_memory_and_named_ones_stay(monkeypatch: pytest.MonkeyPatch):
    """Half a billion parameters take 16 bytes each and 12 in a checkpoint: 13 of 24 GiB.

    4,096 tokens keep 24 layers x 120,832 bytes each, and logits; three quarters of 24 are 18.
    """
    monkeypatch.setattr("mugrpo.run.room.host_memory", lambda: 24 * GIB)
    plain = build_config({"model": HALF_A_BILLION}, "test")
    host = on_this_cpu(plain, Sizes.of(plain))
    logits = 12 * 151_936 * 1024
    assert host.activations == 4096 * 24 * 120_832 + logits
    assert host.states + host.others == pytest.approx(28 * 494e6 + GIB / 2, rel=1e-3)
    fitted, told = with_room(plain)
    assert fitted.optimizer.micro_batch_tokens == 1024 and "1024" in told
    # 128 slots of 512 tokens, each with 24 layers of 256 numbers of keys and values: 1.5 GiB.
    assert fitted.engine == plain.engine
    named = build_config(
        {"model": HALF_A_BILLION, "optimizer": {"micro_batch_tokens": 4096}}, "test"
    )
    assert with_room(named) == (named, "")
    with pytest.raises(UsageError, match="micro_batch_tokens"):
        require_room(named)
    require_room(fitted)


def test_a_resumed_run_keeps_the_sizes_that_it_began_with():
    sizes = {"optimizer": {"micro_batch_tokens": 512}, "engine": {"slots": 64}}
    stored = {"config": {**sizes, "model": {"precision": "fp32"}}}
    folder: Any = SimpleNamespace(read_config=lambda: stored)
    resumed = _for_this_machine(folder, build_config({}, "test"), Progress())
    assert resumed.optimizer.micro_batch_tokens == 512 and resumed.engine.slots == 64
    named = build_config({"optimizer": {"micro_batch_tokens": 4096}}, "test")
    changed = _for_this_machine(folder, named, Progress())
    assert changed.optimizer.micro_batch_tokens == 4096  # which is then refused, as any change


FOUR = ("--engine.processes=4", "--distributed.processes=4", "--optimizer.micro_batch_tokens=12288")
OVERLAP = (*FOUR, "--overlap=true", "--engine.gpu_memory_utilization=0.85")


@pytest.mark.long
@table(
    ("recipe", "form", "billions", "gpus", "options"),  # billions of parameters, as published
    [
        ("mu_grpo", "qwen2.5-math-7b", "7.62", 8, ()),
        ("mu_grpo", "qwen2.5-math-7b", "7.62", 4, FOUR),
        ("mu_grpo", "qwen3-8b", "8.19", 8, ()),
        ("mu_grpo", "qwen3-8b", "8.19", 4, FOUR),
        ("mu_grpo", "qwen3-8b", "8.19", 4, OVERLAP),
        ("mu_grpo", "qwen3-4b", "4.02", 8, ()),
        ("mu_grpo", "qwen3-1.7b", "1.72", 8, ()),
        ("mu_grpo", "llama-3.2-3b", "3.21", 8, ()),
        ("off_policy_gsm8k", "qwen2.5-0.5b", "0.49", 1, ("--machine", "1xA100-40GB")),
        ("off_policy_deepscaler", "r1-distill-qwen-1.5b", "1.78", 8, ()),
        ("off_policy_deepscaler", "qwen2.5-7b", "7.62", 8, ()),
    ],
)
def test_recipes_fit_their_machines(
    recipe: str, form: str, billions: str, gpus: int, options: tuple[str, ...], command
):
    file, place = RECIPES / f"{recipe}.toml", RECIPES / "forms" / form
    words = ["plan", file, "--memory", "--schedules", "64", "--form", place]
    machine = [] if "--machine" in options else ["--machine", f"{gpus}xH100"]
    ended = command(*words, *machine, *options)
    assert (ended.status, ended.err) == (0, ""), ended
    assert f"of each of {gpus} GPUs" in ended.out
    assert f"{billions} billion parameters" in ended.out


def test_every_recipe_is_tested():
    assert len(list(RECIPES.glob("*.toml"))) == 3 and len(list((RECIPES / "forms").iterdir())) == 8
