"""The program of an engine process: loads weights and answers requests until the run hangs up.

    PYTHON worker.py SOCKET LIFELINE

It is run by its path, possibly under an interpreter without mugrpo, so it imports only the standard
library, numpy and what its backend needs. Messages are JSON (`processes/messages.py`):

    {"backend": NAME, ...options}                                first, once
    {"load": PATH, "update": N}                                  -> {"loaded": true}
    {"sleep": true}                                              -> {"asleep": BOOL}
    {"generate": {"prompts", "requests", "temperature",          -> {"completions": [...], "slots"}
                  "max_new_tokens", "top_p"}}                       ..., {"alive"} ..., {"end"}

A request is [index, number of its prompt, seed, its own limit of tokens or null]. An expected
failure is answered with {"failed": "memory", "stopped" or "refused", "text"}. A crash ends the
process.
"""

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Responses = list[tuple[int, Any, Any, str]]  # (index, ids, logprobs, finish reason)


class Own:
    """mugrpo's own engines, with a copy of the model in this process."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import torch
        from pydantic import TypeAdapter

        from mugrpo.config.engines import AnyEngine
        from mugrpo.config.run import ModelOptions
        from mugrpo.config.training import LoRAOptions

        torch.set_num_threads(setup["threads"])
        self._model = ModelOptions.model_validate(setup["model"])
        self._lora = LoRAOptions.model_validate(setup["lora"])
        self._options: AnyEngine = TypeAdapter(AnyEngine).validate_python(setup["engine"])
        self._share: int = setup["share"]  # engines on this GPU
        self._engine: Any = None

    def load(self, path: str, update: int) -> None:
        from mugrpo.engines import make_engine
        from mugrpo.model.policy import load_policy

        if self._engine is None:
            # An adapter's A does not matter before it is loaded.
            policy = load_policy(self._model, lora=self._lora, trained=False)
            say = partial(print, file=sys.stderr)  # into its log
            self._engine = make_engine(policy, self._options, say, share=self._share)
        self._engine.policy.load_weights(path, update)

    def generate(
        self, prompts: list[Any], requests: list[Any], **sampling: Any
    ) -> Iterator[tuple[Responses, int]]:
        from mugrpo.engines.base import Request

        inputs = [Request(prompts[number], seed, limit) for _, number, seed, limit in requests]
        for decoded in self._engine.generate(inputs, **sampling):
            responses = [
                (requests[place][0], c.ids, c.logprobs, c.finish_reason.value)
                for place, c in decoded.completions
            ]
            yield responses, decoded.slots

    def sleep(self) -> bool:
        """Leave to updates what generation has left of a GPU's memory. The weights stay."""
        from mugrpo.model.memory import give_back_memory

        self._engine.sleep()
        give_back_memory()
        return False

    @staticmethod
    def failure(error: Exception) -> str | None:
        from mugrpo.model.memory import failure_kind

        return failure_kind(error)


