"""References, whole groups and the samples of evaluations; and what is folded."""

from __future__ import annotations

from tests.report.parsed import report
from tests.report.synthetic import (
    answered,
    evaluation,
    refresh,
    sample,
    timed_run,
    update,
    write_config,
    write_metrics,
    write_samples,
)


def test_a_sample_has_its_reference_and_its_whole_group(tmp_path):
    write_config(tmp_path / "run")
    write_metrics(tmp_path / "run", [refresh(0, 0), update(1)])
    others = [answered("it is 7", advantage=0.5), answered("8", status="wrong", reward=0.0)]
    whole = sample(["7"], [1.0], reference="seven", group=others)
    write_samples(tmp_path / "run", 1, [whole, sample(["6"], [1.0])])
    page = report(tmp_path / "run")
    assert "seven" in page.of("bdi") and page.of("p").count("reference: ") == 1
    assert "The whole group: 2 responses, 1 right" in page.of("summary")
    assert {"it is 7", "8"} <= set(page.of("bdi"))
    assert "right, reward 1, advantage 0.5" in page.of("span")
    assert "wrong, reward 0" in page.of("span")


def test_evaluations_show_all_responses_to_a_problem_with_what_was_logged(tmp_path):
    write_config(tmp_path / "run")
    write_metrics(tmp_path / "run", [evaluation(0, 0.5), evaluation(8, 1.0)])
    for number in (0, 8):
        group = [answered(f"answer {number}", parts={"short": 0.25, "extra/words": 2.0})]
        entry = {"problem_id": "p1", "prompt": "3+4=", "reference": "7", "group": group}
        write_samples(tmp_path / "run", number, [entry], kind="evaluation")
    page = report(tmp_path / "run")
    assert "Held-out problems" in page.of("h2")
    assert {"3+4=", "7", "answer 0", "answer 8"} <= set(page.of("bdi"))
    assert '{"short": 0.25, "extra/words": 2.0}' in page.of("span")


def test_options_come_right_after_the_accuracy(tmp_path):
    timed_run(tmp_path / "run")
    assert report(tmp_path / "run").of("h2")[:2] == ["Accuracy", "Results and options"]
