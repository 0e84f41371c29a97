"""``torch.utils._pytree``: apply a function to every leaf of nested lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class TreeSpec(NamedTuple):
    """The structure of a tree: the type of the container (``None`` for a leaf), its context, and the specs of its children."""

    type: Any
    context: Any
    children_specs: list[TreeSpec]


_REGISTERED: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def register_pytree_node(cls: type, flatten_fn: Callable[..., Any], unflatten_fn: Callable[..., Any], **options: Any) -> None:
    """Take objects of ``cls`` apart too: ``flatten_fn(tree)`` gives children and context, ``unflatten_fn(children, context)``
    puts them together.

    Args:
        options: for serializing and tracing; accepted, and not used.
    """
    _REGISTERED[cls] = flatten_fn, unflatten_fn


def _dict_flatten_with_keys(tree: dict) -> tuple[list, list]:
    return list(tree.items()), list(tree)


def _dict_flatten(tree: dict) -> tuple[list, list]:
    return list(tree.values()), list(tree)


def _dict_unflatten(values: Iterable[Any], context: list) -> dict:
    return dict(zip(context, values, strict=True))


def _children(tree: Any) -> tuple[list, Any] | None:
    """The children of a container, and its context; ``None`` for a leaf."""
    if type(tree) in _REGISTERED:
        children, context = _REGISTERED[type(tree)][0](tree)
        return list(children), context
    if isinstance(tree, dict):
        return _dict_flatten(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(tree), type(tree)
    return (list(tree), None) if type(tree) in (list, tuple) else None


def tree_flatten(tree: Any) -> tuple[list, TreeSpec]:
    """The leaves from left to right, and the structure of the tree."""
    found = _children(tree)
    if found is None:
        return [tree], TreeSpec(None, None, [])
    parts = [tree_flatten(child) for child in found[0]]
    spec = TreeSpec(type(tree), found[1], [spec for _, spec in parts])
    return [leaf for leaves, _ in parts for leaf in leaves], spec


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """Rebuild a tree from its leaves and its structure."""
    rest = iter(leaves)
    return _built(treespec, rest)


def _built(spec: TreeSpec, rest: Any) -> Any:
    if spec.type is None:
        return next(rest)
    children = [_built(child, rest) for child in spec.children_specs]
    if spec.type in _REGISTERED:
        return _REGISTERED[spec.type][1](children, spec.context)
    if issubclass(spec.type, dict):
        made = _dict_unflatten(children, spec.context)
        return made if spec.type is dict else spec.type(made)
    return spec.type(*children) if spec.context is not None else spec.type(children)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """Apply ``func`` to each leaf (and to the leaves at the same places in ``rests``), and return the tree of the results."""
    leaves, spec = tree_flatten(tree)
    others = [tree_flatten(rest)[0] for rest in rests]
    return tree_unflatten(map(func, leaves, *others), spec)


def tree_leaves(tree: Any) -> list:
    """The leaves from left to right."""
    return tree_flatten(tree)[0]
