/** Loads and runs the model of a site: see README.md. */

export type ElementType =
  | "f64" | "f32" | "f16" | "bf16"
  | "i64" | "i32" | "i16" | "i8" | "i1"
  | "ui64" | "ui32" | "ui16" | "ui8";

export type Elements =
  | Float64Array | Float32Array
  | BigInt64Array | Int32Array | Int16Array | Int8Array
  | BigUint64Array | Uint32Array | Uint16Array | Uint8Array;

/** An input or output: f16 and bf16 come as their bits in a Uint16Array, i1 (false, true) as 0 and 1 in a Uint8Array. */
export interface Tensor {
  readonly name: string;
  readonly dtype: ElementType;
  readonly shape: readonly number[];
  readonly bytes: number;
}

/** Where the files of the model are read. */
export interface Files {
  bytes(name: string): Promise<Uint8Array>;
  /** Call `take` with one piece of the file after the other, and where it lies in the file. */
  stream(name: string, take: (chunk: Uint8Array, offset: number) => void): Promise<void>;
}

export interface LoadOptions {
  /** Bytes of weights that are there, and of all of them. */
  onProgress?(done: number, total: number): void;
  /** The name of a backend; without it the best one that works here is taken. */
  backend?: string;
  /** Threads at most; without it as many as the machine has cores. */
  threads?: number;
  /** Where the files are read, if not beside the page. */
  files?: Files;
}

export interface Result {
  outputs: Record<string, Elements>;
  /** From the inputs to the outputs, copies included. */
  milliseconds: number;
}

/** What a backend has opened for one model. */
export interface Session {
  readonly threads: number;
  run(arrays: readonly Elements[]): Promise<Elements[]>;
  /** The memory with the value of a state, by its number. */
  state?(i: number): Uint8Array;
  close(): void;
}

export interface Backend {
  readonly name: string;
  /** Why it cannot run the model here, "" if it can. */
  missing(manifest: unknown): string | Promise<string>;
  /** Whether others go first here. */
  slow?(): boolean | Promise<boolean>;
  open(manifest: unknown, files: Files, options: LoadOptions): Promise<Session>;
}

export class Model {
  readonly name: string;
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  /** What lives between runs: zeros at first. */
  readonly states: readonly Tensor[];
  readonly backend: string;
  readonly threads: number;
  /** Run once; the inputs are arrays by name. A TypeError says what is wrong with one. Calls run one after the other. */
  run(inputs: Record<string, Elements>): Promise<Result>;
  /** The value of a state, a copy. */
  state(name: string): Promise<Elements>;
  /** Give a state another value. */
  setState(name: string, array: Elements): Promise<void>;
  /** All states are zeros again. */
  reset(): Promise<void>;
  /** End its threads and give back its memory. */
  close(): void;
}

/** The backends, the best first. */
export const backends: Backend[];

/** Load the model whose files are in the folder `base`, with a slash at its end or without; an Error says what is
 * missing, and at which address. */
export function load(base?: string | URL, options?: LoadOptions): Promise<Model>;

/** The kind of array that has the elements of a tensor. */
export function arrayOf(tensor: Tensor): { new (length: number): Elements; readonly BYTES_PER_ELEMENT: number };

/** Files of a folder by `fetch`, or those beside a page, script or model.json whose address is given. */
export class WebFiles implements Files {
  constructor(base: string | URL);
  bytes(name: string): Promise<Uint8Array>;
  stream(name: string, take: (chunk: Uint8Array, offset: number) => void): Promise<void>;
}
