"""Evaluates a Python file statement by statement without running it: which objects it has at its end."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.python.objects import ConstructedObject, Symbol
from trainplan.execution.launch_files.python.values import OUTER, Expressions, Scope, loaded, unread
from trainplan.profiling.base.errors import InputError

# Decorators that leave what a function gives back as it is.
DECORATORS = ("cache", "lru_cache", "staticmethod", "factory", "record", "main", "no_grad", "inference_mode", "override")
MOST_BYTES, MOST_STEPS, DEEPEST, MOST_ITEMS = 2**20, 20_000, 20, 100


class _Returned(Exception):
    """Raised when a function of the followed file returns, to leave its statements; it carries the returned value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Program(Expressions):
    """A Python file that configures a run, evaluated from its first statement to the last without running or importing it:
    known values are computed, and everything else is an UnreadExpression ("unread").

    variables: values by name that the user gives; they replace the values that the file assigns. In methods, node, body and
    target are parts of the file's syntax tree, and scope holds the values of names in one function call or, at the top, in the
    file.
    """

    def __init__(self, path: Path, variables: Mapping[str, str]) -> None:
        """Evaluates the file. Raises InputError if it is no Python."""
        super().__init__(str(path), variables)
        self._steps = self._depth = 0
        self._outer: dict[str, Scope | None] = {}
        try:
            if path.stat().st_size > MOST_BYTES:
                raise InputError(self.where, "", "is larger than 1 MiB", "give the file that configures the run")
            self.tree = ast.parse(path.read_text())
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(self.where, "", f"is no Python that can be read ({error})", "give a Python file") from None
        self.functions |= {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        self._guarded(lambda: self._block(self.tree.body, self.values))

    def call(self, name: str) -> Any:
        """Follow a function of the file as if called without arguments, and give the value that it returns. name: the
        function's name. Raises InputError if the file cannot be followed."""
        return self._guarded(lambda: self.enter(self.functions[name], ConstructedObject(name, 0), self.functions[name]))

    def _guarded(self, what: Any) -> Any:
        """Call a function that evaluates statements of the followed file, and give its result, or the returned value if the
        statements end with `return`. what: the function, without arguments. Raises InputError if the file is nested too
        deeply."""
        try:
            return what()
        except _Returned as returned:
            return returned.value
        except RecursionError:
            raise InputError(self.where, "", "is nested too deeply", "give a plainer file") from None

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Evaluate statements of the followed Python file in order. scope: the values of names so far, which assignments
        change."""
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        """Evaluate one statement of the followed Python file. scope: the values of names so far, which assignments change.
        Raises InputError after too many statements, and an internal exception that carries the returned value at a `return`."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise InputError(self.where, "", f"takes more than {MOST_STEPS} steps", "give a plainer file")
        match node:
            case ast.Assign():
                value = self.value(node.value, scope)
                for target in node.targets:
                    self.assign(target, value, scope)
            case ast.AnnAssign(value=given) if given is not None:
                self.assign(node.target, self.value(given, scope), scope)
            case ast.AugAssign():
                read = ast.copy_location(ast.BinOp(loaded(node.target), node.op, node.value), node)
                self.assign(node.target, self.value(read, scope), scope)
            case ast.Expr():
                self.value(node.value, scope)
            case ast.Return():
                raise _Returned(None if node.value is None else self.value(node.value, scope))
            case ast.If():
                truth = self.truth(self.value(node.test, scope))
                if truth is None:
                    self._blur([*node.body, *node.orelse], scope, node.test)
                else:
                    self._block(node.body if truth else node.orelse, scope)
            case ast.For():
                self._for(node, scope)
            case ast.With():
                for item in node.items:
                    result = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, result, scope)
                self._block(node.body, scope)
            case ast.Try():
                self._try(node, scope)
            case ast.FunctionDef():
                self.functions[node.name] = node
                scope.pop(node.name, None)
                self._outer[node.name] = None if scope is self.values else scope
            case ast.ClassDef():
                self.classes.add(node.name)
                scope.pop(node.name, None)
            case ast.Import():
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    scope[alias.asname or first] = Symbol(alias.name if alias.asname else first)
            case ast.ImportFrom():
                for alias in node.names:
                    scope[alias.asname or alias.name] = Symbol(f"{'.' * node.level}{node.module or ''}.{alias.name}")
            case ast.Global() | ast.Nonlocal():
                level: Scope | None = scope
                for name in node.names:
                    self.values[name] = unread(node)
                while level is not None:
                    level |= {name: unread(node) for name in node.names if name in level or level is scope}
                    level = level.get(OUTER)
            case ast.Delete():
                for target in node.targets:
                    self.assign(target, unread(node), scope)
            case ast.Pass() | ast.Assert() | ast.Raise() | ast.AnnAssign():
                pass
            case _:
                self._blur([node], scope, node)

    def _for(self, node: ast.For, scope: Scope) -> None:
        """Evaluate a `for` loop: its body once per item if the items are known and few and the loop has no `break`,
        `continue` or `else`; otherwise everything that the loop assigns becomes unread. scope: the values of names, which
        are changed."""
        items = self.value(node.iter, scope)
        items = list(items) if isinstance(items, dict) else items
        breaks = any(isinstance(inner, ast.Break | ast.Continue) for inner in ast.walk(node))
        if isinstance(items, list | tuple | range) and len(items) <= MOST_ITEMS and not breaks and not node.orelse:
            for item in items:
                self.assign(node.target, item, scope)
                self._block(node.body, scope)
        else:
            self._blur([node], scope, node.iter)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        """Evaluate a `try` statement. The body is evaluated if it only imports or there are no handlers; otherwise, and in
        handlers, whatever is assigned becomes unread, since it may or may not run. scope: the values of names, which are
        changed."""
        plain = all(isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass) for statement in node.body)
        if plain or not node.handlers:
            self._block([*node.body, *node.orelse], scope)
        else:
            self._blur([*node.body, *node.orelse], scope, node)
        for handler in node.handlers:
            self._blur(handler.body, scope, node)
        self._block(node.finalbody, scope)

    def _blur(self, body: Sequence[ast.stmt], scope: Scope, why: ast.AST) -> None:
        """Handle statements that may run, may not run or may run several times: everything that they assign becomes unread, and
        objects that they use in calls count as possibly changed. scope: the values of names, which are changed. why: the
        condition or statement that is not decided, whose text stands for the unread values. Raises an internal exception that
        carries an unread value if one of the statements is a `return`."""
        held = {id(held_object): held_object for statement in body for held_object in self.held(statement, scope)}
        open_, returns = replace(unread(why), held=tuple(held.values())), False
        for statement in body:
            for node in ast.walk(statement):
                match node:
                    case ast.Assign():
                        for target in node.targets:
                            self.assign(target, open_, scope)
                    case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() | ast.For():
                        self.assign(node.target, open_, scope)
                    case ast.Call():
                        self.change(list(self.held(node, scope)), node)
                    case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                        scope[node.name] = open_
                    case ast.Return() | ast.Global() | ast.Nonlocal():
                        returns = returns or isinstance(node, ast.Return)
                        for name in () if isinstance(node, ast.Return) else node.names:
                            scope[name] = self.values[name] = open_
        if returns:
            raise _Returned(open_)

    def assign(self, target: ast.AST, value: Any, scope: Scope) -> None:
        """Assign a value to the target of an assignment in the followed file: a name, an attribute, an item, or a tuple of
        these. scope: the values of names, which are changed."""
        match target:
            case ast.Name():
                scope[target.id] = self.variables.get(target.id, value)
            case ast.Attribute():
                base = self.value(target.value, scope)
                if isinstance(base, ConstructedObject):
                    base.fields[target.attr], base.lines[target.attr] = value, target.lineno
                else:
                    self.change([base], target)
            case ast.Subscript():
                base, key = self.value(target.value, scope), self.value(target.slice, scope)
                if isinstance(base, dict) and isinstance(key, str | int):
                    base[key] = value
                elif isinstance(base, ConstructedObject) and isinstance(key, str):
                    base.fields[key], base.lines[key] = value, target.lineno
                else:
                    self.change([base], target)
            case ast.Starred():
                self.assign(target.value, unread(target), scope)
            case ast.Tuple() | ast.List():
                stars = any(isinstance(elt, ast.Starred) for elt in target.elts)
                several = isinstance(value, list | tuple) and len(value) == len(target.elts) and not stars
                for index, elt in enumerate(target.elts):
                    part: Any = value[index] if several else replace(unread(target), held=self.held_in(value))
                    if isinstance(value, ConstructedObject):
                        part = ConstructedObject(f"{value.name}[{index}]", target.lineno)
                    self.assign(elt, part, scope)

    def enter(self, function: ast.FunctionDef, given: ConstructedObject, node: ast.AST) -> Any:
        """Follow a call of a function that the file defines, and give the value that it returns; unread if the call is too
        deep or the function is a generator or has an unknown decorator. given: the call's arguments, as the fields of an
        object. node: the call, for its line."""
        spec, scope = function.args, Scope({OUTER: self._outer.get(function.name)})
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        defaults = dict(zip(reversed(names), reversed(spec.defaults), strict=False))
        defaults |= {
            kwonlyarg.arg: value
            for kwonlyarg, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
            if value is not None
        }
        for index, name in enumerate([*names, *(kwonlyarg.arg for kwonlyarg in spec.kwonlyargs)]):
            if name in given.fields or str(index) in given.fields:
                scope[name] = given.fields.get(name, given.fields.get(str(index)))
            elif "**" in given.fields:
                scope[name] = given.fields["**"]
            else:
                scope[name] = self.value(defaults[name], self.values) if name in defaults else unread(node)
            scope[name] = self.variables.get(name, scope[name])
        if spec.kwarg is not None:
            rest = {key: value for key, value in given.fields.items() if key not in names and not key.isdecimal()}
            scope[spec.kwarg.arg] = unread(node) if "**" in rest else rest
        odd = [
            decorator
            for decorator in function.decorator_list
            if ast.unparse(decorator).partition("(")[0].rpartition(".")[2] not in DECORATORS
        ]
        inner = (inner_node for inner_node in ast.walk(function) if isinstance(inner_node, ast.Yield | ast.YieldFrom))
        if self._depth >= DEEPEST or odd or any(inner):
            self.change(given.passed, node, "a function")
            return replace(unread(node), held=self.held(function, scope))
        self._depth += 1
        try:
            self._block(function.body, scope)
            return None
        except _Returned as returned:
            return returned.value
        finally:
            self._depth -= 1
