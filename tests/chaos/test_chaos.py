"""Chaos: trials that must end in the bits of an uninterrupted run, and the chaos runner itself."""

import shutil
from pathlib import Path

import pytest

from tests.cases import some
from tests.chaos.compare import differences
from tests.chaos.trial import Chaos, Outcome
from tests.faults.harm import flip_bit

pytestmark = pytest.mark.long


# Trials of seed 0 that strike early: a killed reward worker, a killed run, and a full disk.
A_FEW = (90, 20, 25)


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Chaos:
    return Chaos(tmp_path_factory.mktemp("chaos"), pause=2.0)


@pytest.mark.promise("chaos")
@pytest.mark.parametrize("number", some(1, A_FEW))
def test_a_trial_ends_in_the_bits_of_an_uninterrupted_run_and_leaves_nothing(chaos, number):
    outcome = chaos.run(0, number)
    assert outcome.good, outcome
    assert outcome.struck or outcome.skipped == ["full disk"]  # without root


@pytest.mark.promise("chaos")
def test_a_hundred_kills(chaos: Chaos):
    outcomes: list[Outcome] = []
    while sum(len(outcome.struck) for outcome in outcomes) < 100:
        outcomes.append(chaos.run(1, len(outcomes)))
    assert [outcome for outcome in outcomes if not outcome.good] == []


def test_a_bit_a_line_and_a_file_that_differ_are_found(reference: Path, tmp_path: Path):
    run = Path(shutil.copytree(reference, tmp_path / "run"))
    assert differences(run, reference) == []
    shutil.rmtree(run / "checkpoints" / "update-000002")  # a run may keep other ones on the way
    assert differences(run, reference) == []
    flip_bit(run / "stages" / "001" / "scores" / "shard-00000.parquet")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    (run / "checkpoints" / "update-000006" / "model.safetensors.tmp.7").touch()
    (run / "samples" / "update-000006.json").unlink()
    found = [line.partition(":")[0] for line in sorted(differences(run, reference))]
    assert found == ["left over", "missing", "missing", "other"]
