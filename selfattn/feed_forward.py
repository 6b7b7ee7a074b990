"""Feed-forward networks: activations by name, and experts.

A dense one is part of selfattn.blocks.Block. `Experts` in its place are several
of them, of which a router chooses some for each token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout, drop
from selfattn.positions.contract import require, require_one_of
from selfattn.products import products


def _exact_gelu(x):
  return nn.gelu(x, approximate=False)


def _quick_gelu(x):
  return x * nn.sigmoid(1.702 * x)


def _squared_relu(x):
  return jnp.square(nn.relu(x))


def _clamped(gate, up):
  """Of gpt-oss: both are clamped, and 1 is added to the second one."""
  gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
  return _quick_gelu(gate) * (up + 1)


def _gated(activation: Callable) -> Callable:
  return lambda gate, up: activation(gate) * up


class Xielu(nn.Module):
  """xIELU, with two learned scalars (Huang and Schlag 2024, section 3.3)."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Activations, an array of the shape of `x`."""
    beta = 0.5

    def scalar(name, begin):
      init = nn.initializers.constant(jnp.log(jnp.expm1(begin)), jnp.float32)
      return nn.softplus(self.param(name, init, (1,))).astype(x.dtype)

    right, left = scalar('alpha_p', 0.8), beta + scalar('alpha_n', 0.8 - beta)
    grown = right.reshape((1,) * x.ndim) * x * x
    fallen = left.reshape((1,) * x.ndim) * (jnp.expm1(jnp.minimum(x, 0)) - x)
    return jnp.where(x > 0, grown, fallen) + beta * x


# Functions of the hidden layer, or of it and of a second map of the input
# (Shazeer 2020, equations 5 and 6), or modules. 'gelu' is the approximation by
# tanh.
FEED_FORWARDS: dict[str, Callable] = {
  'gelu': nn.gelu,
  'gelu_exact': _exact_gelu,
  'relu': nn.relu,
  'relu2': _squared_relu,
  'silu': nn.silu,
  'xielu': Xielu,
  'swiglu': _gated(nn.silu),
  'geglu': _gated(nn.gelu),
  'geglu_exact': _gated(_exact_gelu),
  'reglu': _gated(nn.relu),
  'swiglu_clamped': _clamped,
}
# Those with a second map of the input, the third one of the network.
GATED = frozenset(name for name in FEED_FORWARDS if 'glu' in name)


SCORINGS = {'softmax': nn.softmax, 'sigmoid': nn.sigmoid}
CORRECTIONS = ('none', 'scores', 'logits')


@dataclasses.dataclass(frozen=True)
class Experts:
  """Feed-forward networks of which each token has a few (Shazeer et al. 2017).

  A router scores all experts by a linear map of the token. The token's output
  is the sum of the outputs of those with the highest scores, times the scores.
  There is no capacity: no token is dropped. Every expert computes every token,
  and most of it has weight 0: exact and simple, at the cost of all experts.

  Attributes:
    count: number of experts.
    chosen: experts of a token.
    dim: width of the hidden layer of an expert; 0: F of the block.
    shared_dim: width of that of a network which all tokens have beside their
      experts; 0: there is none.
    shared_gate: whether its output is multiplied by the sigmoid of a linear map
      of the token.
    scoring: the function of all logits of the router, softmax or sigmoid.
    correction: a bias of each expert that is added to its score, or its logit,
      for the choice alone (Wang et al. 2024): none, scores or logits. Gradients
      do not change it.
    renormalises: whether the scores of the experts of a token are divided by
      their sum.
    scale: factor of the scores.
    router_bias: whether the linear map of the router has a bias.
    dense_layers: numbers of layers, from 0, that have a dense network instead.
  """

  count: int = 8
  chosen: int = 2
  dim: int = 0
  shared_dim: int = 0
  shared_gate: bool = False
  scoring: str = 'softmax'
  correction: str = 'none'
  renormalises: bool = True
  scale: float = 1.0
  router_bias: bool = False
  dense_layers: tuple[int, ...] = ()

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""
    require(self.count >= 1, 'count', self.count, 'at least 1')
    require(
      1 <= self.chosen <= self.count,
      'chosen',
      self.chosen,
      f'from 1 to count = {self.count}',
    )
    require_one_of(SCORINGS, 'scoring', self.scoring)
    require_one_of(CORRECTIONS, 'correction', self.correction)


EXPERTS: dict[str, type[Experts] | None] = {'experts': Experts}


@dataclasses.dataclass(frozen=True)
class Maps:
  """How the linear maps of a feed-forward network are made.

  Attributes:
    kind: the activation, one of FEED_FORWARDS.
    use_bias: whether they have a bias.
    kernel_init: initial values of their kernels.
    dtype: of the computation.
  """

  kind: str
  use_bias: bool
  kernel_init: Callable
  dtype: Any

  def dense(self, name: str, features: int, use_bias: bool | None = None):
    """A linear map, a submodule of the module that calls."""
    return nn.Dense(
      features,
      use_bias=self.use_bias if use_bias is None else use_bias,
      dtype=self.dtype,
      dot_general=products,
      kernel_init=self.kernel_init,
      name=name,
    )


