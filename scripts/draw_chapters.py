"""Draws the figures of the chapters, and those of trained models, in docs/.

    bash scripts/run.sh python scripts/draw_chapters.py

Takes some minutes: it trains the default config three times, with different
positions. docs/chapters.md explains the figures.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import selfattn
from experiments.benchmarks import encoders
from selfattn import analysis, plots, positions
from selfattn import chapters as d2l
from selfattn.masks import Tokens
from selfattn.positions import POSITIONS
from selfattn.positions.absolute import Sinusoidal

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / 'docs'
TEXTS = (
  'the plot was dull but the acting was fine',
  'the acting was fine but the plot was dull',
)


def save(name, figure):
  figure.savefig(DOCS / f'{name}.png', dpi=plots.DPI)
  print(DOCS / f'{name}.png', flush=True)


def code_cells():
  """The chapter's columns and heat map, by its code cells and with its names;
  and the error of the rotation of P."""
  width, length = 32, 60
  pos_encoding = d2l.PositionalEncoding(width, 0)
  X = d2l.zeros((1, length, width))
  params = pos_encoding.init(d2l.get_key(), X)
  _, inter_vars = pos_encoding.apply(params, X, mutable='intermediates')
  P = np.asarray(inter_vars['intermediates']['P'][0])
  figure = d2l.plot(
    d2l.arange(length),
    P[0, :, 6:10].T,
    xlabel='Row (position)',
    figsize=(6, 2.5),
    legend=[f'Col {d}' for d in range(6, 10)],
  )
  save('columns', figure)
  figure = d2l.show_heatmaps(
    P[None],
    xlabel='Column (encoding dimension)',
    ylabel='Row (position)',
    figsize=(3.5, 4),
    cmap='Blues',
  )
  save('heatmap', figure)
  offsets = range(1, length)
  errors = [analysis.rotation_error(P[0], n).max() for n in offsets]
  figure = plots.plot(
    offsets, errors, 'offset', 'largest error of the rotation', figsize=(6, 2.5)
  )
  save('rotation', figure)


def waves():
  """The tutorial's heat map and waves."""
  method = Sinusoidal(512, 8, False)
  P = np.asarray(method.encoding({}, Tokens().with_defaults(50)))
  figure = Figure(figsize=(11, 3.6), layout='constrained')
  left, right = figure.subplots(1, 2)
  image = left.imshow(P[0, :, :50], cmap='RdBu', aspect='auto')
  figure.colorbar(image, ax=left)
  left.set(xlabel='Dimension', ylabel='Position')
  for index, column in enumerate((0, 1, 2, 3, 10, 20)):
    right.plot(
      P[0, :, column], label=f'Dimension {column}', **plots.style(index)
    )
  right.set(xlabel='Position', ylabel='Encoding value')
  right.grid(alpha=0.3)
  right.legend(loc='upper left', bbox_to_anchor=(1, 1))
  save('waves', figure)


def architectures():
  """The chapter's figure of a CNN, an RNN and self-attention, five tokens.

  For CNN and self-attention, an arrow is drawn where a gradient is not zero.
  """
  figure = Figure(figsize=(11, 2.8), layout='constrained')
  for axis, (name, title, count) in zip(
    figure.subplots(1, 3),
    (
      ('cnn', 'CNN of width 3, two layers', 2),
      ('rnn', 'RNN', 1),
      ('attention', 'Self-attention', 1),
    ),
    strict=True,
  ):
    for level in range(count):
      for output, position in connections(name):
        arrow(axis, (position, level), (output, level + 1))
    for n in range(4) if name == 'rnn' else ():
      arrow(axis, (n, 1), (n + 1, 1))
    for level, letter in zip((0, count, 1), 'xyh', strict=True):
      for n in range(5) if letter != 'h' or count == 2 else ():
        axis.scatter(n, level, s=190, c='white', ec='black', zorder=3)
        text = f'${letter}_{n + 1}$'
        axis.text(n, level, text, ha='center', va='center', fontsize=8)
    axis.set(xlim=(-0.5, 4.5), ylim=(-0.4, count + 0.4), title=title)
    axis.axis('off')
  save('architectures', figure)


def arrow(axis, start, end):
  style = {'arrowstyle': '->', 'color': plots.COLOURS[0], 'shrinkB': 9}
  axis.annotate('', end, start, arrowprops=style)


def connections(name):
  """Pairs (output, input) of one layer over five tokens that are connected."""
  if name == 'rnn':
    return [(n, n) for n in range(5)]
  pairs = zip(*np.nonzero(encoders.connections(name, 5, 3)), strict=True)
  return [(int(o), int(i)) for o, i in pairs]


