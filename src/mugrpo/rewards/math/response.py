"""Where the answer is in a response. Every verifier reads it here.

- What a model thinks, up to the last `</think>`, is no answer.
- The content of the last `<answer>` is one. Without a closing tag it goes on to the end, as a stop
  string cuts the tag off.
- The last \\boxed is the answer, unless "the final answer is" and a formula follow it. Boxes with
  only "and", "or", "for part (a) and" or punctuation between them are one.
  If the last box is not closed, there is no answer: its end is cut off.
- Without a box it is what follows the last "answer is", "answer:", "option is" or "####".
"""

import re
from collections import deque

from mugrpo.rewards.math.units import OTHERWISE, TELLING, after_number, words_of

LONGEST_TEXT = 10_000  # characters at the end of a response that are read
LONGEST_ANSWER = 1_000  # characters; something longer is not taken for an answer

_THOUGHT = re.compile(r"</think(?:ing)?>|\[/THINK\]|\u25c1/think\u25b7", re.IGNORECASE)
_OPENING = re.compile(r"(?:^|<)answer>", re.IGNORECASE)
_CLOSING = re.compile(r"</answer>", re.IGNORECASE)
_SPECIAL = re.compile(r"(?:</s>|<\|[a-z_]+\|>|<(?:eos|end_of_turn)>)$")  # tokens left in the text

_GAP = r"(?:\s|\\[,;:! ]|\\q?quad(?![A-Za-z])|~)"
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# \boxed 7, but not the command's name in a sentence: "mark it with \boxed. The answer ..."
_UNBRACED = re.compile(r"[-+]?[0-9][0-9.,/]*(?<![.,])|[A-Za-z](?![A-Za-z])|\\(?!boxed|fbox)[^\s$]+")
_JOINT = re.compile(
    rf"(?:{_GAP}|[A-Za-z](?:_\{{?[0-9]\}}?)?\s*=|[,;$&]|\\[\\()]|\\text\{{|\}}|\band\b|\bor\b"
    r"|\bfor\s+(?:part\s+)?\(?[a-z0-9]\)?(?=,?\s+and\b)|\\\]\s*(?:,|and|or)\s*\\\[)*"
)

_MARK = re.compile(
    r"\banswer[\"*]*\s*(?:\s\**is\b|[:\uff1a])|\b(?:option|choice)\s+is\b|####"
    r"|\u7b54\u6848(?:\u662f|\u4e3a|[:\uff1a])",  # "the answer is" in Chinese
    re.IGNORECASE,
)
_DISPLAY = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]", re.DOTALL)
# As pandoc: no blank inside the dollars, no digit after them. "$5 and $6" are amounts of money.
# With a command inside, as \pi, they are a formula in any case.
_FORMULA = re.compile(
    rf"{_DISPLAY.pattern}|\$(?=\S)([^$]+)(?<=\S)\$(?![0-9])|\\\((.+?)\\\)"
    r"|\$\s*([^$]*\\[A-Za-z][^$]*?)\s*\$(?![0-9])",
    re.DOTALL,
)
_FINAL = re.compile(r"\bfinal answer is:?\s*", re.IGNORECASE)
_ROWS = re.compile(r"\\(?:begin|end)\{(?:align|aligned|split|gather|gathered|eqnarray)\*?\}")
_SENTENCE_END = re.compile(
    r"(?<![ap]\.m)(?<!\\)[.!?](?=\s|$)|\u3002|,\s+(?=(?:so|since|because|as|which|where|when)\b)"
)
# Letters that are words, and no mathematics as Greek ones are. Chinese has no blanks around them.
_SCRIPT = (
    "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u1eff\u3000-\u9fff\uac00-\ud7af\uff0c-\uffef"
)
_WORDLESS = re.compile(
    rf"(?:\\(?:text\w*|mbox|mathrm|begin|end)\{{[^{{}}]*\}}|\\[A-Za-z]+|[^A-Za-z\n{_SCRIPT}]"
    r"|\b(?:[A-Za-z]|[A-Z]{2}|or|and)(?![A-Za-z])|\*\*[A-Za-z]+\*\*)+"
)
_PROSE = re.compile(r"(?:[A-Za-z']+[ ,]+){3}")
_CONCLUSION = re.compile(r"(.*)\b(?:is|are|equals|get|obtain)\b\s*(\S.*?)[\s.]*", re.DOTALL)
_RANGE = re.compile("(?<=[0-9])\\s*[\u2010-\u2014]\\s*(?=[0-9])")  # 3 to 5, and no difference
_LED = re.compile(
    r"(?!sqrt|pi\b|sin|cos|tan|log)([^\w\\]*[A-Za-z][A-Za-z'\u2019]{2,}[^0-9$\\]*?)"
    r"([-$\\]*[0-9\\$].*)",
    re.DOTALL,
)
_DENIED = re.compile(
    r"(?:\bnot|n['\u2019]t|\bnever|\bcannot|\bminus|\bnegative"
    r"|\b(?:more|less|greater|fewer|other|rather) than|\bat (?:least|most))"
    r"\s+(?:be\s+|equal\s+(?:to\s+)?|exactly\s+)?[\s$\\(\[{]*$"
    r"|(?:\\neq?|\u2260)[\s$\\(\[{]*$|-[$\\(\[{]*$"
    r"|\b(?:half|twice|square|root|third|quarter|double|triple)\s+(?:of\s+)?[\s$]*$",
    re.IGNORECASE,
)
_COMPARED = re.compile(r"(?:[<\u2264\u2265\u2260]|\\(?:neq?|leq?|geq?|lt|gt)\s*|\w\s*>)\s*$")


