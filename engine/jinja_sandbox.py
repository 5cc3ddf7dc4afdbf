"""The sandbox in which chat templates run: what Hugging Face transformers gives them, closed the same way.

trim_blocks and lstrip_blocks, loop controls, the `generation` tag, `tojson` as plain JSON, `from_json`,
`raise_exception`, `strftime_now`, a `namespace` without private names. Values of the caller can't be changed, as in
the immutable sandbox; only lists that the template itself made can, since Kimi K2's templates keep a queue in one:
the caller's lists are GivenList, and `messages.append(x)` is refused.
Concatenation, macros, blocks and `join` keep MarkedText marked. Holds no state: one environment serves all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
from jinja2.filters import do_map
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from .marked_text import MarkedText, join_marked, private_characters

_NOT_ASCII = re.compile("[^\x00-\x7f\U000f0000-\U0010ffff]+")


class GivenList(list[Any]):
    """A list of the caller's, which a template may only read."""


class GivenDict(dict[str, Any]):
    """An object of the caller's, which a template may only read."""


def given(value: Any, mark: Callable[[str], str]) -> Any:
    """A copy of JSON-like data for a template, with `mark` applied to every string.

    Raises: TypeError for anything that JSON has no form for.
    """
    if isinstance(value, str):
        return mark(str(value))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return GivenDict((mark(str(key)), given(item, mark)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return GivenList(given(item, mark) for item in value)
    raise TypeError(f"a value of type {type(value).__name__} is neither text, number, list nor object")


class Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that refuses names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a name in the namespace
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace name {name!r}: a leading underscore is not allowed")


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _JoinInsteadOfConcat(NodeTransformer):
    """Turns `a ~ b` into `[a, b]|join`, whose filter we own."""

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        pieces = jinja2.nodes.List(node.nodes, lineno=node.lineno)
        return jinja2.nodes.Filter(pieces, "join", [], [], None, None, lineno=node.lineno)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that compiles and runs chat templates."""

    concat = staticmethod(join_marked)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag]
        )
        self.filters |= {"tojson": _tojson, "from_json": _from_json, "join": _join, "safe": _safe}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": Namespace,
            "dict": _dict,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute: no private ones, no changes but to its own lists."""
        if type(obj) is list and attr in ("append", "extend", "insert", "pop", "remove", "clear"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _JoinInsteadOfConcat().visit(super()._parse(source, name, filename))
        return tree


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _listed(value: Any) -> list[Any]:
    """What `map` and `select` give is a list that has not been made yet."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )
    if ensure_ascii:  # twins must stay: they turn back into ASCII
        text = _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return join_marked([text], _first_marked(value)) if private_characters(text) else text


def _first_marked(value: Any) -> str:
    """A marked text in the value, or an empty one."""
    if isinstance(value, MarkedText):
        return value
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    found = map(_first_marked, items) if isinstance(items, (list, tuple)) else iter(())
    return next((text for text in found if text), "")


def _safe(value: object) -> Markup:
    return Markup(str.__str__(str(value)))


def _from_json(text: str) -> Any:
    if isinstance(text, MarkedText):
        marks = text._marks
        return given(json.loads(marks.restore(text)), marks.mark)
    return json.loads(text)


@jinja2.pass_context
def _join(
    context: jinja2.runtime.Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    items = value if attribute is None else do_map(context, value, attribute=attribute)  # type: ignore[arg-type]
    return join_marked(items, str(d))
