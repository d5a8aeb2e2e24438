"""A running vLLM server (OpenAI-compatible) as an engine: token ids in, ids and logprobs out.

It must report logprobs after the temperature (`vllm serve --logprobs-mode processed_logprobs`); one
that does not is found out by the canary at any other temperature than 1.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from mugrpo.config.engines import VLLMServerOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.engines.base import Completion, Decoded, Request
from mugrpo.engines.process import checked
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.peer import end_with_all

_TICK = 0.5  # seconds after which a caller that waits is given its turn
_PATIENCE = 10.0  # seconds for a command that hands weights over to end
_PAUSE = 1.0  # seconds before a request that found no server is sent again

# Whatever the model's own generation config says.
_NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "ignore_eos": True,  # the run's own stop ids are all that count
    "logprobs": 0,
    "return_token_ids": True,
    "skip_special_tokens": False,
}


class ServerEngine:
    """See `Engine`. The server is another's: it is asked, and never ended."""

    def __init__(
        self,
        url: str,
        vocabulary: Vocabulary,
        options: VLLMServerOptions,
        log: Path,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`log` takes what the command that hands weights over prints; `check` raises where the run
        is to stop while it runs."""
        self._url = url.rstrip("/")
        self._vocabulary = vocabulary
        self._options = options
        self._log = log
        self._check = check
        self._update: int | None = None
        self._model = ""

    def refresh(self, update: int, weights: Callable[[], str]) -> None:
        """See `Engine.refresh`: runs the command that hands the weights over.

        Raises RunStopped where it fails, or no server answers.
        """
        if update == self._update:
            return
        if self._options.hand_over:
            self._hand_over([*self._options.hand_over, self._url, weights()])
        self._model = self._ask("/v1/models")["data"][0]["id"]
        self._update = update

    def _hand_over(self, command: list[str]) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(self._log, "ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            raise RunStopped(
                f"engine.hand_over: {command[0]} cannot be run ({error.strerror})"
            ) from None
        try:
            while process.poll() is None:
                self._check()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TICK)
        finally:
            if process.poll() is None:  # what it started stays where it has done its work
                end_with_all(process, _PATIENCE)
        if process.returncode:
            raise RunStopped(
                f"engine.hand_over: {command[0]} ended with status {process.returncode}; its log "
                f"is {self._log}"
            )

    def generate(
        self, requests: Sequence[Request], *, temperature: float, max_new_tokens: int
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Raises RunStopped where the server refuses, or stays away."""

        wanted: SimpleQueue[tuple[int, Request]] = SimpleQueue()
        made: SimpleQueue[tuple[int, Completion] | BaseException] = SimpleQueue()
        for index, request in enumerate(requests):
            wanted.put((index, request))

        def work() -> None:
            with suppress(Empty):
                while True:
                    index, request = wanted.get_nowait()
                    try:
                        made.put((index, self._completed(request, temperature, max_new_tokens)))
                    except BaseException as error:
                        made.put(error)

        try:
            for _ in range(min(self._options.concurrency, len(requests))):
                threading.Thread(target=work, daemon=True).start()  # nobody waits for its end
            left = len(requests)
            while left:
                try:
                    done = made.get(timeout=_TICK)
                except Empty:
                    yield Decoded((), 0)
                    continue
                if isinstance(done, BaseException):
                    raise done
                left -= 1
                yield Decoded([done], len(done[1].ids))
        finally:
            with suppress(Empty):
                while True:
                    wanted.get_nowait()

    def _completed(self, request: Request, temperature: float, max_new_tokens: int) -> Completion:
        body = {
            "model": self._model,
            "prompt": request.prompt_ids.tolist(),
            "temperature": temperature,
            "max_tokens": max_new_tokens,
            "seed": request.seed % (1 << 63),
            "stop_token_ids": self._vocabulary.stop_ids,
        }
        answer = self._ask("/v1/completions", body | _NEUTRAL)
        return self._completion(answer["choices"][0], max_new_tokens)

    def rest(self) -> None:
        """See `Engine.rest`: the server's machine is its own."""

    def close(self) -> None:
        """See `Engine.close`: nothing of the server's is held."""

    def _completion(self, choice: dict[str, Any], max_new_tokens: int) -> Completion:
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {})
        if ids is None or "token_logprobs" not in logprobs:
            raise RunStopped(
                f"{self._url} gives no token ids or no logprobs; it must be vLLM's, of a version "
                "that knows return_token_ids"
            )
        return checked(
            np.array(ids, np.int32),
            np.array(logprobs["token_logprobs"], np.float32),
            str(choice.get("finish_reason")),
            longest=max_new_tokens,
            vocab_size=self._vocabulary.size,
            source=self._url,
        )

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The server's answer; one that is away is asked again, `restarts` times."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data)
        request.add_header("Content-Type", "application/json")
        for left in reversed(range(self._options.restarts + 1)):
            try:
                with urllib.request.urlopen(request, timeout=self._options.silence) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                said = error.read(500).decode(errors="replace")
                raise RunStopped(f"{self._url} answers {error.code} to {path}: {said}") from None
            # URLError and timeouts are OSErrors; an answer may also be cut short.
            except (OSError, HTTPException, ValueError) as error:
                if not left:
                    raise RunStopped(
                        f"{self._url} does not answer ({error}); finished shards are kept"
                    ) from None
                time.sleep(_PAUSE)
