// CASE matmul_of_weights: precision
// CONSTANT w f32 8x16
// TOLERANCE 1e-2
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x16xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x16xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = "tw.relu"(%0) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x8xf32>) -> tensor<4x16xf32> {
  %0 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x16xbf16>
  %2 = "tw.matmul"(%0, %1) {dtype = "f32"} : (tensor<4x8xbf16>, tensor<8x16xbf16>) -> tensor<4x16xf32>
  %3 = "tw.relu"(%2) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %3 : tensor<4x16xf32>
}

// CASE weights_only_in_f16: precision{dtype=f16}
// CONSTANT w f32 8x16
// TOLERANCE 1e-3
func.func @main(%x: tensor<4x8xf32>, %y: tensor<16x8xf32>) -> tensor<4x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x16xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = "tw.matmul"(%0, %y) : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x8xf32>, %arg1: tensor<16x8xf32>) -> tensor<4x8xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x16xf16>
  %1 = "tw.matmul"(%arg0, %0) {dtype = "f32"} : (tensor<4x8xf32>, tensor<8x16xf16>) -> tensor<4x16xf32>
  %2 = "tw.matmul"(%1, %arg1) : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// CASE rounding_moves_up_to_the_epilogue: precision
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %v: tensor<2x16x8xf32>) -> tensor<2x4x8xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %1 = "tw.relu"(%0) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 1, 4, 16>} : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
  %3 = "tw.matmul"(%2, %v) : (tensor<1x4x16xf32>, tensor<2x16x8xf32>) -> tensor<2x4x8xf32>
  return %3 : tensor<2x4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<2x16x8xf32>) -> tensor<2x4x8xf32> {
  %0 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %1 = "tw.cast"(%arg1) {to = "bf16"} : (tensor<8x16xf32>) -> tensor<8x16xbf16>
  %2 = "tw.matmul"(%0, %1) {dtype = "f32"} : (tensor<4x8xbf16>, tensor<8x16xbf16>) -> tensor<4x16xf32>
  %3 = "tw.relu"(%2) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %4 = "tw.cast"(%3) {to = "bf16"} : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  %5 = "tw.reshape"(%4) {shape = array<i64: 1, 4, 16>} : (tensor<4x16xbf16>) -> tensor<1x4x16xbf16>
  %6 = "tw.cast"(%arg2) {to = "bf16"} : (tensor<2x16x8xf32>) -> tensor<2x16x8xbf16>
  %7 = "tw.matmul"(%5, %6) {dtype = "f32"} : (tensor<1x4x16xbf16>, tensor<2x16x8xbf16>) -> tensor<2x4x8xf32>
  return %7 : tensor<2x4x8xf32>
}

