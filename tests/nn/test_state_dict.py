"""State dicts: what is in them, what fits, and that a misfit changes nothing."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import nn
from tinygrad_mem.errors import StateDictError


def net(framework: Any = tm) -> Any:
    n = framework.nn
    return n.Sequential(OrderedDict(a=n.Linear(3, 4), b=n.BatchNorm1d(4), c=n.Sequential(n.Linear(4, 2))))


def snapshot(module: Any) -> dict:
    return {k: values(v).copy() for k, v in module.state_dict().items()}


def test_a_state_dict_shows_the_modules_own_memory():
    module = net()
    state = module.state_dict()
    assert type(state).__mro__[1] is OrderedDict
    assert state["a.weight"].array is module.a.weight.array
    assert not state["a.weight"].requires_grad
    assert module.state_dict(keep_vars=True)["a.weight"] is module.a.weight
    collected: dict = {}
    assert module.state_dict(collected, "x.") is collected
    assert set(collected) == {f"x.{k}" for k in state}


def test_loading_copies():
    one, two = net(), net()
    ids = [id(p) for p in two.parameters()]
    result = two.load_state_dict(one.state_dict())
    assert repr(result) == "<All keys matched successfully>"
    assert result.missing_keys == result.unexpected_keys == []
    assert [id(p) for p in two.parameters()] == ids
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        np.testing.assert_array_equal(values(a), values(b), err_msg=name)
        assert not np.shares_memory(values(a), values(b))
    assert all(p.requires_grad and p.grad_fn is None for p in two.parameters())


def test_loading_casts():
    two = net()
    two.load_state_dict(net().double().state_dict())
    assert two.a.weight.dtype == tm.float32


def test_assigning_takes_the_tensors():
    one, two = net().double(), net()
    two.a.weight.requires_grad = False
    two.load_state_dict(one.state_dict(), assign=True)
    assert two.a.weight.array is one.a.weight.array
    assert two.b.running_mean.array is one.b.running_mean.array
    assert type(two.a.weight) is nn.Parameter
    assert not two.a.weight.requires_grad
    assert two.a.bias.requires_grad


def _spoiled(framework: Any, state: Any) -> dict:
    """Of each kind of misfit one."""
    state = dict(state)
    state["a.weight"] = framework.ones(5, 3)
    state["c.0.bias"] = framework.ones(3)
    del state["a.bias"], state["c.0.weight"]
    state["z"] = state["c.0.more"] = framework.ones(1)
    return state


@pytest.mark.parametrize("strict", [True, False])
def test_misfits_are_reported_together_in_pytorchs_words_and_nothing_is_loaded(strict: bool):
    mine, other = net(), net(torch)
    with pytest.raises(RuntimeError) as expected:
        other.load_state_dict(_spoiled(torch, net(torch).state_dict()), strict=strict)
    before = snapshot(mine)
    with pytest.raises(StateDictError) as found:
        mine.load_state_dict(_spoiled(tm, net().state_dict()), strict=strict)
    assert str(found.value) == str(expected.value).replace("torch.Size", "Size")
    for name, array in snapshot(mine).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_values_of_a_module_that_was_set_to_none_are_not_unexpected():
    """A network without its auxiliary head loads the file of the whole one, strictly."""
    for library in (tm, torch):
        whole = library.nn.Sequential(library.nn.Linear(2, 3), library.nn.Sequential(library.nn.Linear(3, 2)))
        cut = library.nn.Sequential(library.nn.Linear(2, 3), library.nn.Identity())
        cut._modules["1"] = None
        cut.load_state_dict(whole.state_dict())
        assert cut[0].weight.tolist() == whole[0].weight.tolist()
        with pytest.raises(RuntimeError, match="Unexpected key"):
            cut.load_state_dict({**whole.state_dict(), "2.weight": library.ones(1)})


def test_not_strict():
    state = dict(net().state_dict())
    del state["a.weight"]
    state["z"] = tm.ones(1)
    module = net()
    result = module.load_state_dict(state, strict=False)
    assert result == (["a.weight"], ["z"])
    assert "missing_keys=['a.weight']" in repr(result)
    np.testing.assert_array_equal(values(module.a.bias), values(state["a.bias"]))


def test_what_is_no_state_dict():
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like, got <class 'int'>"):
        net().load_state_dict(3)
    with pytest.raises(StateDictError, match=r'While copying the parameter named "a\.weight", expected Tensor'):
        net().load_state_dict({**net().state_dict(), "a.weight": 3})


def test_old_state_without_batch_counters():
    state = {k: v for k, v in net().state_dict().items() if not k.endswith("num_batches_tracked")}
    assert net().load_state_dict(state).missing_keys == []


def test_one_element_vectors_fit_scalars():
    module = nn.Module()
    module.register_buffer("scalar", tm.zeros(()))
    module.load_state_dict({"scalar": tm.full((1,), 3.0)})
    assert module.scalar.item() == 3.0


def test_loading_values_into_meta_does_nothing_and_says_so():
    with tm.device("meta"):
        module = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="copying from a non-meta parameter in the checkpoint to a meta parameter") as caught:
        module.load_state_dict(nn.Linear(2, 2).state_dict())
    assert caught[0].filename == __file__
    assert module.weight.is_meta
    module.load_state_dict(nn.Linear(2, 2).state_dict(), assign=True)
    assert not module.weight.is_meta


def test_shared_parameters_have_every_name():
    layer = nn.Linear(2, 2)
    module = nn.Sequential(layer, layer)
    assert list(module.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert module.load_state_dict(module.state_dict()).missing_keys == []


# --- hooks and extra state, side by side with PyTorch ---------------------------------------------------------------------


def _family(framework: Any) -> Any:
    """A network whose middle keeps a number in its state."""

    class Counting(framework.nn.Linear):
        seen = 3

        def get_extra_state(self) -> Any:
            return {"seen": self.seen}

        def set_extra_state(self, state: Any) -> None:
            self.seen = state["seen"]

    n = framework.nn
    return n.Sequential(OrderedDict(a=n.Linear(2, 2), b=Counting(2, 2), c=n.Sequential(n.Linear(2, 2))))


def _saving(framework: Any) -> list:
    net, log = _family(framework), []
    net.c.register_state_dict_pre_hook(lambda m, prefix, keep: log.append(("before", type(m).__name__, prefix, keep)))
    handle = net.b.register_state_dict_post_hook(lambda m, state, prefix, meta: log.append((prefix, meta, list(state))))
    net._register_state_dict_hook(lambda m, state, prefix, meta: OrderedDict((f"x.{k}", v) for k, v in state.items()))
    log.append(list(net.state_dict()))
    handle.remove()
    return [*log, list(net.state_dict(keep_vars=True))]


def _loading(framework: Any) -> list:
    net, log = _family(framework), []
    state = net.state_dict()
    state["b._extra_state"] = {"seen": 8}
    state["c.0.old"] = state.pop("c.0.weight")
    del state["a.bias"]

    def rename(module: Any, state: Any, prefix: str, meta: Any, strict: bool, *lists: list) -> None:
        log.append((type(module).__name__, prefix, dict(meta), strict, *map(list, lists)))
        state[prefix + "weight"] = state.pop(prefix + "old")

    net.c[0].register_load_state_dict_pre_hook(rename)
    net._register_load_state_dict_pre_hook(lambda state, prefix, *rest: log.append((prefix, sorted(state))))
    for module in (net, net.a, net.c):
        module.register_load_state_dict_post_hook(lambda m, keys: log.append((type(m).__name__, list(keys.missing_keys))))
    net.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    log.append(tuple(net.load_state_dict(state)))
    return [*log, net.b.seen]


@pytest.mark.parametrize("use", [_saving, _loading])
def test_hooks_see_what_pytorchs_see(use: Any):
    """In another order: here everything is checked before anything is loaded."""
    assert sorted(map(str, use(tm))) == sorted(map(str, use(torch)))


@pytest.mark.parametrize("which", ["a b", "b a", "root a", "b.1 b.0", "b b.0 b.1", "c root", "a b c root"])
def test_a_hook_accepts_no_keys_of_what_is_loaded_later(which: str):
    """The hook of one module hid what others missed: they kept their first values without an error."""
    found = []
    for n in (nn, torch.nn):
        inner = n.Sequential(n.Linear(1, 1), n.Linear(1, 1))
        module, seen = n.Sequential(OrderedDict(a=n.Linear(1, 1), b=inner, c=n.Linear(1, 1))), []

        def accept(_: Any, keys: Any, seen: list = seen) -> None:
            seen.append(sorted(keys.missing_keys))
            keys.missing_keys.clear()

        for name in which.split():
            target: Any = module if name == "root" else module.get_submodule(name)
            target.register_load_state_dict_post_hook(accept)
        found.append((module.load_state_dict({}, strict=False).missing_keys, seen))
    assert found[0] == found[1]


@pytest.mark.parametrize("key", ["a._extra_state", "b._extra_state"])
def test_extra_state_that_is_missing_or_unexpected(key: str):
    messages = []
    for framework in (tm, torch):
        net = _family(framework)
        state = net.state_dict()
        if key in state:
            del state[key]
        else:
            state[key] = 1
        with pytest.raises(RuntimeError) as caught:
            net.load_state_dict(state)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_hooks_that_return_something_are_refused():
    net = _family(tm)
    handle = net.register_state_dict_post_hook(lambda *_: {})
    with pytest.raises(RuntimeError, match="state_dict post-hook must return None"):
        net.state_dict()
    handle.remove()
    net.register_load_state_dict_post_hook(lambda *_: {})
    with pytest.raises(AssertionError, match="not expected to return new values"):
        net.load_state_dict(net.state_dict())
    with pytest.raises(NotImplementedError, match="Linear has no extra state"):
        net.a.get_extra_state()


# --- all or nothing, where code of the user's takes part


class _Sorted(nn.Linear):
    """Keeps two numbers, a list and a table beside its tensors; a state may name another weight, or lack a key."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.first, self.second, self.seen, self.table = 1, 2, [1], {"a": 1}
        self.register_buffer("beside", tm.zeros(2), persistent=False)

    def get_extra_state(self) -> Any:
        return {"first": self.first, "second": self.second}

    def set_extra_state(self, state: Any) -> None:
        self.first, self.new = state["first"], "an attribute that was not there"
        self.seen.append(2)
        self.table["b"] = 2
        self.beside.fill_(7)
        self.register_buffer("more", tm.ones(1))
        self.second = state["second"]