def network(
  maps: Maps, name: str, dim: int, x: jax.Array, dropout: Dropout | None = None
) -> jax.Array:
  """Vectors after a dense network, of the shape of `x`.

  Its maps are submodules NAME_in, NAME_gated and NAME_out of the module that
  calls.

  Args:
    dim: width of the hidden layer.
    dropout: on the hidden layer.
  """
  activation = FEED_FORWARDS[maps.kind]
  if isinstance(activation, type):
    activation = activation(name=f'{name}_{maps.kind}')
  hidden = [maps.dense(f'{name}_in', dim)(x)]
  if maps.kind in GATED:
    hidden.append(maps.dense(f'{name}_gated', dim)(x))
  h = drop(activation(*hidden), dropout, 1)
  return maps.dense(f'{name}_out', x.shape[-1])(h)


class Router(NamedTuple):
  """What a router sows of each token and expert, float32 (B, L, E) each.

  Attributes:
    logits: of its linear map.
    scores: of all experts, `scoring` of the logits.
    chosen: 1 for the experts of a token, 0 for the others.
  """

  logits: jax.Array
  scores: jax.Array
  chosen: jax.Array


class ExpertNetwork(nn.Module):
  """Experts, with their router and what all tokens share.

  With `measured` mutable, it sows the fields of Router by their names.

  Attributes:
    experts: their number and options.
    maps: of all networks.
    dim: width of the hidden layer of an expert.
  """

  experts: Experts
  maps: Maps
  dim: int

  @nn.compact
  def __call__(self, x_BLD: jax.Array) -> jax.Array:
    """Vectors (B, L, D)."""
    options, D = self.experts, x_BLD.shape[-1]
    x_TD = x_BLD.reshape(-1, D).astype(self.maps.dtype)
    weight_TE, router = self._routed(x_TD)
    if self.is_mutable_collection('measured') and not self.is_initializing():
      for name, value_TE in router._asdict().items():
        value_BLE = value_TE.reshape(*x_BLD.shape[:-1], options.count)
        self.sow('measured', name, value_BLE)
    y_TD = self._mixed(x_TD, weight_TE)
    if options.shared_dim:
      shared_TD = network(self.maps, 'shared', options.shared_dim, x_TD)
      if options.shared_gate:
        of_token = self.maps.dense('shared_gate', 1, use_bias=False)(x_TD)
        shared_TD *= nn.sigmoid(of_token)
      y_TD += shared_TD
    return y_TD.reshape(x_BLD.shape)

  def _routed(self, x_TD: jax.Array) -> tuple[jax.Array, Router]:
    """Weights of experts for each token, float32 (T, E), and what chose them.

    They are 0 but for the chosen.
    """
    options = self.experts
    router = nn.Dense(
      options.count,
      use_bias=options.router_bias,
      kernel_init=self.maps.kernel_init,
      name='router',
    )
    logits_TE = router(x_TD.astype(jnp.float32))
    scores_TE = SCORINGS[options.scoring](logits_TE)
    ranked_TE = logits_TE if options.correction == 'logits' else scores_TE
    if options.correction != 'none':
      zeros = nn.initializers.zeros
      shape = (options.count,)
      ranked_TE += self.param('correction', zeros, shape, jnp.float32)[None]
    _, index_TN = jax.lax.top_k(ranked_TE, options.chosen)
    is_chosen_TE = jax.nn.one_hot(index_TN, options.count).sum(axis=1)
    weight_TE = scores_TE * is_chosen_TE
    if options.renormalises:
      total_T1 = weight_TE.sum(axis=1, keepdims=True)
      weight_TE /= jnp.maximum(total_T1, jnp.finfo(jnp.float32).tiny)
    router_TE = Router(logits_TE, scores_TE, is_chosen_TE)
    return weight_TE * options.scale, router_TE

  def _mixed(self, x_TD: jax.Array, weight_TE: jax.Array) -> jax.Array:
    """The weighted sum of what all experts make of each token, (T, D)."""
    maps, count, D = self.maps, self.experts.count, x_TD.shape[-1]

    def kernel(name, *shape):
      def init(key):
        # One expert after another: their number is no part of the fan in.
        keys = jax.random.split(key, count)
        return jax.vmap(lambda key: maps.kernel_init(key, shape))(keys)

      return self.param(name, init).astype(x_TD.dtype)

    def bias(name, features):
      if not maps.use_bias:
        return 0
      zeros, shape = nn.initializers.zeros, (count, features)
      values = self.param(f'{name}_bias', zeros, shape, jnp.float32)
      return values[None].astype(x_TD.dtype)

    hidden = [
      jnp.einsum('TD,EDF->TEF', x_TD, kernel(name, D, self.dim))
      + bias(name, self.dim)
      for name in ('in', 'gated')[: 1 + (maps.kind in GATED)]
    ]
    h_TEF = FEED_FORWARDS[maps.kind](*hidden)
    y_TED = jnp.einsum('TEF,EFD->TED', h_TEF, kernel('out', self.dim, D))
    y_TED = y_TED + bias('out', D)
    return jnp.einsum('TED,TE->TD', y_TED, weight_TE.astype(x_TD.dtype))
