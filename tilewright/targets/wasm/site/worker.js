// A thread of a model: it waits for the number of the next run, and does its share of each.

import { instantiate } from "./wasm.js";

self.onmessage = async ({ data }) => {
  try {
    await work(data);
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};

async function work({ module, memory, places, threads, barriers, thread, top }) {
  const { run, __stack_pointer } = await instantiate(module, memory);
  __stack_pointer.value = top;
  const words = new Int32Array(memory.buffer);
  const next = places.control >> 2;
  const count = places.control + 64;
  self.postMessage({ ready: true });
  for (let seen = 0; ; ) {
    Atomics.wait(words, next, seen);
    const number = Atomics.load(words, next);
    if (number === seen) continue;
    const passed = Math.imul(number - 1, threads * barriers);
    seen = number;
    run(thread, threads, passed, count, places.weights, places.arena, places.table);
    if (thread === 0) self.postMessage({ done: true });
  }
}
