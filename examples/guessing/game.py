"""Guess a digit from 1 to 7: the first digit of each message is a guess."""


def reply(messages, answer):
    """Say whether the secret digit is higher (+) or lower (-) than the guess."""
    guess = next((c for c in messages[-1]["content"] if c.isdigit()), None)
    if guess == answer:
        return 1.0  # the rollout is done, with this reward
    if guess is None:
        return "="
    return "+=" if answer > guess else "-="
