// CASE stride_two_of_a_window_of_two: transposed-conv
// CONSTANT w f32 4x3x2x2
// CONSTANT b f32 3
func.func @main(%x: tensor<1x3x2x4xf32>) -> tensor<1x6x4x3xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x3x2x2xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<3xf32>
  %v0 = "tw.conv_transpose"(%x, %w, %b) {strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, output_padding = array<i64: 0, 0>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x3x2x4xf32>, tensor<4x3x2x2xf32>, tensor<3xf32>) -> tensor<1x6x4x3xf32>
  return %v0 : tensor<1x6x4x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x2x4xf32>) -> tensor<1x6x4x3xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<12x4x1x1xf32>
  %1 = "tw.constant"() {value = dense<[-1.55600333, 0.355785549, -1.46501303, -1.55600333, 0.355785549, -1.46501303, -1.55600333, 0.355785549, -1.46501303, -1.55600333, 0.355785549, -1.46501303]> : tensor<12xf32>} : () -> tensor<12xf32>
  %2 = "tw.conv"(%arg0, %0, %1) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x3x2x4xf32>, tensor<12x4x1x1xf32>, tensor<12xf32>) -> tensor<1x3x2x12xf32>
  %3 = "tw.reshape"(%2) {shape = array<i64: 1, 3, 2, 1, 2, 2, 3>} : (tensor<1x3x2x12xf32>) -> tensor<1x3x2x1x2x2x3xf32>
  %4 = "tw.transpose"(%3) {permutation = array<i64: 0, 1, 4, 2, 5, 3, 6>} : (tensor<1x3x2x1x2x2x3xf32>) -> tensor<1x3x2x2x2x1x3xf32>
  %5 = "tw.reshape"(%4) {shape = array<i64: 1, 6, 4, 3>} : (tensor<1x3x2x2x2x1x3xf32>) -> tensor<1x6x4x3xf32>
  return %5 : tensor<1x6x4x3xf32>
}

// CASE groups_and_a_result_that_begins_early: transposed-conv
// CONSTANT w f32 4x3x4x3
func.func @main(%x: tensor<1x3x2x4xf32>, %b: tensor<6xf32>) -> tensor<1x6x3x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x3x4x3xf32>
  %v0 = "tw.conv_transpose"(%x, %w, %b) {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, output_padding = array<i64: 0, 0>, groups = 2 : i64, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x3x2x4xf32>, tensor<4x3x4x3xf32>, tensor<6xf32>) -> tensor<1x6x3x6xf32>
  return %v0 : tensor<1x6x3x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x2x4xf32>, %arg1: tensor<6xf32>) -> tensor<1x6x3x6xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<24x2x2x2xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, groups = 2 : i64, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 0, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x3x2x4xf32>, tensor<24x2x2x2xf32>) -> tensor<1x4x2x24xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 1, 4, 2, 2, 2, 2, 3>} : (tensor<1x4x2x24xf32>) -> tensor<1x4x2x2x2x2x3xf32>
  %3 = "tw.transpose"(%2) {permutation = array<i64: 0, 1, 4, 2, 5, 3, 6>} : (tensor<1x4x2x2x2x2x3xf32>) -> tensor<1x4x2x2x2x2x3xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 1, 8, 4, 6>} : (tensor<1x4x2x2x2x2x3xf32>) -> tensor<1x8x4x6xf32>
  %5 = "tw.slice"(%4) {sizes = array<i64: 1, 6, 3, 6>, starts = array<i64: 0, 1, 0, 0>, steps = array<i64: 1, 1, 1, 1>} : (tensor<1x8x4x6xf32>) -> tensor<1x6x3x6xf32>
  %6 = "tw.add"(%5, %arg1) : (tensor<1x6x3x6xf32>, tensor<6xf32>) -> tensor<1x6x3x6xf32>
  return %6 : tensor<1x6x3x6xf32>
}

