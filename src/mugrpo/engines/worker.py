"""The program of an engine process: loads weights and answers requests until the run hangs up.

    PYTHON -P worker.py SOCKET LIFELINE

It is run by its path, possibly under an interpreter without mugrpo, so it imports only the standard
library, numpy and what its backend needs. Messages are JSON (`processes/messages.py`):

    {"backend": NAME, ...options}                                first, once
    {"load": PATH, "update": N}                                  -> {"loaded": PATH}
    {"generate": {"prompts", "requests", "temperature",          -> {"completions": [...], "slots"}
                  "max_new_tokens"}}                                ..., {"alive"} ..., {"end"}

A request is [index, number of its prompt, seed]. An expected failure is answered with
{"failed": "memory", "stopped" or "refused", "text"}. A crash ends the process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Responses = list[tuple[int, Any, Any, str]]  # (index, ids, logprobs, finish reason)


class Own:
    """mugrpo's own engines, with a copy of the model in this process."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import torch
        from pydantic import TypeAdapter

        from mugrpo.config.engines import Engine
        from mugrpo.config.run import ModelOptions

        torch.set_num_threads(setup["threads"])
        self._model = ModelOptions.model_validate(setup["model"])
        self._options: Engine = TypeAdapter(Engine).validate_python(setup["engine"])
        self._engine: Any = None

    def load(self, path: str, update: int) -> None:
        from mugrpo.engines import make_engine
        from mugrpo.model.policy import load_policy

        if self._engine is None:
            self._engine = make_engine(load_policy(self._model), self._options, print)
        self._engine.policy.load_weights(path, update)

    def generate(
        self, prompts: list[Any], requests: list[Any], temperature: float, max_new_tokens: int
    ) -> Iterator[tuple[Responses, int]]:
        from mugrpo.engines.base import Request

        inputs = [Request(prompts[number], seed) for _, number, seed in requests]
        limits = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        for decoded in self._engine.generate(inputs, **limits):
            responses = [
                (requests[place][0], c.ids, c.logprobs, c.finish_reason.value)
                for place, c in decoded.completions
            ]
            yield responses, decoded.slots

    @staticmethod
    def failure(error: Exception) -> str | None:
        from mugrpo.model.memory import failure_kind

        return failure_kind(error)


class VLLM:
    """vLLM, in an environment that may lack mugrpo."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._engine: Any = None

    def load(self, path: str, update: int) -> None:
        """Make an engine with the weights at `path`. A process can do this only once."""
        from vllm import EngineArgs, LLMEngine

        assert self._engine is None
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=path,
                skip_tokenizer_init=True,
                logprobs_mode="processed_logprobs",
                generation_config="vllm",
                disable_log_stats=True,
                **self._setup["arguments"],
            )
        )

    def generate(
        self, prompts: list[Any], requests: list[Any], temperature: float, max_new_tokens: int
    ) -> Iterator[tuple[Responses, int]]:
        """Yield (responses finished since the last report, their number of tokens).

        Every token is drawn from softmax(logits / temperature), and its logprob is under that same
        distribution.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        ids = [prompt.tolist() for prompt in prompts]
        for index, number, seed in requests:
            params = SamplingParams(
                temperature=temperature,
                max_tokens=max_new_tokens,
                seed=seed % (1 << 63),
                logprobs=0,
                stop_token_ids=self._setup["stop_ids"],
                ignore_eos=True,  # only the run's own stop ids count
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._engine.add_request(str(index), {"prompt_token_ids": ids[number]}, params)
        while self._engine.has_unfinished_requests():
            responses = [self._response(o) for o in self._engine.step() if o.finished]
            yield responses, sum(len(ids) for _, ids, *_ in responses)

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
                channel.send({"loaded": message["load"]})
            else:
                _generate(channel, backend, **message["generate"])
        except Exception as error:
            if (kind := backend.failure(error)) is None:
                raise
            text = str(error).strip().split("\n")[0]
            if kind == "refused" and setup["backend"] == "vllm":
                text = f"vLLM of {sys.executable}: {text}; see --engine.python, --engine.arguments"
            channel.send({"failed": kind, "text": text})


def _generate(channel: Any, backend: Any, prompts: list[bytes], **task: Any) -> None:
    arrays = [np.frombuffer(prompt, np.int32) for prompt in prompts]
    slots = 0
    for responses, computed in backend.generate(arrays, **task):
        slots += computed
        if responses:
            completions = [
                {"index": index, "ids": i.tobytes(), "logprobs": p.tobytes(), "reason": reason}
                for index, i, p, reason in responses
            ]
            channel.send({"completions": completions, "slots": slots})
            slots = 0
        channel.heartbeat()
    channel.send({"end": True})


if __name__ == "__main__":
    main()
