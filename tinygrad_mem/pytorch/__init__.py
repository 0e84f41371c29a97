"""PyTorch's memory on a GPU: snapshots of real runs, and its allocator as a model. No PyTorch is needed."""

from .advice import Advice as Advice
from .advise import advise as advise
from .allocator import CachingAllocator as CachingAllocator
from .load import load as load
from .predict import Prediction as Prediction
from .predict import predict as predict
from .replay import Replay as Replay
from .replay import replay as replay
from .snapshot import read as read
