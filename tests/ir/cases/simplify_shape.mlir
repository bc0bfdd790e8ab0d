// CASE transposes_cancel: simplify
func.func @main(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %0 = "tw.transpose"(%x) {permutation = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  %1 = "tw.transpose"(%0) {permutation = array<i64: 1, 2, 0>} : (tensor<4x2x3xf32>) -> tensor<2x3x4xf32>
  return %1 : tensor<2x3x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  return %arg0 : tensor<2x3x4xf32>
}

// CASE transposes_merge: simplify
func.func @main(%x: tensor<2x3x4xf32>) -> tensor<4x3x2xf32> {
  %0 = "tw.transpose"(%x) {permutation = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  %1 = "tw.transpose"(%0) {permutation = array<i64: 0, 2, 1>} : (tensor<4x2x3xf32>) -> tensor<4x3x2xf32>
  return %1 : tensor<4x3x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3x4xf32>) -> tensor<4x3x2xf32> {
  %0 = "tw.transpose"(%arg0) {permutation = array<i64: 2, 1, 0>} : (tensor<2x3x4xf32>) -> tensor<4x3x2xf32>
  return %0 : tensor<4x3x2xf32>
}

// CASE transpose_of_ones: simplify
func.func @main(%x: tensor<1x8x1x1xf32>) -> tensor<1x1x1x8xf32> {
  %0 = "tw.transpose"(%x) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x8x1x1xf32>) -> tensor<1x1x1x8xf32>
  return %0 : tensor<1x1x1x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x8x1x1xf32>) -> tensor<1x1x1x8xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 1, 1, 1, 8>} : (tensor<1x8x1x1xf32>) -> tensor<1x1x1x8xf32>
  return %0 : tensor<1x1x1x8xf32>
}

// CASE key_transpose: simplify
func.func @main(%x: tensor<1x5x3x4xf32>) -> tensor<1x3x4x5xf32> {
  %0 = "tw.transpose"(%x) {permutation = array<i64: 0, 2, 1, 3>} : (tensor<1x5x3x4xf32>) -> tensor<1x3x5x4xf32>
  %1 = "tw.reshape"(%0) {shape = array<i64: -1, 5, 4>} : (tensor<1x3x5x4xf32>) -> tensor<3x5x4xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 1>} : (tensor<3x5x4xf32>) -> tensor<3x4x5xf32>
  %3 = "tw.reshape"(%2) {shape = array<i64: 1, 3, 4, 5>} : (tensor<3x4x5xf32>) -> tensor<1x3x4x5xf32>
  return %3 : tensor<1x3x4x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x5x3x4xf32>) -> tensor<1x3x4x5xf32> {
  %0 = "tw.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x5x3x4xf32>) -> tensor<1x3x4x5xf32>
  return %0 : tensor<1x3x4x5xf32>
}

// CASE split_heads_stay: simplify
func.func @main(%x: tensor<1x5x12xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.reshape"(%x) {shape = array<i64: 1, 5, -1, 4>} : (tensor<1x5x12xf32>) -> tensor<1x5x3x4xf32>
  %1 = "tw.transpose"(%0) {permutation = array<i64: 0, 2, 1, 3>} : (tensor<1x5x3x4xf32>) -> tensor<1x3x5x4xf32>
  return %1 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x5x12xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 1, 5, 3, 4>} : (tensor<1x5x12xf32>) -> tensor<1x5x3x4xf32>
  %1 = "tw.transpose"(%0) {permutation = array<i64: 0, 2, 1, 3>} : (tensor<1x5x3x4xf32>) -> tensor<1x3x5x4xf32>
  return %1 : tensor<1x3x5x4xf32>
}

