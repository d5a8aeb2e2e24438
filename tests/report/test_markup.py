from __future__ import annotations

import html

import pytest

from mugrpo.report.markup import Markup, cut, join, section, table, tag, text, visible
from tests.report.synthetic import HOSTILE


def test_children_and_attributes_are_escaped_and_markup_is_not():
    inner = tag("b", "1 < 2 & 3")
    assert inner == "<b>1 &lt; 2 &amp; 3</b>"
    assert tag("p", inner, class_='a"b') == f'<p class="a&quot;b">{inner}</p>'


def test_none_is_left_out():
    assert tag("p", None, "x", title=None) == "<p>x</p>"
    assert join(["a", None, "b"], ", ") == "a, b"


def test_names_of_attributes():
    assert tag("svg", aria_label="a", class_="b", viewBox="0 0 1 1") == (
        '<svg aria-label="a" class="b" viewBox="0 0 1 1"></svg>'
    )


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("plain text, ünïcode, 数学, \U0001f600", "plain text, ünïcode, 数学, \U0001f600"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x00\x1b\r\x7f", "␀␛␍␡"),
        ("\x85", "⟨U+0085⟩"),
        ("a\u202eb\u2066c", "a⟨U+202E⟩b⟨U+2066⟩c"),
        ("\ud800 \udfff", "⟨U+D800⟩ ⟨U+DFFF⟩"),
        ("\u2028\u200b\ufeff", "⟨U+2028⟩⟨U+200B⟩⟨U+FEFF⟩"),
        ("\ufffe\U0001ffff", "⟨U+FFFE⟩⟨U+1FFFF⟩"),
    ],
)
def test_invisible_characters_are_shown(given, seen):
    assert visible(given) == seen


def test_hostile_text_becomes_text():
    safe = text(HOSTILE)
    assert not set("<>\"'\x00\u202e") & set(safe)
    assert html.unescape(safe) == visible(HOSTILE)
    assert text(safe) is safe and isinstance(safe, Markup)
    safe.encode("utf-8")


def test_a_cut_says_how_much_there_was():
    assert cut("abc", 3) == ("abc", None)
    assert cut("a" * 2000, 1000) == ("a" * 1000, "cut: 1,000 of 2,000 characters shown")


def test_a_table_has_a_head_and_a_section_without_content_is_none():
    assert table(["a"], [["<"]]) == (
        '<div class="scroll"><table><thead><tr><th scope="col">a</th></tr></thead>'
        "<tbody><tr><td>&lt;</td></tr></tbody></table></div>"
    )
    assert section("t", None, "") is None
    assert section("t", "x", None) == "<section><h2>t</h2>x</section>"
