"""``autograd.Function``: PyTorch's behaviour, on the same program, and the lifetimes of what it saves."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.autograd import Function
from tinygrad_mem.autograd.function import once_differentiable
from tinygrad_mem.errors import DeviceError, GraphError, NotOfferedError, ShapeError

POOL = tm.device("cpu").pool


def both(program, *arrays):
    """Run ``program(library, Function, tensors)`` in both libraries; results and gradients agree."""
    found = []
    for library, base in ((tm, Function), (torch, torch.autograd.Function)):
        tensors = [library.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
        out = program(library, base, *tensors)
        out.backward(library.ones_like(out))
        grads = [None if t.grad is None else t.grad.tolist() for t in tensors]
        found.append((out.tolist(), grads))
    assert found[0] == found[1]
    return found[0]


X, Y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])


def _passes_on(library: Any) -> dict[str, Any]:
    """Ways in which a tensor gets a twin: another tensor over its memory, behind a node."""

    class Same(library.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    hooked = library.nn.Identity()
    hooked.register_full_backward_hook(lambda module, inner, outer: None)
    return {"Function": Same.apply, "module": hooked, "both": lambda x: hooked(Same.apply(x))}


@pytest.mark.parametrize("library", [torch, tm], ids=["torch", "ours"])
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("way", ["Function", "module", "both"])
def test_what_a_node_passed_on_is_not_written_while_its_twin_is_in_use(library: Any, leaf: bool, way: str):
    """The twin had the new value, and the gradient of the old one: 36 where 72 is right."""

    def write(twin: bool) -> None:
        x = library.tensor([-1.0, 2.0], requires_grad=True)
        before = x if leaf else x * 3.0
        after = _passes_on(library)[way](before)
        (after if twin else before[:1]).mul_(2.0)
        (after * before).sum().backward()

    for twin in (True, False):
        with pytest.raises(RuntimeError, match=r"[Mm]odified inplace|leaf Variable"):
            write(twin)


@pytest.mark.parametrize("library", [torch, tm], ids=["torch", "ours"])
def test_outputs_of_one_memory_are_not_written_while_both_are_in_use(library: Any):
    """The view had five times its value, and the gradient of once."""

    class Two(library.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2.0
            return y, y.view(1, -1)

        @staticmethod
        def backward(ctx, g, h):
            return g * 2.0 + h.reshape(-1) * 2.0

    def write() -> None:
        y, view = Two.apply(library.ones(2, requires_grad=True))
        y.mul_(5.0)
        (view * view).sum().backward()

    with pytest.raises(RuntimeError, match=r"[Mm]odified inplace"):
        write()


def test_what_a_node_passed_on_may_be_written_when_its_twin_is_gone():
    """As in ``out = self.norm(x); out += x`` with a hook on the norm, which PyTorch refuses."""
    for way, passes_on in _passes_on(tm).items():
        x = tm.tensor([-1.0, 2.0], requires_grad=True)
        y = passes_on(x * 3.0)
        y += x
        y.sum().backward()
        assert x.grad.tolist() == [4.0, 4.0], way


def test_forward_backward_and_attributes_on_ctx():
    def program(library, base, x, y):
        class Scale(base):
            @staticmethod
            def forward(ctx, x, factor, y, name=None):
                ctx.factor, ctx.label, ctx.shapes, ctx.op, ctx.saved = factor, name, 1, 2, 3
                ctx.save_for_backward(x, y)
                return x * y * factor

            @staticmethod
            def backward(ctx, gz):
                x, y = ctx.saved_tensors
                assert (ctx.label, ctx.shapes, ctx.op, ctx.saved) == ("n", 1, 2, 3)
                assert ctx.needs_input_grad == (True, False, True, False)
                assert not gz.requires_grad
                return gz * y * ctx.factor, None, gz * x * ctx.factor, None

        out = Scale.apply(x, 3.0, y, "n")
        assert out.requires_grad
        assert not out.is_leaf
        assert out.grad_fn.name() == "ScaleBackward"
        return out

    both(program, X, Y)


def test_setup_context():
    def program(library, base, x, y):
        class Product(base):
            @staticmethod
            def forward(x, y):
                return x * y

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx, g):
                x, y = ctx.saved_tensors
                return g * y, g * x

        return Product.apply(x, y)

    both(program, X, Y)


@pytest.mark.parametrize("call", ["of(x)", "of(x, 5.0)", "of(x, y=5.0)", "of(y=4.0, x=x)"])
def test_setup_context_gets_names_and_defaults(call: str):
    def script(lib: Any) -> list:
        class Scaled(lib.autograd.Function):
            @staticmethod
            def forward(x: Any, y: float = 3.0) -> Any:
                return x * y

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
                _, ctx.y = inputs

            @staticmethod
            def backward(ctx: Any, g: Any) -> tuple:
                return g * ctx.y, None

        x = lib.ones(2, requires_grad=True)
        y = eval(call, {"of": Scaled.apply, "x": x})
        y.sum().backward()
        return [y.tolist(), x.grad.tolist()]

    assert script(tm) == script(torch)


def test_vjp_is_another_name_of_backward():
    class Doubled(tm.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g * 2

    x = tm.ones(2, requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match=r"takes no keyword arguments, found \['x'\]"):
        Doubled.apply(x=x)
    with pytest.raises(ValueError, match="implementing both 'backward' and 'vjp' is not allowed"):
        type("Both", (Doubled,), {"backward": staticmethod(lambda ctx, g: g)})


def test_several_outputs_materialized_and_not():
    for materialize in (True, False):

        def program(library, base, x, materialize=materialize):
            seen = []

            class Split(base):
                @staticmethod
                def forward(ctx, x):
                    ctx.set_materialize_grads(materialize)
                    return x * 2, x * 3

                @staticmethod
                def backward(ctx, g, h):
                    seen.append(None if h is None else h.tolist())
                    return g * 2 if h is None else g * 2 + h * 3

            out = Split.apply(x)[0]
            out.backward(library.ones_like(out), retain_graph=True)
            assert seen == [[0.0, 0.0, 0.0] if materialize else None]
            return out

        both(program, X)


def test_non_differentiable_and_integer_outputs():
    def program(library, base, x):
        class Parts(base):
            @staticmethod
            def forward(ctx, x):
                constant = x * 5
                ctx.mark_non_differentiable(constant)
                return x * 2, constant, (x > 1), "text", None

            @staticmethod
            def backward(ctx, g, *others):
                assert len(others) == 4
                return g * 2

        out, constant, mask, text, nothing = Parts.apply(x)
        assert not constant.requires_grad
        assert not mask.requires_grad
        assert (text, nothing) == ("text", None)
        return out

    both(program, X)


def test_none_gradients_and_inputs_that_need_none():
    def program(library, base, x, y):
        class First(base):
            @staticmethod
            def forward(ctx, x, y, z):
                assert not library.is_grad_enabled()
                return x + y + z

            @staticmethod
            def backward(ctx, g):
                assert ctx.needs_input_grad == (True, True, False)
                return g, None, g

        return First.apply(x, y, x.detach())

    both(program, X, Y)


def test_mark_dirty():
    def program(library, base, x):
        class Double(base):
            @staticmethod
            def forward(ctx, x):
                x.mul_(2)
                ctx.mark_dirty(x)
                return x

            @staticmethod
            def backward(ctx, g):
                return g * 2

        y = x * 1
        z = Double.apply(y)
        assert z is y
        return z

    assert both(program, X)[1] == [[2.0, 2.0, 2.0]]


def test_an_input_that_is_returned_is_another_tensor():
    def program(library, base, x):
        class Same(base):
            @staticmethod
            def forward(ctx, x):
                return x

            @staticmethod
            def backward(ctx, g):
                return g * 7

        y = Same.apply(x)
        assert y is not x
        assert x.is_leaf
        return y

    both(program, X)


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, None, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, nothing, _ = ctx.saved_tensors
        assert nothing is None
        return g * x * 2


def test_saved_tensors_are_counted_freed_and_checked():
    x = tm.ones(1000, requires_grad=True)
    before = POOL.used_bytes()
    y = Square.apply(x)
    node = y.grad_fn
    assert set(node.saved) == {"0", "2"}
    y.backward(tm.ones(1000))
    assert node.saved == {}
    with pytest.raises(GraphError, match="second time"):
        y.backward(tm.ones(1000))
    assert POOL.used_bytes() == before + 4096 * 2
    z = tm.ones(3, requires_grad=True) * 1
    y = Square.apply(z)
    z.add_(1)
    with pytest.raises(GraphError, match=r"modified by an inplace operation: Square saved '0' at version 0"):
        y.sum().backward()


def test_retain_graph():
    x = tm.ones(2, requires_grad=True)
    y = Square.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_no_cycle_when_an_output_is_saved():
    gc.disable()
    try:
        gc.collect()
        x = tm.ones(1000, requires_grad=True)
        before = POOL.used_bytes()
        y = Square.apply(x)
        gone = weakref.ref(y)
        del y
        assert gone() is None
        assert POOL.used_bytes() == before
    finally:
        gc.enable()


def test_saved_tensors_outside_of_backward():
    kept = []

    class Keep(Square):
        @staticmethod
        def forward(ctx, x):
            kept.append(ctx)
            return Square.forward(ctx, x)

    Keep.apply(tm.ones(1, requires_grad=True))
    with pytest.raises(GraphError, match="saved_tensors: they exist only in backward"):
        kept[0].saved_tensors  # noqa: B018


def test_not_recorded_when_nothing_needs_it():
    assert Square.apply(tm.ones(2)).grad_fn is None
    with tm.no_grad():
        assert Square.apply(tm.ones(2, requires_grad=True)).grad_fn is None


def test_gradients_that_others_see_are_copied():
    kept = {}

    class Careless(Function):
        @staticmethod
        def forward(ctx, x, y, z):
            ctx.save_for_backward(x)
            return x + y + z

        @staticmethod
        def backward(ctx, g):
            kept["grad"] = g
            kept["own"] = tm.ones(3)
            return ctx.saved_tensors[0], kept["own"], g

    leaves = [tm.tensor(X, dtype=tm.float32, requires_grad=True) for _ in range(3)]
    Careless.apply(*leaves).backward(tm.ones(3))
    tensors = [*[leaf.grad for leaf in leaves], kept["own"], kept["grad"], leaves[0]]
    assert len({t.data_ptr() for t in tensors}) == 6
    views = {}

    class KeepsView(Function):
        @staticmethod
        def forward(ctx, x, own):
            ctx.own = own
            return x * 2

        @staticmethod
        def backward(ctx, g):
            if ctx.own:
                g = g * 2
            views["v"] = g[1:]
            return g, None

    for own in (False, True):
        x = tm.ones(3, requires_grad=True)
        (KeepsView.apply(x, own) * 2.0).backward(tm.ones(3))
        x.grad.fill_(9)
        assert views["v"].tolist() == ([4.0, 4.0] if own else [2.0, 2.0])


def test_a_gradient_that_nobody_else_sees_is_handed_on_without_a_copy():
    addresses = []

    class Fresh(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            g = g * 2
            addresses.append(g.data_ptr())
            return g

    class Passing(Fresh):
        @staticmethod
        def backward(ctx, g):
            addresses.append(g.data_ptr())
            return g

    for cls in (Fresh, Passing):
        x = tm.ones(1000, requires_grad=True)
        (cls.apply(x) * 3.0).sum().backward()
        assert x.grad.data_ptr() == addresses[-1]


def test_works_with_saved_tensors_hooks():
    packed = []
    x = tm.tensor(X, requires_grad=True)

    def pack(t):
        packed.append(t)
        return t.numpy(force=True).copy()

    with tm.autograd.graph.saved_tensors_hooks(pack, tm.tensor):
        y = Square.apply(x)
    assert packed[0] is x
    assert not packed[1].requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def returning(value, inputs=1):
    class Returns(Function):
        @staticmethod
        def forward(ctx, *args):
            return args[0] * 2

        @staticmethod
        def backward(ctx, g):
            return value

    return Returns.apply(*[tm.ones(2, requires_grad=True), 3.0][:inputs]).sum()


@pytest.mark.parametrize(
    ("value", "inputs", "error", "message"),
    [
        (lambda: (), 1, GraphError, r"ReturnsBackward returned an incorrect number of gradients \(expected 1, got 0\)"),
        (lambda: (tm.ones(2), tm.ones(2)), 1, GraphError, r"\(expected 1, got 2\)"),
        (lambda: tm.ones(2), 2, GraphError, r"\(expected 2, got 1\)"),
        (lambda: (tm.ones(2), tm.ones(2)), 2, GraphError, "different than None at position 2"),
        (lambda: 3.0, 1, TypeError, "returned a float at 0, expected Variable or None"),
        (lambda: tm.ones(2, device="meta"), 1, DeviceError, "returned a gradient on meta at position 1, expected one on cpu"),
        (lambda: tm.ones(3), 1, ShapeError, r"gradient of shape \[3\] for an input of shape \[2\]"),
    ],
    ids=range(7),
)
def test_wrong_gradients_are_refused(value, inputs, error, message):
    with pytest.raises(error, match=message):
        returning(value(), inputs).backward()


def test_trailing_nones_are_taken():
    returning((tm.ones(2), None, None)).backward()


def test_refused():
    with pytest.raises(NotOfferedError, match="not instantiated"):
        Square()
    with pytest.raises(NotImplementedError, match="must implement the forward"):
        Function.forward(None)
    with pytest.raises(TypeError, match="save_for_backward can only save variables, but argument is of type int"):
        tm.autograd.FunctionContext().save_for_backward(3)
    with pytest.raises(NotOfferedError, match="forward-mode"):
        Square.jvp(None)

    class OnlyForward(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    with pytest.raises(NotImplementedError, match="must implement either the backward or vjp"):
        OnlyForward.apply(tm.ones(1, requires_grad=True)).backward()

    class NoTensor(Function):
        @staticmethod
        def forward(ctx, x):
            return 3

    with pytest.raises(TypeError, match=r"NoTensor\.forward: expected to return a Tensor"):
        NoTensor.apply(tm.ones(1))


def test_refused_dirt():
    class Dirty(Function):
        @staticmethod
        def forward(ctx, x, give_back):
            ctx.mark_dirty(x)
            return x if give_back else x * 2

    leaf = tm.ones(2, requires_grad=True)
    with pytest.raises(GraphError, match="a leaf Variable that requires grad"):
        Dirty.apply(leaf, True)
    with pytest.raises(GraphError, match="takes inputs that forward returns"):
        Dirty.apply(leaf * 2, False)
    with pytest.raises(NotOfferedError, match=r"mark_dirty\(\) of a view"):
        Dirty.apply((leaf * 2)[:1], True)


def test_an_exception_in_forward_leaves_nothing_behind():
    class Broken(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 2)
            raise ValueError("broken")

    x = tm.ones(1000, requires_grad=True)
    before = POOL.used_bytes()
    with pytest.raises(ValueError, match="broken"):
        Broken.apply(x)
    assert tm.is_grad_enabled()
    assert POOL.used_bytes() == before


def test_on_meta_it_allocates_what_it_allocates_on_the_cpu():
    peaks = []
    for name in ("cpu", "meta"):
        pool = tm.device(name).pool
        before = pool.used_bytes()
        x = tm.ones(1000, device=name, requires_grad=True)
        y = Square.apply(x)
        middle = pool.used_bytes() - before
        y.sum().backward()
        peaks.append((middle, pool.used_bytes() - before))
        del x, y
    assert peaks[0] == peaks[1]


def test_variable():
    v = tm.autograd.Variable(tm.ones(2), requires_grad=True)
    assert v.requires_grad
    assert not tm.autograd.Variable(v).requires_grad
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got list"):
        tm.autograd.Variable([1])


def test_an_output_of_integers_gets_a_gradient_of_zeros():
    for lib in (torch, tm):
        seen: list = []

        class Both(lib.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2, (x > 5).long()

            @staticmethod
            def backward(ctx, gy, of_integers, seen=seen):
                seen.append((of_integers.tolist(), of_integers.is_floating_point()))
                return gy

        Both.apply(lib.ones(2, requires_grad=True))[0].sum().backward()
        assert seen == [([0, 0], False)]
