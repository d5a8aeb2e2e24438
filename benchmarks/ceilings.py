"""The rates that the machine reaches at a model's shapes, and the floor of a phase at these rates.

Matmul rates are measured with cold weights, as in a model: repeated calls cycle through copies that
together exceed the caches. A floor is the time of the counted work at these rates and nothing else:
no Python, no norms, no softmax and no padding, with every slot filled.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch

from counts import (
    STEP_BYTES,
    STEP_FLOP,
    Group,
    Shape,
    Work,
    decoded,
    forward_flop,
    passed,
    prefill,
)
from device import clocked

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
        [N,M] x [M,K].
        """
        key = (form, m, k, n)
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


def passes(
    ceilings: Ceilings, shape: Shape, work: Work, m: int, forms: Sequence[str] = ("forward",)
) -> float:
    """Return the seconds of a pass, `m` tokens at a time. A backward pass needs all three forms."""

    def products(tokens: float, m: int, k: int, n: int) -> float:
        rates = (ceilings.matmul(form, max(1, m), k, n) for form in forms)
        return sum(2.0 * tokens * k * n / rate for rate in rates)

    layer = sum(products(work.tokens, m, k, n) for k, n in shape.matrices.values())
    share = work.positions / work.tokens if work.tokens else 0.0
    head = products(work.positions, round(m * share), shape.hidden, shape.vocab)
    attention = shape.attention_flop(work.pairs) * len(forms) / ceilings.peak
    return shape.layers * layer + head + attention


def generation_floor(
    ceilings: Ceilings, shape: Shape, groups: Sequence[Group], slots: int, *, shared: bool = True
) -> dict[str, float]:
    """Return the seconds of prefill and decode of `groups` with `slots` sequences in every step.

    Attention reads the cache in decode. The slower of its operations and its bytes counts.
    """
    each = ceilings.dtype.itemsize
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
    stepped = shape.parameters * max(STEP_BYTES / ceilings.copy(), STEP_FLOP / ceilings.peak)
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
        forward = forward_flop(shape, passed(groups, shared=shared)) / 1e9
        rows[f"forward {name}"] = forward
        rows[f"forward and backward {name}"] = 3 * forward
        rows[f"prefill {name}"] = forward_flop(shape, prefill(groups, shared=shared)) / 1e9
    return {**rows, "decode": forward_flop(shape, decoded(groups)) / 1e9}
