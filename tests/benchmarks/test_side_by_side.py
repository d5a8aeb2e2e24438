from __future__ import annotations

import json
import time

import pytest

import plot
import side_by_side
from outcomes import Outcome
from run_to_accuracy import OURS, PEER, row
from side_by_side import Measured, Ratio, Row, alternate, compared, publish, table
from stage_length import WARM_UP, per_update


def test_sides_take_turns_and_the_order_alternates():
    calls: list[str] = []

    def side(name):
        def call(repetition):
            calls.append(f"{name}{repetition}")
            return Measured(1.0)

        return call

    sides = alternate({"a": side("a"), "b": side("b")}, 3, say=lambda line: None)
    assert calls == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert [len(measured) for measured in sides.values()] == [3, 3]


SIDES = {
    "ours": [Measured(1.0, 30), Measured(2.0, 30), Measured(1.0, 10)],  # 30, 15, 10 a second
    "theirs": [Measured(2.0, 20), Measured(2.0, 20), Measured(1.0, 5)],  # 10, 10, 5
}


def test_a_ratio_is_of_rates_within_a_repetition():
    ratio = compared(SIDES, Ratio("ours", "theirs", "speed", 2.0))
    assert ratio["values"] == [3.0, 1.5, 2.0]
    assert (ratio["median"], ratio["min"], ratio["max"]) == (2.0, 1.5, 3.0)


def test_results_are_written_and_drawn(tmp_path, capsys):
    ratios = [
        Ratio("ours", "theirs", "speed <&>", 2.0),
        Ratio("ours", "theirs", "of the floor", kind="floor"),
    ]
    result = Row("name", "Title", "tokens/s", SIDES, ratios)
    publish(result, tmp_path / "name.json")
    document = json.loads((tmp_path / "name.json").read_text())
    assert document["sides"]["ours"]["rate"]["median"] == 15
    assert document["repetitions"] == 3 and document["machine"]["threads"] >= 1
    assert "speed <&>: 2 (1.5 to 3); target 2" in table(document)
    assert "speed <&>: 2 (1.5 to 3); target 2" in capsys.readouterr().out

    publish(Row("tiny", "Tiny", "tokens/s", SIDES, ratios, tiny=True), tmp_path / "tiny.json")
    assert len(plot.ratios(tmp_path)) == 2  # tiny runs are not shown
    picture = plot.main(["--results", str(tmp_path), "--output", str(tmp_path / "b.svg")])
    drawn = picture.read_text()
    assert "speed &lt;&amp;&gt;" in drawn and "of the floor" in drawn
    assert all(drawn.count(f'fill="{hue}"') == 1 for hue in plot.HUES.values())  # a bar each
    assert drawn.count("2.00 (1.50\u20133.00), target 2<") == 1
    assert drawn.count("2.00 (1.50\u20133.00)<") == 1  # the ratio to the floor has no target


def test_a_tiny_run_does_not_replace_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(side_by_side, "RESULTS", tmp_path)
    publish(Row("name", "Title", "tokens/s", SIDES, [], tiny=True), None)
    assert not list(tmp_path.iterdir())


def outcome(*curve):
    points = [{"update": u, "seconds": s, "accuracy": a} for u, s, a in curve]
    return Outcome(seconds=curve[-1][1], evaluations=points)


def test_time_to_accuracy_is_that_of_the_first_evaluation_as_high():
    # TRL ends at 0.82 and first reached it at 30 s; ours reaches it at 10 s.
    theirs = outcome((0, 0.0, 0.2), (4, 30.0, 0.85), (8, 40.0, 0.82))
    ours = outcome((0, 0.0, 0.2), (4, 5.0, 0.8), (8, 10.0, 0.95))
    document = row({OURS: [ours], PEER: [theirs]}, {}, tiny=False).document()
    labels = {ratio["label"]: ratio["median"] for ratio in document["ratios"]}
    assert list(labels.values()) == pytest.approx([3.0, 6.0])  # to 0.82; to 0.8; none to 0.9
    reached = document["details"]["seconds_to"]
    assert reached["TRL to 0.9"] == [None] and reached["mugrpo to 0.9"] == [10.0]


def test_an_accuracy_that_ours_misses_is_a_ratio_of_0():
    theirs = outcome((0, 0.0, 0.2), (8, 40.0, 0.9))
    ours = outcome((0, 0.0, 0.2), (8, 10.0, 0.7))
    document = row({OURS: [ours], PEER: [theirs]}, {}, tiny=False).document()
    assert document["ratios"][0]["median"] == 0 and len(document["ratios"]) == 1


def test_evaluations_are_outside_the_clock(monkeypatch):
    now = iter([107.0, 120.0, 121.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    result = Outcome(began=100.0)
    result.evaluated(4, 0.5, spent=2.0)  # 7 s on the clock, 2 of them evaluation
    result.evaluated(8, 0.6, spent=3.0)
    result.ended()
    assert [e["seconds"] for e in result.evaluations] == [5.0, 15.0]
    assert result.seconds == 16.0 and result.seconds_to(0.55) == 15.0


def test_the_first_updates_of_a_process_do_not_count():
    measured = per_update([100.0] * WARM_UP + [1.0, 2.0, 3.0, 4.0])
    assert (measured.seconds, measured.work) == (10.0, 4)
    assert (measured.notes["first"], measured.notes["last"]) == (1.5, 3.5)
