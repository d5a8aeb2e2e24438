"""What `mugrpo import` says of the rollouts that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import FinishReason
from mugrpo.extensions.exchange.grouping import Group, Imported
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.score import response_text


def notices(groups: Sequence[Group], config: RunConfig, encode: PromptEncoder) -> Iterator[str]:
    """Yield sentences on what was inferred for a run with `config`, and on what disagrees."""
    batches, per_update = config.schedule.batches_per_stage, config.schedule.problems_per_update
    yield f"{len(groups)} groups of {len(groups[0])} rollouts, for {batches} batches"
    if rest := len(groups) - batches * per_update:
        yield f"{rest} of the groups do not fill a batch, and are left out"
    if not config.evaluation.every:
        yield (
            "nothing is evaluated: no problem of task.data is held out, or evaluation.every is 0"
        )
    everyone = [one for group in groups for one in group]
    if made := sum(one.row.response_ids is None for one in everyone):
        yield (
            f"warning: the ids of {made} responses are made by the tokenizer, and may differ from "
            "those that were sampled; whether a response had ended is not known"
        )
    if unended := sum(_lacks_end(one, config.rollouts.max_new_tokens) for one in everyone):
        yield (
            f"warning: {unended} responses are said to have ended, or are shorter than "
            "rollouts.max_new_tokens, but do not end with the end-of-sequence token; they count as "
            "truncated if they are scored again"
        )
    if others := [one for one in everyone if _has_other_text(one, encode.tokenizer)]:
        yield (
            f"warning: the ids of {len(others)} responses stand for another text than the file has "
            f"(the first: {others[0].row.place}); check that model.path is the model that sampled "
            "them"
        )
    if unlike := [group[0] for group in groups if _has_other_prompt(group[0], encode)]:
        yield (
            f"warning: the prompts of {len(unlike)} groups have other ids than the run gives these "
            f"problems in later stages (the first: {unlike[0].row.place}); check prompt.form, "
            "prompt.chat_template and model.path"
        )


def _lacks_end(one: Imported, longest: int) -> bool:
    """Return whether given ids lack an end although the row, or else their number, implies one."""
    if one.row.response_ids is None or one.rollout.finish_reason is FinishReason.STOP:
        return False
    reason = one.row.finish_reason
    return reason == "stop" if reason else len(one.row.response_ids) < longest


def _has_other_text(one: Imported, tokenizer: Any) -> bool:
    if one.row.response is None:
        return False
    ids = one.rollout.response_ids
    texts = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False)]
    texts.append(response_text(one.rollout, tokenizer))
    return one.row.response.strip() not in [text.strip() for text in texts]


def _has_other_prompt(one: Imported, encode: PromptEncoder) -> bool:
    return not np.array_equal(one.rollout.prompt_ids, encode(one.problem))
