// Runs the model of a folder in Node for a program that writes inputs to it and reads outputs from it:
//
//   node host.mjs FOLDER BACKEND THREADS
//
// Standard output: one byte when the model is loaded. Standard input: one word of 32 bits says what comes, standard
// output has what is answered:
//
//   0           a run: the bytes of all inputs, one after the other; the milliseconds (f64) and the bytes of all outputs
//   2 i + 1     the value of state i
//   2 i + 2     a value for state i

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { Worker } from "./worker.mjs";

class LocalFiles {
  constructor(folder) {
    this.folder = folder;
  }

  async bytes(name) {
    return new Uint8Array(fs.readFileSync(path.join(this.folder, name)));
  }

  async stream(name, take) {
    const file = fs.openSync(path.join(this.folder, name));
    const chunk = new Uint8Array(1 << 22);
    for (let offset = 0, size; (size = fs.readSync(file, chunk)); offset += size) take(chunk.subarray(0, size), offset);
    fs.closeSync(file);
  }
}

const chunks = process.stdin[Symbol.asyncIterator]();
let left = new Uint8Array(0);

/** Read all of `bytes` from standard input; false where it ends. */
async function read(bytes) {
  for (let at = 0; at < bytes.length; ) {
    if (!left.length) {
      const { done, value } = await chunks.next();
      if (done) return false;
      left = value;
    }
    const part = left.subarray(0, bytes.length - at);
    bytes.set(part, at);
    left = left.subarray(part.length);
    at += part.length;
  }
  return true;
}

const write = (bytes) => new Promise((done) => process.stdout.write(bytes, done));

const bytesOf = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

async function serve(folder, backend, threads) {
  const { load, arrayOf } = await import(pathToFileURL(path.join(folder, "runner.js")));
  const model = await load("", { files: new LocalFiles(folder), backend, threads });
  await write(new Uint8Array(1));
  const word = new Uint32Array(1);
  while (await read(new Uint8Array(word.buffer))) {
    const state = model.states[(word[0] - 1) >> 1];
    if (word[0] % 2) {
      await write(bytesOf(await model.state(state.name)));
      continue;
    }
    if (word[0]) {
      const bytes = new Uint8Array(state.bytes);
      if (!(await read(bytes))) break;
      const kind = arrayOf(state);
      await model.setState(state.name, new kind(bytes.buffer));
      continue;
    }
    const inputs = {};
    for (const tensor of model.inputs) {
      const bytes = new Uint8Array(tensor.bytes);
      if (!(await read(bytes))) return model.close();
      const kind = arrayOf(tensor);
      inputs[tensor.name] = new kind(bytes.buffer, 0, tensor.bytes / kind.BYTES_PER_ELEMENT);
    }
    const { outputs, milliseconds } = await model.run(inputs);
    await write(bytesOf(Float64Array.of(milliseconds)));
    for (const tensor of model.outputs) await write(bytesOf(outputs[tensor.name]));
  }
  model.close();
}

globalThis.Worker = Worker;
const [folder, backend, threads] = process.argv.slice(2);
try {
  await serve(folder, backend, Number(threads));
  process.exit(0);
} catch (error) {
  console.error(String(error));
  process.exit(1);
}
