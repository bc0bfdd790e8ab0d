// CASE scale_after: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %v3 = "tw.mul"(%v1, %v2) : (tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %v4 = "tw.softmax"(%v3) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v5 = "tw.matmul"(%v4, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v5 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 5.000000e-01 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %0 : tensor<1x3x5x4xf32>
}

// CASE divided_before: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %v1 = "tw.div"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<f32>) -> tensor<1x3x5x4xf32>
  %v2 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v3 = "tw.matmul"(%v1, %v2) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v4 = "tw.softmax"(%v3) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v5 = "tw.matmul"(%v4, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v5 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 5.000000e-01 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %0 : tensor<1x3x5x4xf32>
}

// CASE exported_sdpa: simplify,match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>, %mask: tensor<1x1x5x6xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.reshape"(%k) {shape = array<i64: 3, 6, 4>} : (tensor<1x3x6x4xf32>) -> tensor<3x6x4xf32>
  %v1 = "tw.transpose"(%v0) {permutation = array<i64: 0, 2, 1>} : (tensor<3x6x4xf32>) -> tensor<3x4x6xf32>
  %v2 = "tw.reshape"(%v1) {shape = array<i64: 1, 3, 4, 6>} : (tensor<3x4x6xf32>) -> tensor<1x3x4x6xf32>
  %v3 = "tw.constant"() {value = dense<0.707106769> : tensor<f32>} : () -> tensor<f32>
  %v4 = "tw.mul"(%q, %v3) : (tensor<1x3x5x4xf32>, tensor<f32>) -> tensor<1x3x5x4xf32>
  %v5 = "tw.constant"() {value = dense<0.707106769> : tensor<f32>} : () -> tensor<f32>
  %v6 = "tw.mul"(%v2, %v5) : (tensor<1x3x4x6xf32>, tensor<f32>) -> tensor<1x3x4x6xf32>
  %v7 = "tw.matmul"(%v4, %v6) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v8 = "tw.add"(%v7, %mask) : (tensor<1x3x5x6xf32>, tensor<1x1x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v9 = "tw.softmax"(%v8) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v10 = "tw.is_nan"(%v9) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xi1>
  %v11 = "tw.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %v12 = "tw.where"(%v10, %v11, %v9) : (tensor<1x3x5x6xi1>, tensor<f32>, tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v13 = "tw.matmul"(%v12, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v13 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>, %arg3: tensor<1x1x5x6xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2, %arg3) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 0.49999998288572911 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>, tensor<1x1x5x6xf32>) -> tensor<1x3x5x4xf32>
  return %0 : tensor<1x3x5x4xf32>
}

