"""Where PyTorch defines these: ``nn.modules.container``."""

from ..containers import ModuleDict as ModuleDict
from ..containers import ModuleList as ModuleList
from ..containers import Sequential as Sequential
from ..parameter_containers import ParameterDict as ParameterDict
from ..parameter_containers import ParameterList as ParameterList
