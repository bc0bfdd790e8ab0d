// CASE tiles_of_four: winograd{tile=4}
// CONSTANT w f32 16x16x3x3
// CONSTANT b f32 16
func.func @main(%x: tensor<1x7x8x16xf32>) -> tensor<1x7x8x16xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<16x16x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<16xf32>
  %v0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x7x8x16xf32>, tensor<16x16x3x3xf32>, tensor<16xf32>) -> tensor<1x7x8x16xf32>
  return %v0 : tensor<1x7x8x16xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x7x8x16xf32>) -> tensor<1x7x8x16xf32> {
  %0 = "tw.constant"() {symbol = "b"} : () -> tensor<16xf32>
  %1 = "tw.pad"(%arg0) {high = array<i64: 0, 2, 1, 0>, low = array<i64: 0, 1, 1, 0>} : (tensor<1x7x8x16xf32>) -> tensor<1x10x10x16xf32>
  %2 = "tw.constant"() {symbol = "w.1"} : () -> tensor<36x16x16xf32>
  %3 = "tw.winograd_conv"(%1, %2) {size = array<i64: 7, 8>, tile = 4 : i64} : (tensor<1x10x10x16xf32>, tensor<36x16x16xf32>) -> tensor<1x7x8x16xf32>
  %4 = "tw.add"(%3, %0) : (tensor<1x7x8x16xf32>, tensor<16xf32>) -> tensor<1x7x8x16xf32>
  return %4 : tensor<1x7x8x16xf32>
}

// CASE tiles_of_two_without_padding: winograd{tile=2}
// CONSTANT w f32 32x16x3x3
func.func @main(%x: tensor<2x8x6x16xf32>) -> tensor<2x6x4x32xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<32x16x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x8x6x16xf32>, tensor<32x16x3x3xf32>) -> tensor<2x6x4x32xf32>
  return %v0 : tensor<2x6x4x32xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8x6x16xf32>) -> tensor<2x6x4x32xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<16x16x32xf32>
  %1 = "tw.winograd_conv"(%arg0, %0) {size = array<i64: 6, 4>, tile = 2 : i64} : (tensor<2x8x6x16xf32>, tensor<16x16x32xf32>) -> tensor<2x6x4x32xf32>
  return %1 : tensor<2x6x4x32xf32>
}

// CASE strides_and_few_channels_stay: winograd
// CONSTANT w f32 16x16x3x3
// CONSTANT v f32 5x16x3x3
func.func @main(%x: tensor<1x8x8x16xf32>) -> tensor<1x1x1x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<16x16x3x3xf32>
  %v = "tw.constant"() {symbol = "v"} : () -> tensor<5x16x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x8x8x16xf32>, tensor<16x16x3x3xf32>) -> tensor<1x3x3x16xf32>
  %v1 = "tw.conv"(%v0, %v) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x3x3x16xf32>, tensor<5x16x3x3xf32>) -> tensor<1x1x1x5xf32>
  return %v1 : tensor<1x1x1x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x8x8x16xf32>) -> tensor<1x1x1x5xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<16x16x3x3xf32>
  %1 = "tw.constant"() {symbol = "v"} : () -> tensor<5x16x3x3xf32>
  %2 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x8x8x16xf32>, tensor<16x16x3x3xf32>) -> tensor<1x3x3x16xf32>
  %3 = "tw.conv"(%2, %1) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x3x3x16xf32>, tensor<5x16x3x3xf32>) -> tensor<1x1x1x5xf32>
  return %3 : tensor<1x1x1x5xf32>
}
