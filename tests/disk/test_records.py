import pytest

from mugrpo.disk.records import Score, Status
from tests.cases import table

FAILED = {Status.UNFINISHED, Status.SKIPPED, Status.ERROR}
UNREWARDED = {Status.SKIPPED, Status.ERROR}


@table("status", Status)
def test_a_score_has_no_reward_exactly_if_its_status_gives_none(status):
    assert status.failed is (status in FAILED)
    assert status.rewarded is (status not in UNREWARDED)
    allowed, refused = (None, 0.0) if status in UNREWARDED else (0.0, None)
    assert Score(status, allowed).reward == allowed
    with pytest.raises(ValueError, match=f"status '{status.value}' has reward {refused}"):
        Score(status, refused)
