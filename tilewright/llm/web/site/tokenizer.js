// Text to tokens and back, by byte pairs; the data is that of tokenizer.json.

/** The letters that stand for bytes in vocabularies: printable ones for themselves, others from 256 on. */
function letters() {
  const plain = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(plain(b) ? b : next++));
}

const LETTERS = letters();

export class Tokenizer {
  constructor(data) {
    this.vocabulary = new Map(Object.entries(data.vocabulary));
    this.ranks = new Map(data.merges.map(([a, b], i) => [`${a} ${b}`, i]));
    this.patterns = data.patterns.map((p) => new RegExp(p, "gu"));
    this.bytes = data.bytes.map((b) => Uint8Array.from(atob(b), (c) => c.charCodeAt(0)));
    this.eos = new Set(data.eos);
    this.whole = data.whole;
    this.normalize = data.normalize;
    this.known = new Map();
  }

  /** The tokens of a text; none of them is a special one. */
  encode(text) {
    let words = [this.normalize ? text.normalize(this.normalize) : text];
    for (const pattern of this.patterns) words = words.flatMap((word) => cut(word, pattern));
    return words.flatMap((word) => this.word(word));
  }

  word(text) {
    if (!this.known.has(text)) {
      const bytes = Array.from(new TextEncoder().encode(text), (b) => LETTERS[b]);
      const whole = this.whole ? this.vocabulary.get(bytes.join("")) : undefined;
      this.known.set(text, whole === undefined ? this.merged(bytes).map((p) => this.vocabulary.get(p)) : [whole]);
    }
    return this.known.get(text);
  }

  /** Join the neighbours that come first in the list of merges, until there are none. */
  merged(parts) {
    for (;;) {
      let best = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        best = Math.min(best, this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity);
      }
      if (best === Infinity) return parts;
      const joined = [];
      for (let i = 0; i < parts.length; i++) {
        const fits = i + 1 < parts.length && this.ranks.get(`${parts[i]} ${parts[i + 1]}`) === best;
        joined.push(fits ? parts[i] + parts[++i] : parts[i]);
      }
      parts = joined;
    }
  }

  /** A function that takes token after token and gives the text that is complete. */
  decoder() {
    const text = new TextDecoder();
    return (token) => text.decode(this.bytes[token] ?? new Uint8Array(), { stream: true });
  }
}

/** The matches of a pattern, and what is between them. */
function cut(text, pattern) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (!match[0]) continue;
    if (match.index > end) parts.push(text.slice(end, match.index));
    parts.push(match[0]);
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}
