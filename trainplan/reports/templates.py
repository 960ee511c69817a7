"""The templates of pages: read from this package's files, with filters that format times, bytes and shares."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from trainplan.formulations.plan.strategy_words import in_words
from trainplan.planning.proof import status_text
from trainplan.profiling.base.quantities import format_bytes, format_time


def template(name: str) -> Template:
    """The Jinja template in a file of this package's folder. name: the file's name, such as page.html. What the template fills
    in is escaped for HTML, unless it is Markup."""
    environment = Environment(
        loader=FunctionLoader(text_of), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(time=format_time, bytes=format_bytes, share="{:.1%}".format)
    environment.filters.update(excess="{:+.2%}".format, status=status_text, words=in_words)
    return environment.get_template(name)


def text_of(name: str) -> str:
    """The text of a file in this package's folder, such as a page's style sheet."""
    return (files(__package__) / name).read_text("utf-8")
