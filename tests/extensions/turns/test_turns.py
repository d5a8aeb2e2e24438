"""Rollouts with turns: their records, their tokens, and that waiting changes nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mugrpo.config.engines import ContinuousOptions, HFOptions
from mugrpo.config.run import PromptOptions
from mugrpo.disk.records import FinishReason, Problem, Rollout
from mugrpo.engines.base import Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.dialogue import EnvironmentDialogue
from mugrpo.extensions.turns.messages import MessageEncoder
from mugrpo.model.policy import Policy
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.schedule import turn_seed
from mugrpo.rollouts.score import response_text
from tests.builders import tiny_policy
from tests.cases import table
from tests.extensions.turns.in_process import Games, Response, counting

MOST = 60  # tokens of a response
PROBLEMS = [Problem(f"p{i}", f"{i}+2-", "") for i in range(4)]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A model whose turns have five tokens on average."""
    policy = tiny_policy("llama")
    policy.stop_ids = [1, 3, 6, 9, 15]
    return policy


def sampler_of(
    policy: Policy,
    games: Games,
    engine: Any = None,
    max_turns: int = 16,
    max_new_tokens: int = MOST,
):
    encode = PromptEncoder(policy.tokenizer, policy.vocab_size, PromptOptions())
    engine = engine or ContinuousEngine(policy, ContinuousOptions(slots=6))
    dialogue = EnvironmentDialogue(games, MessageEncoder(encode), max_turns)
    sampling = {"temperature": 1.0, "max_new_tokens": max_new_tokens}
    about = {"seed": 7, "stage": "0", "group_size": 3, "policy_step": 0}
    return Sampler(engine, encode, dialogue=dialogue, **sampling, **about)


def sampled(policy: Policy, answer: Response = counting, late: int | None = None, **options: Any):
    """Return the rollouts of PROBLEMS, in groups of three."""
    draws = [(problem, 0) for problem in PROBLEMS]
    games = Games(answer, late=late)
    return sampler_of(policy, games, **options).sample_shard(draws, lambda _: None).rollouts


def encoded(policy: Policy, text: str) -> list[int]:
    return policy.tokenizer(text, add_special_tokens=False)["input_ids"]


