"""Explorers: controls over the package's functions, for a lesson that is open in JupyterLab.

One module a lesson, with two functions: `picture` goes from choices to HTML and knows of no widget,
`explore` puts controls above that picture. This module holds what they share: an `Explorer` draws
once for what changed together, and says in a sentence what cannot be drawn.
"""

import asyncio
import html
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets
import pandas as pd

PAUSE = 0.08  # seconds without a change before the picture is drawn again
REMARK = "Run the lesson in JupyterLab to move the controls."


class Explorer(ipywidgets.VBox):
    """Controls, and below them a picture that follows.

    Changes that come within `PAUSE` of each other, as from a key held down, are drawn once, and
    values that are those of the last picture are not drawn again. The picture is replaced in place:
    no output is cleared, so nothing flickers and nothing below it moves.

    Args:
        draw: takes the controls' values by name, gives HTML.
        controls: by name; any widget with a `value`.
        adjust: called with the controls when one has changed, to change what depends on it.
    """

    def __init__(
        self,
        draw: Callable[..., str],
        controls: Mapping[str, ipywidgets.ValueWidget],
        adjust: Callable[[Mapping[str, ipywidgets.ValueWidget]], None] = lambda _: None,
    ):
        self.controls = dict(controls)
        self.error = ""  # why there is no picture of these choices
        self._draw, self._adjust = draw, adjust
        self._drawn: dict[str, Any] | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._picture = ipywidgets.HTML()
        adjust(self.controls)
        for control in self.controls.values():
            control.style.description_width = "initial"
            control.observe(self._changed, names="value")
        wrapped = ipywidgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="0 16px")
        bar = ipywidgets.Box(list(self.controls.values()), layout=wrapped)
        super().__init__([bar, self._picture])
        self.redraw()

    @property
    def choices(self) -> dict[str, Any]:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def page(self) -> str:
        """The picture as it stands, HTML."""
        return self._picture.value

    def show(self) -> None:
        """Display the picture, which every page keeps, and below it the controls with theirs."""
        from IPython.display import HTML, display

        display(HTML(self.page))
        display(self)

    def redraw(self) -> None:
        """Draw the choices, unless it is those that are shown."""
        self._waiting, choices = None, self.choices
        if choices == self._drawn:
            return
        self._drawn, self.error = choices, ""
        try:
            page = self._draw(**choices)
        except Exception as error:  # a widget has no other place to say what went wrong
            self.error = sentence(error)
            page = f'<p role="alert"><b>No picture of this:</b> {html.escape(self.error)}</p>'
        self._picture.value = page

    def _changed(self, _):
        self._adjust(self.controls)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # outside of a kernel nothing else can come in
            self.redraw()
            return
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = loop.call_later(PAUSE, self.redraw)

    def __repr__(self):
        return REMARK  # what is left of the widget where there is no kernel


def sentence(error: Exception) -> str:
    """What an exception says, as a sentence; one that was not meant for readers with its type."""
    text = " ".join(str(error).split())
    if not isinstance(error, ValueError) or not text:
        text = f"{type(error).__name__}: {text}".rstrip(": ")
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def table(frame: pd.DataFrame) -> str:
    """A table as HTML that is readable where no style sheet of a page reaches."""
    cell = r'<\1 style="padding:0.15em 0.8em;text-align:right"\2'
    return re.sub(r"<(t[hd])( |>)", cell, frame.to_html(border=0))


def paragraph(text: str) -> str:
    """A line of text as HTML."""
    return f'<p style="max-width:800px">{html.escape(text)}</p>'


def checkbox(label: str, value: bool) -> ipywidgets.Checkbox:
    """A tick box with its label beside it."""
    layout = ipywidgets.Layout(width="auto")
    return ipywidgets.Checkbox(value=value, description=label, indent=False, layout=layout)


def dropdown(label: str, options: Iterable, value: Any) -> ipywidgets.Dropdown:
    """A list to choose one from."""
    layout = ipywidgets.Layout(width="auto")
    return ipywidgets.Dropdown(options=list(options), value=value, description=label, layout=layout)


def steps(label: str, numbers: Iterable[int], value: int) -> ipywidgets.SelectionSlider:
    """A slider over some numbers, `value` among them whether it is one of them or not."""
    return ipywidgets.SelectionSlider(
        options=[(f"{number:,}", number) for number in sorted({*numbers, value})],
        value=value,
        description=label,
        continuous_update=False,
        layout=ipywidgets.Layout(width="380px"),
    )


def several(label: str, options: Iterable[str], values: Iterable[str]) -> ipywidgets.SelectMultiple:
    """A list to choose any number from."""
    options = list(options)
    return ipywidgets.SelectMultiple(
        options=options,
        value=[option for option in options if option in set(values)],
        rows=max(2, len(options)),
        description=label,
        layout=ipywidgets.Layout(width="auto", min_width="240px"),
    )
