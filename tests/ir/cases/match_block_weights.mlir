// CASE int8_with_a_scale_of_rows: match-block-weights
// CONSTANT w i8 4x64
// CONSTANT s f32+ 4
func.func @main(%x: tensor<2x3x64xf32>) -> tensor<2x3x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x64xi8>
  %s = "tw.constant"() {symbol = "s"} : () -> tensor<4xf32>
  %0 = "tw.dequantize_linear"(%w, %s) {axis = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x64xi8>, tensor<4xf32>) -> tensor<4x64xf32>
  %1 = "tw.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<4x64xf32>) -> tensor<64x4xf32>
  %2 = "tw.matmul"(%x, %1) : (tensor<2x3x64xf32>, tensor<64x4xf32>) -> tensor<2x3x4xf32>
  return %2 : tensor<2x3x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3x64xf32>) -> tensor<2x3x4xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 6, 64>} : (tensor<2x3x64xf32>) -> tensor<6x64xf32>
  %1 = "tw.constant"() {symbol = "words"} : () -> tensor<4x1x8xui32>
  %2 = "tw.constant"() {value = dense<[[0.701343953], [1.20156229], [0.594534874], [1.23027444]]> : tensor<4x1xf32>} : () -> tensor<4x1xf32>
  %3 = "tw.block_matmul"(%0, %1, %2) {bits = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>} : (tensor<6x64xf32>, tensor<4x1x8xui32>, tensor<4x1xf32>) -> tensor<6x4xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 2, 3, 4>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
  return %4 : tensor<2x3x4xf32>
}

// CASE groups_with_zero_points: match-block-weights
// CONSTANT w i8 4x2x32
// CONSTANT z i8 4x2x1
// CONSTANT s f32+ 4x2x1
func.func @main(%x: tensor<5x64xf32>) -> tensor<5x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x2x32xi8>
  %z = "tw.constant"() {symbol = "z"} : () -> tensor<4x2x1xi8>
  %s = "tw.constant"() {symbol = "s"} : () -> tensor<4x2x1xf32>
  %0 = "tw.cast"(%w) {to = "f32"} : (tensor<4x2x32xi8>) -> tensor<4x2x32xf32>
  %1 = "tw.cast"(%z) {to = "f32"} : (tensor<4x2x1xi8>) -> tensor<4x2x1xf32>
  %2 = "tw.sub"(%0, %1) : (tensor<4x2x32xf32>, tensor<4x2x1xf32>) -> tensor<4x2x32xf32>
  %3 = "tw.mul"(%2, %s) : (tensor<4x2x32xf32>, tensor<4x2x1xf32>) -> tensor<4x2x32xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 4, 64>} : (tensor<4x2x32xf32>) -> tensor<4x64xf32>
  %5 = "tw.transpose"(%4) {permutation = array<i64: 1, 0>} : (tensor<4x64xf32>) -> tensor<64x4xf32>
  %6 = "tw.matmul"(%x, %5) : (tensor<5x64xf32>, tensor<64x4xf32>) -> tensor<5x4xf32>
  return %6 : tensor<5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<5x64xf32>) -> tensor<5x4xf32> {
  %0 = "tw.constant"() {value = dense<[[1, 3], [3, 1], [1, 1], [0, 1]]> : tensor<4x2xui8>} : () -> tensor<4x2xui8>
  %1 = "tw.constant"() {value = dense<[[[3577960922, 3348861355], [4025434281, 322148786]], [[1650888347, 3089740576], [1439749156, 1643823254]], [[3743985739, 649362993], [3667644122, 1432271015]], [[568334292, 2802383183], [3609277170, 2243895323]]]> : tensor<4x2x2xui32>} : () -> tensor<4x2x2xui32>
  %2 = "tw.constant"() {value = dense<[[0.701343953, 1.20156229], [0.594534874, 1.23027444], [1.23285711, 2.29372716], [1.40401053, 0.56571126]]> : tensor<4x2xf32>} : () -> tensor<4x2xf32>
  %3 = "tw.block_matmul"(%arg0, %1, %2, %0) {bits = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>} : (tensor<5x64xf32>, tensor<4x2x2xui32>, tensor<4x2xf32>, tensor<4x2xui8>) -> tensor<5x4xf32>
  return %3 : tensor<5x4xf32>
}

// CASE scale_behind_the_product: match-block-weights
// CONSTANT w i8 100x4
// CONSTANT s f32+ 4
func.func @main(%x: tensor<2x100xf32>) -> tensor<2x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<100x4xi8>
  %s = "tw.constant"() {symbol = "s"} : () -> tensor<4xf32>
  %0 = "tw.cast"(%w) {to = "f32"} : (tensor<100x4xi8>) -> tensor<100x4xf32>
  %1 = "tw.matmul"(%x, %0) : (tensor<2x100xf32>, tensor<100x4xf32>) -> tensor<2x4xf32>
  %2 = "tw.mul"(%1, %s) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x100xf32>) -> tensor<2x4xf32> {
  %0 = "tw.pad"(%arg0) {high = array<i64: 0, 12>, low = array<i64: 0, 0>} : (tensor<2x100xf32>) -> tensor<2x112xf32>
  %1 = "tw.constant"() {symbol = "words"} : () -> tensor<4x7x2xui32>
  %2 = "tw.constant"() {symbol = "scales.1"} : () -> tensor<4x7xf32>
  %3 = "tw.block_matmul"(%0, %1, %2) {bits = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>} : (tensor<2x112xf32>, tensor<4x7x2xui32>, tensor<4x7xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}

// CASE scales_that_change_within_a_block: match-block-weights
// CONSTANT w i8 64x4
// CONSTANT s f32+ 64x4
func.func @main(%x: tensor<2x64xf32>) -> tensor<2x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<64x4xi8>
  %s = "tw.constant"() {symbol = "s"} : () -> tensor<64x4xf32>
  %0 = "tw.cast"(%w) {to = "f32"} : (tensor<64x4xi8>) -> tensor<64x4xf32>
  %1 = "tw.mul"(%0, %s) : (tensor<64x4xf32>, tensor<64x4xf32>) -> tensor<64x4xf32>
  %2 = "tw.matmul"(%x, %1) : (tensor<2x64xf32>, tensor<64x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x64xf32>) -> tensor<2x4xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<64x4xi8>
  %1 = "tw.constant"() {symbol = "s"} : () -> tensor<64x4xf32>
  %2 = "tw.cast"(%0) {to = "f32"} : (tensor<64x4xi8>) -> tensor<64x4xf32>
  %3 = "tw.mul"(%2, %1) : (tensor<64x4xf32>, tensor<64x4xf32>) -> tensor<64x4xf32>
  %4 = "tw.matmul"(%arg0, %3) : (tensor<2x64xf32>, tensor<64x4xf32>) -> tensor<2x4xf32>
  return %4 : tensor<2x4xf32>
}