// CASE chosen_mask: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>, %c: tensor<1x1x1x6xi1>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.constant"() {value = dense<-3.40282347E+38> : tensor<f32>} : () -> tensor<f32>
  %v3 = "tw.where"(%c, %v1, %v2) : (tensor<1x1x1x6xi1>, tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %v4 = "tw.softmax"(%v3) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v5 = "tw.matmul"(%v4, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v5 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>, %arg3: tensor<1x1x1x6xi1>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.constant"() {value = dense<-3.40282347E+38> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.where"(%arg3, %0, %1) : (tensor<1x1x1x6xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x1x6xf32>
  %3 = "tw.attention"(%arg0, %arg1, %arg2, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 1.000000e+00 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>, tensor<1x1x1x6xf32>) -> tensor<1x3x5x4xf32>
  return %3 : tensor<1x3x5x4xf32>
}

// CASE masked_fill: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>, %c: tensor<5x6xi1>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.constant"() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %v3 = "tw.mul"(%v1, %v2) : (tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %v4 = "tw.constant"() {value = dense<0xFF800000> : tensor<f32>} : () -> tensor<f32>
  %v5 = "tw.where"(%c, %v4, %v3) : (tensor<5x6xi1>, tensor<f32>, tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v6 = "tw.softmax"(%v5) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v7 = "tw.matmul"(%v6, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v7 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>, %arg3: tensor<5x6xi1>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.constant"() {value = dense<0xFF800000> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.where"(%arg3, %1, %0) : (tensor<5x6xi1>, tensor<f32>, tensor<f32>) -> tensor<5x6xf32>
  %3 = "tw.attention"(%arg0, %arg1, %arg2, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 2.500000e-01 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>, tensor<5x6xf32>) -> tensor<1x3x5x4xf32>
  return %3 : tensor<1x3x5x4xf32>
}

// CASE chosen_number_that_counts_stays: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.constant"() {value = dense<true> : tensor<5x6xi1>} : () -> tensor<5x6xi1>
  %v3 = "tw.constant"() {value = dense<-10.0> : tensor<f32>} : () -> tensor<f32>
  %v4 = "tw.where"(%v2, %v1, %v3) : (tensor<5x6xi1>, tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %v5 = "tw.softmax"(%v4) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v6 = "tw.matmul"(%v5, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v6 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.transpose"(%arg1) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %2 = "tw.constant"() {value = dense<true> : tensor<5x6xi1>} : () -> tensor<5x6xi1>
  %3 = "tw.constant"() {value = dense<-1.000000e+01> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.where"(%2, %1, %3) : (tensor<5x6xi1>, tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %5 = "tw.softmax"(%4) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %6 = "tw.matmul"(%5, %arg2) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %6 : tensor<1x3x5x4xf32>
}

// CASE causal: match-attention
func.func @main(%q: tensor<1x2x4x4xf32>, %k: tensor<1x2x4x4xf32>, %v: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %v2 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %v3 = "tw.mul"(%v1, %v2) : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4x4xf32>
  %v4 = "tw.constant"() {value = dense<[[[[0.0, -3.40282347E+38, -3.40282347E+38, -3.40282347E+38], [0.0, 0.0, -3.40282347E+38, -3.40282347E+38], [0.0, 0.0, 0.0, -3.40282347E+38], [0.0, 0.0, 0.0, 0.0]]]]> : tensor<1x1x4x4xf32>} : () -> tensor<1x1x4x4xf32>
  %v5 = "tw.add"(%v3, %v4) : (tensor<1x2x4x4xf32>, tensor<1x1x4x4xf32>) -> tensor<1x2x4x4xf32>
  %v6 = "tw.softmax"(%v5) : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %v7 = "tw.matmul"(%v6, %v) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  return %v7 : tensor<1x2x4x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x2x4x4xf32>, %arg1: tensor<1x2x4x4xf32>, %arg2: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 5.000000e-01 : f64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  return %0 : tensor<1x2x4x4xf32>
}

// CASE causal_with_cache: match-attention
func.func @main(%q: tensor<1x2x2x4xf32>, %k: tensor<1x2x4x4xf32>, %v: tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x2x2x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32>
  %v2 = "tw.constant"() {value = dense<[[0.0, 0.0, 0.0, -3.40282347E+38], [0.0, 0.0, 0.0, 0.0]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %v3 = "tw.add"(%v1, %v2) : (tensor<1x2x2x4xf32>, tensor<2x4xf32>) -> tensor<1x2x2x4xf32>
  %v4 = "tw.softmax"(%v3) : (tensor<1x2x2x4xf32>) -> tensor<1x2x2x4xf32>
  %v5 = "tw.matmul"(%v4, %v) : (tensor<1x2x2x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32>
  return %v5 : tensor<1x2x2x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x2x2x4xf32>, %arg1: tensor<1x2x4x4xf32>, %arg2: tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {causal = true, offset = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 1.000000e+00 : f64} : (tensor<1x2x2x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32>
  return %0 : tensor<1x2x2x4xf32>
}

// CASE other_mask_is_kept: match-attention
func.func @main(%q: tensor<1x2x2x4xf32>, %k: tensor<1x2x4x4xf32>, %v: tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x2x2x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32>
  %v2 = "tw.constant"() {value = dense<[[-3.40282347E+38, 0.0, 0.0, -3.40282347E+38], [0.0, 0.0, 0.0, 0.0]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %v3 = "tw.add"(%v1, %v2) : (tensor<1x2x2x4xf32>, tensor<2x4xf32>) -> tensor<1x2x2x4xf32>
  %v4 = "tw.softmax"(%v3) : (tensor<1x2x2x4xf32>) -> tensor<1x2x2x4xf32>
  %v5 = "tw.matmul"(%v4, %v) : (tensor<1x2x2x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32>
  return %v5 : tensor<1x2x2x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x2x2x4xf32>, %arg1: tensor<1x2x4x4xf32>, %arg2: tensor<1x2x4x4xf32>) -> tensor<1x2x2x4xf32> {
  %0 = "tw.constant"() {value = dense<[[-3.40282347E+38, 0.000000e+00, 0.000000e+00, -3.40282347E+38], [0.000000e+00, 0.000000e+00, 0.000000e+00, 0.000000e+00]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %1 = "tw.attention"(%arg0, %arg1, %arg2, %0) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 1.000000e+00 : f64} : (tensor<1x2x2x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<2x4xf32>) -> tensor<1x2x2x4xf32>
  return %1 : tensor<1x2x2x4xf32>
}

// CASE zero_mask: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.constant"() {value = dense<0.0> : tensor<1x1x5x6xf32>} : () -> tensor<1x1x5x6xf32>
  %v3 = "tw.add"(%v1, %v2) : (tensor<1x3x5x6xf32>, tensor<1x1x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v4 = "tw.softmax"(%v3) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v5 = "tw.matmul"(%v4, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v5 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 1.000000e+00 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %0 : tensor<1x3x5x4xf32>
}

// CASE two_masks_scaled_after_the_first: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>, %b: tensor<1x3x5x6xf32>, %m: tensor<1x1x5x6xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.add"(%v1, %b) : (tensor<1x3x5x6xf32>, tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v3 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %v4 = "tw.mul"(%v2, %v3) : (tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %v5 = "tw.add"(%m, %v4) : (tensor<1x1x5x6xf32>, tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v6 = "tw.softmax"(%v5) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v7 = "tw.matmul"(%v6, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v7 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>, %arg3: tensor<1x3x5x6xf32>, %arg4: tensor<1x1x5x6xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.constant"() {value = dense<5.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%arg3, %0) : (tensor<1x3x5x6xf32>, tensor<f32>) -> tensor<1x3x5x6xf32>
  %2 = "tw.add"(%arg4, %1) : (tensor<1x1x5x6xf32>, tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %3 = "tw.attention"(%arg0, %arg1, %arg2, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 5.000000e-01 : f64} : (tensor<1x3x5x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x6x4xf32>, tensor<1x3x5x6xf32>) -> tensor<1x3x5x4xf32>
  return %3 : tensor<1x3x5x4xf32>
}

// CASE grouped_queries: simplify,match-attention
func.func @main(%q: tensor<1x4x5x4xf32>, %k: tensor<1x2x6x4xf32>, %v: tensor<1x2x6x4xf32>) -> tensor<1x4x5x4xf32> {
  %v0 = "tw.reshape"(%k) {shape = array<i64: 1, 2, 1, 6, 4>} : (tensor<1x2x6x4xf32>) -> tensor<1x2x1x6x4xf32>
  %v1 = "tw.expand"(%v0) {shape = array<i64: 1, 2, 2, 6, 4>} : (tensor<1x2x1x6x4xf32>) -> tensor<1x2x2x6x4xf32>
  %v2 = "tw.reshape"(%v1) {shape = array<i64: 1, 4, 6, 4>} : (tensor<1x2x2x6x4xf32>) -> tensor<1x4x6x4xf32>
  %v3 = "tw.reshape"(%v2) {shape = array<i64: 4, 6, 4>} : (tensor<1x4x6x4xf32>) -> tensor<4x6x4xf32>
  %v4 = "tw.transpose"(%v3) {permutation = array<i64: 0, 2, 1>} : (tensor<4x6x4xf32>) -> tensor<4x4x6xf32>
  %v5 = "tw.reshape"(%v4) {shape = array<i64: 1, 4, 4, 6>} : (tensor<4x4x6xf32>) -> tensor<1x4x4x6xf32>
  %v6 = "tw.reshape"(%v) {shape = array<i64: 1, 2, 1, 6, 4>} : (tensor<1x2x6x4xf32>) -> tensor<1x2x1x6x4xf32>
  %v7 = "tw.expand"(%v6) {shape = array<i64: 1, 2, 2, 6, 4>} : (tensor<1x2x1x6x4xf32>) -> tensor<1x2x2x6x4xf32>
  %v8 = "tw.reshape"(%v7) {shape = array<i64: 1, 4, 6, 4>} : (tensor<1x2x2x6x4xf32>) -> tensor<1x4x6x4xf32>
  %v9 = "tw.matmul"(%q, %v5) : (tensor<1x4x5x4xf32>, tensor<1x4x4x6xf32>) -> tensor<1x4x5x6xf32>
  %v10 = "tw.softmax"(%v9) : (tensor<1x4x5x6xf32>) -> tensor<1x4x5x6xf32>
  %v11 = "tw.matmul"(%v10, %v8) : (tensor<1x4x5x6xf32>, tensor<1x4x6x4xf32>) -> tensor<1x4x5x4xf32>
  return %v11 : tensor<1x4x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x5x4xf32>, %arg1: tensor<1x2x6x4xf32>, %arg2: tensor<1x2x6x4xf32>) -> tensor<1x4x5x4xf32> {
  %0 = "tw.attention"(%arg0, %arg1, %arg2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 1.000000e+00 : f64} : (tensor<1x4x5x4xf32>, tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>) -> tensor<1x4x5x4xf32>
  return %0 : tensor<1x4x5x4xf32>
}

// CASE rank_three: match-attention
func.func @main(%q: tensor<3x5x4xf32>, %k: tensor<3x6x4xf32>, %v: tensor<3x6x2xf32>, %m: tensor<3x5x6xf32>) -> tensor<3x5x2xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 2, 1>} : (tensor<3x6x4xf32>) -> tensor<3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<3x5x4xf32>, tensor<3x4x6xf32>) -> tensor<3x5x6xf32>
  %v2 = "tw.add"(%v1, %m) : (tensor<3x5x6xf32>, tensor<3x5x6xf32>) -> tensor<3x5x6xf32>
  %v3 = "tw.softmax"(%v2) : (tensor<3x5x6xf32>) -> tensor<3x5x6xf32>
  %v4 = "tw.matmul"(%v3, %v) : (tensor<3x5x6xf32>, tensor<3x6x2xf32>) -> tensor<3x5x2xf32>
  return %v4 : tensor<3x5x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<3x5x4xf32>, %arg1: tensor<3x6x4xf32>, %arg2: tensor<3x6x2xf32>, %arg3: tensor<3x5x6xf32>) -> tensor<3x5x2xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 3, 1, 5, 4>} : (tensor<3x5x4xf32>) -> tensor<3x1x5x4xf32>
  %1 = "tw.reshape"(%arg1) {shape = array<i64: 3, 1, 6, 4>} : (tensor<3x6x4xf32>) -> tensor<3x1x6x4xf32>
  %2 = "tw.reshape"(%arg2) {shape = array<i64: 3, 1, 6, 2>} : (tensor<3x6x2xf32>) -> tensor<3x1x6x2xf32>
  %3 = "tw.reshape"(%arg3) {shape = array<i64: 3, 1, 5, 6>} : (tensor<3x5x6xf32>) -> tensor<3x1x5x6xf32>
  %4 = "tw.attention"(%0, %1, %2, %3) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 1.000000e+00 : f64} : (tensor<3x1x5x4xf32>, tensor<3x1x6x4xf32>, tensor<3x1x6x2xf32>, tensor<3x1x5x6xf32>) -> tensor<3x1x5x2xf32>
  %5 = "tw.reshape"(%4) {shape = array<i64: 3, 5, 2>} : (tensor<3x1x5x2xf32>) -> tensor<3x5x2xf32>
  return %5 : tensor<3x5x2xf32>
}

// CASE weights_used_elsewhere_stay: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>) -> (tensor<1x3x5x4xf32>, tensor<1x3x5x6xf32>) {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.softmax"(%v1) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v3 = "tw.matmul"(%v2, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v3, %v2 : tensor<1x3x5x4xf32>, tensor<1x3x5x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>) -> (tensor<1x3x5x4xf32>, tensor<1x3x5x6xf32>) {
  %0 = "tw.transpose"(%arg1) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %2 = "tw.softmax"(%1) : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %3 = "tw.matmul"(%2, %arg2) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %3, %2 : tensor<1x3x5x4xf32>, tensor<1x3x5x6xf32>
}

// CASE other_axis_stays: match-attention
func.func @main(%q: tensor<1x3x5x4xf32>, %k: tensor<1x3x6x4xf32>, %v: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %v0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %v1 = "tw.matmul"(%q, %v0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %v2 = "tw.softmax"(%v1) {axis = 2} : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %v3 = "tw.matmul"(%v2, %v) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %v3 : tensor<1x3x5x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x5x4xf32>, %arg1: tensor<1x3x6x4xf32>, %arg2: tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32> {
  %0 = "tw.transpose"(%arg1) {permutation = array<i64: 0, 1, 3, 2>} : (tensor<1x3x6x4xf32>) -> tensor<1x3x4x6xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<1x3x5x4xf32>, tensor<1x3x4x6xf32>) -> tensor<1x3x5x6xf32>
  %2 = "tw.softmax"(%1) {axis = 2 : i64} : (tensor<1x3x5x6xf32>) -> tensor<1x3x5x6xf32>
  %3 = "tw.matmul"(%2, %arg2) : (tensor<1x3x5x6xf32>, tensor<1x3x6x4xf32>) -> tensor<1x3x5x4xf32>
  return %3 : tensor<1x3x5x4xf32>
}
