"""The emulated device itself, for the tests of it."""

from __future__ import annotations

import pytest

from .device import Device


@pytest.fixture
def emulated(request: pytest.FixtureRequest) -> Device:
    """The device of this process; on a GPU there is nothing of ours to test."""
    plugin = request.config.pluginmanager.getplugin("cuda_half")
    if plugin.device is None:
        pytest.skip("the tests marked cuda run on a GPU here")
    return plugin.device
