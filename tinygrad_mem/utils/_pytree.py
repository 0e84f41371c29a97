"""``torch.utils._pytree``: a function of every leaf of nested lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class TreeSpec(NamedTuple):
    """The nesting of leaves: the kind of container (``None`` of a leaf), what it needs beside its children, and these."""

    type: Any
    context: Any
    children_specs: list[TreeSpec]


_REGISTERED: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def register_pytree_node(cls: type, flatten_fn: Callable[..., Any], unflatten_fn: Callable[..., Any], **options: Any) -> None:
    """Take objects of ``cls`` apart too: ``flatten_fn(tree)`` gives children and context, ``unflatten_fn(children, context)``
    puts them together.

    Args:
        options: what serializing and tracing want: taken, and not used.
    """
    _REGISTERED[cls] = flatten_fn, unflatten_fn


def _dict_flatten_with_keys(tree: dict) -> tuple[list, list]:
    return list(tree.items()), list(tree)


def _children(tree: Any) -> tuple[list, Any] | None:
    """The children of a container, and what it needs beside them; ``None`` of a leaf."""
    if type(tree) in _REGISTERED:
        children, context = _REGISTERED[type(tree)][0](tree)
        return list(children), context
    if isinstance(tree, dict):
        return list(tree.values()), list(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(tree), type(tree)
    return (list(tree), None) if type(tree) in (list, tuple) else None


def tree_flatten(tree: Any) -> tuple[list, TreeSpec]:
    """The leaves from left to right, and how they are nested."""
    found = _children(tree)
    if found is None:
        return [tree], TreeSpec(None, None, [])
    parts = [tree_flatten(child) for child in found[0]]
    spec = TreeSpec(type(tree), found[1], [spec for _, spec in parts])
    return [leaf for leaves, _ in parts for leaf in leaves], spec


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """Leaves nested as they were."""
    rest = iter(leaves)
    return _built(treespec, rest)


def _built(spec: TreeSpec, rest: Any) -> Any:
    if spec.type is None:
        return next(rest)
    children = [_built(child, rest) for child in spec.children_specs]
    if spec.type in _REGISTERED:
        return _REGISTERED[spec.type][1](children, spec.context)
    if issubclass(spec.type, dict):
        made = dict(zip(spec.context, children, strict=True))
        return made if spec.type is dict else spec.type(made)
    return spec.type(*children) if spec.context is not None else spec.type(children)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """The same nesting with ``func`` of each leaf, and of the leaves in the same places of ``rests``."""
    leaves, spec = tree_flatten(tree)
    others = [tree_flatten(rest)[0] for rest in rests]
    return tree_unflatten(map(func, leaves, *others), spec)


def tree_leaves(tree: Any) -> list:
    """The leaves from left to right."""
    return tree_flatten(tree)[0]
