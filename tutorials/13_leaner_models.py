# %% [markdown]
# # 13. Models that need less
#
# ## Question
#
# A technique lowers the memory of a given network. But another network may do the same work with less memory. What do global
# pooling, strides, fewer channels, in-place batch norm and reversible blocks save, and how do the bytes then grow with depth?
#
# Source: Rota Bulo et al., *In-place activated batch norm*, 2018; Gomez et al., *The reversible residual network*, 2017.

# %%
from lesson import Result, block, figure, picture, samples, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, recompute
from tinygrad_mem.memory import Category
from tinygrad_mem.models.vgg import CONVOLUTIONS
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import InPlaceABN, ReversibleBlock, ReversibleSequential

RESULT = Result()
BATCH, CHANNELS, SIDE = samples(16), 32, 32
ONE = 4 * BATCH * CHANNELS * SIDE * SIDE  # bytes of a result of the plain network

# %% [markdown]
# ## By hand
#
# The plain layer is a convolution, batch norm and leaky ReLU. It keeps two results: the convolution's, for batch norm, and the
# activation's, for the next convolution.
#
# | network | results of the plain size per layer | because |
# |---|---|---|
# | plain | 2 | |
# | half the channels | 2 / 2 | half as many numbers; and a quarter of the weights |
# | stride 2 in the first layer | 2 / 4 | half as high, half as wide |
# | in-place batch norm | 1 | backward computes its input from its output |
# | reversible | 0 | backward computes each layer's input from its output |

# %%
BY_HAND = {"plain": 2, "half the channels": 1, "stride 2": 0.5, "in place": 1, "reversible": 0}


def layer(channels: int, in_place: bool = False) -> nn.Sequential:
    conv = nn.Conv2d(channels, channels, 3, padding=1)
    if in_place:
        return nn.Sequential(conv, InPlaceABN(channels))
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.LeakyReLU())


