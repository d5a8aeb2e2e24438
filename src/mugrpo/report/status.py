"""`mugrpo status`: what of a run is there, who is at work on it, and what comes next.

From the run's files alone, without its lock: it can be asked anywhere, at any time.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mugrpo.config.base import imported, installed
from mugrpo.config.load import build_config, with_newer_options
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Part
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.processes.claims import Claim, claims_in
from mugrpo.report.readable import plain, rounded
from mugrpo.rollouts.score import scored

_KINDS = {"rollouts": "generate", "scores": "score"}


@dataclass
class _Share:
    """What one part of a stage has made, and who is at work on the rest of it."""

    part: str
    hosts: dict[str, None] = field(default_factory=dict)
    shards: int = 0
    tokens: int = 0
    seconds: float = 0.0
    claims: list[Claim] = field(default_factory=list)


def status(run_dir: RunDir) -> list[str]:
    """Return what is there of a run, who is at work, and what to type next, in lines.

    Raises UsageError if the folder is no run, RunStopped if an entry of a shard is damaged.
    """
    stored = run_dir.read_config()
    if stored is None:
        kind = "is not a run" if run_dir.root.exists() else "does not exist"
        raise UsageError(f"{run_dir.root} {kind}; name a run's directory")
    config = _config(run_dir, stored)
    schedule, made = config.schedule, run_dir.newest_update()
    lines = [f"{run_dir.root}: {made:,} of {schedule.total_updates:,} updates are saved"]
    if holder := run_dir.holder():
        lines.append(f"  at work on it: {holder}")
    number = schedule.stage_of(made)
    places = (place for one in installed().values() for place in one.status)
    told = [line for place in places for line in imported(place)(run_dir)]
    if made == schedule.total_updates:
        lines.append(f"next: mugrpo report {run_dir.root}")
    else:
        lines += stage_lines(run_dir, config, number, jobs=bool(told))
    return lines + told


def parts_at_work(run_dir: RunDir) -> list[str]:
    """Return `stage_lines` of the current stage if it is generated or scored in parts, else []."""
    number = max(run_dir.stages(), default=0)
    folders = [run_dir.shards(number, kind) for kind in _KINDS]
    if not any(claim.said.get("part") for folder in folders for claim in claims_in(folder)):
        return []
    stored = run_dir.read_config()
    assert stored is not None, "it has a stage"
    return stage_lines(run_dir, _config(run_dir, stored), number)


def _config(run_dir: RunDir, stored: dict[str, Any]) -> RunConfig:
    return build_config(with_newer_options(stored["config"]), str(run_dir.config))


def stage_lines(run_dir: RunDir, config: RunConfig, number: int, jobs: bool = False) -> list[str]:
    """Return what is there of a stage, who is at work on it and, without `jobs`, what to type."""
    total, after = len(config.shards_of(number)), config.schedule.first_update(number + 1)
    lines = [f"stage {number} (last: {config.schedule.stages - 1}), up to update {after:,}"]
    following, rollouts = "optimize", ShardSet(run_dir.shards(number, "rollouts"), "rollouts")
    for kind, phase in _KINDS.items():
        shards = ShardSet(run_dir.shards(number, kind), kind)
        there = [shard for shard in shards.numbers() if shard < total]
        if kind == "scores":  # of the rollouts that are there now
            there = [shard for shard in there if scored(rollouts, shards, shard)]
        claims = [c for c in claims_in(shards.folder) if int(c.name[6:]) not in there]
        shares = _shares(shards, there, claims)
        words = f"  {kind}  {len(there):,} of {total:,} shards"
        if left := _time_left(shares, there, total):
            words += f", about {left} left"
        lines += [words, *_lines_of(shares, kind)]
        at_work = any(not claim.lost() for share in shares for claim in share.claims)
        if len(there) < total and following == "optimize":
            following = "" if at_work else phase
    if following and not jobs and not run_dir.held():
        lines.append(f"next: mugrpo {following} {run_dir.root} --stage {number}")
    return lines


def _shares(shards: ShardSet, there: list[int], claims: list[Claim]) -> list[_Share]:
    """Return the shares of the parts that have made shards, or are at work, in their order."""
    shares: dict[str, _Share] = {}

    def share(part: Any) -> _Share:
        return shares.setdefault(part, _Share(part))

    for shard in there:
        entry = shards.entry(shard)
        one = share(str(entry.get("part", "0/1")))
        one.hosts |= {str(entry["host"]): None} if "host" in entry else {}
        one.shards += 1
        one.tokens += entry.get("tokens", 0)
        one.seconds += entry.get("seconds", 0.0)
    for claim in claims:
        share(str(claim.said.get("part", "0/1"))).claims.append(claim)

    def order(one: _Share) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(one.part.split("/")))

    return sorted(shares.values(), key=order)


def _lines_of(shares: list[_Share], kind: str) -> Iterator[str]:
    """Yield a line a part, if there are several, and of each claim."""
    rates = {one.part: one.tokens / one.seconds for one in shares if one.tokens and one.seconds}
    slowest = min(rates, key=lambda part: rates[part]) if len(rates) > 1 else None
    for one in shares:
        if len(shares) > 1 or one.part != "0/1":
            words = [f"    part {one.part}", f"{one.shards} shards"]
            words += [f"{plain(rates[one.part])} tokens/s"] if one.part in rates else []
            words += ["the slowest"] if one.part == slowest else []
            words += [", ".join(one.hosts)] if one.hosts else []
            yield "  ".join(words)
        for claim in one.claims:
            again = f", taken over {claim.attempt} times" if claim.attempt else ""
            lost = claim.lost()
            state = f"LOST, last seen {rounded(claim.age)} ago" if lost else "at work"
            since = claim.said.get("since", "?")
            yield f"      {claim.name}: {claim.holder()} {state}, since {since}{again}"


def _time_left(shares: list[_Share], there: list[int], total: int) -> str:
    """Return about how long the slowest part at work still takes, "" if that is unknown."""
    longest, counts = 0.0, defaultdict(int, {one.part: one.shards for one in shares})
    for one in shares:
        if not (counts[one.part] and any(not claim.lost() for claim in one.claims)):
            continue
        part = Part.of(one.part)
        lacking = set(range(part.number, total, part.count)) - set(there)
        longest = max(longest, len(lacking) * one.seconds / one.shards)
    return rounded(longest) if longest else ""
