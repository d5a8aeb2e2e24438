"""An environment of OpenEnv as a class of tools: each object has a session on the server."""

from openenv.core import GenericEnvClient


class Guess:
    def __init__(self, url="http://localhost:8000"):
        self._client = GenericEnvClient(base_url=url).sync()
        self._client.connect()

    def reset(self, answer, seed, **columns):
        self._last = None
        return self._client.reset(seed=seed, secret=answer).observation["text"]

    def guess(self, number: int) -> str:
        """Guess the secret number.

        Args:
            number: The guess.
        """
        if self._last and self._last.done:
            return "The game is over."
        self._last = self._client.step({"number": number})
        return self._last.observation["text"]

    def get_reward(self) -> float:
        return float(self._last.reward) if self._last else 0.0