// CASE reshapes: simplify
func.func @main(%x: tensor<2x6xf32>) -> tensor<3x4xf32> {
  %0 = "tw.reshape"(%x) {shape = array<i64: 12>} : (tensor<2x6xf32>) -> tensor<12xf32>
  %1 = "tw.reshape"(%0) {shape = array<i64: 3, -1>} : (tensor<12xf32>) -> tensor<3x4xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 3, 4>} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  return %2 : tensor<3x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x6xf32>) -> tensor<3x4xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 3, 4>} : (tensor<2x6xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// CASE flattened_product: simplify
// CONSTANT w f32 6x5
// CONSTANT b f32 20x1
func.func @main(%x: tensor<2x3x6xf32>, %y: tensor<2x3x5xf32>, %c: tensor<1x5xf32>) -> tensor<2x3x5xf32> {
  %0 = "tw.reshape"(%x) {shape = array<i64: -1, 6>} : (tensor<2x3x6xf32>) -> tensor<6x6xf32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<6x5xf32>
  %1 = "tw.matmul"(%0, %w) : (tensor<6x6xf32>, tensor<6x5xf32>) -> tensor<6x5xf32>
  %2 = "tw.add"(%1, %c) : (tensor<6x5xf32>, tensor<1x5xf32>) -> tensor<6x5xf32>
  %3 = "tw.relu"(%2) {} : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 2, 3, 5>} : (tensor<6x5xf32>) -> tensor<2x3x5xf32>
  %5 = "tw.add"(%4, %y) : (tensor<2x3x5xf32>, tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  return %5 : tensor<2x3x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3x6xf32>, %arg1: tensor<2x3x5xf32>, %arg2: tensor<1x5xf32>) -> tensor<2x3x5xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<6x5xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<2x3x6xf32>, tensor<6x5xf32>) -> tensor<2x3x5xf32>
  %2 = "tw.reshape"(%arg2) {shape = array<i64: 5>} : (tensor<1x5xf32>) -> tensor<5xf32>
  %3 = "tw.add"(%1, %2) : (tensor<2x3x5xf32>, tensor<5xf32>) -> tensor<2x3x5xf32>
  %4 = "tw.relu"(%3) : (tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %5 = "tw.add"(%4, %arg1) : (tensor<2x3x5xf32>, tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  return %5 : tensor<2x3x5xf32>
}

// CASE expands: simplify
func.func @main(%x: tensor<2x1xf32>, %y: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.expand"(%x) {shape = array<i64: 2, 8>} : (tensor<2x1xf32>) -> tensor<2x8xf32>
  %1 = "tw.add"(%0, %y) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x1xf32>, %arg1: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.add"(%arg0, %arg1) : (tensor<2x1xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE expand_later: simplify
func.func @main(%x: tensor<2x1xf32>) -> tensor<3x2x8xf32> {
  %0 = "tw.expand"(%x) {shape = array<i64: 2, 8>} : (tensor<2x1xf32>) -> tensor<2x8xf32>
  %1 = "tw.exp"(%0) {} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.expand"(%1) {shape = array<i64: 3, 2, 8>} : (tensor<2x8xf32>) -> tensor<3x2x8xf32>
  return %2 : tensor<3x2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x1xf32>) -> tensor<3x2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %1 = "tw.expand"(%0) {shape = array<i64: 3, 2, 8>} : (tensor<2x1xf32>) -> tensor<3x2x8xf32>
  return %1 : tensor<3x2x8xf32>
}

// CASE expand_nothing: simplify
func.func @main(%x: tensor<2x1xf32>) -> tensor<1x2x1xf32> {
  %0 = "tw.expand"(%x) {shape = array<i64: 1, 2, 1>} : (tensor<2x1xf32>) -> tensor<1x2x1xf32>
  return %0 : tensor<1x2x1xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x1xf32>) -> tensor<1x2x1xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 1, 2, 1>} : (tensor<2x1xf32>) -> tensor<1x2x1xf32>
  return %0 : tensor<1x2x1xf32>
}

