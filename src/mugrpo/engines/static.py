"""Decoding steps of static shapes, which a GPU replays as CUDA graphs.

An eager step starts some 60 operations a layer from the host, 18 us each on an H100: 28.7 ms for a
model of 0.5 billion in 512 slots, whose bytes and operations take 1.1 ms. Here all that a step
reads and writes lies on the device, in tensors that stay where they are. So one graph for each
number of slots (a bucket) replays any step, and the host only looks every few steps: 4.7 ms on an
H200. What is drawn is looked up: a request's uniforms are there when it begins.

Each slot has its own copy of its prompt's keys and values. The kernel reads a slot's own length, so
room that is not used costs memory, but no time.

Suffixes: A slots of a bucket, S slots, B slots that begin, N layers, R room of a slot (prompt and
response), H key-value heads, Q query heads per key-value head, D head dimension, P prompt tokens,
T response tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion, Decoded, Request
from mugrpo.engines.cache import ATTENTION
from mugrpo.engines.sampling import refuse_nan, sample, uniforms
from mugrpo.engines.waiting import Prefilled, Waiting, prefill
from mugrpo.model.attention import attending
from mugrpo.model.policy import Policy

EVERY = 8  # steps between the host's looks; what has ended is fed on until then
_ROOM = 256  # tokens by which room differs, as other room means other graphs


def bucket_of(active: int, slots: int) -> int:
    """Return how many of the `slots` the graph decodes that is used for the first `active`.

    There are graphs for 1, 2, 4, ... 64, 96, 128, 192, ... and for all slots. Capturing one takes
    as long as some 30 steps, so finer ones would not pay while the last responses end.
    """
    power = 1 << (active - 1).bit_length()
    between = power * 3 // 4
    return min(slots, between if power > 64 and active <= between else power)


def room_of(request: Request, limit: int) -> int:
    """Return the tokens of a request's prompt and longest response, in a call with `limit`."""
    return len(request.prompt_ids) + min(request.max_new_tokens or limit, limit)


