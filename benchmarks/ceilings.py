"""The rates that the machine reaches at a model's shapes, and the floor of a phase at these rates.

Matmul rates are measured with cold weights, as in a model: repeated calls cycle through copies that
together exceed the caches. A floor is the time of the counted work at these rates and nothing else:
no Python, no norms, no softmax and no padding, with every slot filled.

    python benchmarks/ceilings.py [--output FILE] [--tiny]

prints the rates in fp32, bf16 and int8 of SmolLM2-135M's layers at the tokens that decode, prefill
and an update have at a time, and the floors of both phases in each precision. int8 is multiplied
with int8 and summed in int32: what quantizes numbers is not counted, and gradients have no rate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import torch

from device import clocked
from mugrpo.extensions.lab.plan.counts import (
    Cost,
    Group,
    Linear,
    Shape,
    Work,
    decoded,
    passed,
    prefill,
)
from side_by_side import machine, parser, relative

COLD_BYTES = 192 * 2**20  # of all copies of a matrix together, more than caches hold
LONGEST = 0.3  # seconds for which a call is repeated


@dataclass
class Ceilings:
    """Measured rates by shape. Each call is repeated for `longest` seconds."""

    longest: float = LONGEST
    cold_bytes: int = COLD_BYTES
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    gflops: dict[tuple[str, int, int, int], float] = field(default_factory=dict)
    _copy: float = 0.0

    def matmul(self, form: str, m: int, k: int, n: int) -> float:
        """Return the FLOP/s of one of a linear layer's three products at M tokens.

        "forward" is [M,K] x [K,N]. The gradients are "inputs", [M,N] x [N,K], and "weights",
        [N,M] x [M,K]. int8 has "forward" only.
        """
        key = (form, m, k, n)
        if key not in self.gflops and self.dtype == torch.int8:
            assert form == "forward"
            self.gflops[key] = 2.0 * m * k * n / min(map(self._seconds, self._integers(m, k, n)))
        if key not in self.gflops:
            copies = max(1, min(64, self.cold_bytes // (self.dtype.itemsize * k * n)))
            weights = cycle([self._random(n, k) for _ in range(copies)])
            x_mk, g_mn = self._random(m, k), self._random(m, n)
            calls: dict[str, list[Callable[[], object]]] = {
                "forward": [
                    lambda: torch.nn.functional.linear(x_mk, next(weights)),
                    *self._packed(x_mk, n, copies),
                ],
                "inputs": [lambda: g_mn @ next(weights), *self._packed(g_mn, k, copies)],
                "weights": [lambda: torch.mm(g_mn.T, x_mk, out=next(weights))],
            }
            self.gflops[key] = 2.0 * m * k * n / min(map(self._seconds, calls[form]))
        return self.gflops[key]

    def _packed(self, x: torch.Tensor, n: int, copies: int) -> list[Callable[[], object]]:
        """Return a call with weights that oneDNN has reordered, or [] without oneDNN."""
        supported = x.device.type == "cpu"
        if not supported or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return []
        # Older CPUs multiply in bf16, but not in this layout.
        if x.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return []
        weights = [self._random(n, x.shape[1]) for _ in range(copies)]
        turns = cycle([torch.ops.mkldnn._reorder_linear_weight(w, len(x)) for w in weights])
        return [lambda: torch.ops.mkldnn._linear_pointwise(x, next(turns), None, "none", [], "")]

    def _integers(self, m: int, k: int, n: int) -> list[Callable[[], object]]:
        """Return calls that multiply int8 numbers: torch's plain product, and oneDNN's."""
        copies = max(1, min(64, self.cold_bytes // (k * n)))
        x_mk = self._random(m, k)
        columns = cycle([self._random(n, k).t() for _ in range(copies)])
        calls: list[Callable[[], object]] = [lambda: torch._int_mm(x_mk, next(columns))]
        if self.device != "cpu" or not hasattr(torch.ops.onednn, "qlinear_prepack"):
            return calls
        prepack, qlinear = torch.ops.onednn.qlinear_prepack, torch.ops.onednn.qlinear_pointwise
        weights = cycle([prepack(self._random(n, k), [m, k]) for _ in range(copies)])
        inputs, scales, zeros = (x_mk + 128).to(torch.uint8), torch.ones(n), torch.zeros(n).int()
        scaled = (None, 1.0, 0, torch.bfloat16, "none", [], "")  # no bias; what the result is
        calls.append(lambda: qlinear(inputs, 1.0, 128, next(weights), scales, zeros, *scaled))
        return calls

    def copy(self) -> float:
        """Return the bytes per second that a copy reads and writes."""
        if not self._copy:
            source = self._random(max(1, self.cold_bytes // (2 * self.dtype.itemsize)))
            target = torch.empty_like(source)
            self._copy = 2.0 * source.nbytes / self._seconds(lambda: target.copy_(source))
        return self._copy

    @property
    def peak(self) -> float:
        """Return the best measured rate. It stands in for attention, which is not measured."""
        return max(self.gflops.values())

    def _random(self, *sizes: int) -> torch.Tensor:
        if self.dtype == torch.int8:
            return torch.randint(-127, 128, sizes, device=self.device, dtype=self.dtype)
        return torch.randn(*sizes, device=self.device, dtype=self.dtype)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of the fastest call: a ceiling is the best that the machine can do."""
        call()
        best, end, calls = float("inf"), time.perf_counter() + self.longest, 0
        while calls < 3 or time.perf_counter() < end:
            _, seconds = clocked(call, torch.device(self.device))
            best, calls = min(best, seconds), calls + 1
        return best

    def described(self) -> dict[str, float]:
        """Return GFLOP/s by "form MxKxN", and the GB/s of a copy, for the results file."""
        rates = {f"{f} {m}x{k}x{n}": r / 1e9 for (f, m, k, n), r in self.gflops.items()}
        return {**rates, "copy GB/s": self.copy() / 1e9}


