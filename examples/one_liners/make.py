"""Write problems.jsonl: one-line Python functions to be written, with the tests of each.

    python make.py

Every problem is made here from small numbers, by hand-written patterns. The tests are calls with
results that Python computed; the prompt shows none of them.
"""

import json
import random
from pathlib import Path

# The words of a problem, and its solution. {a} and {b} are small numbers.
PATTERNS = [
    ("{a} times x plus {b}", "{a} * x + {b}"),
    ("{a} times x minus {b}", "{a} * x - {b}"),
    ("x plus {a}, times {b}", "(x + {a}) * {b}"),
    ("the square of x plus {a}", "x ** 2 + {a}"),
    ("the remainder of x divided by {a}", "x % {a}"),
    ("the larger one of x and {a}", "max(x, {a})"),
    ("the smaller one of x and {b}", "min(x, {b})"),
    ("True if x is larger than {a}, and False otherwise", "x > {a}"),
]
PROMPT = "Write a Python function f(x) that returns {words}. Answer with one code block."


def main() -> None:
    rng = random.Random(0)
    rows = {}
    for words, solution in PATTERNS:
        for a in range(2, 10):
            for b in range(1, 9) if "{b}" in words and "{a}" in words else [a]:
                prompt = PROMPT.format(words=words.format(a=a, b=b))
                arguments = rng.sample(range(-20, 21), 5)
                results = [eval(solution.format(a=a, b=b), {"x": x}) for x in arguments]
                inputs = [[x] for x in arguments]
                rows[prompt] = {"fn_name": "f", "inputs": inputs, "outputs": results}
    lines = [json.dumps({"prompt": prompt, "tests": tests}) for prompt, tests in rows.items()]
    rng.shuffle(lines)
    Path(__file__).with_name("problems.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
