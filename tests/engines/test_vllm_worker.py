"""What a vLLM process asks of vLLM, in which order. The real one: `make test-vllm`."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.engines import _host
from mugrpo.engines.vllm import vllm_host
from mugrpo.engines.worker import VLLM
from mugrpo.model.adapter import put_adapter
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import model_path
from mugrpo.model.vocabulary import Vocabulary
from tests.model.test_architectures import tiny

SETUP = {"arguments": {"dtype": "float32"}, "sleeps": True, "stop_ids": [1], "adapters": None}


WITH_ADAPTERS = {
    **SETUP,
    "arguments": {"dtype": "bfloat16"},
    "adapters": {"base": "/base", "rank": 8},
}


class Adapter(NamedTuple):
    lora_name: str
    lora_int_id: int
    lora_path: str


class Calls:
    """A stand-in for vLLM that records what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[dict[str, Any]] = []
        self.asked: list[Any] = []
        self.cpu = False
        self.vllm = ModuleType("vllm")
        platforms = ModuleType("vllm.platforms")
        engine = SimpleNamespace(
            sleep=lambda level: self.asked.append(("sleep", level)),
            wake_up=lambda tags: self.asked.append(("wake", tags)),
            collective_rpc=lambda method, args: self.asked.append((method, args)),
            reset_prefix_cache=lambda: self.asked.append("reset"),
            add_lora=lambda request: self.asked.append(("add", request)),
            remove_lora=lambda number: self.asked.append(("remove", number)),
            add_request=lambda *request, lora_request: self.asked.append((*request, lora_request)),
        )
        for name, value in {
            "EngineArgs": lambda **arguments: self.made.append(arguments),
            "LLMEngine": SimpleNamespace(from_engine_args=lambda _: engine),
            "SamplingParams": lambda **parameters: parameters,
        }.items():
            setattr(self.vllm, name, value)
        setattr(platforms, "current_platform", SimpleNamespace(is_cpu=lambda: self.cpu))  # noqa: B010
        lora = ModuleType("vllm.lora.request")
        lora.LoRARequest = Adapter  # type: ignore[attr-defined]
        parameters = ModuleType("vllm.sampling_params")
        parameters.RequestOutputKind = SimpleNamespace(FINAL_ONLY="final")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vllm", self.vllm)
        monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)
        monkeypatch.setitem(sys.modules, "vllm.lora.request", lora)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_a_request_has_its_tasks_sampling(calls: Calls):
    """A task that does not name top_p asks for the whole distribution. A request may have its own
    limit of tokens."""
    worker = VLLM(SETUP)
    worker.load("/initial", 0)
    task = {"prompts": [np.array([5, 6], np.int32)], "temperature": 0.6, "max_new_tokens": 9}
    worker.add(requests=[[3, 0, 7, None]], **task, top_p=0.95)
    worker.add(requests=[[4, 0, 8, 5]], **task)
    asked = [(index, prompt, parameters) for index, prompt, parameters, _ in calls.asked]
    assert [index for index, *_ in asked] == ["3", "4"]
    expected = zip((7, 8), (0.95, 1.0), (9, 5), asked, strict=True)
    for seed, top_p, limit, (_, prompt, parameters) in expected:
        assert prompt == {"prompt_token_ids": [5, 6]}
        own = {"temperature": 0.6, "top_p": top_p, "max_tokens": limit, "seed": seed}
        always = {"logprobs": 0, "stop_token_ids": [1], "ignore_eos": True, "detokenize": False}
        assert parameters == {**own, **always, "output_kind": "final"}


def test_on_a_gpu_it_sleeps_and_wakes_the_weights_before_the_cache(calls: Calls):
    worker = VLLM(SETUP)
    worker.load("/initial", 0)
    assert calls.made[0]["enable_sleep_mode"]
    assert worker.sleep()
    worker.load("/later", 4)
    assert calls.asked == [
        ("sleep", 2),
        ("wake", ["weights"]),
        ("take_weights", ("/later",)),
        ("wake", ["kv_cache"]),
        "reset",
    ]
    worker.load("/latest", 8)  # it is awake now
    assert calls.asked[5:] == [("take_weights", ("/latest",)), "reset"]
    assert [made["model"] for made in calls.made] == ["/initial"]  # one engine takes all weights


def test_a_run_of_an_adapter_gives_its_processes_the_base_model_and_room_for_the_rank():
    """vLLM keeps room for certain ranks only. A run without an adapter hands over models."""
    vocabulary, options = load_policy(ModelOptions()).vocabulary, VLLMOptions(python="python")
    rooms = []
    for rank in (0, 1, 12, 16, 512):
        config = RunConfig(lora=LoRAOptions(rank=rank), engine=options)
        host = _host(vocabulary, config, Path("log"))
        rooms.append(host.setup["adapters"])
    base = model_path(ModelOptions())
    assert rooms == [None, *({"base": base, "rank": rank} for rank in (1, 16, 16, 512))]


def test_the_room_is_for_the_largest_rank_that_peft_gives_a_models_layers(tmp_path: Path):
    """Those of experts that hold two layers have twice the rank (mixtral); others do not."""
    mixed = tmp_path / "mixed"
    tiny("mixtral").save_pretrained(mixed)
    options, vocabulary = VLLMOptions(python="python"), Vocabulary(24, [1])
    lora = LoRAOptions(rank=12)
    host = vllm_host(vocabulary, ModelOptions(path=str(mixed)), lora, options, Path("log"))
    model = AutoModelForCausalLM.from_config(tiny("mixtral"))
    assert host.setup["adapters"]["rank"] == 32
    assert max(put_adapter(model, lora).rank_pattern.values()) == 24
    for rank, refused in ((256, False), (257, True)):
        words = (vocabulary, ModelOptions(path=str(mixed)), LoRAOptions(rank=rank), options)
        with pytest.raises(UsageError, match=r"lora\.rank to 256") if refused else nullcontext():
            vllm_host(*words, Path("log"))


def test_an_adapter_replaces_the_one_before_and_the_base_model_stays(calls: Calls, tmp_path: Path):
    """Each has a number of its own. The base model sleeps in CPU memory, at level 1."""
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        path.mkdir()
        (path / "adapter_config.json").touch()
    one, two = map(str, paths)
    worker = VLLM(WITH_ADAPTERS)
    worker.load("/base", 0)
    assert [made["model"] for made in calls.made] == ["/base"]
    assert (calls.made[0]["enable_lora"], calls.made[0]["max_lora_rank"]) == (True, 8)
    worker.load(one, 4)
    assert worker.sleep()
    worker.load(two, 8)
    first, second = ("add", ("update-4", 5, one)), ("add", ("update-8", 9, two))
    swap = [("sleep", 1), ("wake", ["weights"]), ("remove", 5), second, ("wake", ["kv_cache"])]
    assert calls.asked == ["reset", first, "reset", *swap, "reset"]
    again = VLLM(WITH_ADAPTERS)  # after its process died
    again.load(two, 8)
    assert calls.made[1]["model"] == "/base"
    assert calls.asked[-2:] == [second, "reset"]