def network(kind: str, depth: int) -> nn.Sequential:
    width = CHANNELS // 2 if kind == "half the channels" else CHANNELS
    first = nn.Conv2d(3, width, 3, padding=1, stride=2 if kind == "stride 2" else 1)
    if kind == "reversible":  # each block is two layers of half the channels
        pairs = [ReversibleBlock(layer(width // 2), layer(width // 2)) for _ in range(depth)]
        body: list[nn.Module] = [ReversibleSequential(*pairs)]
    else:
        body = [layer(width, kind == "in place") for _ in range(depth)]
    return nn.Sequential(first, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


# %% [markdown]
# ## Predicted
#
# The bytes that one more layer adds to those kept after the forward: the slope between two depths.


# %%
def step(kind: str, depth: int) -> None:
    tm.manual_seed(0)
    model = network(kind, depth)
    x, y = tm.randn(BATCH, 3, SIDE, SIDE), tm.randint(0, 10, (BATCH,))
    loss = F.cross_entropy(model(x), y)
    memory.mark("forward ends")
    loss.backward()


SHALLOW, DEEP = 4, 8
deep = {kind: memory.predict(step, kind, DEEP) for kind in BY_HAND}
shallow = {kind: memory.predict(step, kind, SHALLOW) for kind in BY_HAND}
for kind, hand in BY_HAND.items():
    kept = [t.by_category("forward ends")[Category.ACTIVATION] for t in (deep[kind], shallow[kind])]
    slope = (kept[0] - kept[1]) / (DEEP - SHALLOW) / ONE
    # two statistics a channel are kept too: a block each, of which a result has thousands, or on cuda a thousand
    RESULT.agree(f"{kind}: results a layer", unit="", by_hand=hand, predicted=round(slope, 4), within=2048 / ONE)

# %% [markdown]
# The reversible network keeps nothing for its layers: more layers add only their weights and gradients to its *peak*.


# %%
def weights(depth: int) -> tuple[int, int]:
    """Bytes of parameters and of statistics, in the pool."""
    with tm.device("meta"):
        model = network("reversible", depth)
    return sum(block(p.nbytes) for p in model.parameters()), sum(block(b.nbytes) for b in model.buffers())


(more, statistics), (less, fewer) = weights(DEEP), weights(SHALLOW)
by_hand = 2 * (more - less) + statistics - fewer
grown = deep["reversible"].peak - shallow["reversible"].peak
RESULT.agree(f"reversible: what {DEEP - SHALLOW} layers add to the peak", by_hand=by_hand, predicted=grown)

# %% [markdown]
# ## Measured

# %%
tracks, again = {}, {}
for kind in BY_HAND:
    with memory.track() as tracks[kind], recompute.count_ops() as ops:
        step(kind, DEEP)
    again[kind] = ops.recomputed["Conv"]
    RESULT.agree(f"{kind}: peak", predicted=deep[kind].peak, measured=tracks[kind].peak)
    print(f"{'':4}{again[kind]} convolutions run again")
assert again == {kind: 2 * DEEP if kind == "reversible" else 0 for kind in BY_HAND}

# %% [markdown]
# ## Picture

# %%
chart, axes = figure(height=3.4)
depths = (SHALLOW, DEEP)
for kind in BY_HAND:
    peaks = [run[kind].peak / 2**20 for run in (shallow, deep)]
    axes.plot(depths, peaks, "o-")
    axes.annotate(kind, (depths[-1], peaks[-1]), xytext=(6, -3), textcoords="offset points", fontsize=9)
axes.set(xlabel="layers", ylabel="peak, MiB", ylim=(0, None), xticks=depths, xlim=(3.5, 9.5))
picture(chart, "13_depth", "The peak of a step, by the depth of the network")
picture(tracks["plain"], "13_plain", "Plain: every layer keeps two results")
picture(tracks["reversible"], "13_reversible", "Reversible: inputs are made again")

# %% [markdown]
# ## Mechanism
#
# The price of a reversible network is one more forward, and rounding errors in the recomputed inputs. In-place batch norm
# costs a division for each number.

# %%
print(tracks["plain"].compare(tracks["reversible"]))
rows = memory.print_saved(network("in place", 2)[1:3], tm.ones(1, CHANNELS, 8, 8))
assert [row.op for row in rows if row.shape == (1, CHANNELS, 8, 8)] == ["Conv", "InPlaceABN", "Conv", "InPlaceABN"]

# %% [markdown]
# ### The head
#
# If weights take most of the memory, look at the last layers. VGG16 flattens 512 maps of 7 by 7 into a linear layer. Later
# networks first take the mean of each map (global average pooling), which needs no weights.


# %%
def train(head: str) -> None:
    layers: list[nn.Module] = []
    channels = 3
    for stage in CONVOLUTIONS[16]:
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers += [nn.MaxPool2d(2)]
    if head == "pooled":
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    else:
        layers += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(True), nn.Linear(4096, 4096), nn.ReLU(True)]
        layers += [nn.Linear(4096, 1000)]
    model = nn.Sequential(*layers)
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(tm.randn(4, 3, 224, 224)), tm.randint(0, 1000, (4,))).backward()
        optimizer.step()


heads = {head: memory.predict(train, head) for head in ("flattened", "pooled")}
flattened = sum(block(4 * i * o) + block(4 * o) for i, o in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)))
pooled = block(4 * 512 * 1000) + block(4 * 1000)
with_linear, without = (track.by_category()[Category.PARAMETER] for track in heads.values())
RESULT.agree("weights that global pooling saves", by_hand=flattened - pooled, predicted=with_linear - without)
picture(stacked({head: t.by_category() for head, t in heads.items()}, "VGG16 by its head: the peak of a step"), "13_heads")
RESULT.say(
    "VGG16: peak with a pooled head, of the flattened one's", round(heads["pooled"].peak / heads["flattened"].peak, 3), ""
)

# %% [markdown]
# ## Exercise
#
# Max pooling after a convolution, or a stride of 2 in it? Both make results of a quarter of the size. How many bytes does
# forward keep with each of them, per number of the convolution's full-sized result?

# %% [markdown]
# ## Solution
#
# With pooling, ReLU keeps the full-sized result, 4 bytes per number. The next layer keeps the pooled one, 4 / 4, and pooling
# keeps the positions of the maxima, a byte for each pooled number, 1 / 4. With a stride there is only the small result: 4 / 4.


# %%
def smaller(pooling: bool) -> int:
    def run() -> None:
        conv = nn.Conv2d(8, 8, 3, padding=1, stride=1 if pooling else 2)
        last = nn.Conv2d(8, 8, 3, padding=1)
        out = last((nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2)) if pooling else nn.Sequential(conv, nn.ReLU()))(x()))
        memory.mark("kept")
        del out

    def x() -> tm.Tensor:
        return tm.randn(4, 8, 32, 32)

    return memory.predict(run).by_category("kept")[Category.ACTIVATION]


numbers = 4 * 8 * 32 * 32
RESULT.agree("kept with pooling", by_hand=numbers * (4 + 1) + numbers // 4, predicted=smaller(True))
RESULT.agree("kept with a stride", by_hand=numbers, predicted=smaller(False))
RESULT.ends(
    f"A plain layer keeps 2 results, in place 1, reversible 0. With {DEEP} layers the peaks are "
    f"{tracks['plain'].peak / 2**20:.1f}, {tracks['in place'].peak / 2**20:.1f} and "
    f"{tracks['reversible'].peak / 2**20:.1f} MiB."
)
