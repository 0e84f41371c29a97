"""``torch.utils.data.dataset``'s names."""

from ...data.dataset import ChainDataset as ChainDataset
from ...data.dataset import ConcatDataset as ConcatDataset
from ...data.dataset import Dataset as Dataset
from ...data.dataset import IterableDataset as IterableDataset
from ...data.dataset import StackDataset as StackDataset
from ...data.dataset import Subset as Subset
from ...data.dataset import TensorDataset as TensorDataset
from ...data.dataset import random_split as random_split
