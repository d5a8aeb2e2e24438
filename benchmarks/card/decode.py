"""Milliseconds a decoding step, tokens/s and peak memory, at several widths: trees in turn.

    python -m card.decode [--old FOLDER] [--tiny]

Weights are random, so responses end at their limit. Prompts have 150 tokens, and eight responses
share one. A step's time is that of a long call less that of a short one, over the tokens between:
without prefill, and without what an engine prepares for a call. The rate is that of the long call,
prefill included.
"""

import sys
from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch

from card.turns import NEW, OLD, in_turn, processes, serve, trees_parser
from card.work import (
    DEVICE,
    MEDIUM,
    SMALL,
    model_config,
    random_policy,
    random_requests,
    run_config,
)
from device import clocked, forget_peak, peak_gib
from generation import peer_model, plainly_generated
from mugrpo.engines import make_engine
from mugrpo.engines.continuous import ContinuousEngine
from side_by_side import Measured, Ratio, Row, publish

# The ways to decode: whose tree, and what `engine_of` is told. A new way is a line in both.
WAYS: dict[str, tuple[str, str]] = {
    "old": (OLD, "made"),
    "new": (NEW, "made"),
    "model.generate": (NEW, "plain"),
}
PLAIN = "model.generate"  # measured at one width, after the others: every width has its steps
WIDTHS = {SMALL: (64, 512, 1920), MEDIUM: (512, 1920)}


def engine_of(policy: Any, way: str, slots: int) -> Any:
    """Return what decodes: what `make_engine` chooses, or steps of one kind whatever it says."""
    options = run_config(engine={"name": "continuous", "slots": slots}).engine
    if way == "plain":
        return peer_model(policy)
    if way == "made":  # an earlier tree does not say how it decodes
        says = "say" in signature(make_engine).parameters
        return make_engine(policy, options, *[partial(print, file=sys.stderr)][:says])
    return ContinuousEngine(policy, options, static=way == "static")


class Decoding:
    """A model, and its engines of one width: what they captured is kept for their next call."""

    def __init__(self) -> None:
        self.form, self.policy = "", None
        self.slots, self.engines = 0, dict[str, Any]()

    def __call__(
        self, form: str, tiny: bool, way: str, slots: int, new: int, only_short: bool, profile: bool
    ) -> dict[str, Any]:
        if self.slots != slots or self.form != form:
            self._let_go()
            self.slots = slots
        if self.form != form:
            self.policy = None
            self.policy = random_policy(model_config(form, tiny=tiny), run_config())
            self.form = form
        if way == "plain" and way not in self.engines:
            self._let_go()  # a copy of the model: its memory is not the engines', nor theirs its
        if way not in self.engines:
            self.engines[way] = engine_of(self.policy, way, slots)
        call = partial(self._tokens, self.engines[way], prompt=20 if tiny else 150, most=new)
        forget_peak(DEVICE)
        _, short = clocked(lambda: call(own=new // 6), DEVICE)
        if only_short:
            return {}
        if profile:
            return {"kernels": kernels(lambda: call(own=new // 6))}
        tokens, long = clocked(lambda: call(own=new), DEVICE)
        peak = peak_gib(DEVICE)
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
        step = (long - short) / (new - new // 6)
        return {"seconds": long, "tokens": tokens, "ms_step": 1e3 * step, "peak_gib": peak}

    def _tokens(self, engine: Any, *, prompt: int, most: int, own: int) -> int:
        """Decode up to `own` tokens in every slot. `most` stays the same, and all sizes with it."""
        requests = random_requests(self.policy.vocab_size, self.slots, prompt, own)
        if isinstance(engine, torch.nn.Module):
            return sum(plainly_generated(engine, self.policy, requests, own, self.slots)[0])
        reports = engine.generate(requests, temperature=1.0, max_new_tokens=most)
        return sum(len(c.ids) for report in reports for _, c in report.completions)

    def _let_go(self) -> None:
        for engine in self.engines.values():
            if hasattr(engine, "sleep"):
                engine.sleep()
        self.engines = {}
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()


def kernels(work: Any, most: int = 12) -> list[str]:
    """Return the kernels of a call by their share of the GPU's time, after a line of sums."""
    if DEVICE.type != "cuda":
        return []
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        _, seconds = clocked(work, DEVICE)
    events = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events)
    count = sum(e.count for e in events)
    lines = [f"{seconds * 1e3:.1f} ms, GPU busy {total / 1e3:.1f} ms, {count:,} kernels"]
    shares = [(e.self_device_time_total / max(total, 1), e.count, e.key[:80]) for e in events]
    return lines + [f"{share:.1%} {count} {name}" for share, count, name in shares[:most]]


def measure(form: str, options: Any) -> dict[str, Any]:
    """Measure all ways at all widths of a model and publish the row."""
    found: dict[str, list[Measured]] = {}
    ratios, details = [], {}
    widths = (4, 8) if options.tiny else WIDTHS[form]
    how = {"form": form, "tiny": options.tiny, "new": 12 if options.tiny else 96}
    with processes("card.decode", options, (OLD, NEW)) as trees:

        def side(way: str, slots: int, repetition: int, profile: bool = False) -> Any:
            tree, name = WAYS[way]
            told = {"way": name, "slots": slots, "only_short": repetition < 0, "profile": profile}
            answer = trees[tree].ask(**how, **told)
            if repetition < 0 or profile:
                return answer
            return Measured(answer["seconds"], answer["tokens"], answer)

        for slots in widths:
            ways = [w for w in WAYS if WAYS[w][0] in trees]
            ways = [w for w in ways if w != PLAIN or (slots, form) == (widths[-2], SMALL)]
            sides = {f"{slots} slots, {way}": partial(side, way, slots) for way in ways}
            peer = {name: sides.pop(name) for name in [*sides] if name.endswith(PLAIN)}
            measured = in_turn(sides, options.repetitions)
            measured |= in_turn(peer, options.repetitions)  # last: it takes the engines' place
            found |= measured
            for way in ways:
                pair = f"{slots} slots, new", f"{slots} slots, {way}"
                if way != "new" and set(pair) <= measured.keys():
                    label = f"{form}, {slots} slots, new against {way}"
                    ratios.append(Ratio(*pair, label, kind="peer" if way == PLAIN else "own"))
        for way in [w for w in WAYS if WAYS[w][0] in trees and w != PLAIN]:
            try:
                details[f"kernels, {way}"] = side(way, widths[-1], 0, profile=True)["kernels"]
            except RuntimeError as error:
                print(f"no kernels of {way}: {error}")
    name = f"gpu_decode_{form.replace('-', '_').replace('.', '_')}"
    row = Row(name, f"Decoding on a GPU, {form}", "tokens/s", found, ratios, details, options.tiny)
    document = publish(row, options.output and options.output / f"{name}.json")
    for side_name, notes in ((s, v["notes"]) for s, v in document["sides"].items()):
        steps = sorted(note["ms_step"] for note in notes)
        print(f"  {side_name}: {steps[len(steps) // 2]:.2f} ms/step, {notes[-1]['peak_gib']} GiB")
    for title, lines in details.items():
        print(f"{title}:", *lines, sep="\n    ")
    return document


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = trees_parser(__doc__ or "").parse_args(argv)
    return [measure(form, options) for form in WIDTHS]


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(Decoding())
    else:
        main()