def assert_same(ours: Sequence[Rollout], theirs: Sequence[Rollout], tokens_only: bool = False):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        found = (a.group, a.sample, a.seed, a.environment)
        assert found == (b.group, b.sample, b.seed, b.environment)
        for name in ("prompt_ids", "response_ids", "loss_mask", "turns"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        if not tokens_only:
            np.testing.assert_array_equal(a.behavior_logprobs, b.behavior_logprobs)


def test_a_record_holds_what_was_sampled_and_what_was_said(policy):
    """Each turn is the engine's response to all that precedes it, with the turn's own seed."""
    rollouts = sampled(policy)
    engine = ContinuousEngine(policy, ContinuousOptions(slots=1))
    lengths = set()
    for place, r in enumerate(rollouts):
        assert (r.problem_id, r.sample) == (f"p{place // 3}", place % 3)
        asked = encoded(policy, PROBLEMS[place // 3].prompt + f"{r.seed % 3}+")
        assert r.prompt_ids.tolist() == asked
        sampled_ids, said, at = [], 0, 0
        for turn, begin in enumerate(r.turns.tolist()):
            if turn:
                words = encoded(policy, f"{turn}-{r.seed % 4}=")
                assert r.response_ids[at:begin].tolist() == words
                assert not r.loss_mask[at:begin].any()
                assert not r.behavior_logprobs[at:begin].any()
                said += len(words)
            before = np.concatenate([r.prompt_ids, r.response_ids[:begin]])
            request = Request(before, turn_seed(r.seed, turn), MOST - begin)
            ((_, expected),) = (
                answer
                for decoded in engine.generate([request], temperature=1.0, max_new_tokens=MOST)
                for answer in decoded.completions
            )
            at = begin + len(expected.ids)
            np.testing.assert_array_equal(r.response_ids[begin:at], expected.ids)
            np.testing.assert_allclose(r.behavior_logprobs[begin:at], expected.logprobs, atol=1e-5)
            assert r.loss_mask[begin:at].all()
            sampled_ids.append(expected.ids)
        assert at == len(r.response_ids) == r.sampled_tokens + said
        assert response_text(r, policy.tokenizer) == policy.tokenizer.decode(
            sampled_ids[-1][: -1 if r.finish_reason is FinishReason.STOP else None],
            skip_special_tokens=True,
        )
        lengths.add(len(r.turns))
        if r.finish_reason is FinishReason.STOP:
            assert len(r.turns) == r.seed % 5 + 1
            assert vars(r.environment) == {
                "reward": len(r.turns) / 8,
                "failure": None,
                "unfinished": False,
                "logged": {"calls": len(r.turns)},
                "messages": conversation(policy, r, sampled_ids),
            }
    assert len(lengths) > 2


def conversation(policy: Policy, r: Rollout, turns: Sequence[Any]) -> list[dict[str, str]]:
    """Return the messages of a rollout of `counting` whose model sampled `turns`, in order."""
    messages = []
    for turn, ids in enumerate(turns):
        if turn:
            messages.append({"role": "user", "content": f"{turn}-{r.seed % 4}="})
        text = policy.tokenizer.decode(ids[:-1], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": text})
    return messages


@table("late", [1, 2])
def test_the_bits_do_not_depend_on_when_environments_reply(policy, late):
    """Replies at once, or one at a time, in another order, after a while.

    An engine that does not stream samples the same tokens.
    """
    assert_same(sampled(policy, late=late), sampled(policy))
    plain = HFEngine(policy, HFOptions(slots=64))
    assert_same(sampled(policy, engine=plain, late=3), sampled(policy), tokens_only=True)


def test_others_go_on_while_some_wait_for_their_environment(policy):
    """Turns begin beside longer ones.

    In waves, a turn begins only after all that began with the one before have ended.
    """
    games = Games(counting)
    sampler = sampler_of(policy, games)
    sampler.sample_shard([(problem, 0) for problem in PROBLEMS], lambda _: None)
    calls = {}
    begun = []
    for name, rollout, _ in games.log:
        calls[rollout] = calls.get(rollout, -1) + (name == "step") + (name == "begin")
        begun.append(calls[rollout])
    assert begun != sorted(begun)


def test_no_tokens_are_left(policy):
    """The environment is told the end, and what it says then is kept. The rollout is truncated.

    A whole turn may also leave no room for what the environment says.
    """
    long = Reply([{"role": "user", "content": "1+2+3+1+2+3="}])
    rollouts = sampled(policy, lambda *_: long, max_new_tokens=24)
    assert {r.finish_reason for r in rollouts} == {FinishReason.LENGTH}
    for r in rollouts:
        assert r.environment.reward == 0.25
        assert r.loss_mask[-1] and len(r.response_ids) <= 24
        last = r.response_ids[r.turns[-1] : -1 if len(r.response_ids) < 24 else None]
        said = {"role": "assistant", "content": policy.tokenizer.decode(last)}
        assert r.environment.messages[-1] == said
    assert {len(r.response_ids) == 24 for r in rollouts} == {True, False}


def test_an_environment_that_fails_costs_its_rollout_alone(policy):
    """One fails when it is reset and one after the first turn. Both have sampled tokens."""

    def answer(seed, call, message):
        if seed % 3 == 0 and call == 0:
            return Reply(done=True, failure="it hangs", unfinished=True)
        if seed % 3 == 1 and call == 1:
            return Reply(done=True, failure="it died")
        return counting(seed, call, message)

    rollouts = sampled(policy, answer)
    outcomes = {r.environment.failure: r for r in rollouts}
    assert outcomes.keys() == {None, "it hangs", "it died"}
    for reason in ("it hangs", "it died"):
        assert len(outcomes[reason].turns) == 1 and outcomes[reason].loss_mask.all()
    assert outcomes["it hangs"].environment.unfinished
    good = {r.seed: r for r in sampled(policy)}
    for r in rollouts:
        if r.environment.failure is None:
            np.testing.assert_array_equal(r.response_ids, good[r.seed].response_ids)
