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

// CASE group_norm_as_instance_norm: match-norm
// CONSTANT w f32 6x1x1
// CONSTANT b f32 6x1x1
func.func @main(%x: tensor<2x6x3x5xf32>) -> tensor<2x6x3x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<6x1x1xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<6x1x1xf32>
  %one = "tw.constant"() {value = dense<1.0> : tensor<2xf32>} : () -> tensor<2xf32>
  %zero = "tw.constant"() {value = dense<0.0> : tensor<2xf32>} : () -> tensor<2xf32>
  %0 = "tw.reshape"(%x) {shape = array<i64: 2, 2, 45>} : (tensor<2x6x3x5xf32>) -> tensor<2x2x45xf32>
  %1 = "tw.group_norm"(%0, %one, %zero) {groups = 2 : i64} : (tensor<2x2x45xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2x2x45xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 2, 6, 3, 5>} : (tensor<2x2x45xf32>) -> tensor<2x6x3x5xf32>
  %3 = "tw.mul"(%2, %w) : (tensor<2x6x3x5xf32>, tensor<6x1x1xf32>) -> tensor<2x6x3x5xf32>
  %4 = "tw.add"(%b, %3) : (tensor<6x1x1xf32>, tensor<2x6x3x5xf32>) -> tensor<2x6x3x5xf32>
  return %4 : tensor<2x6x3x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x6x3x5xf32>) -> tensor<2x6x3x5xf32> {
  %0 = "tw.constant"() {value = dense<[1.34101915, -1.36799216, 0.687268257, 0.502619624, -0.234853655, 0.687334299]> : tensor<6xf32>} : () -> tensor<6xf32>
  %1 = "tw.constant"() {value = dense<[-1.55600333, 0.355785549, -1.46501303, 0.768434703, 0.0424062572, -0.252635956]> : tensor<6xf32>} : () -> tensor<6xf32>
  %2 = "tw.group_norm"(%arg0, %0, %1) {groups = 2 : i64} : (tensor<2x6x3x5xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<2x6x3x5xf32>
  return %2 : tensor<2x6x3x5xf32>
}

// CASE scales_of_groups_become_those_of_channels: match-norm
// CONSTANT w f32 2
// CONSTANT b f32 2
func.func @main(%x: tensor<1x4x3x5xf32>) -> tensor<1x4x3x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<2xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<2xf32>
  %0 = "tw.reshape"(%x) {shape = array<i64: 1, 2, 30>} : (tensor<1x4x3x5xf32>) -> tensor<1x2x30xf32>
  %1 = "tw.group_norm"(%0, %w, %b) {groups = 2 : i64} : (tensor<1x2x30xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x30xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 1, 4, 3, 5>} : (tensor<1x2x30xf32>) -> tensor<1x4x3x5xf32>
  return %2 : tensor<1x4x3x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x3x5xf32>) -> tensor<1x4x3x5xf32> {
  %0 = "tw.constant"() {value = dense<[1.34101915, 1.34101915, -1.36799216, -1.36799216]> : tensor<4xf32>} : () -> tensor<4xf32>
  %1 = "tw.constant"() {value = dense<[-1.55600333, -1.55600333, 0.355785549, 0.355785549]> : tensor<4xf32>} : () -> tensor<4xf32>
  %2 = "tw.group_norm"(%arg0, %0, %1) {groups = 2 : i64} : (tensor<1x4x3x5xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x3x5xf32>
  return %2 : tensor<1x4x3x5xf32>
}

// CASE groups_across_channels_and_scales_of_columns_stay: match-norm
// CONSTANT w f32 5
func.func @main(%x: tensor<1x6x4x5xf32>) -> tensor<1x6x4x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5xf32>
  %zero = "tw.constant"() {value = dense<0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %one = "tw.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "tw.reshape"(%x) {shape = array<i64: 1, 4, 30>} : (tensor<1x6x4x5xf32>) -> tensor<1x4x30xf32>
  %1 = "tw.group_norm"(%0, %one, %zero) {groups = 4 : i64} : (tensor<1x4x30xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x30xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 1, 6, 4, 5>} : (tensor<1x4x30xf32>) -> tensor<1x6x4x5xf32>
  %3 = "tw.mul"(%2, %w) : (tensor<1x6x4x5xf32>, tensor<5xf32>) -> tensor<1x6x4x5xf32>
  %s = "tw.constant"() {value = dense<1.0> : tensor<6xf32>} : () -> tensor<6xf32>
  %c = "tw.constant"() {value = dense<0.0> : tensor<6xf32>} : () -> tensor<6xf32>
  %4 = "tw.group_norm"(%3, %s, %c) {groups = 3 : i64} : (tensor<1x6x4x5xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<1x6x4x5xf32>
  %5 = "tw.add"(%4, %w) : (tensor<1x6x4x5xf32>, tensor<5xf32>) -> tensor<1x6x4x5xf32>
  return %5 : tensor<1x6x4x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x6x4x5xf32>) -> tensor<1x6x4x5xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<5xf32>
  %1 = "tw.constant"() {value = dense<0.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
  %2 = "tw.constant"() {value = dense<1.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
  %3 = "tw.reshape"(%arg0) {shape = array<i64: 1, 4, 30>} : (tensor<1x6x4x5xf32>) -> tensor<1x4x30xf32>
  %4 = "tw.group_norm"(%3, %2, %1) {groups = 4 : i64} : (tensor<1x4x30xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x30xf32>
  %5 = "tw.reshape"(%4) {shape = array<i64: 1, 6, 4, 5>} : (tensor<1x4x30xf32>) -> tensor<1x6x4x5xf32>
  %6 = "tw.mul"(%5, %0) : (tensor<1x6x4x5xf32>, tensor<5xf32>) -> tensor<1x6x4x5xf32>
  %7 = "tw.constant"() {value = dense<1.000000e+00> : tensor<6xf32>} : () -> tensor<6xf32>
  %8 = "tw.constant"() {value = dense<0.000000e+00> : tensor<6xf32>} : () -> tensor<6xf32>
  %9 = "tw.group_norm"(%6, %7, %8) {groups = 3 : i64} : (tensor<1x6x4x5xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<1x6x4x5xf32>
  %10 = "tw.add"(%9, %0) : (tensor<1x6x4x5xf32>, tensor<5xf32>) -> tensor<1x6x4x5xf32>
  return %10 : tensor<1x6x4x5xf32>
}
