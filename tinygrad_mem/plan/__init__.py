"""The planner: set a budget in bytes; it finds the fastest training step that fits."""

from ..errors import BudgetError as BudgetError
from ..files import cache_folder as cache_folder
from .choice import Choice as Choice
from .choice import TrainingStep as TrainingStep
from .plan import NAMES as NAMES
from .plan import Plan as Plan
from .plan import largest as largest
from .plan import plan as plan
from .runs import Point as Point
from .runs import RankPeak as RankPeak
from .techniques import LEVELS as LEVELS
from .techniques import Accumulation as Accumulation
from .techniques import Applied as Applied
from .techniques import Autocast as Autocast
from .techniques import Compression as Compression
from .techniques import InBackward as InBackward
from .techniques import InPlace as InPlace
from .techniques import Offload as Offload
from .techniques import Recompute as Recompute
from .techniques import Replicated as Replicated
from .techniques import Tiles as Tiles
from .techniques import Zero1 as Zero1
from .techniques import Zero2 as Zero2
from .techniques import Zero3 as Zero3
from .times import Times as Times
