// The elements of tensors as arrays of JavaScript.

const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array,
  i64: BigInt64Array, i32: Int32Array, i16: Int16Array, i8: Int8Array, i1: Uint8Array,
  ui64: BigUint64Array, ui32: Uint32Array, ui16: Uint16Array, ui8: Uint8Array,
};

/** The kind of array that has the elements of an input or output; 16-bit floats come as their bits. */
export function arrayOf(tensor) {
  const kind = ARRAYS[tensor.dtype];
  if (!kind) throw new Error(`${tensor.name} has elements of type ${tensor.dtype}, for which there is no array`);
  return kind;
}