// CASE slices: simplify
func.func @main(%x: tensor<10xf32>) -> tensor<2xf32> {
  %0 = "tw.slice"(%x) {starts = array<i64: 8>, sizes = array<i64: 5>, steps = array<i64: -2>} : (tensor<10xf32>) -> tensor<5xf32>
  %1 = "tw.slice"(%0) {starts = array<i64: 1>, sizes = array<i64: 2>, steps = array<i64: 2>} : (tensor<5xf32>) -> tensor<2xf32>
  %2 = "tw.slice"(%1) {starts = array<i64: 0>, sizes = array<i64: 2>, steps = array<i64: 1>} : (tensor<2xf32>) -> tensor<2xf32>
  return %2 : tensor<2xf32>
}
// AFTER
func.func @main(%arg0: tensor<10xf32>) -> tensor<2xf32> {
  %0 = "tw.slice"(%arg0) {sizes = array<i64: 2>, starts = array<i64: 6>, steps = array<i64: -4>} : (tensor<10xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CASE slice_of_concat: simplify
func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x4xf32>) -> tensor<2x2xf32> {
  %0 = "tw.concat"(%x, %y) {axis = 1, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
  %1 = "tw.slice"(%0) {starts = array<i64: 0, 4>, sizes = array<i64: 2, 2>, steps = array<i64: 1, 1>} : (tensor<2x7xf32>) -> tensor<2x2xf32>
  return %1 : tensor<2x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x4xf32>) -> tensor<2x2xf32> {
  %0 = "tw.slice"(%arg1) {sizes = array<i64: 2, 2>, starts = array<i64: 0, 1>, steps = array<i64: 1, 1>} : (tensor<2x4xf32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

// CASE concat_of_concat: simplify
func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x4xf32>, %z: tensor<2x0xf32>) -> tensor<2x10xf32> {
  %0 = "tw.concat"(%x, %y) {axis = 1, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
  %1 = "tw.concat"(%0, %z, %x) {axis = -1, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x7xf32>, tensor<2x0xf32>, tensor<2x3xf32>) -> tensor<2x10xf32>
  return %1 : tensor<2x10xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x0xf32>) -> tensor<2x10xf32> {
  %0 = "tw.concat"(%arg0, %arg1, %arg0) {axis = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>, tensor<2x4xf32>, tensor<2x3xf32>) -> tensor<2x10xf32>
  return %0 : tensor<2x10xf32>
}

// CASE concat_of_one: simplify
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = "tw.concat"(%x) {axis = 0, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {
  return %arg0 : tensor<2x3xf32>
}

// CASE pads: simplify
func.func @main(%x: tensor<4xf32>) -> tensor<8xf32> {
  %0 = "tw.pad"(%x) {low = array<i64: 1>, high = array<i64: 1>} : (tensor<4xf32>) -> tensor<6xf32>
  %1 = "tw.pad"(%0) {low = array<i64: 0>, high = array<i64: 2>} : (tensor<6xf32>) -> tensor<8xf32>
  %2 = "tw.pad"(%1) {low = array<i64: 0>, high = array<i64: 0>} : (tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>) -> tensor<8xf32> {
  %0 = "tw.pad"(%arg0) {high = array<i64: 3>, low = array<i64: 1>} : (tensor<4xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE gather_range: simplify
func.func @main(%x: tensor<5x3xf32>) -> tensor<3xf32> {
  %i = "tw.constant"() {value = dense<[1, 3]> : tensor<2xi64>} : () -> tensor<2xi64>
  %j = "tw.constant"() {value = dense<-1> : tensor<i64>} : () -> tensor<i64>
  %0 = "tw.gather"(%x, %i) : (tensor<5x3xf32>, tensor<2xi64>) -> tensor<2x3xf32>
  %1 = "tw.gather"(%0, %j) : (tensor<2x3xf32>, tensor<i64>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}
// AFTER
func.func @main(%arg0: tensor<5x3xf32>) -> tensor<3xf32> {
  %0 = "tw.slice"(%arg0) {sizes = array<i64: 1, 3>, starts = array<i64: 3, 0>, steps = array<i64: 2, 1>} : (tensor<5x3xf32>) -> tensor<1x3xf32>
  %1 = "tw.reshape"(%0) {shape = array<i64: 3>} : (tensor<1x3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// CASE gather_everything: simplify
func.func @main(%x: tensor<1x2xf32>) -> tensor<1x1x2xf32> {
  %i = "tw.constant"() {value = dense<[[[[0, 0], [0, 1]]]]> : tensor<1x1x2x2xi64>} : () -> tensor<1x1x2x2xi64>
  %0 = "tw.gather_nd"(%x, %i) : (tensor<1x2xf32>, tensor<1x1x2x2xi64>) -> tensor<1x1x2xf32>
  return %0 : tensor<1x1x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x2xf32>) -> tensor<1x1x2xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 1, 1, 2>} : (tensor<1x2xf32>) -> tensor<1x1x2xf32>
  return %0 : tensor<1x1x2xf32>
}

// CASE reduce_nothing: simplify
func.func @main(%x: tensor<2x1x1xf32>) -> tensor<2xf32> {
  %0 = "tw.reduce_mean"(%x) {axes = array<i64: 1, -1>} : (tensor<2x1x1xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x1x1xf32>) -> tensor<2xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 2>} : (tensor<2x1x1xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CASE matmul_of_vectors: simplify
func.func @main(%x: tensor<4xf32>, %y: tensor<3x4x2xf32>) -> tensor<3x2xf32> {
  %0 = "tw.matmul"(%x, %y) : (tensor<4xf32>, tensor<3x4x2xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<3x4x2xf32>) -> tensor<3x2xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 1, 4>} : (tensor<4xf32>) -> tensor<1x4xf32>
  %1 = "tw.matmul"(%0, %arg1) : (tensor<1x4xf32>, tensor<3x4x2xf32>) -> tensor<3x1x2xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 3, 2>} : (tensor<3x1x2xf32>) -> tensor<3x2xf32>
  return %2 : tensor<3x2xf32>
}

// CASE matmul_of_expanded: simplify
func.func @main(%x: tensor<3x2x4xf32>, %y: tensor<1x4x5xf32>) -> tensor<3x2x5xf32> {
  %0 = "tw.expand"(%y) {shape = array<i64: 3, 4, 5>} : (tensor<1x4x5xf32>) -> tensor<3x4x5xf32>
  %1 = "tw.matmul"(%x, %0) : (tensor<3x2x4xf32>, tensor<3x4x5xf32>) -> tensor<3x2x5xf32>
  return %1 : tensor<3x2x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<3x2x4xf32>, %arg1: tensor<1x4x5xf32>) -> tensor<3x2x5xf32> {
  %0 = "tw.reshape"(%arg1) {shape = array<i64: 4, 5>} : (tensor<1x4x5xf32>) -> tensor<4x5xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<3x2x4xf32>, tensor<4x5xf32>) -> tensor<3x2x5xf32>
  return %1 : tensor<3x2x5xf32>
}

// CASE split_and_back: simplify
func.func @main(%x: tensor<4x3x5x5xf32>, %b: tensor<3x5x5xf32>, %m: tensor<1x4x1x5x5xf32>) -> tensor<4x3x5x5xf32> {
  %0 = "tw.reshape"(%x) {shape = array<i64: 1, 4, 3, 5, 5>} : (tensor<4x3x5x5xf32>) -> tensor<1x4x3x5x5xf32>
  %1 = "tw.add"(%0, %b) : (tensor<1x4x3x5x5xf32>, tensor<3x5x5xf32>) -> tensor<1x4x3x5x5xf32>
  %2 = "tw.add"(%1, %m) : (tensor<1x4x3x5x5xf32>, tensor<1x4x1x5x5xf32>) -> tensor<1x4x3x5x5xf32>
  %3 = "tw.reshape"(%2) {shape = array<i64: 4, 3, 5, 5>} : (tensor<1x4x3x5x5xf32>) -> tensor<4x3x5x5xf32>
  return %3 : tensor<4x3x5x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x3x5x5xf32>, %arg1: tensor<3x5x5xf32>, %arg2: tensor<1x4x1x5x5xf32>) -> tensor<4x3x5x5xf32> {
  %0 = "tw.reshape"(%arg1) {shape = array<i64: 1, 3, 5, 5>} : (tensor<3x5x5xf32>) -> tensor<1x3x5x5xf32>
  %1 = "tw.add"(%arg0, %0) : (tensor<4x3x5x5xf32>, tensor<1x3x5x5xf32>) -> tensor<4x3x5x5xf32>
  %2 = "tw.reshape"(%arg2) {shape = array<i64: 4, 1, 5, 5>} : (tensor<1x4x1x5x5xf32>) -> tensor<4x1x5x5xf32>
  %3 = "tw.add"(%1, %2) : (tensor<4x3x5x5xf32>, tensor<4x1x5x5xf32>) -> tensor<4x3x5x5xf32>
  return %3 : tensor<4x3x5x5xf32>
}

// CASE split_and_repeated_stays: simplify
func.func @main(%x: tensor<8x3x5xf32>, %m: tensor<1x4x1x5xf32>) -> tensor<8x3x5xf32> {
  %0 = "tw.reshape"(%x) {shape = array<i64: 2, 4, 3, 5>} : (tensor<8x3x5xf32>) -> tensor<2x4x3x5xf32>
  %1 = "tw.add"(%0, %m) : (tensor<2x4x3x5xf32>, tensor<1x4x1x5xf32>) -> tensor<2x4x3x5xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 8, 3, 5>} : (tensor<2x4x3x5xf32>) -> tensor<8x3x5xf32>
  return %2 : tensor<8x3x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<8x3x5xf32>, %arg1: tensor<1x4x1x5xf32>) -> tensor<8x3x5xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 2, 4, 3, 5>} : (tensor<8x3x5xf32>) -> tensor<2x4x3x5xf32>
  %1 = "tw.add"(%0, %arg1) : (tensor<2x4x3x5xf32>, tensor<1x4x1x5xf32>) -> tensor<2x4x3x5xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 8, 3, 5>} : (tensor<2x4x3x5xf32>) -> tensor<8x3x5xf32>
  return %2 : tensor<8x3x5xf32>
}
