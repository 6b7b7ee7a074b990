// Draws every <div class="attention"> from the JSON inside it: a small map of
// each head, the chosen one with queries as rows and keys as columns, and the
// text, shaded by the weights of the selected query.
'use strict';

// Blue, and of negative weights vermilion: safe for colour-blind readers.
const COLOURS = [[0, 114, 178], [213, 94, 0]];
const MOST_NAMES = 64; // largest number of tokens with labels on the axes
const LEAST_MARGIN = 58; // pixels of the names of the axes, and of numbers

function unpack({ unit, zero, numbers }) {
  const bytes = Uint8Array.from(atob(numbers), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from(
    { length: bytes.length / 2 },
    (_, i) => unit * (view.getUint16(2 * i, true) - zero),
  );
}

function element(name, parent, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// Each head, the mean of each layer and the rollout of all: name, weights, and
// the weight of full colour, which is that of all heads together.
function maps({ tokens, layers, heads, weights, rollout }) {
  const greatest = (x) =>
    x.reduce((most, one) => Math.max(most, Math.abs(one)), 0) || 1;
  const size = tokens.length ** 2;
  const all = unpack(weights), highest = greatest(all), made = [];
  for (let layer = 0; layer < layers; layer++) {
    const mean = new Float32Array(size);
    for (let head = 0; head < heads; head++) {
      const start = (layer * heads + head) * size;
      const of = all.subarray(start, start + size);
      of.forEach((weight, i) => (mean[i] += weight / heads));
      made.push({ name: `layer ${layer}, head ${head}`, weights: of, highest });
    }
    made.push({ name: `layer ${layer}, mean`, weights: mean, highest });
  }
  const flow = unpack(rollout);
  made.push({
    name: 'rollout of all layers', weights: flow, highest: greatest(flow),
  });
  return made;
}

// Red, green and blue of a weight, and how opaque it is, from 0 to 1.
function shade(weight, highest) {
  return [...COLOURS[Number(weight < 0)], Math.abs(weight) / highest];
}

// A pixel for each weight, from the page's colour to a hue for its sign.
function paint(canvas, { weights, highest }, length) {
  canvas.width = canvas.height = length;
  const image = new ImageData(length, length);
  weights.forEach((weight, i) => {
    const [red, green, blue, opacity] = shade(weight, highest);
    image.data.set([red, green, blue, 255 * opacity], 4 * i);
  });
  canvas.getContext('2d').putImageData(image, 0, 0);
}

function show(root) {
  const texts = JSON.parse(root.querySelector('script').textContent);
  const text = element('select', element('label', root, 'text '));
  text.append(...texts.map((entry) => new Option(entry.title)));
  const note = element('p', root);
  const heads = element('div', root);
  heads.className = 'heads';
  const words = element('div', root);
  words.className = 'tokens';
  words.dir = 'auto';
  const output = element('output', root);
  const caption = element('small', root);
  const canvas = element('canvas', root);
  let tokens, shown, small, query;

  function layout() {
    const length = tokens.length;
    const names = length <= MOST_NAMES;
    const cell = names ? 20 : Math.max(2, Math.floor(640 / length));
    const widths = tokens.map((token) => Math.min(token.length, 16));
    const width = names ? 26 + 7 * Math.max(...widths) : 0;
    const margin = Math.max(LEAST_MARGIN, width);
    return { length, names, cell, margin, side: margin + cell * length + 1 };
  }

  function draw() {
    const { length, names, cell, margin, side } = layout();
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = side * ratio;
    canvas.style.width = `${side}px`;
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    context.font = '12px system-ui, sans-serif';
    context.textBaseline = 'middle';
    context.imageSmoothingEnabled = false;
    context.drawImage(small, margin, margin, cell * length, cell * length);
    context.strokeStyle = '#999';
    context.strokeRect(margin, margin, cell * length, cell * length);
    context.fillStyle = getComputedStyle(root).color;
    context.textAlign = 'right';
    const label = (name, at) => context.fillText(name, margin - 4, at);
    const upright = (name, at) => {
      context.save();
      context.translate(at, margin - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = 'left';
      context.fillText(name, 0, 0);
      context.restore();
    };
    for (let index = 0; index < length; index++) {
      if (!names && index % 32) continue;
      const name = names ? tokens[index].slice(0, 16) : String(index);
      label(name, margin + (index + 0.5) * cell);
      upright(name, margin + (index + 0.5) * cell);
    }
    context.fillText('key →', margin - 4, 10);
    context.fillText('query ↓', margin - 4, margin - 10);
  }

  function shadeWords() {
    [...words.children].forEach((word, key) => {
      const weight = shown.weights[query * tokens.length + key];
      const [red, green, blue, opacity] = shade(weight, shown.highest);
      word.style.background = `rgb(${red} ${green} ${blue} / ${opacity})`;
      word.style.color = opacity > 0.75 ? 'white' : 'inherit';
      word.classList.toggle('query', key === query);
      word.setAttribute('aria-pressed', key === query);
      word.title = weight.toFixed(4);
    });
  }

  function say(row, column) {
    const weight = shown.weights[row * tokens.length + column];
    output.textContent = '';
    // Each token in its own direction, whatever that of the other is.
    const name = (index) => {
      element('bdi', output, tokens[index]);
      output.append(` (${index})`);
    };
    output.append('from ');
    name(row);
    output.append(' to ');
    name(column);
    output.append(`: ${weight.toFixed(4)}`);
  }

  function attend(row) {
    query = row;
    shadeWords();
    const length = tokens.length;
    const mine = shown.weights.subarray(row * length, (row + 1) * length);
    say(row, mine.indexOf(Math.max(...mine)));
  }

  function choose(map, button) {
    shown = map;
    small = button.firstChild;
    [...heads.children].forEach((one) =>
      one.setAttribute('aria-pressed', one === button));
    caption.textContent =
      `${map.name}; no colour: 0, full colour: ${map.highest.toFixed(4)}`;
    draw();
    attend(query);
  }

  function restart() {
    const entry = texts[text.selectedIndex];
    tokens = entry.tokens;
    query = 0;
    note.textContent = entry.note;
    heads.style.setProperty('--heads', entry.heads + 1);
    heads.replaceChildren();
    for (const map of maps(entry)) {
      const button = element('button', heads);
      paint(element('canvas', button), map, tokens.length);
      element('span', button, map.name);
      button.addEventListener('click', () => choose(map, button));
    }
    words.replaceChildren();
    tokens.forEach((token, index) => {
      const word = element('button', words, token);
      word.type = 'button';
      word.addEventListener('click', () => attend(index));
    });
    heads.firstChild.click();
  }

  canvas.addEventListener('mousemove', (event) => {
    const { length, cell, margin, side } = layout();
    const box = canvas.getBoundingClientRect();
    // The map may be scaled down to the width of the page.
    const index = (offset) =>
      Math.floor(((offset * side) / box.width - margin) / cell);
    const row = index(event.clientY - box.top);
    const column = index(event.clientX - box.left);
    if (row < 0 || column < 0 || row >= length || column >= length) return;
    if (row !== query) attend(row);
    say(row, column);
  });
  text.addEventListener('change', restart);
  restart();
  // Names on the axes have the colour of the text, which a print changes, too.
  for (const state of ['(prefers-color-scheme: dark)', 'print']) {
    matchMedia(state).addEventListener('change', draw);
  }
}

document.querySelectorAll('.attention').forEach(show);