def rounded(room: int) -> int:
    """Return the room that slots have for `room` tokens."""
    return max(1, -(-room // _ROOM)) * _ROOM


class StaticSlots:
    """The sequences in the slots: keys and values, state, and the step that changes them in place.

    Other weights or another temperature need new slots: the graphs hold both.
    """

    def __init__(
        self,
        policy: Policy,
        slots: int,
        room: int,
        limit: int,
        temperature: float,
        stream: Any = None,
    ) -> None:
        """Make slots with `room` (see `rounded`) for responses of up to `limit` tokens.

        The first prompt allocates the cache. Steps are captured on the CUDA stream `stream`, on
        which nobody else must: torch frees what its graphs share with the first that ends.
        """
        self.slots, self.room, self.limit, self.temperature = slots, room, limit, temperature
        self.has_kernel = False  # FlashAttention, as torch has it
        self.whole = True  # whether there are as many as memory or the options allow
        self.watched = False  # whether a wait for the device raises before a step is captured
        self._model, device = policy.working(), policy.device
        self._addresses = _addresses(self._model)

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        S, T = self.slots, limit
        self.token_S, self.position_S = zeros(S), zeros(S)  # to be fed next, and its position
        self.place_S, self.limit_S = zeros(S), zeros(S)  # its index in the response, and the end
        self.live_S, self.nan = zeros(S, dtype=torch.bool), zeros(1, dtype=torch.bool)
        # The last column is of slots that are not live.
        self.uniforms_ST = zeros(S, T + 1, dtype=torch.float64)
        self.ids_ST, self.logprobs_ST = zeros(S, T + 1), zeros(S, T + 1, dtype=torch.float32)
        self.keys = self.values = zeros(0, S, 0, 0, 0)  # [N, S, R, H, D]
        self._stop = torch.tensor(policy.stop_ids, device=device)
        self._rows = torch.arange(S, device=device)
        self._starts_q = torch.arange(S + 1, dtype=torch.int32, device=device)
        self._starts_k = self._starts_q * room  # where each slot begins in its cache
        self._stream: Any = stream  # None: steps are not captured
        if device.type == "cuda" and stream is None:
            self._stream = torch.cuda.Stream()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.logits: torch.Tensor | None = None  # [S, V], to be written if it is made
        # of the step at hand
        self._used_A = self._starts_q
        self._biases: dict[int | None, torch.Tensor] = {}

    def serves(self, policy: Policy, room: int, limit: int, temperature: float) -> bool:
        """Return whether these can be used again as if they were new."""
        fits = self.room >= room and self.limit >= limit and self.temperature == temperature
        model = policy.working()
        return fits and model is self._model and _addresses(model) == self._addresses

    def _allocate(self, prompt: Prefilled) -> None:
        """Make the caches, in layers like those of `prompt`."""
        made = []
        for i in (0, 1):
            heads, _, size = prompt[0][0][i].shape
            shape = (len(prompt[0]), self.slots, self.room, heads, size)
            made.append(prompt[0][0][i].new_zeros(shape))
        self.keys, self.values = made
        half = self.keys.dtype == torch.bfloat16
        self.has_kernel = self.keys.is_cuda and half and size <= 256 and size % 8 == 0

    @torch.inference_mode()
    def begin(self, rows: torch.Tensor, prompt: Prefilled) -> None:
        """Cache a prompt for the slots `rows` [B]."""
        if not len(self.keys):
            self._allocate(prompt)
        for i, cache in enumerate((self.keys, self.values)):
            prompt_NPHD = torch.stack([layer[i] for layer in prompt[0]]).transpose(1, 2)
            cache[:, rows, : prompt_NPHD.shape[1]] = prompt_NPHD[:, None]

    @torch.inference_mode()
    def draw_first(
        self, rows: torch.Tensor, logits_BV: torch.Tensor, state: torch.Tensor, drawn: torch.Tensor
    ) -> None:
        """Draw the first tokens of the slots `rows` [B].

        `state` [2, B] has the lengths of their prompts and their limits, `drawn` [B, T] uniforms.
        """
        token_B, logprob_B = sample(logits_BV, self.temperature, drawn[:, 0])
        self.nan |= logprob_B.isnan().any()
        self.uniforms_ST[rows, : drawn.shape[1]] = drawn
        self.token_S[rows], self.place_S[rows] = token_B, 0
        self.position_S[rows], self.limit_S[rows] = state
        self.ids_ST[rows, 0], self.logprobs_ST[rows, 0] = token_B, logprob_B
        self.live_S[rows] = self._goes_on(token_B, 0, state[1])

    @torch.inference_mode()
    def step(self, slots: int) -> None:
        """Decode a token in the live ones of the first `slots`, which are a bucket."""
        if self._stream is None:
            self._step(slots)
            return
        if slots not in self._graphs:
            self._graphs[slots] = self._captured(slots)
        self._graphs[slots].replay()

    def _captured(self, slots: int) -> torch.cuda.CUDAGraph:
        """Return a step's graph. Before, libraries get ready in a step without effect.

        Raises RuntimeError if the model waits for the device, which a graph cannot.
        """
        stream, watch = self._stream, _without_waits if self.watched else nullcontext
        live_S = self.live_S.clone()
        self.live_S.zero_()  # what is fed is cached again, nothing else changes
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), watch():
            self._step(slots)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = next((g.pool() for g in self._graphs.values()), None)  # steps never overlap
        # Other threads may go on, such as one that writes a checkpoint.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            self._step(slots)
        self.live_S.copy_(live_S)
        return graph

    def _step(self, A: int) -> None:
        """Feed, draw, write and mark what ends. Nothing here waits for the device."""
        token_A, position_A, place_A, live_A = (
            state[:A] for state in (self.token_S, self.position_S, self.place_S, self.live_S)
        )
        self._used_A, self._biases = (position_A + 1).to(torch.int32), {}
        with attending(self._model.config, ATTENTION):
            logits_AV: torch.Tensor = self._model(
                input_ids=token_A[:, None],
                position_ids=position_A[:, None],
                use_cache=False,
                logits_to_keep=1,
                slots=self,
            ).logits[:, -1]
        if self.logits is not None:
            self.logits[:A] = logits_AV
        next_A1 = (place_A + 1)[:, None]
        drawn_A = self.uniforms_ST[:A].gather(1, next_A1)[:, 0]
        new_A, logprob_A = sample(logits_AV, self.temperature, drawn_A)
        self.nan |= (logprob_A.isnan() & live_A).any()
        at_A1 = next_A1.where(live_A[:, None], self.limit)
        self.ids_ST[:A].scatter_(1, at_A1, new_A[:, None])
        self.logprobs_ST[:A].scatter_(1, at_A1, logprob_A[:, None])
        token_A.copy_(new_A.where(live_A, token_A))
        place_A += live_A
        position_A += live_A
        live_A &= self._goes_on(new_A, place_A, self.limit_S[:A])

    def _goes_on(
        self, token: torch.Tensor, place: torch.Tensor | int, limit: torch.Tensor
    ) -> torch.Tensor:
        stops = (token[:, None] == self._stop).any(-1)
        return ~stops & (place + 1 < limit)

    def attend(
        self,
        layer: int,
        query_AQ1D: torch.Tensor,
        key_AHD: torch.Tensor,
        value_AHD: torch.Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """Store the step's keys and values, and return the attention output, [A, 1, queries, D]."""
        A = len(key_AHD)
        at = (self._rows[:A], self.position_S[:A])
        self.keys[layer].index_put_(at, key_AHD.to(self.keys.dtype))
        self.values[layer].index_put_(at, value_AHD.to(self.values.dtype))
        keys, values = self.keys[layer, :A], self.values[layer, :A]
        if self.has_kernel:
            window_size = (-1, -1) if window is None else (window - 1, 0)
            return torch.ops.aten._flash_attention_forward(  # type: ignore[no-any-return]
                query_AQ1D[:, :, 0].contiguous(),
                keys.flatten(0, 1),
                values.flatten(0, 1),
                self._starts_q[: A + 1],
                self._starts_k[: A + 1],
                1,
                self.room,
                0.0,
                False,
                False,
                scale=scale,
                seqused_k=self._used_A,
                window_size_left=window_size[0],
                window_size_right=window_size[1],
            )[0][:, None]
        H, D = keys.shape[2:]
        query_AHQD = query_AQ1D.reshape(A, H, -1, D).float() * scale
        scores = torch.einsum("ahqd,arhd->ahqr", query_AHQD, keys.float()) + self._bias(window)
        read_AHQD = torch.einsum("ahqr,arhd->ahqd", scores.softmax(-1), values.float())
        return read_AHQD.reshape(A, 1, -1, values.shape[-1]).to(query_AQ1D.dtype)

    def _bias(self, window: int | None) -> torch.Tensor:
        """Return the attention bias [A, 1, 1, R]: -inf at masked positions, 0 elsewhere."""
        if window not in self._biases:
            used_A1 = self._used_A[:, None]
            places_R = torch.arange(self.room, device=used_A1.device)
            hidden_AR = places_R >= used_A1
            if window is not None:
                hidden_AR = hidden_AR | (places_R < used_A1 - window)
            bias_AR = torch.zeros(hidden_AR.shape, device=used_A1.device)
            self._biases[window] = bias_AR.masked_fill_(hidden_AR, -torch.inf)[:, None, None]
        return self._biases[window]

    @torch.inference_mode()
    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Move the slots `source` to `target`."""
        rows = (self.token_S, self.position_S, self.place_S, self.limit_S, self.live_S)
        for tensor in (*rows, self.uniforms_ST, self.ids_ST, self.logprobs_ST):
            tensor[target] = tensor[source]
        for cache in (self.keys, self.values):
            cache[:, target] = cache[:, source]
        self.live_S[source] = False


@contextmanager
def _without_waits() -> Iterator[None]:
    """Within the block, let waits for the device raise, before a failed capture leaves traces.

    That holds for all threads.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _addresses(model: Any) -> list[int]:
    """Return the address of each weight. Moving weights to host memory and back changes it."""
    return [weight.data_ptr() for weight in model.parameters()]


class StaticSequences:
    """The requests of one call of `generate` that wait or are in one of the `StaticSlots`."""

    def __init__(
        self, policy: Policy, limit: int, room: int, slots_with: Callable[[int], StaticSlots]
    ) -> None:
        """Prepare for responses of up to `limit` tokens. `slots_with` makes slots with room.

        The first requests need `room` tokens.
        """
        self.policy = policy
        self.waiting = Waiting(policy)
        self._limit, self._slots_with = limit, slots_with
        self._begun: dict[int, int] = {}  # index of the request, by slot
        self._left: dict[int, int] = {}  # tokens that may still come, by slot
        self._room = room  # tokens of the longest request, prompt and response
        self._slots = self._made()

    @torch.inference_mode()
    def _made(self) -> StaticSlots:
        slots = self._slots_with(self._room)
        slots.live_S.zero_()
        return slots

    @property
    def unfinished(self) -> int:
        return len(self._begun) + len(self.waiting)

    def add(self, requests: Mapping[int, Request]) -> None:
        """Let `requests` wait, too. Those with more room begin when all others have ended."""
        self.waiting.add(requests)
        self._room = max([self._room, *(room_of(r, self._limit) for r in requests.values())])

    def advance(self) -> Decoded:
        """Fill the free slots, decode up to `EVERY` tokens in each, and look.

        Return the responses that finished, and the response positions computed.
        """
        begun, computed = self._admit(), 0
        steps = min(EVERY, max(self._left.values()))
        if steps:
            bucket = bucket_of(max(self._begun) + 1, self._slots.slots)
            for _ in range(steps):
                self._slots.step(bucket)
            computed = bucket * steps
        finished = self._take_finished(steps)
        if not self.waiting or self._room > self._slots.room:
            self._close_gaps()
        return Decoded(finished, begun + computed)

    @torch.inference_mode()
    def _admit(self) -> int:
        """Start waiting requests in the free slots. Return their number."""
        if not self.waiting:
            return 0
        if self._room > self._slots.room:
            if self._begun:
                return 0
            del self._slots  # before others are counted
            self._slots = self._made()
        slots, device = self._slots, self.policy.device
        free = [row for row in range(slots.slots) if row not in self._begun]
        admitted: list[tuple[int, Request]] = []
        logits, prompts, rows = [], [], torch.tensor(free, dtype=torch.int64, device=device)
        for prompt, begun in self.waiting.groups(len(free)):
            first = len(admitted)
            admitted += begun
            slots.begin(rows[first : len(admitted)], prompt)
            logits.append(prompt[1].expand(len(begun), -1))
            prompts += [prompt[0][0][0].shape[1]] * len(begun)
        if not admitted:
            return 0
        limits = [min(r.max_new_tokens or self._limit, self._limit) for _, r in admitted]
        drawn = torch.from_numpy(uniforms([r.seed for _, r in admitted], self._limit))
        state = torch.tensor([prompts, limits], device=device)
        rows = rows[: len(admitted)]
        slots.draw_first(rows, torch.cat(logits), state, drawn.to(device))
        for row, limit, (index, _) in zip(free, limits, admitted, strict=False):
            self._begun[row], self._left[row] = index, limit - 1
        return len(admitted)

    @torch.inference_mode()
    def _take_finished(self, steps: int) -> list[tuple[int, Completion]]:
        """Look at the slots after so many steps, and take what has ended out of them."""
        slots = self._slots
        # the only wait for the device if nothing has ended
        seen = torch.cat([slots.live_S.long(), slots.place_S, slots.nan.long()]).cpu().numpy()
        live_S, place_S, nan = np.split(seen, [slots.slots, 2 * slots.slots])
        if nan.any():
            slots.nan.zero_()
            refuse_nan(torch.full((1,), torch.nan), self.policy)
        for row in self._left:
            self._left[row] -= steps
        ended = [row for row in self._begun if not live_S[row]]
        if not ended:
            return []
        length, longest = place_S + 1, int(place_S[ended].max()) + 1
        rows = torch.tensor(ended, device=slots.ids_ST.device)
        ids, logprobs = (
            tensor[rows, :longest].cpu().numpy() for tensor in (slots.ids_ST, slots.logprobs_ST)
        )
        finished = []
        for i, row in enumerate(ended):
            own = ids[i, : length[row]].astype(np.int32)
            stopped = own[-1] in self.policy.stop_ids
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            completion = Completion(own, logprobs[i, : length[row]].copy(), reason)
            finished.append((self._begun.pop(row), completion))
            del self._left[row]
        return finished

    def _close_gaps(self) -> None:
        """Move the last slots into gaps if a smaller graph is then enough."""
        count, slots = len(self._begun), self._slots.slots
        if not count or bucket_of(count, slots) == bucket_of(max(self._begun) + 1, slots):
            return
        gaps = [row for row in range(count) if row not in self._begun]
        movers = [row for row in self._begun if row >= count]
        self._slots.move(movers, gaps)
        for gap, mover in zip(gaps, movers, strict=True):
            self._begun[gap], self._left[gap] = self._begun.pop(mover), self._left.pop(mover)


@torch.inference_mode()
def forced(
    policy: Policy, prompts: Sequence[np.ndarray], ids_UT: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Yield the logits [U, V] after each prompt, then after each of the tokens that follow it."""
    count, length = ids_UT.shape
    slots = StaticSlots(policy, count, max(map(len, prompts)) + length + 1, length + 1, 1.0)
    slots.watched = True
    prefilled = prefill(policy, prompts)
    rows = torch.arange(count, device=policy.device)
    for row, prompt in enumerate(prefilled):
        slots.begin(rows[row : row + 1], prompt)
    slots.position_S.copy_(torch.tensor([len(p) for p in prompts]))
    slots.logits = torch.stack([logits_V for _, logits_V in prefilled])
    yield slots.logits.clone()
    for token_U in ids_UT.T:
        slots.token_S.copy_(token_U)
        slots.step(count)
        yield slots.logits.clone()
        slots.position_S += 1