def products(
    ceilings: Ceilings, linear: Linear, tokens: float, m: int, forms: Sequence[str]
) -> float:
    """Return the seconds of a layer's products over `tokens` tokens, `m` at a time."""
    m = max(1, m)
    flop = 2.0 * tokens * linear.k * linear.n * linear.count
    return sum(flop / ceilings.matmul(form, m, linear.k, linear.n) for form in forms)


def passes(
    ceilings: Ceilings, shape: Shape, work: Work, m: int, forms: Sequence[str] = ("forward",)
) -> float:
    """Return the seconds of a pass, `m` tokens at a time. A backward pass needs all three forms."""
    seconds = sum(products(ceilings, lin, work.tokens, m, forms) for lin in shape.linears)
    share = work.positions / work.tokens if work.tokens else 0.0
    at_once = max(1, round(m * share))
    seconds += products(ceilings, shape.head, work.positions, at_once, forms)
    return seconds + shape.attention_flop(work.pairs) * len(forms) / ceilings.peak


def generation_floor(
    ceilings: Ceilings, shape: Shape, groups: Sequence[Group], slots: int, *, shared: bool = True
) -> dict[str, float]:
    """Return the seconds of prefill and decode of `groups` with `slots` sequences in every step.

    Attention reads the cache in decode. The slower of its operations and its bytes counts. int8
    has a cache in bf16.
    """
    each = torch.bfloat16.itemsize if ceilings.dtype == torch.int8 else ceilings.dtype.itemsize
    filled, steps = prefill(groups, shared=shared), decoded(groups)
    prefilled = passes(ceilings, shape, filled, min(filled.tokens, 2048)) if groups else 0.0
    decode = passes(ceilings, shape, Work(steps.tokens, 0, steps.positions), slots)
    flop = shape.attention_flop(steps.pairs) / ceilings.peak
    decode += max(flop, shape.kv_bytes(steps.pairs, each) / ceilings.copy())
    return {"prefill": prefilled, "decode": decode, "total": prefilled + decode}


