"""An environment of verifiers for tests: sums in several turns, some of whose episodes go wrong."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["SumsEnv", "SumsTaskset"]


class SumsData(vf.TaskData):
    rounds: int
    wrong: str = ""


class AddToolset(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = "sums"

    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumsTask(vf.Task[SumsData]):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 5

    @vf.reward(weight=0.5)
    async def digits(self, trace: vf.Trace) -> float:
        if self.data.wrong == "reward":
            raise ValueError("nobody knows")
        return float(sum(any(map(str.isdigit, m.content or "")) for m in trace.assistant_messages))

    @vf.metric
    async def spoken(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class SumsConfig(vf.TasksetConfig):
    tool: bool = False
    first: int = 2


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    INFINITE = True

    def toolsets(self, config: SumsConfig) -> list[vf.Toolset]:
        return [AddToolset(vf.SharedToolsetConfig())] if config.tool else []

    def load(self) -> Iterator[SumsTask]:
        number = 0
        while True:
            prompt = f"{self.config.first + number % 7}+3="
            yield SumsTask(SumsData(prompt=prompt, rounds=1 + number % 2), self.config.task)
            number += 1


class SumsEnv(vf.SingleAgentEnv):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(task.data.rounds):
                if segment.terminated:
                    break
                segment = await interaction.turn("1+1=")
        if task.data.wrong == "another":
            await agents.agent.run(task)


if __name__ == "__main__":
    AddToolset.run()