def final_part(text: str) -> str:
    """Return what follows the last closing tag of thinking, or all of `text` without one."""
    thoughts = deque(_THOUGHT.finditer(text), maxlen=1)
    final = (text[thoughts[0].end() :] if thoughts else text).rstrip()
    while token := _SPECIAL.search(final, max(0, len(final) - 40)):
        final = final[: token.start()].rstrip()
    return final


def answer_part(text: str) -> str:
    """Return what the last <answer> of the final part holds, or the final part without the tag."""
    return _tagged(final_part(text))[0]


def _tagged(final: str) -> tuple[str, bool]:
    """Return the part of a text that answers, and whether it is in a tag."""
    openings = deque(_OPENING.finditer(final), maxlen=1)
    if not openings:
        return _CLOSING.split(final, maxsplit=1)[0], False
    inside, *after = _CLOSING.split(final[openings[0].end() :], maxsplit=1)
    if after and _BOX.search(after[0]):  # a box after the tag is the last word
        return after[0], False
    return inside.strip(), True


def reference_part(reference: str) -> list[list[str]] | None:
    """Return the answers of a reference as `find` does, if it marks any, or all of it.

    It is None if there is none, or if it has more than `LONGEST_ANSWER` characters.
    """
    if any(mark.search(reference) for mark in (_BOX, _MARK, _OPENING, _THOUGHT)):
        return find(reference)
    if concluded := _concluded(reference):
        return [[concluded]]
    return [[reference]] if _plausible(reference) else None


def find(text: str) -> list[list[str]] | None:
    """Return the answers that a response gives, in groups; each is as it is written there.

    A group is a list of boxes that are one answer. The last group counts. Without boxes, the only
    group has one answer. It is [] if nothing says what the answer is, and None if there is none: a
    last box that is empty, not closed or too long.
    """
    part, in_tag = _tagged(final_part(text)[-LONGEST_TEXT:])
    if boxes := deque(_BOX.finditer(part), maxlen=1):
        final = _FINAL.search(part, boxes[0].end())
        if final and (formula := _FORMULA.match(part, final.end())):
            return [[_with_unit(formula)]]
        groups = _boxes(part)
        groups = [[_concluded(box) or box for box in group] for group in groups or []]
        return groups if groups and _complete(groups[-1]) else None
    answer = _stated(part)
    if answer is None and in_tag:
        answer = _concluded(part) or without_words(part)
    return [] if answer is None else [[answer]] if _plausible(answer) else None


def _complete(group: list[str]) -> bool:
    r"""Return whether each box of a group is an answer, not a half of \boxed{(1}, \boxed{2)}."""
    whole = len(group) == 1 or all(
        sum((c in "([") - (c in ")]") for c in answer) == 0 for answer in group
    )
    return whole and all(map(_plausible, group))


def _plausible(answer: str) -> bool:
    return bool(answer.strip()) and len(answer) <= LONGEST_ANSWER


