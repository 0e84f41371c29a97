"""The tracker: it records the pool's blocks and their purpose. No room below imports it; if it is unused, it costs nothing."""

from . import autopsy as _autopsy
from .attribution import Category as Category
from .batch_size import find_batch_size as find_batch_size
from .blocks import Block as Block
from .compare import Change as Change
from .compare import Comparison as Comparison
from .compare import Effect as Effect
from .limit import limit as limit
from .log import Event as Event
from .log import Kind as Kind
from .log import Log as Log
from .predict import predict as predict
from .ranks import Alike as Alike
from .ranks import AllRanks as AllRanks
from .replay import Replay as Replay
from .saved import Saved as Saved
from .saved import SavedList as SavedList
from .saved import print_saved as print_saved
from .saved import saved as saved
from .stats import *
from .timeline import Mark as Mark
from .timeline import Moment as Moment
from .timeline import PoolState as PoolState
from .timeline import Timeline as Timeline
from .track import Track as Track
from .track import load as load
from .track import mark as mark
from .track import track as track
