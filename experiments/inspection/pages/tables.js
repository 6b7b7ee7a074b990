// Sorts a table by the column whose head is clicked, and hides the rows of a
// long table that lack a word typed into the box above it.
'use strict';

(() => {
  const value = (row, column) => row.cells[column].textContent.trim();
  const number = (text) =>
    text === '' ? NaN : Number(text.replaceAll(',', '').split(' ')[0]);

  function compare(one, other) {
    const [a, b] = [number(one), number(other)];
    if (isNaN(a) !== isNaN(b)) return isNaN(a) ? 1 : -1; // texts come last
    return isNaN(a) ? one.localeCompare(other) : a - b;
  }

  function sort(table, column, head) {
    const down = head.ariaSort === 'ascending';
    for (const each of table.tHead.rows[0].cells) each.ariaSort = null;
    head.ariaSort = down ? 'descending' : 'ascending';
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(value(a, column), value(b, column)));
    table.tBodies[0].append(...(down ? rows.reverse() : rows));
  }

  function search(table, text, found) {
    const words = text.toLowerCase().split(/\s+/);
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
      count += !row.hidden;
    }
    found.textContent = `${count} of ${table.tBodies[0].rows.length} rows`;
  }

  for (const table of document.querySelectorAll('.scroll > table:not(.confusion)')) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.tabIndex = 0;
      head.title = 'sort';
      head.addEventListener('click', () => sort(table, column, head));
      head.addEventListener('keydown', (event) => {
        if (event.key === 'Enter') sort(table, column, head);
      });
    });
    if (!table.parentElement.classList.contains('long')) continue;
    const box = document.createElement('input');
    const found = document.createElement('small');
    box.type = 'search';
    box.placeholder = 'rows with these words';
    box.addEventListener('input', () => search(table, box.value, found));
    table.parentElement.before(box, ' ', found);
    search(table, '', found);
  }
})();
