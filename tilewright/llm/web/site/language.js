// A conversation with a language model:
//
//   import { loadLanguage } from "./language.js";
//   const language = await loadLanguage("./", { onProgress: (done, total) => console.log(done / total) });
//   for await (const piece of language.ask("Name a river.")) console.log(piece);

import { load, WebFiles } from "./runner.js";
import { Tokenizer } from "./tokenizer.js";

/** Load the model, its tokenizer and the pieces of its chat template; options are those of the runner. */
export async function loadLanguage(base = "./", options = {}) {
  const files = options.files ?? new WebFiles(base);
  const read = async (name) => JSON.parse(new TextDecoder().decode(await files.bytes(name)));
  const [about, tokenizer] = await Promise.all([read("language.json"), read("tokenizer.json")]);
  return new Language(await load(base, options), new Tokenizer(tokenizer), about);
}

export class Language {
  constructor(model, tokenizer, about) {
    Object.assign(this, { model, tokenizer, about });
    this.table = Int32Array.from({ length: about.pages }, (_, i) => i);
    this.reset();
  }

  /** Begin a new conversation. The cache is written anew, from its beginning. Not while an answer is made. */
  reset() {
    if (this.answering) throw new Error("an answer is being made: end it before a new conversation begins");
    this.length = this.drawn = 0;
    this.started = false;
  }

  /** Tokens that the conversation may still have. */
  get left() {
    return this.about.context - this.length;
  }

  /** The logits after one more token. */
  async step(token) {
    if (this.left < 1) throw new Error(`the conversation has its ${this.about.context} tokens: begin a new one`);
    const at = Int32Array.of(this.length);
    const { outputs } = await this.model.run({
      tokens: Int32Array.of(token),
      positions: at,
      slots: at,
      starts: Int32Array.of(0, 1),
      lengths: Int32Array.of(this.length + 1),
      table: this.table,
      rows: Int32Array.of(0),
    });
    this.length++;
    if (performance.now() - this.drawn > 30) {
      await new Promise((resolve) => setTimeout(resolve)); // let the page draw and hear
      this.drawn = performance.now();
    }
    return outputs.logits;
  }

  /** Ask, and get the answer piece by piece. temperature: 0 is greedy; topK: of so many tokens one is drawn; signal
   * ends the answer, and one that ends while the question is read takes the question back. */
  async *ask(question, { temperature = 0.7, topK = 40, maxTokens = Infinity, signal } = {}) {
    const { begin, answer, between } = this.about;
    const prompt = [...(this.started ? between : begin), ...this.tokenizer.encode(question.trim()), ...answer];
    if (this.answering) throw new Error("the last question is not answered yet");
    if (prompt.length >= this.left) {
      throw new Error(`${prompt.length} tokens of a question do not fit: there is room for ${this.left}`);
    }
    const before = this.length;
    this.answering = true;
    try {
      let logits;
      for (const token of prompt) {
        if (signal?.aborted) return void (this.length = before);
        logits = await this.step(token);
      }
      this.started = true;
      const text = this.tokenizer.decoder();
      for (let count = 0; count < maxTokens && this.left > 0 && !signal?.aborted; count++) {
        const token = choose(logits, temperature, topK);
        if (this.tokenizer.eos.has(token)) return; // `between` has what ends an answer
        const piece = text(token);
        if (piece) yield piece;
        logits = await this.step(token);
      }
    } finally {
      this.answering = false;
    }
  }
}

/** The number of the largest logit, or one of the largest, drawn by their probabilities. */
function choose(logits, temperature, topK) {
  if (temperature <= 0) {
    let best = 0;
    for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
    return best;
  }
  const kept = largest(logits, topK > 0 ? topK : logits.length);
  const weights = kept.map((i) => Math.exp((logits[i] - logits[kept[0]]) / temperature));
  let left = Math.random() * weights.reduce((a, b) => a + b, 0);
  return kept.find((_, i) => (left -= weights[i]) < 0) ?? kept[0];
}

/** The numbers of the `count` largest values, the largest first. */
function largest(values, count) {
  const found = Array.from(values.keys());
  if (count < values.length) {
    const least = Float32Array.from(values).sort()[values.length - count];
    return found.filter((i) => values[i] >= least).sort((a, b) => values[b] - values[a]).slice(0, count);
  }
  return found.sort((a, b) => values[b] - values[a]);
}
