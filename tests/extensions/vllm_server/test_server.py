"""The engine that asks a server, tested with a small server that speaks the same protocol."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from mugrpo.config.engines import ContinuousOptions
from mugrpo.config.load import build_config, load_config
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.engines import make_engines, reserved_gpus
from mugrpo.engines.base import Completion, Engine, Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.extensions.vllm_server import VLLMServerOptions
from mugrpo.extensions.vllm_server import engine as engine_module
from mugrpo.extensions.vllm_server.engine import ServerEngine
from mugrpo.model.policy import Policy
from tests.builders import PROMPTS, encoded
from tests.cases import some, table

LIMIT = 24


def one_of(engine: Engine, request: Request, limit: int, **sampling: float) -> Completion:
    """Return what an engine of our own says to a single request."""
    every = engine.generate([request], max_new_tokens=limit, **sampling)
    ((_, completion),) = (one for decoded in every for one in decoded.completions)
    return completion


class Server:
    """A server that answers as vLLM does, with responses that our engine samples one at a time."""

    def __init__(self, policy: Policy) -> None:
        self.asked: list[dict[str, Any]] = []
        self.told: list[tuple[str, Any]] = []  # path and body of other requests
        self.takes = True
        self.change = lambda choice: choice
        self.away = 0  # requests that get no answer
        self.cut = 0  # answers that are cut off
        engine, lock = ContinuousEngine(policy, ContinuousOptions(slots=1)), threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"data": [{"id": "the-model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/completions":
                    server.told.append((self.path, body))
                    self.answer(server.takes and {"results": [None]})
                    return
                with lock:
                    server.asked.append(body)
                    if server.away:
                        server.away -= 1
                        self.close_connection = True
                        return
                    request = Request(np.array(body["prompt"], np.int32), body["seed"])
                    sampling = {name: body[name] for name in ("temperature", "top_p")}
                    response = one_of(engine, request, body["max_tokens"], **sampling)
                choice = {
                    "token_ids": response.ids.tolist(),
                    "logprobs": {"token_logprobs": response.logprobs.tolist()},
                    "finish_reason": response.finish_reason.value,
                }
                if server.cut:
                    server.cut -= 1
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b'{"choices": [')
                    self.close_connection = True
                    return
                changed = server.change(choice)
                self.answer(changed and {"choices": [changed]})

            def answer(self, value: Any) -> None:
                self.send_response(200 if value else 400)
                self.end_headers()
                self.wfile.write(json.dumps(value or "no such thing").encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(embedded_policy: Policy) -> Iterator[Server]:
    server = Server(embedded_policy)
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(scope="module")
def requests(embedded_policy: Policy) -> list[Request]:
    prompts = [encoded(embedded_policy, PROMPTS[i % len(PROMPTS)]) for i in range(12)]
    return [Request(prompt, 500 + i) for i, prompt in enumerate(prompts)]


@pytest.fixture
def engine(server: Server, embedded_policy: Policy) -> ServerEngine:
    chosen = VLLMServerOptions(urls=(server.url,), slots=4)
    return ServerEngine(server.url, embedded_policy.vocabulary, chosen)


def taken(engine: ServerEngine, requests: list[Request], **sampling: float) -> list[Completion]:
    """Return the answers to `requests`, with the weights that the server has."""
    engine.refresh(0, lambda: "not asked for")
    completions: dict[int, Completion] = {}
    limits = {"temperature": 1.1, "max_new_tokens": LIMIT}
    for decoded in engine.generate(requests, **limits, **sampling):
        completions.update(decoded.completions)
    return [completions[index] for index in range(len(requests))]


@pytest.mark.parametrize("sampling", some(1, [{}, {"top_p": 0.6}]))
def test_every_request_gets_its_own_answer(server, engine, embedded_policy, requests, sampling):
    completions = taken(engine, requests, **sampling)
    assert {body["top_p"] for body in server.asked} == set(sampling.values() or [1.0])
    alone = ContinuousEngine(embedded_policy, ContinuousOptions(slots=1))
    for request, completion in zip(requests, completions, strict=True):
        expected = one_of(alone, request, LIMIT, temperature=1.1, **sampling)
        np.testing.assert_array_equal(completion.ids, expected.ids)
        np.testing.assert_array_equal(completion.logprobs, expected.logprobs)
        assert completion.finish_reason is expected.finish_reason


@pytest.mark.long
def test_a_server_with_room_gets_the_next_requests_before_the_last_ones_are_done(engine, requests):
    """Four at once, of twelve requests in pieces of five, five and two."""
    expected = taken(engine, requests)
    pieces, unfinished = [requests[5:10], requests[10:]], []
    finished: dict[int, Completion] = {}

    def more() -> Iterator[list[Request]]:
        for number, piece in enumerate(pieces, 1):
            unfinished.append(5 * number - len(finished))
            yield piece

    limits = {"temperature": 1.1, "max_new_tokens": LIMIT}
    for decoded in engine.generate(requests[:5], more=more(), **limits):
        finished.update(decoded.completions)
    assert unfinished == [3, 3]  # two of five are done, then seven of ten
    assert sorted(finished) == list(range(12))
    for index, completion in finished.items():
        np.testing.assert_array_equal(completion.ids, expected[index].ids)


def test_the_server_draws_from_the_softmax_alone(server, engine, embedded_policy, requests):
    taken(engine, requests[:1])
    (body,) = server.asked
    assert body["model"] == "the-model" and body["temperature"] == 1.1
    assert (body["top_p"], body["top_k"], body["min_p"]) == (1.0, 0, 0.0)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert (body["repetition_penalty"], body["min_tokens"]) == (1.0, 0)
    assert body["stop_token_ids"] == embedded_policy.stop_ids and body["ignore_eos"] is True
    assert body["seed"] == requests[0].seed and body["max_tokens"] == LIMIT


def test_without_a_command_the_server_loads_the_weights_while_it_runs(server, engine):
    engine.refresh(0, lambda: "/the/model")
    engine.refresh(0, lambda: pytest.fail("nothing changed"))
    assert engine.refresh(8, lambda: "/the/weights") > 0
    assert server.told == [
        ("/collective_rpc", {"method": "take_weights", "args": ["/the/model"]}),
        ("/reset_prefix_cache", {}),
        ("/collective_rpc", {"method": "take_weights", "args": ["/the/weights"]}),
        ("/reset_prefix_cache", {}),
    ]


def test_a_server_that_is_briefly_unavailable_is_asked_again(server, engine, requests, monkeypatch):
    monkeypatch.setattr(engine_module, "_PAUSE", 0.01)
    for fault in ("away", "cut"):
        setattr(server, fault, 2)
        assert len(taken(engine, requests[:1])) == 1
    server.away = 3
    with pytest.raises(RunStopped, match=r"does not answer.*finished shards are kept"):
        taken(engine, requests[:1])


def ids(*values: Any) -> Callable[[dict[str, Any]], Any]:
    """Return the change of a response to these ids, each with the logprob -1."""
    logprobs = {"token_logprobs": [-1.0] * len(values)}
    return lambda choice: {**choice, "token_ids": list(values), "logprobs": logprobs}


def logprob(value: Any) -> Callable[[dict[str, Any]], Any]:
    """Return the change of a response's first logprob."""

    def change(choice: dict[str, Any]) -> dict[str, Any]:
        rest = choice["logprobs"]["token_logprobs"][1:]
        return {**choice, "logprobs": {"token_logprobs": [value, *rest]}}

    return change


