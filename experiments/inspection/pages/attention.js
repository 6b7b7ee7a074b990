// Draws every <div class="attention"> from the JSON inside it: a map with
// queries as rows and keys as columns, and the text, shaded by the weights of
// the selected query.
'use strict';

const STEPS = 65535;
const MOST_NAMES = 64; // largest number of tokens with labels on the axes

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from(
    { length: bytes.length / 2 },
    (_, i) => view.getUint16(2 * i, true) / STEPS,
  );
}

// The page's colour to blue, a single hue: safe for colour-blind readers and in
// print.
function shade(share) {
  return `rgb(0 114 178 / ${share})`;
}

function element(name, parent, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function choice(parent, name) {
  const label = element('label', parent, `${name} `);
  const select = element('select', label);
  select.name = name;
  return select;
}

function fill(select, names) {
  const before = select.selectedIndex;
  select.replaceChildren(...names.map((name, i) => new Option(name, i)));
  select.selectedIndex = before >= 0 && before < names.length ? before : 0;
}

function show(root) {
  const texts = JSON.parse(root.querySelector('script').textContent);
  const controls = element('div', root);
  const [text, layer, head] = ['text', 'layer', 'head'].map((name) =>
    choice(controls, name),
  );
  const words = element('div', root);
  words.className = 'tokens';
  words.dir = 'auto';
  const output = element('output', root);
  const scale = element('small', root);
  const canvas = element('canvas', root);
  let tokens, weights, highest, query;

  const greatest = (x) => x.reduce((most, one) => Math.max(most, one), 0) || 1;

  // The selected map: one head, the mean over heads of a layer, or the rollout.
  // All heads of a text share one colour scale.
  function select() {
    const entry = texts[text.selectedIndex];
    const size = entry.tokens.length ** 2;
    if (layer.selectedIndex === entry.layers) {
      const rollout = unpack(entry.rollout);
      highest = greatest(rollout);
      return rollout;
    }
    const all = unpack(entry.weights);
    highest = greatest(all);
    const of = (number) => {
      const start = (layer.selectedIndex * entry.heads + number) * size;
      return all.subarray(start, start + size);
    };
    if (head.selectedIndex < entry.heads) return of(head.selectedIndex);
    const mean = new Float32Array(size);
    for (let number = 0; number < entry.heads; number++) {
      of(number).forEach((weight, i) => (mean[i] += weight / entry.heads));
    }
    return mean;
  }

  function layout() {
    const length = tokens.length;
    const names = length <= MOST_NAMES;
    const cell = names ? 20 : Math.max(2, Math.floor(640 / length));
    const margin = names
      ? 8 + 7 * Math.max(...tokens.map((token) => Math.min(token.length, 16)))
      : 40;
    return { length, names, cell, margin };
  }

  function draw() {
    const { length, names, cell, margin } = layout();
    const side = margin + cell * length + 1;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = side * ratio;
    canvas.style.width = `${side}px`;
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    context.font = '12px system-ui, sans-serif';
    context.textBaseline = 'middle';
    for (let row = 0; row < length; row++) {
      for (let column = 0; column < length; column++) {
        context.fillStyle = shade(weights[row * length + column] / highest);
        context.fillRect(
          margin + column * cell, margin + row * cell, cell, cell);
      }
    }
    context.strokeStyle = '#999';
    context.strokeRect(margin, margin, cell * length, cell * length);
    context.fillStyle = '#1a1a1a';
    for (let index = 0; index < length; index++) {
      if (!names && index % 32) continue;
      const name = names ? tokens[index].slice(0, 16) : String(index);
      const middle = margin + (index + 0.5) * cell;
      context.textAlign = 'right';
      context.fillText(name, margin - 4, middle);
      context.save();
      context.translate(middle, margin - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = 'left';
      context.fillText(name, 0, 0);
      context.restore();
    }
  }

  function shadeWords() {
    const length = tokens.length;
    [...words.children].forEach((word, key) => {
      const weight = weights[query * length + key];
      word.style.background = shade(weight / highest);
      word.style.color = weight / highest > 0.6 ? 'white' : 'inherit';
      word.classList.toggle('query', key === query);
      word.setAttribute('aria-pressed', key === query);
      word.title = weight.toFixed(4);
    });
  }

  function say(row, column) {
    const weight = weights[row * tokens.length + column];
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
    const mine = weights.subarray(row * tokens.length, (row + 1) * tokens.length);
    say(row, mine.indexOf(Math.max(...mine)));
  }

  function redraw() {
    weights = select();
    scale.textContent = `no colour: 0, full colour: ${highest.toFixed(4)}`;
    head.disabled = layer.selectedIndex === texts[text.selectedIndex].layers;
    draw();
    attend(query);
  }

  function restart() {
    const entry = texts[text.selectedIndex];
    tokens = entry.tokens;
    query = 0;
    const count = (number) => Array.from({ length: number }, (_, i) => `${i}`);
    fill(layer, [...count(entry.layers), 'rollout of all']);
    fill(head, [...count(entry.heads), 'mean of all']);
    words.replaceChildren();
    tokens.forEach((token, index) => {
      const word = element('button', words, token);
      word.type = 'button';
      word.addEventListener('click', () => attend(index));
    });
    redraw();
  }

  canvas.addEventListener('mousemove', (event) => {
    const { length, cell, margin } = layout();
    const box = canvas.getBoundingClientRect();
    // The map may be scaled down to the width of the page.
    const ratio = (margin + cell * length + 1) / box.width;
    const index = (offset) => Math.floor((offset * ratio - margin) / cell);
    const row = index(event.clientY - box.top);
    const column = index(event.clientX - box.left);
    if (row < 0 || column < 0 || row >= length || column >= length) return;
    if (row !== query) attend(row);
    say(row, column);
  });
  fill(text, texts.map((entry) => entry.title));
  text.addEventListener('change', restart);
  layer.addEventListener('change', redraw);
  head.addEventListener('change', redraw);
  restart();
}

document.querySelectorAll('.attention').forEach(show);
