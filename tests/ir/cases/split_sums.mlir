// CASE matmul: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
// CONSTANT w f32 1024x32
func.func @main(%x: tensor<2x2x1024xf32>, %b: tensor<32xf32>) -> tensor<2x2x32xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<1024x32xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<2x2x1024xf32>, tensor<1024x32xf32>) -> tensor<2x2x32xf32>
  %1 = "tw.add"(%0, %b) : (tensor<2x2x32xf32>, tensor<32xf32>) -> tensor<2x2x32xf32>
  return %1 : tensor<2x2x32xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x2x1024xf32>, %arg1: tensor<32xf32>) -> tensor<2x2x32xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 4, 8, 128>} : (tensor<2x2x1024xf32>) -> tensor<4x8x128xf32>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x128x32xf32>
  %2 = "tw.einsum"(%0, %1) {equation = "msk,skn->smn", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x8x128xf32>, tensor<8x128x32xf32>) -> tensor<8x4x32xf32>
  %3 = "tw.reduce_sum"(%2) {axes = array<i64: 0>} : (tensor<8x4x32xf32>) -> tensor<4x32xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 2, 2, 32>} : (tensor<4x32xf32>) -> tensor<2x2x32xf32>
  %5 = "tw.add"(%4, %arg1) : (tensor<2x2x32xf32>, tensor<32xf32>) -> tensor<2x2x32xf32>
  return %5 : tensor<2x2x32xf32>
}

// CASE transposed_rows: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
func.func @main(%x: tensor<2050x4xf32>, %w: tensor<2050x16xf32>) -> tensor<4x16xf32> {
  %t = "tw.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<2050x4xf32>) -> tensor<4x2050xf32>
  %0 = "tw.matmul"(%t, %w) : (tensor<4x2050xf32>, tensor<2050x16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}
// AFTER
func.func @main(%arg0: tensor<2050x4xf32>, %arg1: tensor<2050x16xf32>) -> tensor<4x16xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 10, 205, 4>} : (tensor<2050x4xf32>) -> tensor<10x205x4xf32>
  %1 = "tw.reshape"(%arg1) {shape = array<i64: 10, 205, 16>} : (tensor<2050x16xf32>) -> tensor<10x205x16xf32>
  %2 = "tw.einsum"(%0, %1) {equation = "skm,skn->smn", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<10x205x4xf32>, tensor<10x205x16xf32>) -> tensor<10x4x16xf32>
  %3 = "tw.reduce_sum"(%2) {axes = array<i64: 0>} : (tensor<10x4x16xf32>) -> tensor<4x16xf32>
  return %3 : tensor<4x16xf32>
}

// CASE primes_transposed_weights_and_many_results_stay: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
func.func @main(%x: tensor<4x4099xf32>, %w: tensor<4099x16xf32>, %y: tensor<4x4096xf32>, %v: tensor<16x4096xf32>, %z: tensor<64x4096xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x64xf32>) {
  %0 = "tw.matmul"(%x, %w) : (tensor<4x4099xf32>, tensor<4099x16xf32>) -> tensor<4x16xf32>
  %t = "tw.transpose"(%v) {permutation = array<i64: 1, 0>} : (tensor<16x4096xf32>) -> tensor<4096x16xf32>
  %1 = "tw.matmul"(%y, %t) : (tensor<4x4096xf32>, tensor<4096x16xf32>) -> tensor<4x16xf32>
  %u = "tw.transpose"(%z) {permutation = array<i64: 1, 0>} : (tensor<64x4096xf32>) -> tensor<4096x64xf32>
  %2 = "tw.matmul"(%y, %u) : (tensor<4x4096xf32>, tensor<4096x64xf32>) -> tensor<4x64xf32>
  return %0, %1, %2 : tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x64xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x4099xf32>, %arg1: tensor<4099x16xf32>, %arg2: tensor<4x4096xf32>, %arg3: tensor<16x4096xf32>, %arg4: tensor<64x4096xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x64xf32>) {
  %0 = "tw.matmul"(%arg0, %arg1) : (tensor<4x4099xf32>, tensor<4099x16xf32>) -> tensor<4x16xf32>
  %1 = "tw.transpose"(%arg3) {permutation = array<i64: 1, 0>} : (tensor<16x4096xf32>) -> tensor<4096x16xf32>
  %2 = "tw.matmul"(%arg2, %1) : (tensor<4x4096xf32>, tensor<4096x16xf32>) -> tensor<4x16xf32>
  %3 = "tw.transpose"(%arg4) {permutation = array<i64: 1, 0>} : (tensor<64x4096xf32>) -> tensor<4096x64xf32>
  %4 = "tw.matmul"(%arg2, %3) : (tensor<4x4096xf32>, tensor<4096x64xf32>) -> tensor<4x64xf32>
  return %0, %2, %4 : tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x64xf32>
}

