import html

import pytest
from markupsafe import Markup

from mugrpo.report.figures import part
from mugrpo.report.readable import cut, duration, plain, with_signs
from tests.report.synthetic import HOSTILE


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "\u2013"),
        (0, "0"),
        (0.97656, "0.977"),
        (12345.6, "12,346"),
        (-0.5, "\u22120.5"),
        (2e-4, "2\u00d710\u207b\u2074"),
        (1e12, "10\u00b9\u00b2"),
    ],
)
def test_numbers_read_plainly(value, shown):
    assert plain(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0847, "85 ms"),
        (3.24, "3.2 s"),
        (59.97, "1:00"),
        (125, "2:05"),
        (3725, "1:02:05"),
    ],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


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
    assert with_signs(given) == seen


def test_a_cut_says_how_much_there_was():
    assert cut("abc", 3) == ("abc", None)
    assert cut("a" * 2000, 1000) == ("a" * 1000, "cut: 1,000 of 2,000 characters shown")


def test_hostile_text_becomes_text_and_markup_stays():
    safe = part("paragraph", HOSTILE)
    assert html.unescape(safe) == f"<p>{with_signs(HOSTILE)}</p>"
    assert not set("\"'\x00\u202e") & set(safe) and safe.count("<") == 2
    assert part("paragraph", Markup("<b>")) == "<p><b></p>"


def test_a_section_without_content_is_empty():
    assert part("section", "t", None, "") == ""
    assert part("section", "t", "x", None) == "<section><h2>t</h2>\nx</section>"
