"""Draws docs/encoding.png: what one forward pass of an encoder sowed.

bash scripts/run.sh python scripts/draw_encoding.py
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import selfattn
from selfattn.positions.absolute import Sinusoidal

PATH = pathlib.Path(__file__).parent.parent / 'docs/encoding.png'
LENGTH, WIDTH, HEADS = 60, 32, 4


def main():
  encoder = selfattn.AttentionEncoder(
    num_layers=1,
    num_heads=HEADS,
    mlp_dim=64,
    position=Sinusoidal(WIDTH, HEADS, False),
    dtype=jnp.float32,
  )
  x = jnp.zeros((1, LENGTH, WIDTH))
  is_token = jnp.ones((1, LENGTH), bool)
  variables = encoder.init(jax.random.key(0), x, is_token)
  _, sown = encoder.apply(variables, x, is_token, mutable='intermediates')
  (P,) = sown['intermediates']['P']
  figure = selfattn.show_heatmaps(
    np.asarray(P)[None].swapaxes(-1, -2),
    xlabel='position',
    ylabel='column of P',
    figsize=(7, 3),
    cmap='RdBu',
  )
  figure.savefig(PATH, dpi=120)
  print(PATH)


if __name__ == '__main__':
  main()
