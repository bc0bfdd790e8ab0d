// The backends of WebAssembly: on several threads where a page may share memory, else on the thread that calls.

import { arrayOf } from "./tensors.js";

const PAGE = 65536;
const ALIGN = 64;
/** Whether a module with 128-bit vectors, and one with relaxed ones, is understood: the smallest that have one each. */
const HEAD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0];
const SPLAT = [65, 0, 253, 15];
const VECTORS = [...HEAD, 10, 8, 1, 6, 0, ...SPLAT, 11];
const RELAXED = [...HEAD, 10, 19, 1, 17, 0, ...SPLAT, ...SPLAT, ...SPLAT, 253, 133, 2, 11];
/** What a module may ask for that JavaScript has by another name. */
const OTHERS = { exp2: (x) => 2 ** x, fmod: (x, y) => x % y };

export const wasm = {
  name: "wasm",
  missing: (manifest) => lacking(manifest, "wasm"),
  open: async (manifest, files, options) => new Session(await prepare(manifest, "wasm", files, options, 1)),
};

export const wasmThreads = {
  name: "wasm-threads",
  missing(manifest) {
    if (typeof SharedArrayBuffer === "undefined" || globalThis.crossOriginIsolated === false) {
      return "memory can be shared only on a page with the headers of README.md (cross-origin isolation)";
    }
    if (typeof Worker === "undefined") return "there are no workers";
    return lacking(manifest, "wasm-threads");
  },
  async open(manifest, files, options) {
    const most = manifest.backends["wasm-threads"].threads;
    const threads = Math.max(1, Math.min(options.threads ?? globalThis.navigator?.hardwareConcurrency ?? 4, most));
    const session = new Team(await prepare(manifest, "wasm-threads", files, options, threads));
    await session.start();
    return session;
  },
};

/** Why a module of a site cannot run here, "" if it can. */
function lacking(manifest, name) {
  const module = manifest.backends[name];
  if (!module) return "the site was exported without it";
  if (typeof WebAssembly === "undefined") return "there is no WebAssembly";
  if (!WebAssembly.validate(new Uint8Array(VECTORS))) return "WebAssembly has no 128-bit vectors";
  if (module.relaxed && !WebAssembly.validate(new Uint8Array(RELAXED))) return "WebAssembly has no relaxed vectors";
  return "";
}

/** An instance of a module in a memory. */
export async function instantiate(module, memory) {
  const env = { memory };
  for (const { name, kind } of WebAssembly.Module.imports(module)) {
    if (kind !== "function") continue;
    const plain = name in OTHERS || name in Math ? name : name.slice(0, -1); // expf is exp, rounded
    env[name] = OTHERS[plain] ?? Math[plain];
  }
  return (await WebAssembly.instantiate(module, { env })).exports;
}

/** A module in a memory with the weights in it, and where everything lies. */
async function prepare(manifest, name, files, options, threads) {
  const { module: file, pages, mostPages, stack } = manifest.backends[name];
  const shared = name === "wasm-threads";
  const memory = new WebAssembly.Memory(shared ? { initial: pages, maximum: mostPages, shared } : { initial: pages });
  const module = await WebAssembly.compile(await files.bytes(file));
  const exports = await instantiate(module, memory);
  let end = exports.__heap_base.value;
  const take = (bytes) => {
    const at = Math.ceil(end / ALIGN) * ALIGN;
    end = at + bytes;
    return at;
  };
  const count = manifest.inputs.length + manifest.outputs.length + 2 * manifest.states.length;
  const places = {
    control: take(2 * ALIGN), // the number of the last run, then the arrivals at barriers
    table: take(4 * count),
    weights: take(manifest.weights.bytes),
    arena: take(manifest.memory.arena + threads * manifest.memory.scratch),
    arrays: [...manifest.inputs, ...manifest.outputs].map((tensor) => take(tensor.bytes)),
    states: manifest.states.map((state) => {
      const value = take(state.bytes);
      return [value, state.swapped ? take(state.bytes) : value];
    }),
    stacks: take(shared ? threads * stack : 0), // else the module's own
  };
  const missing = Math.ceil(end / PAGE) - memory.buffer.byteLength / PAGE;
  if (missing > 0) memory.grow(missing);
  new Uint32Array(memory.buffer, places.table, count).set([...places.arrays, ...places.states.flat()]);
  await fill(manifest.weights, files, options, new Uint8Array(memory.buffer, places.weights, manifest.weights.bytes));
  return { manifest, memory, module, exports, places, threads, stack };
}

