"""A game behind OpenEnv's API: `uvicorn server:app`. Needs openenv-core (0.3 tried)."""

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: int


class Told(Observation):
    text: str = ""


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **column: Any) -> Told:
        self._secret, self._made = int(column["secret"]), 0
        return Told(text=" It is between 1 and 7.")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Told:
        self._made += 1
        if action.number == self._secret:
            return Told(text="right", done=True, reward=1.0)
        higher = action.number < self._secret
        return Told(text="higher" if higher else "lower", done=self._made == 3, reward=0.0)

    @property
    def state(self) -> State:
        return State(step_count=self._made)


app = create_fastapi_app(Game, Guess, Told, max_concurrent_envs=256)
