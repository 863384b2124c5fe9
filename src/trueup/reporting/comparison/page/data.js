// Tables travel as gzipped columns in base64 (payload.py says how); a column is decoded when it is first read.

function bytesFromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function decodeTable(id) {
  const holder = document.getElementById(id);
  const zipped = bytesFromBase64(holder.textContent.trim());
  holder.remove();
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const headLength = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headLength)));
  const table = { rows: head.rows, columns: {} };
  let offset = 4 + headLength;
  for (const entry of head.columns) {
    table.columns[entry.name] = new Column(entry, buffer, offset, head.rows);
    offset += entry.bytes + (entry.nulls || 0);
  }
  return table;
}

class Column {
  constructor(entry, buffer, offset, rows) {
    Object.assign(this, { entry, buffer, offset, rows, words: entry.words || null, decoded: null });
    this.nulls = entry.nulls ? new Uint8Array(buffer, offset + entry.bytes, entry.nulls) : null;
  }
  // Codes (0 is null) of a worded column, numbers of a float column.
  get data() {
    return (this.decoded ??= this.words ? this.#codes() : this.#floats());
  }
  #codes() {
    const size = this.rows ? this.entry.bytes / this.rows : 1;
    const kind = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[size];
    return new kind(this.buffer.slice(this.offset, this.offset + this.entry.bytes));
  }
  #floats() {
    const n = this.rows;
    const out = new Uint8Array(n * 8);
    for (let plane = 0; plane < 8; plane++) {
      const source = new Uint8Array(this.buffer, this.offset + plane * n, n);
      for (let i = 0, j = plane; i < n; i++, j += 8) out[j] = source[i];
    }
    return new Float64Array(out.buffer);
  }
  get(row) {
    if (this.words) {
      const code = this.data[row];
      return code ? this.words[code - 1] : null;
    }
    return this.nulls && this.nulls[row] ? null : this.data[row];
  }
  // Numbers that sort as people expect: natural order of words; null last, NaN worst.
  get keys() {
    if (this.sortKeys) return this.sortKeys;
    const keys = new Float64Array(this.rows);
    if (this.words) {
      const collator = new Intl.Collator("en", { numeric: true });
      const order = this.words.map((_, i) => i).sort((a, b) => collator.compare(this.words[a], this.words[b]));
      const rank = new Float64Array(this.words.length + 1).fill(NaN);
      order.forEach((word, position) => (rank[word + 1] = position));
      for (let i = 0; i < this.rows; i++) keys[i] = rank[this.data[i]];
    } else {
      for (let i = 0; i < this.rows; i++) {
        const value = this.data[i];
        keys[i] = this.nulls && this.nulls[i] ? NaN : Number.isNaN(value) ? Infinity : value;
      }
    }
    return (this.sortKeys = keys);
  }
}

function sortedView(view, keys, direction) {
  const sorted = Uint32Array.from(view);
  return sorted.sort((a, b) => {
    const x = keys[a], y = keys[b];
    if (x === y) return a - b;
    if (x !== x) return y !== y ? a - b : 1;
    if (y !== y) return -1;
    return direction * (x - y);
  });
}
