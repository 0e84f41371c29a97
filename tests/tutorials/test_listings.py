"""Listings in the style of published tip lists: they run here when only their imports change, and in PyTorch as they stand."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any

import pytest

from tinygrad_mem import memory
from tinygrad_mem.devices import Pool, device

LISTINGS = {
    "forward with a name for each result": """
        import torch
        import torch.nn as nn
        import torch.nn.functional as F

        class Net(nn.Module):
            def __init__(self):
                super(Net, self).__init__()
                self.fc1 = nn.Linear(128, 256)
                self.fc2 = nn.Linear(256, 256)
                self.fc3 = nn.Linear(256, 10)

            def forward(self, x):
                h1 = self.fc1(x)
                a1 = F.relu(h1)
                h2 = self.fc2(a1)
                a2 = F.relu(h2)
                return self.fc3(a2)

        model = Net()
        model.eval()
        with torch.no_grad():
            output = model(torch.randn(512, 128))
        result = output.shape
    """,
    "forward that rebinds x": """
        import torch
        import torch.nn as nn
        import torch.nn.functional as F

        class Net(nn.Module):
            def __init__(self):
                super(Net, self).__init__()
                self.fc1 = nn.Linear(128, 256)
                self.fc2 = nn.Linear(256, 256)
                self.fc3 = nn.Linear(256, 10)

            def forward(self, x):
                x = self.fc1(x)
                x = F.relu(x, inplace=True)
                x = self.fc2(x)
                x = F.relu(x, inplace=True)
                return self.fc3(x)

        model = Net()
        model.eval()
        with torch.no_grad():
            output = model(torch.randn(512, 128))
        result = output.shape
    """,
    "checkpoint_sequential": """
        import torch
        import torch.nn as nn
        from torch.utils.checkpoint import checkpoint_sequential

        model = nn.Sequential(*[nn.Linear(10, 10) for _ in range(100)])
        input_var = torch.randn(1, 10, requires_grad=True)

        out = model(input_var)
        model.zero_grad()
        out.sum().backward()
        expected = {name: param.grad.data.clone() for name, param in model.named_parameters()}
        plain = input_var.grad.data.clone()

        segments = 2
        modules = [module for k, module in model._modules.items()]
        input_var.grad = None
        out = checkpoint_sequential(modules, segments, input_var, use_reentrant=False)
        model.zero_grad()
        out.sum().backward()
        same = all(torch.equal(param.grad, expected[name]) for name, param in model.named_parameters())
        result = same, torch.equal(input_var.grad, plain), len(expected)
    """,
    "mixed precision": """
        import torch
        import torch.nn as nn
        from torch.amp import GradScaler, autocast
        from torch.utils.data import DataLoader, TensorDataset

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        dataset = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
        train_loader = DataLoader(dataset, batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4)).to(device)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scaler = GradScaler(device.type)
        losses = []
        for epoch in range(5):
            running_loss = 0.0
            for data, target in train_loader:
                data, target = data.to(device), target.to(device)
                optimizer.zero_grad()
                with autocast(device_type=device.type, dtype=torch.float16):
                    output = model(data)
                    loss = criterion(output, target)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                scaler.step(optimizer)
                scaler.update()
                running_loss += loss.item()
            losses.append(running_loss / len(train_loader))
        result = output.dtype == torch.float16, loss.dtype == torch.float32, losses[-1] < losses[0]
    """,
    "mixed precision, as older listings import it": """
        import torch
        from torch.cuda.amp import autocast, GradScaler

        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = GradScaler()
        optimizer.zero_grad()
        with autocast():
            loss = model(torch.ones(4, 8)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        result = scaler.is_enabled(), loss.dtype == torch.float32
    """,
    "gradient accumulation": """
        import torch
        import torch.nn as nn

        torch.manual_seed(0)
        accumulation_steps = 4
        model = nn.Linear(16, 4)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        train_loader = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(8)]
        whole = criterion(model(torch.cat([x for x, _ in train_loader[:4]])), torch.cat([y for _, y in train_loader[:4]]))
        expected = torch.autograd.grad(whole, model.weight)[0]

        model.zero_grad(set_to_none=True)
        steps = 0
        for i, (inputs, labels) in enumerate(train_loader):
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss = loss / accumulation_steps
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                if steps == 0:
                    same = torch.allclose(model.weight.grad, expected, atol=1e-6)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                steps += 1
        result = same, steps, scheduler.get_last_lr()
    """,
    "free what is done with": """
        import gc

        import torch

        model = torch.nn.Linear(64, 64)
        x = torch.randn(1024, 64)
        output = model(x)
        loss = output.sum()
        loss.backward()
        del x, output, loss
        gc.collect()
        torch.cuda.empty_cache()
        result = model.weight.grad.shape
    """,
    "a running loss": """
        import torch

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        total_loss = 0
        for i in range(10):
            optimizer.zero_grad(set_to_none=True)
            loss = model(torch.ones(2, 4)).pow(2).sum()
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            del loss
        result = isinstance(total_loss, float), total_loss > 0
    """,
    "freeze the first layers": """
        import torch
        import torch.nn as nn

        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        for param in model[0].parameters():
            param.requires_grad = False
        optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        result = [p.grad is None for p in model.parameters()], len(optimizer.state)
    """,
    "half": """
        import torch
        import torch.nn as nn

        torch.backends.cudnn.benchmark = True
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        model.half()
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.float()
        result = [p.dtype == torch.float16 for p in model.parameters()]
    """,
    "step in backward": """
        import torch
        import torch.nn as nn

        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
        optimizer_dict = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

        def optimizer_hook(parameter) -> None:
            optimizer_dict[parameter].step()
            optimizer_dict[parameter].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(optimizer_hook)
        before = [p.detach().clone() for p in model.parameters()]
        model(torch.ones(2, 16)).sum().backward()
        moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters())]
        result = moved, [p.grad is None for p in model.parameters()]
    """,
    "a block that is computed again": """
        import torch
        import torch.nn as nn
        from torch.utils.checkpoint import checkpoint

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 32))

            def forward(self, x):
                return x + checkpoint(self.body, x, use_reentrant=False)

        model = nn.Sequential(Block(), Block())
        loss = model(torch.randn(8, 32)).mean()
        loss.backward()
        result = [p.grad is not None for p in model.parameters()]
    """,
}


def ours(listing: str) -> str:
    """The listing with its imports changed, and nothing else."""
    listing = re.sub(r"^import torch$", "import tinygrad_mem as torch", listing, flags=re.M)
    return re.sub(r"^(import|from) torch\.", r"\1 tinygrad_mem.", listing, flags=re.M)


def plain(listing: str) -> str:
    return re.sub(r"^ {8}", "", listing, flags=re.M)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "listing"}
    exec(compile(text, "listing", "exec"), names)
    return names


# as PyTorch says it of `cuda.amp`, and where there is no GPU
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning"),
]


@pytest.mark.parametrize("name", LISTINGS)
def test_it_runs_and_means_the_same(name: str, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's warnings are PyTorch's; here a warning fails the test."""
    monkeypatch.setattr("torch.backends.cudnn.benchmark", False)  # a listing switches it on
    text = plain(LISTINGS[name])
    changed = ours(text)
    assert [a for a, b in zip(text.splitlines(), changed.splitlines(), strict=True) if a != b] == [
        line for line in text.splitlines() if re.match(r"(import|from) torch", line)
    ]
    found = run(changed)["result"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = run(text)["result"]
    assert found == wanted


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests keep is older than a track, and counted in its peak."""
    monkeypatch.setattr(device("cpu"), "pool", Pool("cpu"))


def peak(name: str) -> int:
    text = ours(plain(LISTINGS[name]))
    gc.collect()  # functions hold the names of their listing, and those the functions: the one before waits for this
    with memory.track() as track:
        run(text)
    foreseen = memory.predict(run, text)
    assert foreseen.peak == track.peak
    return track.peak


@pytest.mark.usefixtures("own_pool")
def test_names_hold_what_rebinding_frees():
    """At the last layer five results are named, of 256 numbers each but for the last; rebound, two are there at most."""
    named, rebound = peak("forward with a name for each result"), peak("forward that rebinds x")
    assert named - rebound == 2 * 512 * 256 * 4 + 512 * 10 * 4


def test_nothing_is_left_when_the_listings_are_done():
    gc.collect()
    before = memory.memory_allocated()
    with memory.track() as track:
        for text in LISTINGS.values():
            run(ours(plain(text)))
    gc.collect()
    assert memory.memory_allocated() == before, track.by_line("end")