class VLLM:
    """vLLM, in an environment that may lack mugrpo.

    With "adapters" in the setup, it keeps the weights of their base model, and each path to load is
    a LoRA adapter in peft's format, or the base model itself.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._engine: Any = None
        self._adapter: Any = None  # what requests are computed with, besides the model
        self._asleep = False

    def load(self, path: str, update: int) -> None:
        """Take the weights at `path`. The first time, make an engine with them."""
        adapters = self._setup["adapters"]
        if self._engine is None:
            self._engine = self._made(adapters["base"] if adapters else path)
            if not adapters:
                return
        self._wake("weights")
        if adapters:
            self._take_adapter(path, update)
        else:
            self._engine.collective_rpc("take_weights", args=(path,))
        self._wake("kv_cache")  # last, because taking weights needs room for a while
        self._asleep = False
        self._engine.reset_prefix_cache()

    def _take_adapter(self, path: str, update: int) -> None:
        """Compute with the adapter at `path` from now on, or without one if it is a model."""
        from vllm.lora.request import LoRARequest

        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = None
        if (Path(path) / "adapter_config.json").exists():
            # A new name and number, so that nothing cached under the old ones is used.
            self._adapter = LoRARequest(f"update-{update}", 1 + update, path)
            self._engine.add_lora(self._adapter)

    def sleep(self) -> bool:
        """Free weights and cache, and keep compiled code. Return False on a CPU: it cannot.

        A base model's weights stay in CPU memory, because no refresh brings them again.
        """
        if not self._on_cpu():
            self._engine.sleep(level=1 if self._setup["adapters"] else 2)
            self._asleep = True
        return self._asleep

    def _wake(self, tag: str) -> None:
        if self._asleep:
            self._engine.wake_up([tag])

    def _made(self, path: str) -> Any:
        from vllm import EngineArgs, LLMEngine

        # The CPU build (0.32) crashes on a seeded request whose prompt is split into chunks.
        for_cpu = {"enable_chunked_prefill": False} if self._on_cpu() else {}
        adapters = self._setup["adapters"]
        lora: dict[str, Any] = {}
        if adapters:
            lora = {"enable_lora": True, "max_loras": 1, "max_lora_rank": adapters["rank"]}
        return LLMEngine.from_engine_args(
            EngineArgs(
                model=path,
                skip_tokenizer_init=True,
                trust_remote_code=False,
                logprobs_mode="processed_logprobs",
                generation_config="vllm",
                disable_log_stats=True,
                enable_sleep_mode=self._setup["sleeps"] and not self._on_cpu(),
                worker_extension_cls="mugrpo_vllm.TakesWeights",
                **(for_cpu | lora | self._setup["arguments"]),
            )
        )

    @staticmethod
    def _on_cpu() -> bool:
        from vllm.platforms import current_platform

        return bool(current_platform.is_cpu())

    def generate(
        self, prompts: list[Any], requests: list[Any], **sampling: Any
    ) -> Iterator[tuple[Responses, int]]:
        """Yield (responses finished since the last report, their number of tokens).

        Every token is drawn from softmax(logits / temperature), or from its nucleus of `top_p`, and
        its logprob is under that same distribution. More requests may be added meanwhile.
        """
        self.add(prompts, requests, **sampling)
        while self._engine.has_unfinished_requests():
            responses = [self._response(o) for o in self._engine.step() if o.finished]
            yield responses, sum(len(ids) for _, ids, *_ in responses)

    def add(
        self,
        prompts: list[Any],
        requests: list[Any],
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
    ) -> None:
        """Queue requests. They begin in this order as soon as there is room."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        ids = [prompt.tolist() for prompt in prompts]
        for index, number, seed, limit in requests:
            params = SamplingParams(
                temperature=temperature,
                max_tokens=limit or max_new_tokens,
                top_p=top_p,
                seed=seed % (1 << 63),
                logprobs=0,
                stop_token_ids=self._setup["stop_ids"],
                ignore_eos=True,  # only the run's own stop ids count
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = {"prompt_token_ids": ids[number]}
            self._engine.add_request(str(index), prompt, params, lora_request=self._adapter)

    @staticmethod
    def _response(output: Any) -> tuple[int, Any, Any, str]:
        (response,) = output.outputs
        ids = np.array(response.token_ids, np.int32)
        logprobs = [
            entry[token].logprob
            for token, entry in zip(response.token_ids, response.logprobs, strict=True)
        ]
        return int(output.request_id), ids, np.array(logprobs, np.float32), response.finish_reason

    @staticmethod
    def failure(error: Exception) -> str | None:
        if "out of memory" in str(error).lower():
            return "memory"
        return "refused" if isinstance(error, (ImportError, TypeError, ValueError)) else None


BACKENDS: dict[str, Any] = {"own": Own, "vllm": VLLM}


def _channel() -> Any:
    """Return the channel to the run. Its module is imported by path, as mugrpo may be missing."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    child = importlib.import_module("processes.child")
    sys.path.pop(0)
    return child.Channel()


def main() -> None:
    channel = _channel()
    setup = channel.receive()
    backend = BACKENDS[setup["backend"]](setup)
    while True:
        message = channel.receive()
        try:
            if "load" in message:
                backend.load(message["load"], message["update"])
                channel.send({"loaded": True})
            elif "sleep" in message:
                channel.send({"asleep": backend.sleep()})
            else:
                _generate(channel, backend, message["generate"])
        except Exception as error:
            if (kind := backend.failure(error)) is None:
                raise
            text = str(error).strip().split("\n")[0]
            if kind == "refused" and setup["backend"] == "vllm":
                absent = isinstance(error, ModuleNotFoundError)
                remedy = "`mugrpo vllm-env` installs it" if absent else "see --engine.arguments"
                text = f"vLLM of {sys.executable}: {text}; {remedy}, --engine.python names it"
            channel.send({"failed": kind, "text": text})


def _generate(channel: Any, backend: Any, task: dict[str, Any]) -> None:
    """Answer a task, and those that arrive meanwhile: only a backend that can `add` gets any."""
    slots = 0
    for responses, computed in backend.generate(**_with_arrays(task)):
        slots += computed
        if responses:
            completions = [
                {"index": index, "ids": i.tobytes(), "logprobs": p.tobytes(), "reason": reason}
                for index, i, p, reason in responses
            ]
            channel.send({"completions": completions, "slots": slots})
            slots = 0
        channel.heartbeat()
        while (message := channel.arrived()) is not None:
            backend.add(**_with_arrays(message["generate"]))
    channel.send({"end": True})


def _with_arrays(task: dict[str, Any]) -> dict[str, Any]:
    return task | {"prompts": [np.frombuffer(prompt, np.int32) for prompt in task["prompts"]]}


if __name__ == "__main__":
    main()
