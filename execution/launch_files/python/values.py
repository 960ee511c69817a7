"""Values of expressions of a Python file, found in its syntax tree; the file is never run or imported.

    cfg = llama3_8b_pretrain_config()            ConstructedObject("..llama3_8b_pretrain_config")
    cfg.model.tensor_model_parallel_size = 2     its field model, whose tensor_model_parallel_size is 2, at line 2
    cfg.train.global_batch_size = 8 * nodes      UnreadExpression("8 * nodes") if `nodes` has no value

Literals, names, arithmetic, comparisons, `if` with a known condition, loops over known values, functions of the file itself,
the defaults of argparse and of `os.environ.get` are evaluated. A call of anything else is an object with the call's name and
the arguments as fields. All other expressions are unread, and so is all that an undecided condition or loop would assign.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

from trainplan.execution.launch_files.python.objects import ConstructedObject, Symbol, UnreadExpression
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.families.fields import names

LONGEST = 10_000
BINARY: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
COMPARED: dict[type, Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
PLAIN = (int, float, str, bool, type(None), list, tuple, dict)
BUILTINS = {function.__name__: function for function in (int, float, str, bool, len, max, min, list, tuple)}
# What may be called with an object and leaves it as it is, by the last part of its name.
HARMLESS = names(
    """
    print pprint len isinstance hasattr repr str type dir id deepcopy asdict validate print_yaml to_yaml to_dict info debug
    warning pretrain finetune train run main launch exit decoder_vocab_size to_megatron_provider finalize
    """
)
UNCHANGING = ("keys", "values", "items", "copy", "index", "count", "format", "join")  # of plain values
VIEWS: dict[str, Any] = {"keys": dict.keys, "values": dict.values, "items": dict.items}
COPIES = ("copy.deepcopy", "deepcopy")


HIDING = ("exec", "eval", "globals", "locals")
OUTER = "<outer>"  # of a scope: that of the function around
# Expressions all of whose parts are followed.
FOLLOWED = (
    ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.JoinedStr, ast.List, ast.Tuple,
    ast.Set, ast.NamedExpr,
)  # fmt: skip
Scope = dict[str, Any]


class Expressions:
    """The values of the expressions of a Python file, found in its syntax tree without running it. A value is a plain value, a
    Symbol (a name that the file does not define, such as `torch.bfloat16`), a ConstructedObject (the result of a call of
    unknown code), or an UnreadExpression ("unread": not known without running the file).

    where: the file. variables: values by name that the user gives; they replace the file's own. functions: definitions of the
    file's functions by name. classes: names of the classes that the file defines. values: the values of the file's global
    names. objects: all objects that calls have made, in the order of the calls. In methods, node and target are parts of the
    file's syntax tree, and scope holds the values of names in one function call or, at the top, in the file; it refers to the
    scope around it.
    """

    def __init__(self, where: str, variables: Mapping[str, str]) -> None:
        self.where, self.variables = where, {name: literal(text) for name, text in variables.items()}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.classes: set[str] = set()
        self.values: Scope = {"__name__": "__main__"}
        self.objects: list[ConstructedObject] = []

    def usual(self, name: str) -> Mapping[str, Any]:
        """Default values of the object that a call without arguments makes, by section and field; empty here, since
        subclasses know them. name: the name of the function or class that is called."""
        return {}

    def assign(self, target: ast.AST, value: Any, scope: Scope) -> None:
        """Assign a value to the target of an assignment in the followed file: a name, an attribute, an item, or a tuple of
        these. scope: the values of names, which are changed. Subclasses implement it."""
        raise NotImplementedError

    def enter(self, function: ast.FunctionDef, given: ConstructedObject, node: ast.AST) -> Any:
        """Follow a call of a function that the file defines, and give the value that it returns; nothing is run. given: the
        call's arguments, as the fields of an object. node: the call, for its line. Subclasses implement it."""
        raise NotImplementedError

    def value(self, node: ast.AST, scope: Scope) -> Any:
        """The value of an expression of the followed file: a plain value, a Symbol, a ConstructedObject or, if it is not
        known, an UnreadExpression that lists the objects it may contain."""
        value = self._value(node, scope)
        if isinstance(value, UnreadExpression) and not isinstance(node, FOLLOWED):
            self.maybe_called(node, scope)
        if not isinstance(value, UnreadExpression) or value.held or value.plain:
            return value
        return replace(value, held=self.held(node, scope))

    def held(self, node: ast.AST, scope: Scope) -> tuple[ConstructedObject, ...]:
        """The objects that the names in an expression or a statement refer to or may refer to, each of them once. node: the
        expression or statement."""
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        return self.held_in([self.look(name, scope) for name in names])

    def held_in(self, value: Any) -> tuple[ConstructedObject, ...]:
        """The objects that a value is, may be, or contains, each of them once: the value itself, elements of lists and
        dicts, and objects that an unread expression may contain."""
        values = [value]
        for value in values:
            if isinstance(value, list | tuple | dict) and len(values) < LONGEST:
                values += value.values() if isinstance(value, dict) else value
        held = [
            held_value for value in values for held_value in (value.held if isinstance(value, UnreadExpression) else (value,))
        ]
        return tuple({id(held_value): held_value for held_value in held if isinstance(held_value, ConstructedObject)}.values())

    def look(self, name: str, scope: Scope, otherwise: Any = None) -> Any:
        """The value of a name in the followed file: in the function of this scope, in the functions around it, or in the
        file. otherwise: the result if the name has no value."""
        level: Scope | None = scope
        while level is not None:
            if name in level:
                return level[name]
            level = level.get(OUTER)
        return self.values.get(name, otherwise)

    def maybe_called(self, node: ast.AST, scope: Scope) -> None:
        """Mark the objects that are used in calls within a part of the file as possibly changed, because these calls may or
        may not be made. node: the part of the file."""
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                self.change(list(self.held(call, scope)), call)

    def _value(self, node: ast.AST, scope: Scope) -> Any:
        """The value of an expression by the kind of its syntax node. If it is not known, the result is an UnreadExpression
        without the objects that it may contain, which the caller adds."""
        match node:
            case ast.Constant():
                return node.value if isinstance(node.value, PLAIN) else unread(node)
            case ast.Name():
                return self._name(node, scope)
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.List() | ast.Tuple() | ast.Set():
                items = [self.value(elt, scope) for elt in node.elts]
                return tuple(items) if isinstance(node, ast.Tuple) else items
            case ast.Dict():
                if all(isinstance(key, ast.Constant) for key in node.keys):
                    return {key.value: self.value(value, scope) for key, value in zip(node.keys, node.values, strict=True)}  # type: ignore[union-attr]
                return unread(node)
            case ast.UnaryOp(op=ast.USub()):
                value = self.value(node.operand, scope)
                return -value if isinstance(value, int | float) else unread(node)
            case ast.UnaryOp(op=ast.Not()):
                truth = self.truth(self.value(node.operand, scope))
                return unread(node) if truth is None else not truth
            case ast.BinOp():
                return self._computed(node, scope)
            case ast.BoolOp():
                return self._either(node, scope)
            case ast.Compare() if len(node.ops) == 1:
                return self._compared(node, scope)
            case ast.IfExp():
                truth = self.truth(self.value(node.test, scope))
                return unread(node) if truth is None else self.value(node.body if truth else node.orelse, scope)
            case ast.JoinedStr():
                parts = [
                    self.value(part.value if isinstance(part, ast.FormattedValue) else part, scope) for part in node.values
                ]
                known = all(isinstance(part, str | int | float) for part in parts)
                return "".join(map(str, parts)) if known else unread(node)
            case ast.Subscript():
                base, key = self.value(node.value, scope), self.value(node.slice, scope)
                if isinstance(base, Symbol) and base == "os.environ" and isinstance(key, str):
                    return self.variables.get(key, unread(node))
                try:
                    return base[key] if isinstance(base, dict | list | tuple) else unread(node)
                except (LookupError, TypeError):
                    return unread(node)
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.assign(node.target, value, scope)
                return value
            case ast.Call():
                return self._called(node, scope)
            case _:
                return unread(node)

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        """The value of a name in the followed Python file: a Symbol for functions, classes and builtins, an UnreadExpression
        if the name has no known value."""
        found = self.look(node.id, scope, self)
        if found is not self:
            return found
        if node.id in self.functions or node.id in BUILTINS or node.id in self.classes:
            return Symbol(node.id)
        return self.variables.get(node.id, unread(node))

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        """The value of `object.attribute` in the followed Python file; an UnreadExpression if the object is unknown."""
        base = self.value(node.value, scope)
        if isinstance(base, Symbol):
            return Symbol(f"{base}.{node.attr}")
        if not isinstance(base, ConstructedObject):
            return unread(node)
        return self.part(base, node.attr, node.lineno)

    def part(self, of: ConstructedObject, name: str, line: int) -> Any:
        """The value of a field of an object. of: the object. name: the field's name. line: where the file reads it. A field
        that nothing has set has its default value if that is known; otherwise it becomes an implied object of its own, which
        is added to the fields."""
        if name.startswith("__"):
            of.changed.append(UnreadExpression(name, line))
        if name not in of.fields:
            usual = of.usual.get(name, {})
            if not isinstance(usual, Mapping):
                return usual
            of.fields[name], of.lines[name] = ConstructedObject("", line, implied=True, usual=usual), line
        return of.fields[name]

    def _computed(self, node: ast.BinOp, scope: Scope) -> Any:
        """The result of a binary operation such as `8 * nodes` in the followed Python file: arithmetic on known numbers, or
        concatenation or repetition of known lists, or concatenation of texts; otherwise an UnreadExpression."""
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(node.op, ast.Mult) and {type(left), type(right)} == {list, int}:
            items, count = (left, right) if isinstance(left, list) else (right, left)
            return items * count if len(items) * count <= LONGEST else unread(node)
        numbers = all(isinstance(operand, int | float) and abs(operand) < 2**63 for operand in (left, right))
        lists = all(isinstance(operand, list) for operand in (left, right)) or all(
            type(operand) is str for operand in (left, right)
        )
        if type(node.op) not in BINARY or not (numbers or (lists and isinstance(node.op, ast.Add))):
            power = isinstance(node.op, ast.Pow) and numbers and abs(right) <= 64 and abs(left) <= 1024
            return left**right if power and left else unread(node)
        try:
            result = BINARY[type(node.op)](left, right)
        except (ArithmeticError, ValueError):
            return unread(node)
        return result if numbers or len(result) <= LONGEST else unread(node)

    def _either(self, node: ast.BoolOp, scope: Scope) -> Any:
        """The value of an `and` or `or` expression in the followed Python file; an UnreadExpression if it is not known
        whether an operand counts as true."""
        for operand in node.values:
            value = self.value(operand, scope)
            truth = self.truth(value)
            if truth is None or truth is isinstance(node.op, ast.Or):
                return unread(node) if truth is None else value
        return value

    def _compared(self, node: ast.Compare, scope: Scope) -> Any:
        """The result of a comparison in the followed Python file: a bool for known values and for an object compared with
        None; otherwise an UnreadExpression."""
        left, right, kind = self.value(node.left, scope), self.value(node.comparators[0], scope), type(node.ops[0])
        if not all(isinstance(operand, PLAIN) for operand in (left, right)):
            result = [isinstance(operand, ConstructedObject) and not operand.implied for operand in (left, right)]
            if any(result) and None in (left, right) and kind in (ast.Is, ast.IsNot):
                return kind is ast.IsNot
            return unread(node)
        try:
            if kind in COMPARED:
                return bool(COMPARED[kind](left, right))
            return (left in right) is (kind is ast.In)
        except TypeError:
            return unread(node)

    def truth(self, value: Any) -> bool | None:
        """Whether a value of the followed file counts as true, as in an `if`; None if that is not known."""
        if isinstance(value, Symbol) or not isinstance(value, PLAIN):
            return True if isinstance(value, ConstructedObject) and not value.implied and not value.fields else None
        return bool(value)

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        """The result of a call in the followed Python file: a value for functions of the file and some builtins, otherwise a
        ConstructedObject with the arguments as fields. Raises InputError for functions such as `exec`, which hide values."""
        function = self._method(node, scope) if isinstance(node.func, ast.Attribute) else self.value(node.func, scope)
        if isinstance(node.func, ast.Name) and isinstance(function, UnreadExpression) and node.func.id not in scope:
            function = Symbol(node.func.id)  # of an import of everything
        if not isinstance(function, Symbol) and isinstance(node.func, ast.Attribute):
            return function
        given = self._arguments(node, scope)
        if not isinstance(function, Symbol):  # which may be a lambda, with objects of its own
            self.change([function, *given.passed], node, "a function")
            return unread(node)
        if function in HIDING:
            raise InputError(f"{self.where}:{node.lineno}", "", f"calls {function}", "give a file that writes its values out")
        plain: list[Any] = [
            value for value in given.fields.values() if isinstance(value, PLAIN) and not isinstance(value, Symbol)
        ]
        name, known = function.rpartition(".")[2], len(plain) == len(given.fields)
        if function in ("os.environ.get", "os.getenv") and isinstance(key := given.fields.get("0"), str):
            return self.variables.get(key, given.fields.get("1", given.fields.get("default", unread(node))))
        if function == "range" and known and all(isinstance(number, int) for number in plain) and 1 <= len(plain) <= 3:
            return range(*plain) if 0 not in plain[2:] else unread(node)
        if function == "dict" and "**" not in given.fields and "0" not in given.fields:
            return dict(given.fields)
        if function in BUILTINS and function not in self.functions:
            number = function in ("int", "float", "str", "bool", "len")
            try:
                return BUILTINS[function](*plain) if known else replace(unread(node), plain=number)
            except (TypeError, ValueError, OverflowError):
                return replace(unread(node), plain=number)
        if name == "cast" and len(given.fields) == 2:
            return given.fields.get("1", unread(node))
        if function in COPIES and isinstance(first := given.fields.get("0"), ConstructedObject):
            self.objects.append(deepcopy(first))
            return self.objects[-1]
        of, part = given.fields.get("0"), given.fields.get("1")
        if function in ("getattr", "setattr") and isinstance(of, ConstructedObject) and type(part) is str:
            if function == "getattr":
                return self.part(of, part, node.lineno)
            of.fields[part], of.lines[part] = given.fields.get("2", unread(node)), node.lineno
            return None
        if function in self.functions:
            return self.enter(self.functions[function], given, node)
        wraps = name == "partial" or (name in ("Partial", "Config") and function.split(".")[0] in ("run", "nemo_run"))
        if wraps and isinstance(first := given.fields.get("0"), Symbol):
            function = first
            del given.fields["0"]
        self.change(given.passed, node, name)
        given.name = str(function)
        if not given.fields:
            given.usual = self.usual(name)
        self.objects.append(given)
        return given

    def _method(self, node: ast.Call, scope: Scope) -> Any:
        """Evaluate `object.method(..)` in the followed file. If the object is a Symbol, the result is the Symbol of the
        method, and the caller makes the call; if it is a known value or object, the result is that of the call."""
        assert isinstance(node.func, ast.Attribute)
        base, name = self.value(node.func.value, scope), node.func.attr
        if isinstance(base, Symbol):
            return Symbol(f"{base}.{name}")
        if isinstance(base, ConstructedObject) and name == "add_argument":
            given = self._arguments(node, scope)
            flags = [value for key, value in given.fields.items() if key.isdecimal() and isinstance(value, str)]
            names = [flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--") or not flag.startswith("-")]
            if names:
                default = given.fields.get("default", False if "store_true" in given.fields.values() else unread(node))
                destination = str(given.fields.get("dest", names[0]))
                base.fields.setdefault("arguments", {})[destination] = self.variables.get(destination, default)
            return None
        if isinstance(base, ConstructedObject) and name in ("parse_args", "parse_known_args"):
            arguments = ConstructedObject(name, node.lineno, dict(base.fields.get("arguments", {})))
            return arguments if name == "parse_args" else (arguments, unread(node))
        given = self._arguments(node, scope)
        if isinstance(base, dict) and name == "get" and isinstance(key := given.fields.get("0"), str | int):
            return base.get(key, given.fields.get("1"))
        if isinstance(base, dict) and name == "update" and list(given.fields) == ["0"] and isinstance(given.fields["0"], dict):
            base |= given.fields["0"]
            return None
        if isinstance(base, list) and name == "append" and len(base) < LONGEST:
            base += list(given.fields.values())
            return None
        if isinstance(base, dict) and name in VIEWS and not node.args and "**" not in base:
            return list(VIEWS[name](base))
        if isinstance(base, dict | list | str) and name in UNCHANGING:
            return unread(node)
        self.change([base, *given.passed], node, name)
        if isinstance(base, ConstructedObject):
            given.name = f"{base.name}.{name}"
            given.fields["of"] = base
            self.objects.append(given)
            return given
        return unread(node)

    def _arguments(self, node: ast.Call, scope: Scope) -> ConstructedObject:
        """The evaluated arguments of a call, as the fields of an object without a name: by keyword, or "0", "1" and so on
        for positional arguments; "**" for arguments whose names are not known."""
        given = ConstructedObject("", node.lineno)

        def take(name: str, value: Any, line: int) -> None:
            given.passed.append(value)
            given.fields[name], given.lines[name] = (copy(value) if isinstance(value, list | dict) else value), line

        for index, arg in enumerate(node.args):
            take("**" if isinstance(arg, ast.Starred) else str(index), self.value(arg, scope), arg.lineno)
        for pair in node.keywords:
            value, line = self.value(pair.value, scope), pair.value.lineno
            if pair.arg is not None:
                take(pair.arg, value, line)
            elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
                for key, inner in value.items():
                    take(key, inner, line)
            else:
                take("**", unread(pair.value), line)
        return given

    def change(self, values: Sequence[Any], node: ast.AST, name: str = "") -> None:
        """Record that values are given to a call that may change them, so that the fields of objects among them are no
        longer certain. values: the values. node: the call. name: the called function's name; empty if it is to be taken from
        the call. Functions that are known to change nothing have no effect."""
        called = name or (ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else "")
        own = called in self.classes or any(
            isinstance(value, ConstructedObject) and value.name in self.classes for value in values
        )
        holds = called[:1].isupper() or called.endswith("_pretrain_config")  # a class or a recipe, whose object holds them
        if not own and (called in HARMLESS or holds):
            return
        for value in values:
            for held_value in value.held if isinstance(value, UnreadExpression) else (value,):
                if isinstance(held_value, ConstructedObject):
                    held_value.changed.append(unread(node))
            if isinstance(value, ConstructedObject | UnreadExpression):
                continue
            if isinstance(value, dict):
                value |= dict.fromkeys(value, unread(node)) | {"**": unread(node)}
            elif isinstance(value, list):
                value[:] = [unread(node)]


def unread(node: ast.AST) -> UnreadExpression:
    """An UnreadExpression for a part of the file whose value is not known; it keeps the part's text and line. node: the part
    of the file."""
    text = ast.unparse(node) if not isinstance(node, ast.Try) else "an exception"
    return UnreadExpression(shown(text.split("\n")[0]).strip("'\""), getattr(node, "lineno", 0))


def loaded(target: ast.AST) -> ast.expr:
    """The target of an assignment as an expression that reads it, as `x += 1` reads `x` before it assigns it."""
    result = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(result, target)


def literal(text: str) -> Any:
    """The value that the text VALUE of an option `--set NAME=VALUE` stands for: the value of a Python literal ("8" -> 8, "[1,
    2]" -> [1, 2]), or the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
