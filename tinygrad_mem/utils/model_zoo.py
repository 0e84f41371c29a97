"""``torch.utils.model_zoo``, so that published files import: nothing is downloaded."""

from ..hub import load_state_dict_from_url
from ..hub import tqdm as tqdm

load_url = load_state_dict_from_url
