"""A running vLLM server (OpenAI-compatible) as an engine: token ids in, ids and logprobs out.

Its logprobs must include the temperature (`vllm serve --logprobs-mode processed_logprobs`). At any
temperature other than 1, the canary detects a server whose logprobs do not.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from mugrpo.config.engines import RESTARTS, SILENCE
from mugrpo.disk.errors import RunStopped
from mugrpo.engines.base import WAIT, Arrivals, Completion, Decoded, Engine, Request, checked
from mugrpo.engines.vllm import EXTENSION
from mugrpo.extensions.vllm_server import VLLMServerOptions, http
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.peer import TICK

_PAUSE = 1.0  # seconds between attempts to reach the server

# The server sends nothing until a response is whole, so it may be silent for longer the longer a
# response may be: a response may get 10 tokens per second, as one of many on a slow server.
_SECONDS_PER_TOKEN = 0.1

# Nothing of the model's own generation config; ids and logprobs in the answer.
_NEUTRAL = {
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "ignore_eos": True,  # only the run's own stop ids count
    "logprobs": 0,
    "return_token_ids": True,
    "skip_special_tokens": False,
}


def server_engines(options: VLLMServerOptions, vocabulary: Vocabulary) -> list[Engine]:
    """Return an engine for each server."""
    return [ServerEngine(url, vocabulary, options) for url in options.urls]


class ServerEngine(Engine):
    """An engine on a running server. The run did not start the server and never stops it."""

    exact = False

    def __init__(self, url: str, vocabulary: Vocabulary, options: VLLMServerOptions) -> None:
        """Prepare requests to the server at `url`."""
        self._url, self._name = url, url.rstrip("/")
        self._vocabulary = vocabulary
        self._slots = options.slots
        self._update: int | None = None
        self._model = ""

    def refresh(self, update: int, weights: Callable[[], str]) -> float:
        """See `Engine.refresh`. Asks vLLM to load the weights, by the routes of its dev mode.

        Raises RunStopped if the server does not answer or refuses.
        """
        if update == self._update:
            return 0.0
        path = weights()
        began = time.monotonic()
        try:
            self._ask("/collective_rpc", {"method": "take_weights", "args": [path]})
            self._ask("/reset_prefix_cache", {})
        except RunStopped as refusal:
            if update:  # the initial weights it may have already, which the canary checks
                raise RunStopped(
                    f"{refusal}. The server must run with VLLM_SERVER_DEV_MODE=1, "
                    f"PYTHONPATH={EXTENSION} and --worker-extension-cls mugrpo_vllm.TakesWeights, "
                    "and see the run's folder under the same path"
                ) from None
        with self._understood():
            self._model = self._ask("/v1/models")["data"][0]["id"]
        self._update = update
        return time.monotonic() - began

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: Iterable[Sequence[Request]] = (),
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Yields an empty `Decoded` while nothing finishes.

        Raises RunStopped if the server refuses, does not answer, or returns malformed completions.
        """
        sampling = {"temperature": temperature, "top_p": top_p}
        arrivals, running = Arrivals(requests, more), 0
        waiting = deque(arrivals.take().items())
        outcomes: SimpleQueue[tuple[int, Completion] | BaseException] = SimpleQueue()

        def complete(index: int, request: Request) -> None:
            try:
                outcomes.put((index, self._completed(request, sampling, max_new_tokens)))
            except BaseException as error:
                outcomes.put(error)

        while waiting or running or arrivals.open:
            while waiting and running < self._slots:
                # Python joins the threads of a ThreadPoolExecutor when it exits: a run that stops
                # would wait for the longest response.
                threading.Thread(target=complete, args=waiting.popleft(), daemon=True).start()
                running += 1
            outcome = None
            with suppress(Empty):
                outcome = outcomes.get(running > 0, WAIT if arrivals.open else TICK)
            if isinstance(outcome, BaseException):
                raise outcome
            running -= outcome is not None
            yield Decoded([outcome], len(outcome[1].ids)) if outcome else Decoded((), 0)
            # Once per answer, so that another server gets its share of the work.
            if arrivals.open and len(waiting) + running < self._slots:
                waiting.extend(arrivals.take().items())

    def _completed(self, request: Request, sampling: dict[str, float], limit: int) -> Completion:
        longest = request.max_new_tokens or limit
        body = {
            "model": self._model,
            "prompt": request.prompt_ids.tolist(),
            "seed": request.seed % (1 << 63),
            "stop_token_ids": self._vocabulary.stop_ids,
            **sampling,
            "max_tokens": longest,
            **_NEUTRAL,
        }
        answer = self._ask("/v1/completions", body, seconds=longest * _SECONDS_PER_TOKEN)
        with self._understood():
            (choice,) = answer["choices"]
            if choice.get("token_ids") is None or not choice.get("logprobs"):
                raise RunStopped(
                    f"{self._name} returns no token ids or no logprobs; it must be a vLLM server "
                    "of a version that supports return_token_ids"
                )
            return checked(
                np.array(choice["token_ids"], np.int64),
                np.array(choice["logprobs"]["token_logprobs"], np.float64),
                choice["finish_reason"],
                longest=longest,
                vocab_size=self._vocabulary.size,
                source=self._name,
            )

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Raise RunStopped if the block finds that an answer has another form than vLLM's."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            raise RunStopped(
                f"{self._name} does not answer as vLLM does ({error!r}); see its log"
            ) from None

    def _ask(self, route: str, body: Any = None, *, seconds: float = 0.0) -> Any:
        """Return the server's answer to `body` (or to a GET without one), parsed from JSON.

        It may be silent for `seconds` more than any answer. If the server does not answer, try
        again. Raises RunStopped if that fails, or if the server answers with an error.
        """
        for retries_left in reversed(range(RESTARTS + 1)):
            try:
                return http.ask(self._url, route, body, seconds=SILENCE + seconds)
            except http.Refused as refusal:
                raise RunStopped(f"{self._name} {refusal}") from None
            except http.Unanswered as error:
                if not retries_left:
                    raise RunStopped(f"{self._name} {error}; finished shards are kept") from None
                time.sleep(_PAUSE)
