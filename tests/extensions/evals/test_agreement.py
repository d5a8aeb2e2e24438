"""Agreement of two verifiers, counted by hand."""

from __future__ import annotations

from mugrpo.extensions.evals.results import Agreement, Disagreement, agreement


def parts(math: float | None, plain: float | None, *answers: str | None) -> dict[str, object]:
    named = zip(("answer", "answer/plain"), answers, strict=True)
    read = {name: answer for name, answer in named if answer is not None}
    return {"math": math, "plain": plain, **read}


def test_pairs_of_verdicts_and_both_readings_of_each_disagreement():
    responses = [
        ("a", "4", parts(1.0, 1.0, "4", "4")),
        ("b", "4", parts(1.0, 0.0, "2+2", "2+2")),
        ("c", "4", parts(1.0, 0.0, "4", None)),
        ("d", "4", parts(0.0, 1.0, None, "4")),
        ("e", "4", parts(0.0, 0.0, "5", "6")),
        ("f", "4", parts(0.0, 0.0, None, None)),
        ("g", "4", parts(1.0, None, "4", None)),  # plain could not read the reference
        ("h", "4", {"reason": "math: ValueError"}),
        ("i", "4", {}),  # truncated
    ]
    found = agreement(responses, "math", "plain")
    assert found == Agreement(
        both_right=1,
        only_first=2,
        only_second=1,
        both_wrong=2,
        unjudged=3,
        one_answer=2,
        disagreements=[
            Disagreement("b", "4", True, "2+2", "2+2"),
            Disagreement("c", "4", True, "4", None),
            Disagreement("d", "4", False, None, "4"),
        ],
    )
    assert found.judged == 6 and found.share == 0.5


def test_without_verdicts_there_is_no_share():
    assert agreement([("a", "4", {})], "math", "plain").share is None
