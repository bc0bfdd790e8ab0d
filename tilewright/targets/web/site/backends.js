// What can run a model, the best first; see runner.d.ts.

import { wasm, wasmThreads } from "./wasm.js";
import { webgpu } from "./webgpu.js";

export const backends = [webgpu, wasmThreads, wasm];
