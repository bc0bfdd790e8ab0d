// CASE arithmetic: fold
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.sqrt"(%a) {} : (tensor<f32>) -> tensor<f32>
  %1 = "tw.mul"(%0, %a) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = "tw.add"(%x, %1) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "tw.constant"() {value = dense<2.82842708> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CASE large_expand_stays: fold{max_elements=32}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.expand"(%a) {shape = array<i64: 8, 8>} : (tensor<f32>) -> tensor<8x8xf32>
  %1 = "tw.add"(%x, %0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "tw.constant"() {value = dense<2.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.expand"(%0) {shape = array<i64: 8, 8>} : (tensor<f32>) -> tensor<8x8xf32>
  %2 = "tw.add"(%arg0, %1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// CASE transpose_of_weight: fold
// CONSTANT w f32 5x6
// CONSTANT unused f32 3x3
func.func @main(%x: tensor<2x6xf32>) -> tensor<2x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x6xf32>
  %t = "tw.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<5x6xf32>) -> tensor<6x5xf32> loc("fc")
  %0 = "tw.matmul"(%x, %t) : (tensor<2x6xf32>, tensor<6x5xf32>) -> tensor<2x5xf32>
  return %0 : tensor<2x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x6xf32>) -> tensor<2x5xf32> {
  %0 = "tw.constant"() {symbol = "fc"} : () -> tensor<6x5xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<2x6xf32>, tensor<6x5xf32>) -> tensor<2x5xf32>
  return %1 : tensor<2x5xf32>
}

// CASE equal_constants: fold,cse
func.func @main(%x: tensor<4xf32>) -> tensor<5x4xf32> {
  %a = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.expand"(%a) {shape = array<i64: 5, 4>} : (tensor<f32>) -> tensor<5x4xf32>
  %a2 = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.expand"(%a2) {shape = array<i64: 5, 4>} : (tensor<f32>) -> tensor<5x4xf32>
  %2 = "tw.mul"(%x, %0) : (tensor<4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
  %3 = "tw.add"(%2, %1) : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
  return %3 : tensor<5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>) -> tensor<5x4xf32> {
  %0 = "tw.constant"() {symbol = "expand"} : () -> tensor<5x4xf32>
  %1 = "tw.mul"(%arg0, %0) : (tensor<4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
  %2 = "tw.add"(%1, %0) : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
  return %2 : tensor<5x4xf32>
}