// CASE stride_one_with_dilation_in_one_dimension: transposed-conv
// CONSTANT w f32 2x3x3
func.func @main(%x: tensor<2x5x2xf32>) -> tensor<2x7x3xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<2x3x3xf32>
  %v0 = "tw.conv_transpose"(%x, %w) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 2>, output_padding = array<i64: 0>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x5x2xf32>, tensor<2x3x3xf32>) -> tensor<2x7x3xf32>
  return %v0 : tensor<2x7x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x5x2xf32>) -> tensor<2x7x3xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<3x2x3xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 2>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 3, 3>, strides = array<i64: 1>} : (tensor<2x5x2xf32>, tensor<3x2x3xf32>) -> tensor<2x7x3xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 2, 7, 1, 1, 3>} : (tensor<2x7x3xf32>) -> tensor<2x7x1x1x3xf32>
  %3 = "tw.transpose"(%2) {permutation = array<i64: 0, 1, 3, 2, 4>} : (tensor<2x7x1x1x3xf32>) -> tensor<2x7x1x1x3xf32>
  %4 = "tw.reshape"(%3) {shape = array<i64: 2, 7, 3>} : (tensor<2x7x1x1x3xf32>) -> tensor<2x7x3xf32>
  return %4 : tensor<2x7x3xf32>
}

// CASE dilated_strides_stay_and_weights_may_be_computed: transposed-conv
// CONSTANT w f32 2x3x3
func.func @main(%x: tensor<2x5x2xf32>, %v: tensor<3x2x2xf32>) -> tensor<2x26x2xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<2x3x3xf32>
  %v0 = "tw.conv_transpose"(%x, %w) {strides = array<i64: 2>, pads = array<i64: 0, 0>, dilations = array<i64: 2>, output_padding = array<i64: 0>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x5x2xf32>, tensor<2x3x3xf32>) -> tensor<2x13x3xf32>
  %v1 = "tw.conv_transpose"(%v0, %v) {strides = array<i64: 2>, pads = array<i64: 0, 0>, dilations = array<i64: 1>, output_padding = array<i64: 0>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x13x3xf32>, tensor<3x2x2xf32>) -> tensor<2x26x2xf32>
  return %v1 : tensor<2x26x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x5x2xf32>, %arg1: tensor<3x2x2xf32>) -> tensor<2x26x2xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<2x3x3xf32>
  %1 = "tw.conv_transpose"(%arg0, %0) {dilations = array<i64: 2>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, output_padding = array<i64: 0>, pads = array<i64: 0, 0>, strides = array<i64: 2>} : (tensor<2x5x2xf32>, tensor<2x3x3xf32>) -> tensor<2x13x3xf32>
  %2 = "tw.reshape"(%arg1) {shape = array<i64: 1, 3, 2, 2>} : (tensor<3x2x2xf32>) -> tensor<1x3x2x2xf32>
  %3 = "tw.constant"() {value = dense<[[0], [1]]> : tensor<2x1xi64>} : () -> tensor<2x1xi64>
  %4 = "tw.gather"(%2, %3) {axis = 3 : i64} : (tensor<1x3x2x2xf32>, tensor<2x1xi64>) -> tensor<1x3x2x2x1xf32>
  %5 = "tw.transpose"(%4) {permutation = array<i64: 0, 3, 2, 1, 4>} : (tensor<1x3x2x2x1xf32>) -> tensor<1x2x2x3x1xf32>
  %6 = "tw.reshape"(%5) {shape = array<i64: 4, 3, 1>} : (tensor<1x2x2x3x1xf32>) -> tensor<4x3x1xf32>
  %7 = "tw.conv"(%1, %6) {dilations = array<i64: 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0>, strides = array<i64: 1>} : (tensor<2x13x3xf32>, tensor<4x3x1xf32>) -> tensor<2x13x4xf32>
  %8 = "tw.reshape"(%7) {shape = array<i64: 2, 13, 1, 2, 2>} : (tensor<2x13x4xf32>) -> tensor<2x13x1x2x2xf32>
  %9 = "tw.transpose"(%8) {permutation = array<i64: 0, 1, 3, 2, 4>} : (tensor<2x13x1x2x2xf32>) -> tensor<2x13x2x1x2xf32>
  %10 = "tw.reshape"(%9) {shape = array<i64: 2, 26, 2>} : (tensor<2x13x2x1x2xf32>) -> tensor<2x26x2xf32>
  return %10 : tensor<2x26x2xf32>
}
