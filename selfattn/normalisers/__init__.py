"""Normalisers: from scores to attention weights, chosen by name.

A normaliser is a frozen dataclass with its options as fields. All of them
return exactly zero, with finite gradients, in a fully masked row.
"""

from selfattn.normalisers.contract import Softmax, check_normaliser
from selfattn.normalisers.mixing import Differential, TalkingHeads
from selfattn.normalisers.single import (
  Entmax,
  ScaledEntmax,
  Sigmoid,
  Sinks,
  Sparsemax,
  Ssmax,
  StickBreaking,
)
from selfattn.simplex import masked_softmax

NORMALISERS: dict[str, type[Softmax]] = {
  'softmax': Softmax,
  'sinks': Sinks,
  'sigmoid': Sigmoid,
  'sparsemax': Sparsemax,
  'entmax': Entmax,
  'ssmax': Ssmax,
  'scaled_entmax': ScaledEntmax,
  'stick_breaking': StickBreaking,
  'talking_heads': TalkingHeads,
  'differential': Differential,
}
"""Normalisers by name.

Examples:
  >>> q_BLHK = k_BMHK = v_BMHK = jnp.ones((2, 5, 3, 4))
  >>> sparsemax = selfattn.NORMALISERS['sparsemax'](num_heads=3)
  >>> selfattn.attend(q_BLHK, k_BMHK, v_BMHK, normaliser=sparsemax)[0].shape
  (2, 5, 3, 4)
"""

__all__ = ['NORMALISERS', 'Softmax', 'check_normaliser', 'masked_softmax']
