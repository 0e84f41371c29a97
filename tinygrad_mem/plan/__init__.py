"""The planner: give it a budget in bytes, and it trains inside."""

from ..errors import BudgetError as BudgetError
from .choice import CLOSE as CLOSE
from .choice import IDENTICAL as IDENTICAL
from .choice import Choice as Choice
from .choice import Recompute as Recompute
from .choice import TrainingStep as TrainingStep
from .plan import Plan as Plan
from .plan import cache_folder as cache_folder
from .plan import largest as largest
from .plan import plan as plan
from .search import Point as Point
from .times import Times as Times
