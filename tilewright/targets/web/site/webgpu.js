// The backend of WebGPU: kernels in WGSL, recorded anew for each run, on buffers that stay on the device.

import { arrayOf } from "./tensors.js";

const LIMITS = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupStorageSize"];
/** What drivers on the processor call themselves, where a browser does not say it of them. */
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|basic render|\bwarp\b|software/i;

export const webgpu = {
  name: "webgpu",
  async missing(manifest) {
    if (!manifest.backends.webgpu) return "the site was exported without it";
    if (!globalThis.navigator?.gpu) return "the browser has no WebGPU";
    return (await navigator.gpu.requestAdapter()) ? "" : "WebGPU finds no device";
  },
  /** Drivers on the processor are slower than WebAssembly. */
  async slow() {
    const adapter = await navigator.gpu.requestAdapter();
    const info = adapter.info ?? {};
    const names = `${info.vendor} ${info.architecture} ${info.device} ${info.description}`;
    return !!(info.isFallbackAdapter ?? adapter.isFallbackAdapter) || SOFTWARE.test(names);
  },
  async open(manifest, files, options) {
    const { program: file, weights } = manifest.backends.webgpu;
    const adapter = await navigator.gpu.requestAdapter();
    const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
    const device = await adapter.requestDevice({ requiredLimits });
    const program = JSON.parse(new TextDecoder().decode(await files.bytes(file)));
    const session = new Session(manifest, program, device);
    await session.compile();
    await session.fill(files, weights, options);
    return session;
  },
};

class Session {
  constructor(manifest, program, device) {
    Object.assign(this, { manifest, program, device, threads: 1 });
    device.lost.then(({ reason, message }) => {
      if (reason !== "destroyed") this.lost = `the device was lost: ${message}`;
    });
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.buffers = {};
    for (const [space, sizes] of Object.entries(program.buffers)) {
      this.buffers[space] = sizes.map((size) => device.createBuffer({ size, usage }));
    }
    this.results = program.buffers.output.map((size) =>
      device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST }),
    );
  }

  /** All kernels at once, then what each call binds. */
  async compile() {
    const { device, program } = this;
    const made = Object.entries(program.kernels).map(async ([name, { text, entry, grid, arguments: size }]) => {
      const module = device.createShaderModule({ code: text });
      const layout = device.createPipelineLayout({ bindGroupLayouts: [this.layout(size)] });
      const pipeline = await device.createComputePipelineAsync({ layout, compute: { module, entryPoint: entry } });
      return [name, { pipeline, grid }];
    });
    const kernels = Object.fromEntries(await Promise.all(made));
    this.steps = program.steps.map((step) => {
      if (step.copy) return { copy: step.copy.map(([space, i, offset, size]) => [this.buffers[space][i], offset, size]) };
      const { pipeline, grid } = kernels[step.kernel];
      const entries = step.arguments.map(([space, i, offset, size], binding) => {
        return { binding, resource: { buffer: this.buffers[space][i], offset, size } };
      });
      return { pipeline, grid, group: device.createBindGroup({ layout: this.layout(entries.length), entries }) };
    });
  }

  /** So many storage buffers: the same for all kernels, whatever they use of them. */
  layout(count) {
    this.layouts ??= {};
    this.layouts[count] ??= this.device.createBindGroupLayout({
      entries: Array.from({ length: count }, (_, binding) => {
        return { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: "storage" } };
      }),
    });
    return this.layouts[count];
  }

  /** Read the weights to the device, each when it is there as a whole. */
  async fill(files, weights, options) {
    const { constants, buffers } = this.program;
    options.onProgress?.(0, weights.bytes);
    if (!weights.bytes) return;
    const all = new Uint8Array(weights.bytes);
    let done = 0;
    await files.stream(weights.file, (chunk, offset) => {
      all.set(chunk, offset);
      done = offset + chunk.length;
      options.onProgress?.(done, weights.bytes);
    });
    if (done !== weights.bytes) throw new Error(`${weights.file} has ${done} bytes instead of ${weights.bytes}`);
    constants.forEach((offset, i) => {
      const end = i + 1 < constants.length ? constants[i + 1] : weights.bytes;
      if (end > offset) this.device.queue.writeBuffer(this.buffers.constant[i], 0, all, offset, end - offset);
    });
  }

  async run(arrays) {
    if (this.lost) throw new Error(this.lost);
    const { device, manifest, program, buffers, results } = this;
    arrays.forEach((array, i) => device.queue.writeBuffer(buffers.input[i], 0, words(array, manifest.inputs[i])));
    const encoder = device.createCommandEncoder();
    for (const { copy, pipeline, group, grid } of this.steps) {
      if (copy) {
        const [[source, from, size], [target, to]] = copy;
        encoder.copyBufferToBuffer(source, from, target, to, size);
        continue;
      }
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...grid);
      pass.end();
    }
    results.forEach((result, i) => encoder.copyBufferToBuffer(buffers.output[i], 0, result, 0, program.buffers.output[i]));
    device.queue.submit([encoder.finish()]);
    return Promise.all(results.map((result, i) => read(result, manifest.outputs[i])));
  }

  close() {
    this.device.destroy();
  }
}

/** The bytes of an array, up to a whole word. */
function words(array, tensor) {
  if (tensor.dtype === "i64" && array.some((x) => x !== BigInt.asIntN(32, x))) {
    throw new RangeError(`input ${tensor.name} has numbers of more than 32 bits, which WebGPU has not`);
  }
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  if (bytes.length % 4 === 0) return bytes;
  const whole = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  whole.set(bytes);
  return whole;
}

async function read(buffer, tensor) {
  await buffer.mapAsync(GPUMapMode.READ);
  const kind = arrayOf(tensor);
  const array = new kind(buffer.getMappedRange().slice(0, tensor.bytes));
  buffer.unmap();
  return array;
}
