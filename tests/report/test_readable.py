import html

from markupsafe import Markup

from mugrpo.report.figures import part
from mugrpo.report.readable import cut, duration, plain, size_text, with_signs
from tests.cases import table
from tests.report.synthetic import HOSTILE


@table(
    ("form", "given", "shown"),
    [
        (plain, None, "\u2013"),
        (plain, 0, "0"),
        (plain, 0.97656, "0.977"),
        (plain, 12345.6, "12,346"),
        (plain, -0.5, "\u22120.5"),
        (plain, 2e-4, "2\u00d710\u207b\u2074"),
        (plain, 1e12, "10\u00b9\u00b2"),
        (duration, 0, "0 s"),
        (duration, 0.0847, "85 ms"),
        (duration, 3.24, "3.2 s"),
        (duration, 59.97, "1:00"),
        (duration, 125, "2:05"),
        (duration, 3725, "1:02:05"),
        (size_text, 999, "999 B"),
        (size_text, 1000, "1.0 kB"),
        (size_text, 999_600, "1.0 MB"),
        (size_text, 5_940_000_000, "5.9 GB"),
        (size_text, 24_000_000_000, "24 GB"),
        (with_signs, "text, ünïcode, 数学, \U0001f600", "text, ünïcode, 数学, \U0001f600"),
        (with_signs, "a\nb\tc", "a\nb\tc"),
        (with_signs, "\x00\x1b\r\x7f", "␀␛␍␡"),
        (with_signs, "\x85", "⟨U+0085⟩"),
        (with_signs, "a\u202eb\u2066c", "a⟨U+202E⟩b⟨U+2066⟩c"),
        (with_signs, "\ud800 \udfff", "⟨U+D800⟩ ⟨U+DFFF⟩"),
        (with_signs, "\u2028\u200b\ufeff", "⟨U+2028⟩⟨U+200B⟩⟨U+FEFF⟩"),
        (with_signs, "\ufffe\U0001ffff", "⟨U+FFFE⟩⟨U+1FFFF⟩"),
    ],
)
def test_numbers_durations_and_invisible_characters_are_readable(form, given, shown):
    assert form(given) == shown


def test_a_cut_says_how_much_there_was():
    assert cut("abc", 3) == ("abc", None)
    assert cut("a" * 2000, 1000) == ("a" * 1000, "cut: 1,000 of 2,000 characters shown")


def test_hostile_text_becomes_text_markup_stays_and_nothing_is_empty():
    safe = part("paragraph", HOSTILE)
    assert html.unescape(safe) == f"<p>{with_signs(HOSTILE)}</p>"
    assert not set("\"'\x00\u202e") & set(safe) and safe.count("<") == 2
    assert part("paragraph", Markup("<b>")) == "<p><b></p>"
    assert part("section", "t", None, "") == ""
    assert part("section", "t", "x", None) == "<section><h2>t</h2>\nx</section>"
