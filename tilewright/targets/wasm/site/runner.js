// Runs a model in a page, a worker or Node:
//
//   import { load } from "./runner.js";
//   const model = await load("./", { onProgress: (done, total) => console.log(done / total) });
//   const { outputs, milliseconds } = await model.run({ image: new Float32Array(64) });
//
// The types are in runner.d.ts. What runs the model is a backend; the best one that is there is taken.

import { backends } from "./backends.js";
import { arrayOf } from "./tensors.js";

export { arrayOf, backends };

const FORMAT = 1;
/** Files of a folder, or beside a page or a script, by `fetch`. */
export class WebFiles {
  constructor(base) {
    this.base = new URL(base, globalThis.document?.baseURI ?? globalThis.location?.href);
    if (!/\/$|\.(html?|m?js|json)$/.test(this.base.pathname)) this.base.pathname += "/";
  }

  async response(name) {
    const url = new URL(name, this.base);
    const response = await fetch(url);
    if (!response.ok) throw new Error(`cannot read ${url}: ${response.status} ${response.statusText}`);
    return response;
  }

  async bytes(name) {
    return new Uint8Array(await (await this.response(name)).arrayBuffer());
  }

  /** Call `take(chunk, offset)` with one piece of the file after the other. */
  async stream(name, take) {
    const reader = (await this.response(name)).body.getReader();
    for (let offset = 0; ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      take(value, offset);
      offset += value.length;
    }
  }
}

/** Load the model of a site; `base` is where its files are. */
export async function load(base = "./", options = {}) {
  const files = options.files ?? new WebFiles(base);
  const manifest = JSON.parse(new TextDecoder().decode(await files.bytes("model.json")));
  if (manifest.format !== FORMAT) {
    throw new Error(`model.json has format ${manifest.format}, this runner reads ${FORMAT}: export the model again`);
  }
  manifest.states ??= []; // sites of earlier versions have none
  const backend = await choose(manifest, options.backend);
  return new Model(manifest, backend.name, await backend.open(manifest, files, options));
}

/** The best backend for a model here, one that is slow here only where no other is left; or the one of that name. */
async function choose(manifest, name) {
  const wanted = backends.filter((b) => name === undefined || b.name === name);
  if (!wanted.length) throw new Error(`no backend ${name}: there are ${backends.map((b) => b.name).join(", ")}`);
  const reasons = [];
  let slow;
  for (const backend of wanted) {
    const missing = await backend.missing(manifest);
    if (missing) reasons.push(`${backend.name}: ${missing}`);
    else if (!(await backend.slow?.())) return backend;
    else slow ??= backend;
  }
  if (slow) return slow;
  throw new Error(reasons.join("; "));
}

/** A model in memory; `inputs` and `outputs` say what it takes and gives, `backend` what runs it. */
export class Model {
  constructor(manifest, backend, session) {
    this.name = manifest.name;
    this.inputs = manifest.inputs;
    this.outputs = manifest.outputs;
    this.states = manifest.states;
    this.backend = backend;
    this.threads = session.threads;
    this.session = session;
    this.last = Promise.resolve();
  }

  /** Run once; the inputs are arrays by name. Calls run one after the other. */
  run(inputs) {
    const arrays = this.inputs.map((tensor) => checked(tensor, inputs[tensor.name]));
    const unknown = Object.keys(inputs).filter((name) => !this.inputs.some((t) => t.name === name));
    if (unknown.length) throw new TypeError(`the model has no input ${unknown.join(", ")}`);
    return this.queued(() => this.timed(arrays));
  }

  async timed(arrays) {
    const begin = performance.now();
    const results = await this.session.run(arrays);
    const milliseconds = performance.now() - begin;
    return { outputs: Object.fromEntries(this.outputs.map((t, i) => [t.name, results[i]])), milliseconds };
  }

  /** The value of a state, a copy; states are zeros at first. */
  state(name) {
    const i = this.named(name);
    const kind = arrayOf(this.states[i]);
    return this.queued(() => new kind(this.session.state(i).slice().buffer));
  }

  /** Give a state another value. */
  setState(name, array) {
    const i = this.named(name);
    checked(this.states[i], array);
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    return this.queued(() => this.session.state(i).set(bytes));
  }

  /** All states are zeros again. */
  reset() {
    return this.queued(() => this.states.forEach((_, i) => this.session.state(i).fill(0)));
  }

  named(name) {
    const i = this.states.findIndex((state) => state.name === name);
    if (i < 0) throw new TypeError(`the model has no state ${name}`);
    return i;
  }

  /** Do something when the calls before are done. */
  queued(work) {
    this.last = this.last.catch(() => {}).then(work);
    return this.last;
  }

  /** End its threads and give back its memory. */
  close() {
    this.session.close();
  }
}

function checked(tensor, array) {
  const kind = arrayOf(tensor);
  const count = tensor.shape.reduce((a, b) => a * b, 1);
  const wanted = `${kind.name} of ${count} elements (${tensor.dtype}[${tensor.shape.join(", ")}])`;
  if (!(array instanceof kind)) throw new TypeError(`input ${tensor.name} wants a ${wanted}`);
  if (array.length !== count) {
    throw new TypeError(`input ${tensor.name} has ${array.length} elements, it wants a ${wanted}`);
  }
  return array;
}