/** Read the weights into the memory, piece by piece. */
async function fill(weights, files, options, memory) {
  let done = 0;
  options.onProgress?.(0, weights.bytes);
  if (weights.bytes) {
    await files.stream(weights.file, (chunk, offset) => {
      memory.set(chunk, offset);
      done = offset + chunk.length;
      options.onProgress?.(done, weights.bytes);
    });
  }
  if (done !== weights.bytes) throw new Error(`${weights.file} has ${done} bytes instead of ${weights.bytes}`);
}

/** What is the same on one thread and on several: inputs are copied into the memory, outputs out of it. */
class Session {
  constructor(prepared) {
    Object.assign(this, prepared);
  }

  async run(arrays) {
    const { manifest, memory, places } = this;
    if (!memory) throw new Error("the model is closed");
    arrays.forEach((array, i) => view(array.constructor, memory, places.arrays[i], array.length).set(array));
    await this.compute();
    this.exchange();
    return manifest.outputs.map((tensor, i) => {
      const kind = arrayOf(tensor);
      const at = places.arrays[manifest.inputs.length + i];
      return view(kind, memory, at, tensor.bytes / kind.BYTES_PER_ELEMENT).slice();
    });
  }

  /** The two buffers of a state that is not written in place change places. */
  exchange() {
    const table = this.table();
    this.manifest.states.forEach((state, i) => {
      if (state.swapped) table.subarray(2 * i, 2 * i + 2).reverse();
    });
  }

  /** Of each state the address of its value, and of its next value. */
  table() {
    const { memory, manifest, places } = this;
    return view(Uint32Array, memory, places.table + 4 * places.arrays.length, 2 * manifest.states.length);
  }

  /** The memory that has the value of a state, by its number. */
  state(i) {
    if (!this.memory) throw new Error("the model is closed");
    return view(Uint8Array, this.memory, this.table()[2 * i], this.manifest.states[i].bytes);
  }

  compute() {
    const { control, weights, arena, table } = this.places;
    this.exports.run(0, 1, 0, control, weights, arena, table);
  }

  close() {
    this.memory = this.exports = undefined;
  }
}

function view(kind, memory, at, length) {
  return new kind(memory.buffer, at, length);
}

/** Workers that each run their share; the numbers of runs and what they count are words of the shared memory. */
class Team extends Session {
  async start() {
    const { module, memory, places, threads, stack } = this;
    const common = { module, memory, places, threads, barriers: this.manifest.backends["wasm-threads"].barriers };
    this.runs = 0;
    this.workers = [];
    const ready = [];
    for (let thread = 0; thread < threads; thread++) {
      const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
      this.workers.push(worker);
      ready.push(
        new Promise((resolve, reject) => {
          worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve());
          worker.onerror = (event) => reject(new Error(`a worker failed: ${event.message}`));
        }),
      );
      worker.postMessage({ ...common, thread, top: places.stacks + (thread + 1) * stack });
    }
    await Promise.all(ready).catch((error) => {
      this.close();
      throw error;
    });
  }

  compute() {
    return new Promise((resolve, reject) => {
      for (const worker of this.workers) {
        worker.onmessage = ({ data }) => (data.error ? reject(this.failed(data.error)) : resolve());
        worker.onerror = (event) => reject(this.failed(event.message));
      }
      const words = new Int32Array(this.memory.buffer);
      this.runs = (this.runs + 1) | 0;
      Atomics.store(words, this.places.control >> 2, this.runs);
      Atomics.notify(words, this.places.control >> 2);
    });
  }

  /** The others wait for the one that failed: all end. */
  failed(words) {
    this.close();
    return new Error(`a worker failed: ${words}`);
  }

  close() {
    for (const worker of this.workers) worker.terminate();
    this.workers = [];
    super.close();
  }
}