def _raising(*_: Any) -> None:
    raise KeyError("a hook of the user's")


def _state_lacks_a_key(net: Any, state: Any) -> None:
    state["c.0._extra_state"] = {"first": 8}


def _hook_before_raises(net: Any, state: Any) -> None:
    net.a._register_load_state_dict_pre_hook(lambda *_: net.a.seen.append(3))
    net.c[0]._register_load_state_dict_pre_hook(_raising)


def _hook_before_writes_and_a_key_is_missing(net: Any, state: Any) -> None:
    net.a._register_load_state_dict_pre_hook(lambda *_: net.a.weight.detach().fill_(9))
    del state["c.0.bias"]


def _hook_after_raises(net: Any, state: Any) -> None:
    net.a.register_load_state_dict_post_hook(_raising)


def _hook_after_forgives_not_all(net: Any, state: Any) -> None:
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    state["nobody's"] = tm.ones(1)


def _own_way_of_loading_raises(net: Any, state: Any) -> None:
    def load(self: Any, *args: Any) -> None:
        super(_Sorted, self)._load_from_state_dict(*args)
        raise KeyError("a module of the user's")

    net.c[0].__class__ = type("Mine", (_Sorted,), {"_load_from_state_dict": load})


def _signal_comes(net: Any, state: Any) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    net.c[0].register_load_state_dict_post_hook(stop)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        _state_lacks_a_key,
        _hook_before_raises,
        _hook_before_writes_and_a_key_is_missing,
        _hook_after_raises,
        _hook_after_forgives_not_all,
        _own_way_of_loading_raises,
        _signal_comes,
    ],
)
def test_what_raises_halfway_leaves_all_as_it_was(spoil: Any, assign: bool):
    def everything() -> Any:
        own = [{k: v for k, v in vars(m).items() if k[0] != "_"} for m in net.modules()]
        shown = [{k: copy(v) if isinstance(v, (list, dict)) else v for k, v in attributes.items()} for attributes in own]
        held = [(name, id(t), t.detach().tolist()) for name, t in (*net.named_parameters(), *net.named_buffers())]
        return shown, held

    net: Any = nn.Sequential(OrderedDict(a=_Sorted(), b=nn.BatchNorm1d(2), c=nn.Sequential(_Sorted())))
    other = nn.Sequential(OrderedDict(a=_Sorted(), b=nn.BatchNorm1d(2), c=nn.Sequential(_Sorted())))
    state = other.state_dict()
    state["a._extra_state"] = {"first": 5, "second": 6}
    good = OrderedDict(state)
    spoil(net, state)
    before = everything()
    with pytest.raises((KeyError, StateDictError, KeyboardInterrupt)):
        net.load_state_dict(state, assign=assign)
    assert everything() == before
    net.c[0].__class__ = _Sorted
    for module in net.modules():
        for table in ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"):
            vars(module).pop(table, None)
    net.load_state_dict(good, assign=assign)
    assert (net.a.first, net.a.second, net.a.seen) == (5, 6, [1, 2])
    assert net.c[0].weight.tolist() == other.c[0].weight.tolist()


