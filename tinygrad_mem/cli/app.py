"""The commands and their options; each is one call into a module of its own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import TinygradMemError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


class Data(StrEnum):
    digits = "digits"
    mnist = "mnist"
    cifar10 = "cifar10"


class OptimizerName(StrEnum):
    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


@app.callback()
def tinygrad_mem() -> None:
    """Where does the memory of deep-learning training go?"""


@app.command()
def train(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:i")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="images a step")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training images")] = 12,
    seed: Annotated[int, typer.Option(help="of the weights, the shuffle and dropout")] = 0,
    optimizer: Annotated[OptimizerName, typer.Option(help="update rule")] = OptimizerName.adam,
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
            data=data.value,
            data_dir=data_dir,
            picture=picture,
        )
    except (TinygradMemError, OSError, ImportError) as error:
        typer.echo(f"train: {error}", err=True)
        raise typer.Exit(2) from None
