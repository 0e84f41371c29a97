"""``torch.jit.annotations``: types under the names that published files annotate with."""

from typing import Any as Any
from typing import Optional as Optional

List, Dict, Tuple = list, dict, tuple
BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list  # a number, or so many of them: ``BroadcastingList2[int]``
