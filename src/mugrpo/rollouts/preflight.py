"""What a tokenizer and a chat template do wrong without failing, before the first rollout."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem
from mugrpo.rollouts.prompts import PromptEncoder

_ASKED: Message = {"role": "user", "content": "mugrpo-asks-this"}
_SAID = "mugrpo-said-this"


def notices(
    encode: PromptEncoder, stop_ids: Collection[int], problems: Sequence[Problem]
) -> list[str]:
    """Return sentences on prompts that no model was trained on, and on turns without an end.

    A response ends at one of `stop_ids`. Raises UsageError if the template ends turns with a token
    outside the model's vocabulary, or takes too much time or memory.
    """
    return encode.limited(lambda: list(_notices(encode, stop_ids, problems)), len(problems))


def _notices(
    encode: PromptEncoder, stop_ids: Collection[int], problems: Sequence[Problem]
) -> Iterator[str]:
    token = encode.tokenizer.convert_ids_to_tokens
    chat = encode.options.form == "chat"
    if encode.suffix and not chat:
        ends = "".join(token(encode.suffix))
        yield f"the tokenizer puts {ends!r} after every text; prompts leave it out"
    if problems:
        yield from _ends(encode(problems[0]).tolist(), encode, stop_ids)
    if chat:
        yield from _turns(encode, stop_ids)
        if unread := list(_unread(encode, problems)):
            yield f"the chat template writes nothing of the messages' {', '.join(unread)}"


def _ends(ids: list[int], encode: PromptEncoder, stop_ids: Collection[int]) -> Iterator[str]:
    token, begin = encode.tokenizer.convert_ids_to_tokens, encode.tokenizer.bos_token_id
    source = "the chat template" if encode.options.form == "chat" else "the data"
    if begin is not None and ids[:2] == [begin, begin]:
        yield (
            f"warning: prompts begin with {token(begin)!r} twice; leave it out of {source}, as the "
            "model was trained with one"
        )
    if ids[-1] in stop_ids:
        yield (
            f"warning: prompts end with {token(ids[-1])!r}, at which a response ends; leave it out "
            f"of {source}"
        )


def _turns(encode: PromptEncoder, stop_ids: Collection[int]) -> Iterator[str]:
    """Yield what is wrong with how the template begins and ends a turn of the model."""
    said: Message = {"role": "assistant", "content": _SAID}
    try:
        closed, opened = (encode.rendered([_ASKED], prompting=p) for p in (False, True))
        whole = encode.rendered([_ASKED, said], prompting=False)
    except UsageError:  # it takes no such conversation, and the prompts of the data may be others
        return
    before, written, end = whole.rpartition(_SAID)
    if not written:
        return
    begin = before.removeprefix(closed).strip() if before.startswith(closed) else ""
    if opened == closed and begin:
        yield (
            "warning: the chat template ignores add_generation_prompt, so prompts end before "
            f"{begin!r}, which begins a turn of the model; write it there in a template of your "
            "own (--prompt.chat_template)"
        )
    ids = encode.checked(encode.ids_of(end), "what the chat template writes after a turn").tolist()
    if end.strip() and not set(ids) & set(stop_ids):
        stops = ", ".join(map(repr, encode.tokenizer.convert_ids_to_tokens(list(stop_ids))))
        tokens = encode.tokenizer.convert_ids_to_tokens(ids)
        special = [one for one in tokens if one in encode.tokenizer.get_added_vocab()]
        way_out = f"--model.eos_token '{special[0]}'" if special else "--prompt.chat_template"
        yield (
            f"warning: the chat template ends a turn with {(special or [end])[0]!r}, which does "
            f"not end a response (that does {stops}), so responses may run on until they are "
            f"truncated; set {way_out}, unless the model was trained to end otherwise"
        )


def _unread(encode: PromptEncoder, problems: Sequence[Problem]) -> Iterator[str]:
    """Yield the keys of messages that change nothing in what the template writes."""
    having: dict[str, Problem] = {}
    for problem in problems:
        for name in {name for message in encode.messages(problem) for name in message}:
            having.setdefault(name, problem)
    for name in sorted(having.keys() - {"role", "content"}):
        messages = encode.messages(having[name])
        fewer = [{key: one[key] for key in one if key != name} for one in messages]
        if _text(encode, messages) == _text(encode, fewer):
            yield name


def _text(encode: PromptEncoder, messages: list[Message]) -> Any:
    try:
        return encode.rendered(messages, prompting=True)
    except UsageError:  # without the key, which it reads
        return None