def untrained_heads():
  """The tutorial's attention maps of untrained heads."""
  words = ['The', 'quick', 'brown', 'fox', 'jumps']
  attention = d2l.MultiHeadAttention(512, 4, bias=True)
  x = jax.random.normal(jax.random.key(123), (1, len(words), 512))
  (_, weights), _ = attention.init_with_output(jax.random.key(0), x, x, x)
  save(
    'untrained_heads',
    plots.attention_maps(np.asarray(weights), words, ['untrained']),
  )


def methods():
  """Attention weights of every position method, for one word repeated.

  Words are equal, so that what differs between weights is due to positions.
  """
  figure = Figure(figsize=(10, 7), layout='constrained')
  axes = figure.subplots(4, -(-len(POSITIONS) // 4), squeeze=False)
  for axis in axes.flat[len(POSITIONS) :]:
    axis.set_visible(False)
  for axis, (name, cls) in zip(axes.flat, POSITIONS.items(), strict=False):
    weights_LM = one_word_weights(name, cls.causal_only)
    visible_L1 = (weights_LM > 0).sum(axis=1, keepdims=True)
    share = np.where(weights_LM == 0, np.nan, weights_LM)
    image = axis.imshow(
      np.log2(share * visible_L1), cmap='RdBu', vmin=-2, vmax=2
    )
    axis.set(xticks=[], yticks=[])
    axis.set_title(name, fontsize=9)
    axis.set_facecolor('0.75')
  figure.supxlabel('key position')
  figure.supylabel('query position')
  figure.colorbar(
    image,
    ax=axes,
    shrink=0.4,
    extend='both',
    label='log2 of the weight over that of uniform attention',
  )
  save('methods', figure)


def one_word_weights(name, causal, length=24, embed_dim=64, num_heads=4):
  """Weights of the first head of an untrained layer, (query, key)."""
  encoder = selfattn.AttentionEncoder(
    num_layers=1,
    num_heads=num_heads,
    mlp_dim=64,
    position=positions.make({name: {}}, embed_dim, num_heads, causal, 1000),
    causal=causal,
    dtype=jnp.float32,
  )
  word = 0.1 * jax.random.normal(jax.random.key(7), (embed_dim,))
  x = jnp.broadcast_to(word, (1, length, embed_dim))
  tokens = Tokens(jnp.ones((1, length), bool), ids=jnp.full((1, length), 7))
  variables = encoder.init(jax.random.key(0), x, tokens)
  _, sown = encoder.apply(variables, x, tokens, mutable='intermediates')
  ((_, _, weights),) = analysis.sown(sown['intermediates'], 'weights')
  return np.asarray(weights)[0, 0]


def compared_encoders():
  """Operations and time over length, and gradients over distance."""
  speed = encoders.speed(repetitions=10)
  reach = encoders.reach(encoders.PATH, encoders.KERNEL, depth=4)

  def curves(column):
    return {
      name: [row[column] for row in speed if row['layer'] == name]
      for name in encoders.LAYERS
    }

  n = np.array(encoders.LENGTHS)
  figure = plots.panels(
    [
      ('tokens', 'operations', 'log', n, curves('operations')),
      ('tokens', 'milliseconds, forward', 'log', n, curves('median_ms')),
      (
        'distance of the input (tokens)',
        'gradient at the last output',
        'linear',
        np.arange(encoders.PATH),
        {name: norms[::-1] for name, norms in reach.items()},
      ),
    ],
  )
  save('compare', figure)


def command(name, *arguments):
  subprocess.run(
    [sys.executable, '-m', f'experiments.{name}', *arguments],
    check=True,
    cwd=ROOT,
    stdout=subprocess.DEVNULL,
  )


def trained(folder):
  """Heads and positions of trained models."""
  for method in ('sinusoidal', 'learned', 'continuous'):
    workdir = f'{folder}/{method}'
    command(
      'train', f'--workdir={workdir}', f'--config.model.position={method}'
    )
    texts = [f'--text={text}' for text in TEXTS]
    command('inspect', f'--workdir={workdir}', *texts)
  for name, path in {
    'attention': 'sinusoidal/inspect/attention-0.png',
    'twin': 'sinusoidal/inspect/attention-1.png',
    'rollout': 'sinusoidal/inspect/attention-0-rollout.png',
    'gram': 'sinusoidal/inspect/gram.png',
    'learned': 'learned/inspect/gram.png',
    'relative': 'continuous/inspect/distance.png',
  }.items():
    shutil.copy(f'{folder}/{path}', DOCS / f'{name}.png')
    print(DOCS / f'{name}.png', flush=True)


def main():
  code_cells()
  waves()
  architectures()
  untrained_heads()
  methods()
  compared_encoders()
  with tempfile.TemporaryDirectory() as folder:
    trained(folder)


if __name__ == '__main__':
  main()
