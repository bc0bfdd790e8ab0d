// CASE layer_norm: match-norm
// CONSTANT w f32 8
// CONSTANT b f32 8
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %0 = "tw.reduce_mean"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %1 = "tw.sub"(%x, %0) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.pow"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_mean"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %e = "tw.constant"() {value = dense<1.0e-5> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.add"(%3, %e) : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x1xf32>
  %5 = "tw.sqrt"(%4) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %6 = "tw.div"(%1, %5) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %7 = "tw.mul"(%w, %6) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %8 = "tw.add"(%7, %b) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %8 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %1 = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %2 = "tw.layer_norm"(%arg0, %0, %1) {axis = 1 : i64, epsilon = 9.9999997473787516E-6 : f64, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}

// CASE layer_norm_after_simplify: simplify,match-norm
// CONSTANT w f32 8
// CONSTANT b f32 8
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %0 = "tw.reduce_mean"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %1 = "tw.sub"(%x, %0) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %2 = "tw.mul"(%1, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_mean"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %e = "tw.constant"() {value = dense<1.0e-5> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.add"(%3, %e) : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x1xf32>
  %5 = "tw.sqrt"(%4) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %r = "tw.reciprocal"(%5) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %6 = "tw.mul"(%1, %r) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %7 = "tw.mul"(%6, %w) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %8 = "tw.add"(%b, %7) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %8 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %1 = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %2 = "tw.layer_norm"(%arg0, %0, %1) {axis = 1 : i64, epsilon = 9.9999997473787516E-6 : f64, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}

// CASE rms_norm: match-norm
// CONSTANT w f32 8
// CONSTANT b f32 8
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %c2 = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.pow"(%x, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_mean"(%2) {axes = array<i64: -1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %e = "tw.constant"() {value = dense<1.0e-6> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.add"(%3, %e) : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x1xf32>
  %5 = "tw.sqrt"(%4) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %r = "tw.reciprocal"(%5) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %6 = "tw.mul"(%x, %r) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %7 = "tw.mul"(%w, %6) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %7 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %1 = "tw.rms_norm"(%arg0, %0) {axis = 1 : i64, epsilon = 9.9999999747524271E-7 : f64, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE mean_as_sum: match-norm
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %2 = "tw.mul"(%x, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_sum"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %k = "tw.constant"() {value = dense<0.125> : tensor<f32>} : () -> tensor<f32>
  %m = "tw.mul"(%3, %k) : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x1xf32>
  %e = "tw.constant"() {value = dense<1.0e-6> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.add"(%m, %e) : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x1xf32>
  %5 = "tw.rsqrt"(%4) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %6 = "tw.mul"(%x, %5) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %6 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.rms_norm"(%arg0) {axis = 1 : i64, epsilon = 9.9999999747524271E-7 : f64, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE shared_scale_stays: match-norm
// CONSTANT w f32 8
// CONSTANT b f32 8
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<8xf32>
  %0 = "tw.layer_norm"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %w) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %2 = "tw.add"(%0, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8xf32>
  %1 = "tw.layer_norm"(%arg0) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.mul"(%1, %0) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %3 = "tw.add"(%1, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