// CASE channels_of_a_convolution: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
// CONSTANT w f32 16x512x3x3
// CONSTANT b f32 16
func.func @main(%x: tensor<1x2x2x512xf32>) -> tensor<1x2x2x16xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<16x512x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<16xf32>
  %0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x2x2x512xf32>, tensor<16x512x3x3xf32>, tensor<16xf32>) -> tensor<1x2x2x16xf32>
  return %0 : tensor<1x2x2x16xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x2x2x512xf32>) -> tensor<1x2x2x16xf32> {
  %0 = "tw.constant"() {symbol = "b"} : () -> tensor<16xf32>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<256x32x3x3xf32>
  %2 = "tw.conv"(%arg0, %1) {dilations = array<i64: 1, 1>, groups = 16 : i64, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x2x2x512xf32>, tensor<256x32x3x3xf32>) -> tensor<1x2x2x256xf32>
  %3 = "tw.reshape"(%2) {shape = array<i64: 1, 2, 2, 16, 16>} : (tensor<1x2x2x256xf32>) -> tensor<1x2x2x16x16xf32>
  %4 = "tw.reduce_sum"(%3) {axes = array<i64: 3>} : (tensor<1x2x2x16x16xf32>) -> tensor<1x2x2x16xf32>
  %5 = "tw.add"(%4, %0) : (tensor<1x2x2x16xf32>, tensor<16xf32>) -> tensor<1x2x2x16xf32>
  return %5 : tensor<1x2x2x16xf32>
}

// CASE mean_of_squares: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
func.func @main(%x: tensor<1000x512xf32>, %s: tensor<1x1xf32>) -> tensor<1x1xf32> {
  %d = "tw.sub"(%x, %s) : (tensor<1000x512xf32>, tensor<1x1xf32>) -> tensor<1000x512xf32>
  %0 = "tw.abs"(%d) : (tensor<1000x512xf32>) -> tensor<1000x512xf32>
  %1 = "tw.reduce_mean"(%0) {axes = array<i64: 0, 1>, keepdims = true} : (tensor<1000x512xf32>) -> tensor<1x1xf32>
  return %1 : tensor<1x1xf32>
}
// AFTER
func.func @main(%arg0: tensor<1000x512xf32>, %arg1: tensor<1x1xf32>) -> tensor<1x1xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 8, 125, 512>} : (tensor<1000x512xf32>) -> tensor<8x125x512xf32>
  %1 = "tw.reshape"(%arg1) {shape = array<i64>} : (tensor<1x1xf32>) -> tensor<f32>
  %2 = "tw.sub"(%0, %1) : (tensor<8x125x512xf32>, tensor<f32>) -> tensor<8x125x512xf32>
  %3 = "tw.abs"(%2) : (tensor<8x125x512xf32>) -> tensor<8x125x512xf32>
  %4 = "tw.reduce_sum"(%3) {axes = array<i64: 1, 2>} : (tensor<8x125x512xf32>) -> tensor<8xf32>
  %5 = "tw.reduce_sum"(%4) {axes = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
  %6 = "tw.constant"() {value = dense<5.120000e+05> : tensor<f32>} : () -> tensor<f32>
  %7 = "tw.div"(%5, %6) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %8 = "tw.reshape"(%7) {shape = array<i64: 1, 1>} : (tensor<f32>) -> tensor<1x1xf32>
  return %8 : tensor<1x1xf32>
}

// CASE inner_axes_of_few_rows: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
func.func @main(%x: tensor<3x7x131072xf32>) -> tensor<3xf32> {
  %0 = "tw.reduce_max"(%x) {axes = array<i64: 1, 2>, keepdims = false} : (tensor<3x7x131072xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
// AFTER
func.func @main(%arg0: tensor<3x7x131072xf32>) -> tensor<3xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 3, 7, 1, 131072>} : (tensor<3x7x131072xf32>) -> tensor<3x7x1x131072xf32>
  %1 = "tw.reduce_max"(%0) {axes = array<i64: 2, 3>} : (tensor<3x7x1x131072xf32>) -> tensor<3x7xf32>
  %2 = "tw.reduce_max"(%1) {axes = array<i64: 1>} : (tensor<3x7xf32>) -> tensor<3xf32>
  return %2 : tensor<3xf32>
}

// CASE columns_and_short_reductions_stay: split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}
func.func @main(%x: tensor<131072x4xf32>, %y: tensor<131072xf32>) -> (tensor<4xf32>, tensor<f32>) {
  %0 = "tw.reduce_sum"(%x) {axes = array<i64: 0>, keepdims = false} : (tensor<131072x4xf32>) -> tensor<4xf32>
  %1 = "tw.reduce_sum"(%y) {axes = array<i64: 0>, keepdims = false} : (tensor<131072xf32>) -> tensor<f32>
  return %0, %1 : tensor<4xf32>, tensor<f32>
}
// AFTER
func.func @main(%arg0: tensor<131072x4xf32>, %arg1: tensor<131072xf32>) -> (tensor<4xf32>, tensor<f32>) {
  %0 = "tw.reduce_sum"(%arg0) {axes = array<i64: 0>, keepdims = false} : (tensor<131072x4xf32>) -> tensor<4xf32>
  %1 = "tw.reduce_sum"(%arg1) {axes = array<i64: 0>, keepdims = false} : (tensor<131072xf32>) -> tensor<f32>
  return %0, %1 : tensor<4xf32>, tensor<f32>
}
