"""How many programs the reward "code" judges per second and core, hostile ones among them.

    python benchmarks/code_reward.py                # 5,000 programs, 100 of them hostile
    python benchmarks/code_reward.py --programs 500 --hostile 10 --workers 1

Each program has five tests of a function, as in `examples/one_liners`. It is judged as in a run, by
worker processes. Every honest program must be right, and no hostile one. What is printed, as JSON,
goes to --out too.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.records import Answer, FinishReason, Problem, Status
from mugrpo.extensions.code import CodeOptions
from mugrpo.rewards.grading import Grader

HOSTILE = [
    "while True: pass",
    "import time; time.sleep(3600)",
    "x = bytearray(10 ** 10)",
    "import os\nwhile True: os.fork()",
    "print('x' * 10 ** 8)\nwhile True: print('x' * 10 ** 6)",
    "import os; os.kill(-1, 9)",
    "import socket; socket.create_connection(('127.0.0.1', 80))",
    "class Same(int):\n    __eq__ = lambda *_: True\ndef f(x): return Same(7)",
    "raise SystemExit(0)",
    "open('/tmp/x', 'wb').write(bytes(10 ** 9))",
]


def problem(rng: random.Random) -> tuple[Problem, str]:
    """Return a problem and a program that solves it."""
    a, b = rng.randint(2, 9), rng.randint(1, 8)
    arguments = rng.sample(range(-20, 21), 5)
    outputs = [a * x + b for x in arguments]
    tests = {"fn_name": "f", "inputs": [[x] for x in arguments], "outputs": outputs}
    return Problem("p", "Write f.", json.dumps(tests)), f"def f(x):\n    return {a} * x + {b}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--hostile", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0, help="0: one per core")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--timeout", type=int, default=2)
    parser.add_argument("--patience", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(0)
    hostile = set(rng.sample(range(arguments.programs), arguments.hostile))
    answers = []
    for number in range(arguments.programs):
        posed, program = problem(rng)
        if number in hostile:
            program = HOSTILE[len(answers) % len(HOSTILE)]
        text = f"```python\n{program}\n```"
        answers.append(Answer(posed, text, [1], FinishReason.STOP))
    options = CodeOptions(
        sandbox=arguments.sandbox, timeout=arguments.timeout, patience=arguments.patience
    )
    workers = WorkerOptions(count=arguments.workers)
    with Grader((options,), workers) as grader:
        said = grader.start()
        began = time.monotonic()
        scores = list(grader.scores(answers))
        seconds = time.monotonic() - began
    wrong = [n for n, s in enumerate(scores) if (s.status is Status.RIGHT) is (n in hostile)]
    assert not wrong, [(n, scores[n]) for n in wrong[:3]]
    measured = {
        "said": said,
        "programs": arguments.programs,
        "hostile": arguments.hostile,
        "workers": workers.processes,
        "seconds": round(seconds, 2),
        "programs_per_second_and_core": round(arguments.programs / seconds / workers.processes, 2),
        "statuses": dict(Counter(str(score.status) for score in scores)),
    }
    text = json.dumps(measured, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