def _boxes(text: str) -> list[list[str]] | None:
    """Return the contents of all boxes, outermost ones, or None if the last is not closed."""
    groups: list[list[str]] = []
    closings = _closings(text)
    end = 0
    for match in _BOX.finditer(text):
        start = match.end()
        if match.start() < end:
            continue
        braced, bare = text.startswith("{", start), _UNBRACED.match(text, start)
        close = closings.get(start) if braced else bare and bare.end()
        if close is None:
            if braced or start == len(text):  # else it is the command's name in a sentence
                groups.append([])
            continue
        if not groups or not _JOINT.fullmatch(text, end, match.start()):
            groups.append([])
        if denied(text[: match.start()]):
            groups.append([])  # no answer, unless another one follows
        else:
            groups[-1].append(_BOX.sub("", text[start + braced : close - braced]))
        end = close
    return [group for group in groups if group] if groups and groups[-1] else None


def _closings(text: str) -> dict[int, int]:
    """Return the end of each brace that is closed, by its start."""
    opened: list[int] = []
    ends = {}
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            ends[opened.pop()] = brace.end()
    return ends


def _stated(text: str) -> str | None:
    """Return the sentence or formula after the last mark.

    Return "" if nothing follows, and None if there is no mark or an explanation follows it.
    """
    marks = deque(_MARK.finditer(text), maxlen=1)
    if not marks:
        return None
    rest = text[marks[0].end() :].lstrip(" \t\r\n:*")[: 2 * LONGEST_ANSWER]
    if display := _DISPLAY.match(rest):
        return _with_unit(display)
    sentence = _SENTENCE_END.split(rest.split("\n", 1)[0], maxsplit=1)[0]
    formulas = list(_FORMULA.finditer(sentence))
    if len(formulas) == 1 and not re.search(r"[A-Za-z]{3}|-$", sentence[: formulas[0].start()]):
        return _with_unit(formulas[0])
    if sentence.count("}") > sentence.count("{"):  # JSON's {"answer": 18}
        sentence = sentence.rstrip('}" ')
    sentence = _RANGE.sub(r"\\text{ to }", sentence.replace("**", ""))
    return None if _PROSE.match(sentence) or _prose(sentence) else without_words(sentence)


def _prose(sentence: str) -> bool:
    """Return whether words and a formula among them come before a last number or formula."""
    return bool(_PROSE.match(_FORMULA.sub("x", sentence)) and _FORMULA.search(sentence))


def _concluded(text: str) -> str | None:
    """Return the number or formula that ends prose with a formula: 3 of "The sum of $n$ is 3."."""
    conclusion = _CONCLUSION.fullmatch(text) if _prose(text) else None
    if conclusion is None or {*words_of(conclusion[1].rpartition(". ")[2].casefold())} & (
        OTHERWISE - {"is", "are"}
    ):
        return None
    said = conclusion[2]
    if (formula := _FORMULA.match(said)) and not re.search("[0-9$]", said[formula.end() :]):
        return _with_unit(formula)
    return said if re.match(r"-?\\?\$?[0-9]", said) and "$" not in said[1:] else None


def _with_unit(formula: re.Match[str]) -> str:
    """Return what is in a formula, its last row if it has several, with the unit after it."""
    inside = "".join(filter(None, formula.groups()))
    if _ROWS.search(inside) and not re.search(r"matrix|array|cases", inside):
        rows = (row.strip() for row in re.split(r"\\\\", _ROWS.sub("", inside)))
        inside = [row for row in rows if row][-1].lstrip("& ")
    return inside + _unit(formula.string[formula.end() :])


def _unit(tail: str) -> str:
    words = after_number(tail)
    return rf"\text{{ {words}}}" if words else ""


def last_said(text: str) -> str | None:
    """Return what a text that marks no answer says last, with its unit, or None.

    It is all of the last line if that has no words, or the last formula or number.
    """
    text = answer_part(text)[-LONGEST_TEXT:].rstrip()
    line = text.rpartition("\n")[2]
    if line.strip(" .") in (r"\]", "$$") or re.fullmatch(
        r".*(?:\\end\{\w+\*?\})\s*(?:\\\]|\$\$)[ .]*", line
    ):
        display = deque(_DISPLAY.finditer(text), maxlen=1)
        if display and not denied(text[: display[0].start()]):
            return _with_unit(display[0])
    if _WORDLESS.fullmatch(line):
        answer, before = line.strip("> '\""), text[: -len(line)]
        return answer if _plausible(answer) and not denied(before) else None
    formula = deque(_FORMULA.finditer(text), maxlen=1)
    if formula and not re.search("[0-9]", text[formula[0].end() :]):
        return None if denied(text[: formula[0].start()]) else _with_unit(formula[0])
    return last_number(text)


