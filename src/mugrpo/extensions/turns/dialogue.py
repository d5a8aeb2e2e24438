"""Rollouts with turns: the model says something, an environment answers, until one of them ends it.

T tokens of a response: those of the model and those that say what the environment answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Message, Outcome, Problem, Rollout
from mugrpo.engines.base import WAIT, Completion, Request
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.messages import BadCallError, MessageEncoder
from mugrpo.extensions.turns.pool import EnvironmentPool, environments_of, row_of
from mugrpo.processes.peer import TICK
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.sampler import Dialogue, Key
from mugrpo.rollouts.schedule import turn_seed

_TICK = 0.5  # seconds after which a caller that waits for a reply gets control back
_LAG = 8  # steps of an exact engine between a turn and the next one, see `Conversations`

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class EnvironmentDialogue:
    """What rollouts need to have turns (see `sampler.Dialogue`)."""

    environments: EnvironmentPool
    encoder: MessageEncoder
    max_turns: int  # of the model

    def turns(self, **how: Any) -> Conversations:
        return Conversations(self, **how)

    def rewards(self, seed: int, said: Sequence[tuple[Problem, str]]) -> list[float | None]:
        """Return the environment's own reward for each text as the only turn of a conversation.

        Raises UsageError if an environment cannot be loaded or fails, BrokenReward if it breaks its
        contract.
        """
        rewards, environments = list[float | None](), self.environments
        for number, (problem, text) in enumerate(said):
            environments.begin(number, seed, row_of(problem))
            reply = self._reply()
            if not reply.done:
                environments.step(number, {"role": "assistant", "content": text})
                reply = self._reply()
            if not reply.done:
                environments.end(number)
                reply = self._reply()
            if reply.failure:
                raise UsageError(
                    f"the environment fails on problem {problem.id!r}: {reply.failure}; fix that "
                    "first"
                )
            rewards.append(reply.reward)
        return rewards

    def close(self) -> None:
        self.environments.close()

    def _reply(self) -> Reply:
        while not (replies := self.environments.replies(TICK)):
            pass
        return replies[0][1]


def dialogue_of(config: RunConfig, prompts: PromptEncoder, log: Path) -> Dialogue:
    """Return the dialogue of a run's config, which must name an environment.

    What environments print goes to `log`. Raises UsageError if the chat template cannot write a
    conversation.
    """
    options = config.environment
    assert isinstance(options, EnvironmentOptions), "no environment is named"
    encoder = MessageEncoder(prompts)
    return EnvironmentDialogue(environments_of(config, log=log), encoder, options.max_turns)


@dataclass
class Conversation:
    """A rollout that goes on, or has ended: what was said so far."""

    problem: Problem
    key: Key
    seed: int
    prompt_ids: Ids | None = None  # until the environment has been reset
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))  # [T]
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))  # [T]
    sampled: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))  # [T]
    turns: list[int] = field(default_factory=list)  # the beginnings of the model's turns
    messages: list[Message] = field(default_factory=list)  # after the prompt, as the model saw them
    cut: bool = False  # whether there was no room for more tokens
    last: Reply | None = None  # the environment's last reply

    def hear(self, completion: Completion, message: Message) -> None:
        """Add a turn of the model, which says `message`."""
        self.turns.append(len(self.ids))
        self.messages.append(message)
        self._add(completion.ids, completion.logprobs, True)

    def tell(self, ids: Ids, messages: Sequence[Message]) -> None:
        """Add what was said to the model: `messages`, as `ids`."""
        self.messages.extend(messages)
        self._add(ids, np.zeros(len(ids), np.float32), False)

    def _add(self, ids: Ids, logprobs: NDArray[np.float32], sampled: bool) -> None:
        self.ids = np.concatenate([self.ids, ids])
        self.logprobs = np.concatenate([self.logprobs, logprobs])
        self.sampled = np.concatenate([self.sampled, np.full(len(ids), sampled)])

    @property
    def before(self) -> Ids:
        """All ids that the model has read before its next turn."""
        assert self.prompt_ids is not None
        return np.concatenate([self.prompt_ids, self.ids])

    def rollout(self, temperature: float, policy_step: int) -> Rollout:
        """Return the record of a conversation that has ended."""
        assert self.prompt_ids is not None and self.last is not None
        problem_id, occurrence, sample = self.key
        last = self.last
        outcome = Outcome(
            last.reward, last.failure, last.unfinished, dict(last.logged), self.messages
        )
        return Rollout(
            problem_id=problem_id,
            occurrence=occurrence,
            sample=sample,
            seed=self.seed,
            prompt_ids=self.prompt_ids,
            response_ids=self.ids,
            behavior_logprobs=self.logprobs,
            finish_reason=FinishReason.LENGTH if self.cut else FinishReason.STOP,
            temperature=temperature,
            policy_step=policy_step,
            loss_mask=self.sampled,
            turns=np.array(self.turns, np.int32),
            environment=outcome,
        )


class Conversations:
    """Conversations, each known by its number, as requests to an engine.

    An engine works on some of them while the environments of others reply. With an `exact` engine,
    nothing depends on how long that takes: replies are taken in the order of the turns, each at
    the step that is `_LAG` steps after its turn, or when the engine has nothing else to do. So the
    same conversations have the same bits. With another engine, a reply is taken once it has come.

    `check` is called while all wait for replies, and raises if the work is to stop.
    """

    def __init__(
        self,
        dialogue: EnvironmentDialogue,
        *,
        max_new_tokens: int,
        exact: bool,
        temperature: float,
        policy_step: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._environments = dialogue.environments
        self._encoder = dialogue.encoder
        self._max_turns = dialogue.max_turns
        self._temperature = temperature
        self._policy_step = policy_step
        self._max_new_tokens = max_new_tokens
        self._exact = exact
        self._check = check
        self._step = 0
        self._going: dict[int, Conversation] = {}
        self._calls: deque[tuple[int, int]] = deque()  # (number, step) of each unanswered call
        self._heard: dict[int, Reply] = {}  # replies that have come before they are due
        self._requests: list[Request] = []  # that the engine has not got yet
        self._asked: dict[int, int] = {}  # conversations by the indices of their requests
        self._count = 0  # requests so far
        self._ended: list[tuple[int, Rollout]] = []

    @property
    def going(self) -> int:
        """Number of conversations that have not ended."""
        return len(self._going)

    @property
    def waiting(self) -> int:
        """Number of conversations that wait for their environment."""
        return len(self._going) - len(self._asked)

    def begin(self, number: int, problem: Problem, key: Key, request: Request) -> None:
        """Begin a conversation about `problem`, with the seed of `request`.

        The prompt is the environment's own.
        """
        self._going[number] = Conversation(problem, key, request.seed)
        self._environments.begin(number, request.seed, row_of(problem))
        self._call(number)

    def requests(self) -> Sequence[Request]:
        """Return the turns that an engine can begin now, in the order of their indices.

        If the engine has nothing else to do, wait for them: with an exact one until there is one,
        unless all conversations have ended.
        """
        if self._exact:
            while self._calls and (due := self._due()):
                for number in due:
                    self._take_reply(number, self._reply_of(number))
        else:
            patience = 0.0 if self._asked else WAIT
            for number, reply in self._environments.replies(patience):
                self._take_reply(number, reply)
        requests, self._requests = self._requests, []
        return requests

    def take(self, completions: Sequence[tuple[int, Completion]]) -> None:
        """Take what the engine has completed in a step, by the indices of the requests."""
        self._step += 1
        for index, completion in completions:
            number = self._asked.pop(index)
            conversation = self._going[number]
            before = conversation.before
            message, fault = self._read(before, completion)
            conversation.hear(completion, message)
            if conversation.last is not None:  # its environment was over before the first turn
                self._finish(number, conversation.last)
            elif completion.finish_reason is FinishReason.LENGTH:
                self._cut(number)
            elif fault is not None:
                self._tell(number, [fault.answer])
            else:
                self._environments.step(number, message)
                self._call(number)

    def ended(self) -> list[tuple[int, Rollout]]:
        """Return the conversations that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _read(self, before: Ids, said: Completion) -> tuple[Message, BadCallError | None]:
        """Return a turn of the model as a message, and what is wrong with its calls of tools."""
        if said.finish_reason is FinishReason.LENGTH:
            return self._encoder.plain(said.ids), None
        try:
            return self._encoder.message(before, said.ids), None
        except BadCallError as error:
            return self._encoder.plain(said.ids[:-1]), error

    def _take_reply(self, number: int, reply: Reply) -> None:
        conversation = self._going[number]
        if conversation.prompt_ids is None:
            conversation.prompt_ids = self._encoder.prompt(conversation.problem, reply.messages)
            conversation.last = reply if reply.done else None
            self._ask(number)
        elif reply.done:
            self._finish(number, reply)
        else:
            self._tell(number, reply.messages)

    def _tell(self, number: int, messages: Sequence[Message]) -> None:
        """Let the model have another turn after `messages`, if it has turns and tokens left."""
        conversation = self._going[number]
        if len(conversation.turns) == self._max_turns:
            self._end(number)
            return
        suffix = self._encoder.suffix(int(conversation.ids[-1]), messages)
        if len(conversation.ids) + len(suffix) >= self._max_new_tokens:
            self._cut(number)
            return
        conversation.tell(suffix, messages)
        self._ask(number)

    def _ask(self, number: int) -> None:
        conversation = self._going[number]
        seed = turn_seed(conversation.seed, len(conversation.turns))
        left = self._max_new_tokens - len(conversation.ids)
        self._requests.append(Request(conversation.before, seed, left))
        self._asked[self._count] = number
        self._count += 1

    def _cut(self, number: int) -> None:
        self._going[number].cut = True
        self._end(number)

    def _end(self, number: int) -> None:
        self._environments.end(number)
        self._call(number)

    def _finish(self, number: int, reply: Reply) -> None:
        conversation = self._going.pop(number)
        conversation.last = reply
        rollout = conversation.rollout(self._temperature, self._policy_step)
        self._ended.append((number, rollout))

    def _call(self, number: int) -> None:
        if self._exact:
            self._calls.append((number, self._step))

    def _due(self) -> list[int]:
        """Return and forget the calls whose replies an exact engine takes at this step."""
        idle = not self._asked
        due: list[int] = []
        while self._calls and (idle or self._calls[0][1] + _LAG <= self._step):
            due.append(self._calls.popleft()[0])
        return due

    def _reply_of(self, number: int) -> Reply:
        while number not in self._heard:
            self._heard.update(self._environments.replies(_TICK))
            self._check()
        return self._heard.pop(number)
