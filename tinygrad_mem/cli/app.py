"""The commands and their options; each is one call into a module of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import TinygradMemError
from ..text import visible

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


class Data(StrEnum):
    digits = "digits"
    mnist = "mnist"
    cifar10 = "cifar10"


class OptimizerName(StrEnum):
    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


class TrainingPrecision(StrEnum):
    float32 = "float32"
    autocast = "autocast"
    half = "half"


@contextmanager
def _refusals(command: str, traceback: bool) -> Iterator[None]:
    """An error is a sentence and exit status 2, unless its traceback is asked for: a user's class may raise anything."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads has seen enough, as in ``| head``: typer ends the program
    except Exception as error:
        if traceback:
            raise
        name = "" if isinstance(error, TinygradMemError) else f"{type(error).__name__}: "
        typer.echo(visible(f"{command}: {name}{error}", keep="\n"), err=True)
        raise typer.Exit(2) from None


@app.callback()
def tinygrad_mem() -> None:
    """Where does the memory of deep-learning training go?"""


@app.command()
def tips(
    tip: Annotated[list[str] | None, typer.Option(help="only this one, with its timelines; may be given again")] = None,
    network: Annotated[
        str | None, typer.Option(help="a name such as resnet20, or your own: file.py:Class; for the tips about any network")
    ] = None,
    sample: Annotated[str | None, typer.Option("--input", help="shape of one sample of the network, such as 3x32x32")] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="for token numbers, how many there are and the length of a sample, such as 50257x1024"),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="samples a step, instead of each tip's own")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:i")] = "cpu",
    html: Annotated[
        Path | None, typer.Option(help="write the page to this file; of all tips, report.html unless given; '' for none")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="write both timelines of the one --tip, stacked by category, to this file")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    traceback: Annotated[bool, typer.Option(help="show where an error comes from")] = False,
) -> None:
    """Every memory-saving tip of the lists, measured: what it does to the peak, to time and to the result."""
    from .tips import run

    if html is None and not tip and not as_json:
        html = Path("report.html")
    with _refusals("tips", traceback):
        status = run(
            names=tip or [],
            network=network,
            sample=sample,
            tokens=tokens,
            batch_size=batch_size,
            device=device,
            picture=picture,
            page=html if html != Path() else None,
            as_json=as_json,
        )
    raise typer.Exit(status)


@app.command()
def train(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:i")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="images a step")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training images")] = 12,
    seed: Annotated[int, typer.Option(help="of the weights, the shuffle and dropout")] = 0,
    optimizer: Annotated[OptimizerName, typer.Option(help="update rule")] = OptimizerName.adam,
    precision: Annotated[TrainingPrecision, typer.Option(help="half: float16 with float32 copies in the optimizer")] = (
        TrainingPrecision.float32
    ),
    data: Annotated[Data, typer.Option(help="digits ships with scikit-learn; the others need --data-dir")] = Data.digits,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the original distribution files")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="write the memory of two steps, stacked by category, to this file")
    ] = None,
) -> None:
    """Train a small CNN on real images, then show what the memory of a training step was made of."""
    from .train import run

    try:
        run(
            device=device,
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            optimizer=optimizer.value,
            precision=precision.value,
            data=data.value,
            data_dir=data_dir,
            picture=picture,
        )
    except BrokenPipeError:
        raise
    except (TinygradMemError, OSError, ImportError) as error:
        typer.echo(visible(f"train: {error}", keep="\n"), err=True)
        raise typer.Exit(2) from None


class Precision(StrEnum):  # what each means stands in precision.py
    float32 = "float32"
    autocast = "autocast"
    half = "half"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float64 = "float64"


class Update(StrEnum):
    sgd = "sgd"
    momentum = "momentum"
    momentum_half = "momentum-half"
    sgd8bit = "sgd8bit"
    adam = "adam"
    adam_half = "adam-half"
    adam8bit = "adam8bit"
    adamw = "adamw"
    adamw_half = "adamw-half"
    adamw8bit = "adamw8bit"
    amsgrad = "amsgrad"
    adamax = "adamax"
    nadam = "nadam"
    radam = "radam"
    rmsprop = "rmsprop"
    adagrad = "adagrad"
    adadelta = "adadelta"
    adafactor = "adafactor"


