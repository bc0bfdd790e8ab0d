// CASE residual_block: layout
// CONSTANT w f32 4x4x3x3
// CONSTANT b f32 4
// CONSTANT w2 f32 4x4x3x3
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<4xf32>
  %w2 = "tw.constant"() {symbol = "w2"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %v1 = "tw.relu"(%v0) : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %v2 = "tw.conv"(%v1, %w2) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %v3 = "tw.add"(%v2, %v1) : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %v4 = "tw.relu"(%v3) : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %v5 = "tw.max_pool"(%v4) {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
  %v6 = "tw.reduce_mean"(%v5) {axes = array<i64: 2, 3>} : (tensor<1x4x3x3xf32>) -> tensor<1x4xf32>
  return %v6 : tensor<1x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.constant"() {symbol = "b"} : () -> tensor<4xf32>
  %2 = "tw.constant"() {symbol = "w2"} : () -> tensor<4x4x3x3xf32>
  %3 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x8xf32>
  %4 = "tw.transpose"(%3) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x8x8xf32>) -> tensor<1x8x8x4xf32>
  %5 = "tw.conv"(%4, %0, %1) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x6x6x4xf32>
  %6 = "tw.relu"(%5) : (tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %7 = "tw.conv"(%6, %2) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x6x6x4xf32>, tensor<4x4x3x3xf32>) -> tensor<1x6x6x4xf32>
  %8 = "tw.add"(%7, %6) : (tensor<1x6x6x4xf32>, tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %9 = "tw.relu"(%8) : (tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %10 = "tw.max_pool"(%9) {dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, layout = "nhwc", pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x6x6x4xf32>) -> tensor<1x3x3x4xf32>
  %11 = "tw.reduce_mean"(%10) {axes = array<i64: 1, 2>} : (tensor<1x3x3x4xf32>) -> tensor<1x4xf32>
  return %11 : tensor<1x4xf32>
}

// CASE squeeze_and_excite: layout
// CONSTANT w f32 4x4x3x3
// CONSTANT w2 f32 4x4x1x1
// CONSTANT w3 f32 2x4x1x1
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %v1 = "tw.reduce_mean"(%v0) {axes = array<i64: -1, -2>, keepdims = true} : (tensor<1x4x6x6xf32>) -> tensor<1x4x1x1xf32>
  %w2 = "tw.constant"() {symbol = "w2"} : () -> tensor<4x4x1x1xf32>
  %v2 = "tw.conv"(%v1, %w2) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x1x1xf32>, tensor<4x4x1x1xf32>) -> tensor<1x4x1x1xf32>
  %v3 = "tw.sigmoid"(%v2) : (tensor<1x4x1x1xf32>) -> tensor<1x4x1x1xf32>
  %v4 = "tw.mul"(%v0, %v3) : (tensor<1x4x6x6xf32>, tensor<1x4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %w3 = "tw.constant"() {symbol = "w3"} : () -> tensor<2x4x1x1xf32>
  %v5 = "tw.conv"(%v4, %w3) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<2x4x1x1xf32>) -> tensor<1x2x6x6xf32>
  %v6 = "tw.reduce_max"(%v5) {axes = array<i64: 1>} : (tensor<1x2x6x6xf32>) -> tensor<1x6x6xf32>
  return %v6 : tensor<1x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x6x6xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x8xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x8x8xf32>) -> tensor<1x8x8x4xf32>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xf32>, tensor<4x4x3x3xf32>) -> tensor<1x6x6x4xf32>
  %4 = "tw.reduce_mean"(%3) {axes = array<i64: 1, 2>, keepdims = true} : (tensor<1x6x6x4xf32>) -> tensor<1x1x1x4xf32>
  %5 = "tw.constant"() {symbol = "w2"} : () -> tensor<4x4x1x1xf32>
  %6 = "tw.conv"(%4, %5) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x1x1x4xf32>, tensor<4x4x1x1xf32>) -> tensor<1x1x1x4xf32>
  %7 = "tw.sigmoid"(%6) : (tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
  %8 = "tw.mul"(%3, %7) : (tensor<1x6x6x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x6x6x4xf32>
  %9 = "tw.constant"() {symbol = "w3"} : () -> tensor<2x4x1x1xf32>
  %10 = "tw.conv"(%8, %9) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x6x6x4xf32>, tensor<2x4x1x1xf32>) -> tensor<1x6x6x2xf32>
  %11 = "tw.reduce_max"(%10) {axes = array<i64: 3>} : (tensor<1x6x6x2xf32>) -> tensor<1x6x6xf32>
  return %11 : tensor<1x6x6xf32>
}

