"""``torch.utils._pytree``: apply a function to every leaf of nested lists, tuples, dicts and deques."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class TreeSpec(NamedTuple):
    """The structure of a tree: the type of the container (``None`` for a leaf), its context, and the specs of its children."""

    type: Any
    context: Any
    children_specs: list[TreeSpec]


def _dict_flatten(tree: dict) -> tuple[list, list]:
    return list(tree.values()), list(tree)


def _dict_flatten_with_keys(tree: dict) -> tuple[list, list]:
    """(name, child) of each child; for :func:`register_pytree_node`."""
    return list(tree.items()), list(tree)


def _dict_unflatten(values: Iterable[Any], context: list) -> dict:
    return dict(zip(context, values, strict=True))


_REGISTERED: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    list: (lambda tree: (tree, None), lambda items, _: list(items)),
    tuple: (lambda tree: (tree, None), lambda items, _: tuple(items)),
    deque: (lambda tree: (tree, tree.maxlen), deque),
    dict: (_dict_flatten, _dict_unflatten),
    OrderedDict: (_dict_flatten, lambda values, keys: OrderedDict(_dict_unflatten(values, keys))),
    defaultdict: (
        lambda tree: (tree.values(), [tree.default_factory, list(tree)]),
        lambda values, context: defaultdict(context[0], _dict_unflatten(values, context[1])),
    ),
}
_NAMED = (lambda tree: (tree, type(tree))), (lambda items, kind: kind(*items))


def register_pytree_node(cls: type, flatten_fn: Callable[..., Any], unflatten_fn: Callable[..., Any], **options: Any) -> None:
    """Take objects of ``cls`` apart too: ``flatten_fn(tree)`` gives children and context, ``unflatten_fn(children, context)``
    puts them together.

    Args:
        options: for serializing and tracing; accepted, and not used.
    """
    _REGISTERED[cls] = flatten_fn, unflatten_fn


def _functions(kind: Any) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The functions that take objects of a class apart and put them together; ``None``: they are leaves."""
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return _REGISTERED.get(kind, _NAMED if named else None)


def tree_flatten(tree: Any) -> tuple[list, TreeSpec]:
    """The leaves from left to right, and the structure of the tree."""
    functions = _functions(type(tree))
    if functions is None:
        return [tree], TreeSpec(None, None, [])
    children, context = functions[0](tree)
    parts = [tree_flatten(child) for child in children]
    spec = TreeSpec(type(tree), context, [spec for _, spec in parts])
    return [leaf for leaves, _ in parts for leaf in leaves], spec


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """Rebuild a tree from its leaves and its structure."""
    rest = iter(leaves)
    return _build(treespec, rest)


def _build(spec: TreeSpec, rest: Any) -> Any:
    if spec.type is None:
        return next(rest)
    children = [_build(child, rest) for child in spec.children_specs]
    functions = _functions(spec.type)
    assert functions is not None
    return functions[1](children, spec.context)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """Apply ``func`` to each leaf (and to the leaves at the same places in ``rests``), and return the tree of the results."""
    leaves, spec = tree_flatten(tree)
    others = [tree_flatten(rest)[0] for rest in rests]
    return tree_unflatten(map(func, leaves, *others), spec)


def tree_leaves(tree: Any) -> list:
    """The leaves from left to right."""
    return tree_flatten(tree)[0]
