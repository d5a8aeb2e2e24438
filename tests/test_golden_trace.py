import pytest

from mugrpo.disk.shards import ShardSet, read_rollouts
from mugrpo.model.pretrained import model_fingerprint
from tests.golden_trace import CONFIGS, FOLDER, MODEL, make_rollouts, recorded, trace


@pytest.mark.parametrize("method", CONFIGS)
def test_five_updates_on_the_stored_rollouts_give_the_recorded_numbers(method: str):
    stored = recorded()
    assert stored["model_sha256"] == model_fingerprint(MODEL), "record again with `make golden`"
    lines = trace(method)
    assert len(lines) == len(stored[method]) == CONFIGS[method].schedule.total_updates == 5
    for update, (found, expected) in enumerate(zip(lines, stored[method], strict=True)):
        # The ratios of update 0 are 1, so its divergence is only rounding, hence the 1e-7.
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-7), f"update {update}"


def test_the_recorded_updates_clip_veto_and_taper():
    """Otherwise the traces would say nothing about that."""
    updates, tapered = recorded()["mu-grpo"], recorded()["tapered-grpo"]
    for first in (updates[0], tapered[0]):
        assert first["kl_behavior"] == pytest.approx(0, abs=1e-7)
    assert max(line["vetoed_fraction"] for line in updates) > 0.005
    assert max(line["clipped_fraction"] for line in updates) > 0.005
    assert min(line["tapered_fraction"] for line in tapered[1:]) > 0.1


def test_the_stored_rollouts_are_what_the_embedded_model_samples(tmp_path):
    make_rollouts(tmp_path)
    made = read_rollouts(ShardSet(tmp_path / "rollouts", "rollouts"), 0)
    stored = read_rollouts(ShardSet(FOLDER / "rollouts", "rollouts"), 0)
    for a, b in zip(made, stored, strict=True):
        assert (a.problem_id, a.sample, a.seed) == (b.problem_id, b.sample, b.seed)
        assert a.response_ids.tolist() == b.response_ids.tolist()
        assert a.behavior_logprobs == pytest.approx(b.behavior_logprobs, abs=1e-4)
