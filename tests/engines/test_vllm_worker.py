"""What a vLLM process asks of vLLM, in which order. The real one: `make test-vllm`."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mugrpo.engines.worker import VLLM

SETUP = {"arguments": {"dtype": "float32"}, "sleeps": True, "oldest": [0, 26], "stop_ids": [1]}


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
        )
        for name, value in {
            "__version__": "0.32.0",
            "EngineArgs": lambda **arguments: self.made.append(arguments),
            "LLMEngine": SimpleNamespace(from_engine_args=lambda _: engine),
        }.items():
            setattr(self.vllm, name, value)
        setattr(platforms, "current_platform", SimpleNamespace(is_cpu=lambda: self.cpu))  # noqa: B010
        monkeypatch.setitem(sys.modules, "vllm", self.vllm)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_one_engine_takes_all_weights(calls: Calls):
    worker = VLLM(SETUP)
    assert worker.load("/initial", 0) == 0.0
    worker.load("/later", 4)
    assert [made["model"] for made in calls.made] == ["/initial"]
    assert calls.asked == [("take_weights", ("/later",)), "reset"]


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


def test_on_a_cpu_it_stays_awake(calls: Calls):
    calls.cpu = True
    worker = VLLM(SETUP)
    worker.load("/initial", 0)
    assert not calls.made[0]["enable_sleep_mode"]
    assert calls.made[0]["enable_chunked_prefill"] is False
    assert not worker.sleep()
    assert calls.asked == []


def test_ones_own_arguments_win(calls: Calls):
    calls.cpu = True
    VLLM({**SETUP, "arguments": {"enable_chunked_prefill": True}}).load("/initial", 0)
    assert calls.made[0]["enable_chunked_prefill"] is True


def test_an_old_vllm_is_refused(calls: Calls):
    calls.vllm.__version__ = "0.12.1"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"its version is 0\.12\.1, but at least 0\.26 is needed"):
        VLLM(SETUP).load("/initial", 0)