def update_floor(
    ceilings: Ceilings, shape: Shape, groups: Sequence[Group], m: int
) -> dict[str, float]:
    """Return the seconds of forward, backward and optimizer step, `m` tokens at a time.

    The total includes the cheaper of shared and repeated prompts.
    """
    forms = ("forward", "inputs", "weights")
    either = []
    for shared in (True, False):
        work = passed(groups, shared=shared)
        either.append(passes(ceilings, shape, work, min(m, max(1, work.tokens)), forms))
    step = shape.adamw()
    stepped = max(step.bytes / ceilings.copy(), step.flop / ceilings.peak)
    return {
        "shared": either[0],
        "plain": either[1],
        "adamw": stepped,
        "total": min(either) + stepped,
    }


def counted(shape: Shape, groups: Sequence[Group]) -> dict[str, float]:
    """Return the GFLOP of the phases with and without shared prompts, for the results file."""
    rows: dict[str, float] = {}
    for name, shared in (("shared", True), ("plain", False)):
        work = passed(groups, shared=shared)
        cost: Cost = shape.forward(work.tokens, work.pairs, work.positions)
        filled = prefill(groups, shared=shared)
        rows[f"forward {name}"] = cost.flop / 1e9
        rows[f"forward and backward {name}"] = 3 * cost.flop / 1e9
        rows[f"prefill {name}"] = (
            shape.forward(filled.tokens, filled.pairs, filled.positions).flop / 1e9
        )
    steps = decoded(groups)
    rows["decode"] = shape.forward(steps.tokens, steps.pairs, steps.positions).flop / 1e9
    return rows


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
SMOLLM2 = Shape(
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate=1536,
    vocab=49152,
    tied=True,
)
TINY = Shape(
    hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=256, tied=True
)
PHASES = {"decode": 128, "prefill": 2048, "update": 4096}  # tokens at a time
GROUPS = [Group(100, [128] * 8)] * 16


def measured(shape: Shape, phases: Mapping[str, int], how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the GFLOP/s of each layer in each phase, and the floors in seconds, by precision."""
    rates: dict[str, dict[str, float]] = {}
    floors: dict[str, dict[str, float]] = {}
    for name, dtype in DTYPES.items():
        ceilings = Ceilings(dtype=dtype, **how)
        for phase, m in phases.items():
            for layer in (*shape.linears, shape.head):
                label = f"{phase}, {layer.name}, {m} x {layer.k} x {layer.n}"
                rate = ceilings.matmul("forward", m, layer.k, layer.n) / 1e9
                rates.setdefault(label, {})[name] = rate
        floors[name] = {
            f"generation, {part}": seconds
            for part, seconds in generation_floor(ceilings, shape, GROUPS, phases["decode"]).items()
        }
        if dtype != torch.int8:
            floors[name]["update"] = update_floor(ceilings, shape, GROUPS, phases["update"])[
                "total"
            ]
    return {"gflops": rates, "floors": floors}


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    options = cli.parse_args(argv)
    how: dict[str, Any] = {"longest": 0.001, "cold_bytes": 2**16} if options.tiny else {}
    phases = dict.fromkeys(PHASES, 8) if options.tiny else PHASES
    found = {"machine": machine(), **measured(TINY if options.tiny else SMOLLM2, phases, how)}
    print(f"| GFLOP/s | {' | '.join(DTYPES)} |\n|{' - |' * (1 + len(DTYPES))}")
    for label, rates in found["gflops"].items():
        print(f"| {label} | {' | '.join(f'{rates[name]:.0f}' for name in DTYPES)} |")
    for name, floors in found["floors"].items():
        print(f"floor in {name}: {', '.join(f'{k} {v:.3f} s' for k, v in floors.items())}")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
        print(f"written: {relative(str(options.output.absolute()))}")
    return found


if __name__ == "__main__":
    main()
