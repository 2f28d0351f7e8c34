"""The app's colours, and the styles of its kinds of text. Each kind is told by a word or a sign too."""

from __future__ import annotations

from rich.style import Style
from textual.theme import Theme

THEME = Theme(
    name="labassist",
    primary="#5fafff",
    secondary="#87afd7",
    accent="#d787d7",
    success="#87d787",
    warning="#ffd75f",
    error="#ff8787",
    foreground="#d0d0d0",
    background="#121212",
    surface="#1c1c1c",
    panel="#262626",
    dark=True,
    variables={"line": "#4e4e4e"},
)

# Not component classes: those would be matched for every widget at every start.
STYLES = {
    "plain": Style(),
    "dim": Style(color="#9e9e9e"),
    "strong": Style(bold=True),
    "good": Style(color="#87d787", bold=True),
    "warn": Style(color="#ffd75f", bold=True),
    "bad": Style(color="#ff8787", bold=True),
    "code": Style(color="#87afd7"),
    "key": Style(color="#5fafff", bold=True),
    "head": Style(color="#9e9e9e", bold=True),
}
"""Kind of a text -> what is laid over the widget's own style."""

HERE = Style(bgcolor="#2b3f55", bold=True)
"""Over the highlighted row, which has a sign before it too."""
