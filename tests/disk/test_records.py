from __future__ import annotations

import pytest

from mugrpo.disk.records import Score, Status

FAILED = {Status.TIMEOUT, Status.ERROR}
UNREWARDED = {*FAILED, Status.SKIPPED}


@pytest.mark.parametrize("status", Status)
def test_a_score_lacks_a_reward_exactly_where_none_is_known(status):
    assert status.failed is (status in FAILED)
    assert status.rewarded is (status not in UNREWARDED)
    allowed, refused = (None, 0.0) if status in UNREWARDED else (0.0, None)
    assert Score(status, allowed).reward == allowed
    with pytest.raises(ValueError, match=f"status '{status.value}' has reward {refused}"):
        Score(status, refused)