// CASE residual_of_a_convolution_is_stored_once: precision
func.func @main(%x: tensor<1x4x4x8xf32>, %w: tensor<8x8x1x1xf32>, %v: tensor<8x8x1x1xf32>) -> tensor<1x4x4x8xf32> {
  %0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x4x8xf32>, tensor<8x8x1x1xf32>) -> tensor<1x4x4x8xf32>
  %1 = "tw.relu"(%0) : (tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  %2 = "tw.conv"(%1, %v) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x4x8xf32>, tensor<8x8x1x1xf32>) -> tensor<1x4x4x8xf32>
  %3 = "tw.add"(%2, %1) : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  return %3 : tensor<1x4x4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x4x8xf32>, %arg1: tensor<8x8x1x1xf32>, %arg2: tensor<8x8x1x1xf32>) -> tensor<1x4x4x8xf32> {
  %0 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xbf16>
  %1 = "tw.cast"(%arg1) {to = "bf16"} : (tensor<8x8x1x1xf32>) -> tensor<8x8x1x1xbf16>
  %2 = "tw.conv"(%0, %1) {dilations = array<i64: 1, 1>, dtype = "f32", layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x4x8xbf16>, tensor<8x8x1x1xbf16>) -> tensor<1x4x4x8xf32>
  %3 = "tw.relu"(%2) : (tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  %4 = "tw.cast"(%3) {to = "bf16"} : (tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xbf16>
  %5 = "tw.cast"(%4) {to = "f32"} : (tensor<1x4x4x8xbf16>) -> tensor<1x4x4x8xf32>
  %6 = "tw.cast"(%arg2) {to = "bf16"} : (tensor<8x8x1x1xf32>) -> tensor<8x8x1x1xbf16>
  %7 = "tw.conv"(%4, %6) {dilations = array<i64: 1, 1>, dtype = "f32", layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x4x8xbf16>, tensor<8x8x1x1xbf16>) -> tensor<1x4x4x8xf32>
  %8 = "tw.add"(%7, %5) : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  return %8 : tensor<1x4x4x8xf32>
}

// CASE normalized_residual_stays_f32: precision
func.func @main(%x: tensor<4x8xf32>, %s: tensor<8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %0 = "tw.layer_norm"(%x, %s) {axis = 1, epsilon = 1.0e-5, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = "tw.matmul"(%0, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = "tw.add"(%1, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8xf32>, %arg2: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %0 = "tw.layer_norm"(%arg0, %arg1) {axis = 1 : i64, epsilon = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = "tw.cast"(%0) {to = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %2 = "tw.cast"(%arg2) {to = "bf16"} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  %3 = "tw.matmul"(%1, %2) {dtype = "f32"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
  %4 = "tw.add"(%3, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}

// CASE odd_channels_get_one_of_zeros: precision
// CONSTANT w f32 8x3x3x3
// TOLERANCE 1e-2
func.func @main(%x: tensor<1x6x6x3xf32>) -> tensor<1x6x6x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x3x3x3xf32>
  %0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x6x6x3xf32>, tensor<8x3x3x3xf32>) -> tensor<1x6x6x8xf32>
  return %0 : tensor<1x6x6x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x6x6x3xf32>) -> tensor<1x6x6x8xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x4x3x3xbf16>
  %1 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<1x6x6x3xf32>) -> tensor<1x6x6x3xbf16>
  %2 = "tw.pad"(%1) {high = array<i64: 0, 1, 1, 1>, low = array<i64: 0, 1, 1, 0>} : (tensor<1x6x6x3xbf16>) -> tensor<1x8x8x4xbf16>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, dtype = "f32", layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xbf16>, tensor<8x4x3x3xbf16>) -> tensor<1x6x6x8xf32>
  return %3 : tensor<1x6x6x8xf32>
}

// CASE depthwise_weights_stay_f32: precision
func.func @main(%x: tensor<1x4x4x8xf32>, %w: tensor<8x1x3x3xf32>) -> tensor<1x4x4x8xf32> {
  %0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", groups = 8, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x4x8xf32>, tensor<8x1x3x3xf32>) -> tensor<1x4x4x8xf32>
  return %0 : tensor<1x4x4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x4x8xf32>, %arg1: tensor<8x1x3x3xf32>) -> tensor<1x4x4x8xf32> {
  %0 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xbf16>
  %1 = "tw.conv"(%0, %arg1) {dilations = array<i64: 1, 1>, dtype = "f32", groups = 8 : i64, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x4x8xbf16>, tensor<8x1x3x3xf32>) -> tensor<1x4x4x8xf32>
  return %1 : tensor<1x4x4x8xf32>
}

// CASE attention_keeps_its_mask: precision
func.func @main(%q: tensor<1x2x4x8xf32>, %m: tensor<4x4xf32>) -> tensor<1x2x4x8xf32> {
  %0 = "tw.attention"(%q, %q, %q, %m) {scale = 0.5, operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4x4xf32>) -> tensor<1x2x4x8xf32>
  return %0 : tensor<1x2x4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x2x4x8xf32>, %arg1: tensor<4x4xf32>) -> tensor<1x2x4x8xf32> {
  %0 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xbf16>
  %1 = "tw.attention"(%0, %0, %0, %arg1) {operandSegmentSizes = array<i32: 1, 1, 1, 1>, scale = 5.000000e-01 : f64} : (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<4x4xf32>) -> tensor<1x2x4x8xbf16>
  %2 = "tw.cast"(%1) {to = "f32"} : (tensor<1x2x4x8xbf16>) -> tensor<1x2x4x8xf32>
  return %2 : tensor<1x2x4x8xf32>
}

// CASE integers_and_doubles_stay: precision
func.func @main(%x: tensor<4x8xi32>, %y: tensor<8x4xi32>, %z: tensor<4x4xf64>) -> (tensor<4x4xi32>, tensor<4x4xf64>) {
  %0 = "tw.matmul"(%x, %y) : (tensor<4x8xi32>, tensor<8x4xi32>) -> tensor<4x4xi32>
  %1 = "tw.matmul"(%z, %z) : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  return %0, %1 : tensor<4x4xi32>, tensor<4x4xf64>
}
// AFTER
func.func @main(%arg0: tensor<4x8xi32>, %arg1: tensor<8x4xi32>, %arg2: tensor<4x4xf64>) -> (tensor<4x4xi32>, tensor<4x4xf64>) {
  %0 = "tw.matmul"(%arg0, %arg1) : (tensor<4x8xi32>, tensor<8x4xi32>) -> tensor<4x4xi32>
  %1 = "tw.matmul"(%arg2, %arg2) : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  return %0, %1 : tensor<4x4xi32>, tensor<4x4xf64>
}

// CASE first_convolution_pairs_columns: precision,cse,dce
// CONSTANT w f32 8x3x3x3
// TOLERANCE 1e-2
func.func @main(%x: tensor<1x3x6x6xf32>) -> tensor<1x6x6x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x3x3x3xf32>
  %0 = "tw.transpose"(%x) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x3x6x6xf32>) -> tensor<1x6x6x3xf32>
  %1 = "tw.conv"(%0, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x6x6x3xf32>, tensor<8x3x3x3xf32>) -> tensor<1x6x6x8xf32>
  return %1 : tensor<1x6x6x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x6x6xf32>) -> tensor<1x6x6x8xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x3x3x4xbf16>
  %1 = "tw.cast"(%arg0) {to = "bf16"} : (tensor<1x3x6x6xf32>) -> tensor<1x3x6x6xbf16>
  %2 = "tw.pad"(%1) {high = array<i64: 0, 0, 1, 2>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x3x6x6xbf16>) -> tensor<1x3x8x9xbf16>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, dtype = "f32", layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>, x_layout = "nchw"} : (tensor<1x3x8x9xbf16>, tensor<8x3x3x4xbf16>) -> tensor<1x6x6x8xf32>
  return %3 : tensor<1x6x6x8xf32>
}
