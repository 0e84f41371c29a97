"""The tracker: listens to the pool and says what the bytes were for. Nothing below imports it; not tracking costs nothing."""

from .attribution import Category as Category
from .attribution import Moment as Moment
from .track import Track as Track
from .track import track as track