END = 1  # the embedded model's only id that ends a response
FORM, WRONG = "does not answer as vLLM does", "impossible completion"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: {**c, "token_ids": None}, "returns no token ids"),
        (lambda c: {**c, "logprobs": None}, "no logprobs"),
        (lambda c: None, "answered 400 to /v1/completions"),
        (lambda c: {**c, "logprobs": 7}, FORM),
        (ids(10**6), WRONG),
        (ids(-1), WRONG),
        (ids(*[2] * LIMIT, END), WRONG),
        (ids(), WRONG),
        (lambda c: {**ids(END)(c), "finish_reason": "abort"}, WRONG),
        (logprob(0.5), WRONG),
        (logprob(float("nan")), WRONG),
        (logprob(float("-inf")), WRONG),  # in JSON, -1e400 is the same
    ],
)
def test_an_impossible_answer_stops_the_run(
    server: Server, engine: ServerEngine, embedded_policy: Policy, requests, change, text
):
    assert embedded_policy.stop_ids == [END]
    server.change = change
    with pytest.raises(RunStopped, match=text) as stopped:
        taken(engine, requests[:1])
    assert server.url in str(stopped.value) and str(stopped.value).isprintable()


def test_every_server_is_an_engine_that_the_run_neither_starts_nor_gives_a_gpu(embedded_policy):
    urls = ("http://one:8000", "http://two:8000")
    config = load_config(None, ["--engine.name=vllm_server", f"--engine.urls={[*urls]}"])
    assert config.engine.max_model_len is None and reserved_gpus(config) == []
    assert not config.engine_in_process and not config.shares_gpus
    engines = make_engines(
        config,
        vocabulary=embedded_policy.vocabulary,
        policy=None,
        log=lambda _: pytest.fail("it has no process"),
        notify=lambda _: None,
        check=lambda: None,
    )
    assert [type(engine) for engine in engines] == [ServerEngine, ServerEngine]


@table(
    ("options", "sentence"),
    [
        ({"lora": {"rank": 8}}, "needs an engine that the run starts"),
        ({"rollouts": {"temperature": 2.5}}, "from 0.01 to 2, not at 2.5"),
    ],
)
def test_options_that_do_not_work_with_it_are_refused(options: dict[str, Any], sentence: str):
    with pytest.raises(UsageError, match=sentence):
        build_config({"engine": {"name": "vllm_server"}, **options}, "a file")