// CASE moves_through: layout
// CONSTANT w f32 4x4x3x3
// CONSTANT slope f32 4x1x1
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x2x8x7xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %slope = "tw.constant"() {symbol = "slope"} : () -> tensor<4x1x1xf32>
  %v1 = "tw.prelu"(%v0, %slope) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %v2 = "tw.pad"(%v1) {low = array<i64: 0, 0, 1, 0>, high = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x7xf32>
  %v3 = "tw.slice"(%v2) {starts = array<i64: 0, 1, 0, 0>, sizes = array<i64: 1, 2, 8, 7>, steps = array<i64: 1, 2, 1, 1>} : (tensor<1x4x8x7xf32>) -> tensor<1x2x8x7xf32>
  %v4 = "tw.softmax"(%v3) {axis = 1} : (tensor<1x2x8x7xf32>) -> tensor<1x2x8x7xf32>
  return %v4 : tensor<1x2x8x7xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x2x8x7xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x8xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x8x8xf32>) -> tensor<1x8x8x4xf32>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xf32>, tensor<4x4x3x3xf32>) -> tensor<1x6x6x4xf32>
  %4 = "tw.constant"() {value = dense<[[[[-0.121865906, 0.0843819677, -0.442022562, 0.699167371]]]]> : tensor<1x1x1x4xf32>} : () -> tensor<1x1x1x4xf32>
  %5 = "tw.prelu"(%3, %4) : (tensor<1x6x6x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x6x6x4xf32>
  %6 = "tw.pad"(%5) {high = array<i64: 0, 1, 1, 0>, low = array<i64: 0, 1, 0, 0>} : (tensor<1x6x6x4xf32>) -> tensor<1x8x7x4xf32>
  %7 = "tw.slice"(%6) {sizes = array<i64: 1, 8, 7, 2>, starts = array<i64: 0, 0, 0, 1>, steps = array<i64: 1, 1, 1, 2>} : (tensor<1x8x7x4xf32>) -> tensor<1x8x7x2xf32>
  %8 = "tw.softmax"(%7) {axis = 3 : i64} : (tensor<1x8x7x2xf32>) -> tensor<1x8x7x2xf32>
  %9 = "tw.transpose"(%8) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<1x8x7x2xf32>) -> tensor<1x2x8x7xf32>
  return %9 : tensor<1x2x8x7xf32>
}

// CASE flatten_into_weights: layout
// CONSTANT w f32 4x4x3x3
// CONSTANT w2 f32 144x3
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x3xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %v1 = "tw.relu"(%v0) : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %v2 = "tw.reshape"(%v1) {shape = array<i64: 1, 144>} : (tensor<1x4x6x6xf32>) -> tensor<1x144xf32>
  %w2 = "tw.constant"() {symbol = "w2"} : () -> tensor<144x3xf32>
  %v3 = "tw.matmul"(%v2, %w2) : (tensor<1x144xf32>, tensor<144x3xf32>) -> tensor<1x3xf32>
  return %v3 : tensor<1x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x3xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x8xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x8x8xf32>) -> tensor<1x8x8x4xf32>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xf32>, tensor<4x4x3x3xf32>) -> tensor<1x6x6x4xf32>
  %4 = "tw.relu"(%3) : (tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %5 = "tw.constant"() {symbol = "w2.1"} : () -> tensor<144x3xf32>
  %6 = "tw.reshape"(%4) {shape = array<i64: 1, 144>} : (tensor<1x6x6x4xf32>) -> tensor<1x144xf32>
  %7 = "tw.matmul"(%6, %5) : (tensor<1x144xf32>, tensor<144x3xf32>) -> tensor<1x3xf32>
  return %7 : tensor<1x3xf32>
}

// CASE mixed_operands_stay: layout
// CONSTANT w f32 4x4x3x3
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %v1 = "tw.add"(%v0, %x) : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  return %v1 : tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x8xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x8x8xf32>) -> tensor<1x8x8x4xf32>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xf32>, tensor<4x4x3x3xf32>) -> tensor<1x6x6x4xf32>
  %4 = "tw.transpose"(%3) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<1x6x6x4xf32>) -> tensor<1x4x6x6xf32>
  %5 = "tw.add"(%4, %arg0) : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  return %5 : tensor<1x4x6x6xf32>
}

// CASE no_convolution: layout
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
  %v0 = "tw.max_pool"(%x) {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
  return %v0 : tensor<1x4x3x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
  %0 = "tw.max_pool"(%arg0) {dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
  return %0 : tensor<1x4x3x3xf32>
}

// CASE pool_alone: layout{mode=nhwc}
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
  %v0 = "tw.max_pool"(%x) {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
  return %v0 : tensor<1x4x3x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
  %0 = "tw.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x6x6x4xf32>
  %1 = "tw.max_pool"(%0) {dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, layout = "nhwc", pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x6x6x4xf32>) -> tensor<1x3x3x4xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<1x3x3x4xf32>) -> tensor<1x4x3x3xf32>
  return %2 : tensor<1x4x3x3xf32>
}

// CASE asked_not_to: layout{mode=nchw}
// CONSTANT w f32 4x4x3x3
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  return %v0 : tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  return %1 : tensor<1x4x6x6xf32>
}