def without_words(answer: str) -> str:
    """Return an answer without the words before its number, as in "clearly 12".

    Words that say otherwise stay, and keep the answer from being that number: not 12, half of 12.
    """
    led = _LED.fullmatch(answer)
    if led is None:
        return answer
    words = re.sub(r"\b(?:is|are|equals)\s*$", "", led[1])  # the total is 12
    if {*words_of(words.casefold())} & (OTHERWISE | TELLING):
        return answer
    return led[2]


def denied(before: str) -> bool:
    """Return whether the text before a number or a box denies it: not 12, x > 12, -\\boxed{12}."""
    return bool(_DENIED.search(before[-40:]) or _COMPARED.search(before[-40:]))


_TIMES_TEN = r"\s?(?:\\times|\\cdot|\u00d7|\*)\s?10\^\{?-?[0-9]+\}?"
_TOKEN = re.compile(
    r"\\[dtc]?frac\s?\{-?[0-9]+\}\{[0-9]+\}|"
    r"[0-9]+ [0-9]+/[0-9]+|"
    rf"(?:[0-9](?:[0-9.,/]|\{{,\}})*|\.[0-9]+)(?:{_TIMES_TEN}|[eE][-+]?[0-9]+)?"
)
_WHOLE_TOKEN = re.compile(
    r"\\.*|[0-9]+ [0-9]+/[0-9]+|"
    r"(?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?:\.[0-9]+)?|[0-9]*\.?[0-9]+(?:/[0-9]+)?)"
    rf"(?:{_TIMES_TEN}|[eE][-+]?[0-9]+)?"
)
_BEFORE = re.compile(rf"(?:^|[\s(\[=:~|>\"'$*`{_SCRIPT}])(-? ?\\?[$\u20ac\u00a3]? ?)$")
_OPERATOR_BEFORE = re.compile(
    r"[+/^_{\\\u00d7]$|(?<!\*)\*$|[A-Za-z0-9_)}]\*\*$|[0-9]:$|\\?(?:log|ln|sin|cos|tan|sqrt)$"
)
_TERM_BEFORE = re.compile(r"(?:[0-9)}]|\b[A-Za-z])\s*$")
_STUCK_AFTER = re.compile(
    r"(?!\\[%)\]$\\])(?!(?:(?:[cmk]?m|k?g|[mk]?l|ft)(?:[\u00b2\u00b3]|\b)"
    r"|(?:st|nd|rd|th)\b(?! (?:root|power))))"
    rf"(?![{_SCRIPT}])(?:[\w{{(\\]|!(?=\S)|\s*[+/^\u00d7<\u2264\u2265]|\s>|\s*\*(?!\*)|\*\*[a-z0-9]"
    r"|\s*-\s*[A-Za-z]\b|:[0-9])"
)


def last_number(text: str) -> str | None:
    """Return the last number of a response with its sign, currency and unit.

    Return None if there is none that stands alone: not the 3 of 2\\sqrt{3}, x + 3 or "not 3".
    """
    text = answer_part(text)[-LONGEST_TEXT:]
    tokens = deque(_TOKEN.finditer(text), maxlen=1)
    if not tokens or len(tokens[0][0]) > LONGEST_ANSWER:
        return None
    start, token = tokens[0].start(), tokens[0][0].rstrip(".,/")
    if not _WHOLE_TOKEN.fullmatch(token):  # a list without blanks: 3,5
        head, comma, token = token.rpartition(",")
        if not comma or not _WHOLE_TOKEN.fullmatch(token):
            return None
        return token
    head = text[max(0, start - 40) : start].replace("\N{MINUS SIGN}", "-")
    after = text[start + len(token) :]
    before = _BEFORE.search(head)
    if before is None or _STUCK_AFTER.match(after[:20]):
        return None
    sign = before[1].replace(" ", "")
    context = head[: before.start(1)].rstrip()
    if _OPERATOR_BEFORE.search(context) or ("-" in sign and _TERM_BEFORE.search(context)):
        return None
    return None if denied(head[: before.start(1)]) else sign + token + _unit(after)