@app.command()
def estimate(
    network: Annotated[str, typer.Argument(help="a name such as vgg16 or gpt2, or your own: module:Class, file.py:Class")],
    batch_size: Annotated[int, typer.Option(min=1, help="samples a step")] = 32,
    sample: Annotated[str | None, typer.Option("--input", help="shape of one sample, such as 3x224x224")] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="for token numbers, how many there are and the length of a sample, such as 50257x1024"),
    ] = None,
    optimizer: Annotated[
        Update, typer.Option(help="update rule; momentum is SGD with it, -half has float16 moments")
    ] = Update.momentum,
    precision: Annotated[Precision, typer.Option(help="half: float16, float32 copies and gradients")] = Precision.float32,
    master_weights: Annotated[bool, typer.Option("--master-weights", help="float32 copies of float16 parameters")] = False,
    accumulate: Annotated[int, typer.Option(min=1, help="parts of a batch, one after the other")] = 1,
    recompute: Annotated[
        str | None,
        typer.Option(help="segments of each chain of blocks, computed again in backward: sqrt, every-block, N"),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="bytes to fit into, such as '8 GiB'; exit status 1 if it does not")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda, with or without a GPU here: their kernels' workspaces differ")
    ] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    traceback: Annotated[bool, typer.Option(help="show where an error comes from")] = False,
) -> None:
    """Predict what a training step of a network needs, layer by layer, to the byte; nothing is computed or allocated."""
    from .estimate import run

    with _refusals("estimate", traceback):
        status = run(
            network,
            batch_size=batch_size,
            sample=sample,
            tokens=tokens,
            optimizer=optimizer.value,
            precision=precision.value,
            master_weights=master_weights,
            accumulate=accumulate,
            recompute=recompute,
            budget=budget,
            device=device,
            as_json=as_json,
        )
    raise typer.Exit(status)


@app.command()
def plan(
    network: Annotated[str, typer.Argument(help="a name such as resnet50 or gpt2, or your own: module:Class, file.py:Class")],
    budget: Annotated[str | None, typer.Option(help="bytes to stay within, such as '8 GiB'; without, the front alone")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="samples a step")] = 32,
    sample: Annotated[str | None, typer.Option("--input", help="shape of one sample, such as 3x224x224")] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="for token numbers, how many there are and the length of a sample, such as 50257x1024"),
    ] = None,
    optimizer: Annotated[Update, typer.Option(help="update rule; momentum is SGD with it")] = Update.momentum,
    device: Annotated[str, typer.Option(help="cpu, or cuda, with or without a GPU here")] = "cpu",
    allow: Annotated[
        str,
        typer.Option(
            help="identical; close: also what rounds differently, as splitting the batch; approximate: also half precision and "
            "compressed activations; or names with commas between, such as recompute,offload"
        ),
    ] = "identical",
    largest_batch: Annotated[bool, typer.Option("--largest-batch", help="the largest batch that some plan fits in")] = False,
    picture: Annotated[Path | None, typer.Option(help="write memory against time to this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    traceback: Annotated[bool, typer.Option(help="show where an error comes from")] = False,
) -> None:
    """The cheapest training step that stays within a budget: which memory-saving techniques, and where."""
    from .plan import run

    with _refusals("plan", traceback):
        status = run(
            network,
            batch_size=batch_size,
            budget=budget,
            sample=sample,
            tokens=tokens,
            optimizer=optimizer.value,
            device=device,
            allow=allow,
            largest_batch=largest_batch,
            picture=picture,
            as_json=as_json,
        )
    raise typer.Exit(status)


@app.command()
def doctor() -> None:
    """Show what this machine has: devices, BLAS kernels and faster ones, pools, missing libraries and how to get them."""
    from .doctor import run

    raise typer.Exit(run())