// CASE one_dimension_then_tokens: layout
// CONSTANT w f32 5x4x3
func.func @main(%x: tensor<1x4x9xf32>) -> tensor<1x9x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x9xf32>, tensor<5x4x3xf32>) -> tensor<1x5x9xf32>
  %v1 = "tw.gelu"(%v0) : (tensor<1x5x9xf32>) -> tensor<1x5x9xf32>
  %v2 = "tw.transpose"(%v1) {permutation = array<i64: 0, 2, 1>} : (tensor<1x5x9xf32>) -> tensor<1x9x5xf32>
  %v3 = "tw.layer_norm"(%v2) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<1x9x5xf32>) -> tensor<1x9x5xf32>
  return %v3 : tensor<1x9x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x9xf32>) -> tensor<1x9x5xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1>, low = array<i64: 0, 0, 1>} : (tensor<1x4x9xf32>) -> tensor<1x4x11xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 1>} : (tensor<1x4x11xf32>) -> tensor<1x11x4xf32>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0>, strides = array<i64: 1>} : (tensor<1x11x4xf32>, tensor<5x4x3xf32>) -> tensor<1x9x5xf32>
  %4 = "tw.gelu"(%3) : (tensor<1x9x5xf32>) -> tensor<1x9x5xf32>
  %5 = "tw.layer_norm"(%4) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<1x9x5xf32>) -> tensor<1x9x5xf32>
  return %5 : tensor<1x9x5xf32>
}

// CASE patches: layout
// CONSTANT w f32 4x4x3x3
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x36x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %v1 = "tw.reshape"(%v0) {shape = array<i64: 1, 4, 36>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x36xf32>
  %v2 = "tw.transpose"(%v1) {permutation = array<i64: 0, 2, 1>} : (tensor<1x4x36xf32>) -> tensor<1x36x4xf32>
  return %v2 : tensor<1x36x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x36x4xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 0, 1, 1>, low = array<i64: 0, 0, 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x8x8xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x4x8x8xf32>) -> tensor<1x8x8x4xf32>
  %3 = "tw.conv"(%2, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x8x4xf32>, tensor<4x4x3x3xf32>) -> tensor<1x6x6x4xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 1, 36, 4>} : (tensor<1x6x6x4xf32>) -> tensor<1x36x4xf32>
  return %4 : tensor<1x36x4xf32>
}

// CASE images_of_tokens: layout
// CONSTANT idx i64 4x2
// CONSTANT at f32 4x2
// CONSTANT w f32 4x8x1x1
func.func @main(%x: tensor<1x16x4xf32>, %y: tensor<1x16x4xf32>) -> tensor<1x4x4x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x8x1x1xf32>
  %idx = "tw.constant"() {symbol = "idx"} : () -> tensor<4x2xi64>
  %at = "tw.constant"() {symbol = "at"} : () -> tensor<4x2xf32>
  %t0 = "tw.transpose"(%x) {permutation = array<i64: 0, 2, 1>} : (tensor<1x16x4xf32>) -> tensor<1x4x16xf32>
  %v0 = "tw.reshape"(%t0) {shape = array<i64: 1, 4, 4, 4>} : (tensor<1x4x16xf32>) -> tensor<1x4x4x4xf32>
  %t1 = "tw.transpose"(%y) {permutation = array<i64: 0, 2, 1>} : (tensor<1x16x4xf32>) -> tensor<1x4x16xf32>
  %v1 = "tw.reshape"(%t1) {shape = array<i64: 1, 4, 4, 4>} : (tensor<1x4x16xf32>) -> tensor<1x4x4x4xf32>
  %v2 = "tw.resample"(%v1, %idx, %at) {axis = 3 : i64} : (tensor<1x4x4x4xf32>, tensor<4x2xi64>, tensor<4x2xf32>) -> tensor<1x4x4x4xf32>
  %v3 = "tw.concat"(%v0, %v2) {axis = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x4x4x4xf32>, tensor<1x4x4x4xf32>) -> tensor<1x8x4x4xf32>
  %v4 = "tw.conv"(%v3, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x8x4x4xf32>, tensor<4x8x1x1xf32>) -> tensor<1x4x4x4xf32>
  return %v4 : tensor<1x4x4x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x16x4xf32>, %arg1: tensor<1x16x4xf32>) -> tensor<1x4x4x4xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x8x1x1xf32>
  %1 = "tw.constant"() {symbol = "idx"} : () -> tensor<4x2xi64>
  %2 = "tw.constant"() {symbol = "at"} : () -> tensor<4x2xf32>
  %3 = "tw.reshape"(%arg1) {shape = array<i64: 1, 4, 4, 4>} : (tensor<1x16x4xf32>) -> tensor<1x4x4x4xf32>
  %4 = "tw.resample"(%3, %1, %2) {axis = 2 : i64} : (tensor<1x4x4x4xf32>, tensor<4x2xi64>, tensor<4x2xf32>) -> tensor<1x4x4x4xf32>
  %5 = "tw.reshape"(%arg0) {shape = array<i64: 1, 4, 4, 4>} : (tensor<1x16x4xf32>) -> tensor<1x4x4x4xf32>
  %6 = "tw.concat"(%5, %4) {axis = 3 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x4x4x4xf32>, tensor<1x4x4x4xf32>) -> tensor<1x4x4x8xf32>
  %7 = "tw.conv"(%6, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x4x8xf32>, tensor<4x8x1x1xf32>) -> tensor<1x4x4x4xf32>
  %8 = "tw.transpose"(%7) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
  return %8 : tensor<1x4x4x4xf32>
}
