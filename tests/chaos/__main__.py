"""Strike runs of all kinds at random moments, resume them, and compare every bit: `make chaos`.

    python -m tests.chaos --kills 1000               # and again, to go on after an interruption
    python -m tests.chaos --seed 3 --trial 17        # one trial

Only faults that came about count as kills. The exit status is 1 if anything was wrong: a bit that
differs, something left over, an end that no fault explains, or ranks that outlived their driver.
The folder of such a trial is kept.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.table import append, read, summary, table
from tests.chaos.trial import Chaos, Outcome, plan


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    done = [o for o in read(options.results) if o.seed == options.seed]
    work = options.work or Path(tempfile.mkdtemp(prefix="mugrpo-chaos-"))
    chaos = Chaos(work.resolve(), pause=options.pause)
    if options.trial is not None:
        outcome = chaos.run(options.seed, options.trial)
        print(plan(options.seed, options.trial), outcome, sep="\n", flush=True)
        return 0 if outcome.good else 1
    known = {outcome.trial for outcome in done}
    kills = sum(len(outcome.struck) for outcome in done)
    for number in itertools.count():
        if kills >= options.kills:
            break
        planned = plan(options.seed, number)
        if number in known or (options.kinds and planned.kind not in options.kinds):
            continue
        outcome = chaos.run(options.seed, number)
        append(options.results, outcome)
        done.append(outcome)
        kills += len(outcome.struck)
        print(f"{kills:4d} {_line(outcome, work)}", flush=True)
    print(table(done), summary(done), sep="\n")
    return 0 if all(outcome.good for outcome in done) else 1


def _line(outcome: Outcome, work: Path) -> str:
    text = f"trial {outcome.trial}, {outcome.kind}: {', '.join(outcome.struck) or 'nothing struck'}"
    if outcome.good:
        return f"{text} ({outcome.seconds:.0f} s)"
    found = [*outcome.differences, *outcome.leftovers, *outcome.ends]
    found += [f"ranks stayed for {seconds} s" for seconds in outcome.late]
    return "\n  ".join([f"{text}. WRONG, see {work}:", *found])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="faults that must come about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial", type=int, help="do this trial alone, and print its plan")
    parser.add_argument("--kinds", type=lambda text: text.split(";"), help="only these, e.g. 'a;b'")
    parser.add_argument("--pause", type=float, default=60.0, help="seconds of a stop or a hang")
    parser.add_argument("--results", type=Path, default=Path("build/chaos.jsonl"))
    parser.add_argument("--work", type=Path, help="a folder for the runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
