"""The tracker: listens to the pool and says what the bytes were for. Nothing below imports it; not tracking costs nothing."""

from .attribution import Category as Category
from .blocks import Block as Block
from .log import Event as Event
from .log import Kind as Kind
from .log import Log as Log
from .timeline import Moment as Moment
from .timeline import Timeline as Timeline
from .track import Mark as Mark
from .track import Track as Track
from .track import mark as mark
from .track import track as track
