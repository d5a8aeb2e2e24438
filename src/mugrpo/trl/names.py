"""What the names of a script for TRL stand for, from its syntax tree.

A name counts only if it is bound once, in any case, in the part of the script that makes the
trainer. The field of an object is a name with a dot.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Callable
from itertools import takewhile
from typing import Any

_OURS = ("GRPOTrainer", "GRPOConfig", "LoraConfig")
_CHANGES = ("append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update")


class Script:
    """What a script's syntax tree says of names."""

    def __init__(self, tree: ast.Module) -> None:
        # What a name is bound to, each time; None if that is no plain expression.
        self.bound: defaultdict[str, list[ast.expr | None]] = defaultdict(list)
        self.imported: dict[str, str | None] = {}  # name -> "module:function"; None: relative
        self.modules: dict[str, str] = {}  # name -> module
        self.calls: list[ast.Call] = []
        # Object, attribute, value (None if it is no plain expression), surely.
        self.set: list[tuple[ast.expr, str, ast.expr | None, bool]] = []
        self._visit(tree, surely=True)

    def _visit(self, node: ast.AST, *, surely: bool) -> None:
        """Note what `node` binds and calls.

        `surely` is false within conditions and loops that do not make the trainer.
        """
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.bound[node.name].append(None)
        if not self._counts(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and not isinstance(inner.ctx, ast.Load):
                    self._bind(inner, None)
            return
        names = self._assign(node, surely=surely)
        self._note(node)
        main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.Match) and not main:
            surely = surely and self._makes(node, "GRPOTrainer")
        for child in ast.iter_child_nodes(node):
            if child not in names:
                self._visit(child, surely=surely)

    def _counts(self, node: ast.AST) -> bool:
        """Return whether the names in `node` matter: not if it is a scope that makes nothing."""
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            return True
        return self._makes(node, *_OURS)

    def _makes(self, node: ast.AST, *names: str) -> bool:
        """Return whether `node` contains a call of one of `names`."""
        return any(self.is_call(inner, name) for inner in ast.walk(node) for name in names)

    def _assign(self, node: ast.AST, *, surely: bool) -> list[ast.expr]:
        """Note the assignments that `node` makes. Return the names that it assigns to."""
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            return []
        plain: list[ast.expr] = [
            one for one in targets if isinstance(one, ast.Name | ast.Attribute)
        ]
        for target in plain:
            self._bind(target, value, surely=surely)
        return plain

    def _bind(self, target: ast.expr, value: ast.expr | None, *, surely: bool = True) -> None:
        """Note that `target` is bound to `value`. A binding that is not sure counts as two."""
        self.bound[ast.unparse(target)] += [value] if surely else [value, None]
        if isinstance(target, ast.Attribute):
            self.set.append((target.value, target.attr, value, surely))

    def _note(self, node: ast.AST) -> None:
        """Note calls and imports, and every other way to bind or change what a name stands for."""
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            self._bind(node, None)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            self._bind(node.value, None)
        elif isinstance(node, ast.arg):
            self.bound[node.arg].append(None)
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                origin = None if node.level else f"{node.module}:{one.name}"
                self.imported[one.asname or one.name] = origin
                self.bound[one.asname or one.name].append(None)
        elif isinstance(node, ast.Import):
            for one in node.names:
                self.modules[one.asname or one.name] = one.name
                self.bound[one.asname or one.name].append(None)
        elif isinstance(node, ast.Call):
            self.calls.append(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
                self._bind(node.func.value, None)

    def origin(self, name: str) -> str:
        """Return what an imported name is called in its module, and others as they are."""
        return (self.imported.get(name) or name).rpartition(":")[2]

    def calls_of(self, name: str) -> list[ast.Call]:
        return [call for call in self.calls if self.is_call(call, name)]

    def is_call(self, node: ast.AST | None, name: str) -> bool:
        """Return whether `node` calls the function `name`, maybe imported under another name."""
        return isinstance(node, ast.Call) and self.origin(name_of(node.func)) == name

    def is_defined(self, name: str) -> bool:
        """Return whether the script itself binds a name, and once."""
        return len(self.bound[name]) == 1 and name not in self.imported

    def resolved(self, node: ast.expr) -> ast.expr:
        """Return what a name is bound to, if that is once, and any other expression as it is."""
        for _ in self.bound:  # a chain of names has an end
            named = isinstance(node, ast.Name | ast.Attribute)
            values = self.bound.get(ast.unparse(node), []) if named else []
            if len(values) != 1 or values[0] is None:
                break
            node = values[0]
        return node

    def value(self, node: ast.expr) -> Any:
        """Return the value of a literal. Raises ValueError for any other expression."""
        try:
            return ast.literal_eval(_Filled(self).visit(copy.deepcopy(node)))
        except TypeError as error:  # such as {[]: 1}
            raise ValueError(str(error)) from None

    def arguments(
        self, call: ast.Call, order: tuple[str, ...], skip: Callable[[str], None]
    ) -> dict[str, ast.expr]:
        """Return the arguments of a call by their names. The positional ones have those of `order`.

        Call `skip` with those whose name cannot be known.
        """
        ordered = list(takewhile(lambda one: not isinstance(one, ast.Starred), call.args))
        given = dict(zip(order, ordered, strict=False))
        unknown = [ast.unparse(one) for one in call.args[len(given) :]]
        for one in call.keywords:
            more = self.resolved(one.value) if one.arg is None else None
            if one.arg is not None:
                given[one.arg] = one.value
            elif isinstance(more, ast.Dict) and all(isinstance(k, ast.Constant) for k in more.keys):
                pairs = zip(more.keys, more.values, strict=True)
                given |= {str(getattr(key, "value", "")): value for key, value in pairs}
            elif isinstance(more, ast.Call) and name_of(more.func) == "dict" and not more.args:
                given |= self.arguments(more, (), skip)
            else:
                unknown.append(f"**{ast.unparse(one.value)}")
        for text in unknown:
            skip(f"{name_of(call.func)}({text})")
        return given


class _Filled(ast.NodeTransformer):
    """Replaces names by what they are bound to, and f-strings of constants by text."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._script.resolved(node)
        return node if isinstance(value, ast.Name) else self.visit(copy.deepcopy(value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        texts = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            plain = not isinstance(part, ast.FormattedValue) or (
                part.conversion == -1 and part.format_spec is None
            )
            if not (plain and isinstance(inner, ast.Constant)):
                return node
            texts.append(str(inner.value))
        return ast.Constant("".join(texts))


def name_of(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
