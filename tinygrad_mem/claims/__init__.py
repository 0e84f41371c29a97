"""Published figures about the memory of training, each found again in bytes, and the verdict.

A claim is a record in the list ``CLAIMS`` of a file of ``cases``: the command line, the page and the tests find it there.
"""

from .cases import CLAIMS as CLAIMS
from .claim import EXPLAINED as EXPLAINED
from .claim import REFUTED as REFUTED
from .claim import REPRODUCED as REPRODUCED
from .claim import RULES as RULES
from .claim import VERDICTS as VERDICTS
from .claim import Claim as Claim
from .claim import Counted as Counted
from .claim import Extra as Extra
from .claim import Figure as Figure
from .claim import Judged as Judged
from .claim import Publication as Publication
from .claim import Ruling as Ruling
from .claim import by_error as by_error
from .claim import examine as examine
from .claim import judge as judge
from .claim import summary as summary
