from __future__ import annotations

import pytest

from mugrpo.records import Score, Status

FAILED = {Status.TIMEOUT, Status.ERROR}


@pytest.mark.parametrize("status", Status)
def test_a_score_lacks_a_reward_exactly_where_scoring_failed(status):
    assert status.failed is (status in FAILED)
    allowed, refused = (None, 0.0) if status in FAILED else (0.0, None)
    assert Score(status, allowed).reward == allowed
    with pytest.raises(ValueError, match=f"status '{status.value}' has reward {refused}"):
        Score(status, refused)
