"""The check before a model is decoded in slots refuses wrong decodes, and only those."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.engines.cache import SlotCache
from mugrpo.engines.continuous import unfit
from mugrpo.model.policy import Policy, load_policy
from tests.builders import TINY_FORMS, tiny_policy
from tests.cases import table

AIM = SlotCache.aim


def shifted(cache: SlotCache, *step):
    """Give every decoded token the position of the next one."""
    return AIM(cache, *step) + 1


def forgetful(cache: SlotCache, *step):
    """Hide the second token of the prompts."""
    positions = AIM(cache, *step)
    assert cache.step is not None
    cache.step.visible[:, 1] = False
    return positions


def misplaced(cache: SlotCache, *step):
    """Store the keys and values of each slot as those of the other one."""
    positions = AIM(cache, *step)
    assert cache.step is not None
    cache.step = replace(cache.step, write=cache.step.write.flip(0))
    return positions


def policy_of(form: str, precision: str) -> Policy:
    options = {"precision": precision}
    known = form in ("chain", "letters")
    return (
        load_policy(ModelOptions(path=form, **options)) if known else tiny_policy(form, **options)
    )


@pytest.mark.long
@table("precision", ["fp32", "bf16"])
@table("form", ["chain", "letters", *TINY_FORMS])
def test_right_decodes_are_accepted_and_wrong_ones_refused(monkeypatch, form, precision):
    policy = policy_of(form, precision)
    assert unfit(policy) is None
    for wrong in (shifted, forgetful, misplaced):
        monkeypatch.setattr(SlotCache, "aim", wrong)
        assert "off" in (unfit(policy) or "accepted"), wrong