def _frozen(framework: Any) -> Any:
    """A layer that loads in a way of its own, as published ones do: older names, a key that is dropped, a value derived."""

    class Frozen(framework.nn.Linear):
        norm = 0.0

        def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
            state_dict.pop(prefix + "num_batches_tracked", None)
            if prefix + "old" in state_dict:
                state_dict[prefix + "weight"] = state_dict.pop(prefix + "old")
            super()._load_from_state_dict(state_dict, prefix, *rest)
            self.norm = self.weight.abs().sum().item()
            self.seen = dict(rest[0])

    return framework.nn.Sequential(Frozen(2, 2), framework.nn.Sequential(Frozen(2, 2)), framework.nn.Linear(2, 1))


@pytest.mark.parametrize("assign", [False, True])
def test_a_module_s_own_way_of_loading_is_pytorchs(assign: bool):
    found = []
    for framework in (tm, torch):
        net = _frozen(framework)
        state = {k: framework.full_like(v, i + 1.0) for i, (k, v) in enumerate(net.state_dict().items())}
        state["0.old"] = state.pop("0.weight")
        state["1.0.num_batches_tracked"] = framework.tensor(3)
        told = str(net.load_state_dict(dict(state), assign=assign))
        del state["0.old"], state["2.bias"]
        state["1.0.other"] = state["2.nobody"] = framework.ones(1)
        with pytest.raises(RuntimeError) as caught:
            net.load_state_dict(dict(state))
        loose = net.load_state_dict(dict(state), strict=False)
        found.append(
            (told, net[0].norm, net[1][0].norm, net[0].seen, sorted(loose[0]), sorted(loose[1]), len(str(caught.value)))
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("calls_super", [False, True])
def test_a_module_saves_and_loads_itself_in_its_own_way(calls_super: bool):
    def script(lib: Any) -> list:
        class Shifted(lib.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight, self.inner = lib.nn.Parameter(lib.ones(1) * 10), lib.nn.Linear(1, 1)

            def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
                if calls_super:
                    super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "shifted"] = self.weight.detach() + 1

            def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
                shifted = state_dict.pop(prefix + "shifted") if calls_super else state_dict[prefix + "shifted"]
                if calls_super:
                    super()._load_from_state_dict(state_dict, prefix, *more)
                self.weight.data.copy_(shifted - 1)

        saved = lib.nn.Sequential(Shifted()).state_dict()
        loaded = lib.nn.Sequential(Shifted())
        with lib.no_grad():
            loaded[0].weight.zero_()
        loaded.load_state_dict(saved)
        found = [list(saved), loaded[0].weight.tolist()]
        for key in ("0.other", "0.inner.other", "1.other"):
            result = loaded.load_state_dict({**saved, key: lib.ones(1)}, strict=False)
            found.append([result.missing_keys, result.unexpected_keys])
        return found

    assert script(tm) == script(torch)
