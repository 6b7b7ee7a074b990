"""Stories about people with invented names, each of which is told many times.

  Loru lives in Tamik and keeps a grey fox . Vesi lives in Rolde and ...
  In the morning Vesi took the white goose to Rolde . ...

Names are drawn from syllables anew for each story, and so is who lives where
and keeps what. So a name costs a model several bits when it is new and little
when it is told again, if the model reads as far back as that: the loss falls
with the length of the context.
"""

from __future__ import annotations

import numpy as np

_STARTS = ('b', 'd', 'f', 'g', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z')
_MIDDLES = ('a', 'e', 'i', 'o', 'u', 'al', 'en', 'ir', 'os', 'um')
_COLOURS = ('black', 'white', 'grey', 'red', 'brown', 'spotted', 'golden')
_ANIMALS = ('fox', 'goose', 'dog', 'mare', 'goat', 'cat', 'raven', 'hare')
_TIMES = (
  'in the morning', 'at noon', 'one evening', 'the next day', 'after the rain',
  'long before dawn', 'when the snow fell', 'on the last day of the fair',
)  # fmt: skip
_EVENTS = (
  '{who} took the {animal} to {place}',
  '{who} and {other} met in {place}',
  'the {animal} ran away from {who}',
  '{who} told {other} about the {animal}',
  '{other} walked from {away} to {place} to see {who}',
  'nobody in {place} had seen {who} or the {animal}',
  '{who} sold the house in {place} and then bought it back',
)


def story(rng: np.random.Generator) -> str:
  """One story, of about 1,600 characters."""
  count = int(rng.integers(3, 6))
  names = [_name(rng, 2) for _ in range(count)]
  places = [_name(rng, 3) for _ in range(count)]
  animals = [f'{_one(rng, _COLOURS)} {_one(rng, _ANIMALS)}' for _ in names]
  lines = [
    f'{who} lives in {place} and keeps a {animal}'
    for who, place, animal in zip(names, places, animals, strict=True)
  ]
  for _ in range(24):
    one, other = rng.permutation(count)[:2]
    event = _one(rng, _EVENTS).format(
      who=names[one],
      other=names[other],
      place=places[one],
      away=places[other],
      animal=animals[one],
    )
    lines.append(f'{_one(rng, _TIMES)} {event}')
  return ' . '.join(lines) + ' .'


def _name(rng: np.random.Generator, syllables: int) -> str:
  parts = [_one(rng, _STARTS) + _one(rng, _MIDDLES) for _ in range(syllables)]
  return ''.join(parts).capitalize()


def _one(rng: np.random.Generator, choices: tuple[str, ...]) -> str:
  return choices[rng.integers(len(choices))]
