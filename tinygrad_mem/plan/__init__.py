"""The planner: set a budget in bytes; it finds the fastest training step that fits."""

from ..errors import BudgetError as BudgetError
from ..files import cache_folder as cache_folder
from .choice import Choice as Choice
from .choice import TrainingStep as TrainingStep
from .plan import *
from .runs import Point as Point
from .runs import RankPeak as RankPeak
from .techniques import *
from .times import Times as Times
