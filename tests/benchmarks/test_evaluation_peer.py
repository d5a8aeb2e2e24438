"""The table of graders' agreement, and the reasons for disagreements, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

import evaluation_peer


def row(number: int, text: str, **verdicts: Any) -> dict[str, Any]:
    """Return a GSM8K response; of a verdict, `verdicts` has whether it is right and the answer."""
    judged = {
        name.replace("_", "-"): {"right": right, "answer": answer}
        for name, (right, answer) in verdicts.items()
    }
    return {
        "response": f"p{number}/0",
        "kind": "gsm8k",
        "reference": "18",
        "text": text,
        "verdicts": judged,
    }


ROWS = [
    row(0, r"\boxed{18}", math=(True, "18"), strict_match=(False, None)),
    row(1, "#### 18", math=(True, "18"), strict_match=(True, "18")),
    row(2, "a|b\n#### 18", math=(False, "a|b"), strict_match=(True, "18")),
    row(3, r"\boxed{17}", math=(False, "17"), strict_match=(False, None)),
    row(4, "18", math=(None, None), strict_match=(False, None)),
    row(5, "18", math=(True, "18"), strict_match=(False, None)),
]


def test_averages_and_pairs_leave_out_what_has_no_verdict():
    """math: 3 of 5. Of the 5 with both verdicts one is right twice and one is wrong twice."""
    lines = list(evaluation_peer.summary(ROWS))
    assert "| math | 3 | 5 | 0.6000 |" in lines
    assert "| strict-match | 2 | 6 | 0.3333 |" in lines
    assert "| math | strict-match | 1 | 2 | 1 | 1 | 0.4000 |" in lines


def test_disagreements_have_both_readings_and_a_reason():
    lines = list(evaluation_peer.summary(ROWS))
    why = 'accepts only "#### NUMBER", which the prompt does not ask for'
    assert f"| strict-match | {why} | 2 |" in lines
    assert "| strict-match | not known | 1 |" in lines
    assert f"| p0/0 | 18 | 18 | strict-match | (none) | no | {why} |" in lines
    assert r"| p2/0 | 18 | a\|b | strict-match | 18 | yes |  |" in lines
    assert not any("p1/0" in line or "p3/0" in line or "p4/0" in line for line in lines)


def test_examples_limit_the_lines_and_not_the_counts():
    lines = list(evaluation_peer.summary(ROWS, examples=1))
    assert any(line.endswith("ask for | 2 |") for line in lines)
    assert sum("p0/0" in line or "p5/0" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("grader", "text", "read", "reference", "right", "words"),
    [
        ("flexible-extract", r"$\boxed{18}$.", "$.", "18", False, "dollars and periods"),
        ("flexible-extract", "It is $18.00", "$18.00", "18", False, "as text"),
        ("flexible-extract", "It is 1,250.", "1,250.", "1250", False, "as text"),
        ("flexible-extract", "18, in 7 days", "7", "18", False, "wherever it stands"),
        ("hendrycks_math500", r"\boxed{1}", r"\boxed{1}", "1", False, "no two dollars"),
        ("hendrycks_math500", r"$\boxed{1}$", r"\boxed{1}", "1", False, "box included"),
        ("math_verify", r"\boxed{7=42}", "Eq(7, 42)", "42", True, "stricter"),
        ("math_verify", r"\boxed{1}, no, \boxed{2}", "{1, 2}", "2", False, "a set"),
        ("plain", r"\boxed{-q+p}", "-q+p", "p-q", False, "no expression"),
    ],
)
def test_reasons(grader, text, read, reference, right, words):
    assert words in evaluation_peer.reason(grader, text, read, reference, right)


def test_the_text_between_dollars_is_from_the_first_to_the_last():
    assert evaluation_peer._between_dollars("$a$ and $b$") == "a$ and $b"
    assert evaluation_peer._between_dollars("no formula") == "no formula"
    assert evaluation_peer._between_dollars("$5 each") == "$5 each"


def test_a_file_is_passed_on_with_its_verdicts(tmp_path, monkeypatch, capsys):
    """A program's verdicts are added to each kind's rows, in their order."""

    def stand_in(kind: str, rows: Any) -> dict[str, Any]:
        return {f"{kind} text": [{"right": r["text"] == "18", "answer": r["text"]} for r in rows]}

    monkeypatch.setitem(evaluation_peer.PROGRAMS, "lm-eval", stand_in)
    responses, out = tmp_path / "responses.jsonl", tmp_path / "judged.jsonl"
    mixed = [*ROWS, {**row(6, "18", math=(True, "18")), "kind": "math"}]
    responses.write_text("".join(json.dumps(each) + "\n" for each in mixed))
    evaluation_peer.main([str(responses), "--program", "lm-eval", "--out", str(out)])
    judged = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["verdicts"].get("lm-eval gsm8k text", {}).get("right") for each in judged] == [
        *(False, False, False, False, True, True),
        None,
    ]
    assert judged[6]["verdicts"]["lm-eval math text"] == {"right": True, "answer": "18"}
    assert "| lm-eval gsm8k text | 2 | 6 | 0.3333 |" in capsys.readouterr().out
