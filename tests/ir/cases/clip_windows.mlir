// CASE taps_that_are_never_inside: clip-windows
// CONSTANT w f32 2x3x3x3
func.func @main(%x: tensor<1x3x4x9xf32>, %b: tensor<2xf32>) -> tensor<1x2x4x9xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<2x3x3x3xf32>
  %v0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 6, 6, 6, 6>, dilations = array<i64: 6, 6>, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x3x4x9xf32>, tensor<2x3x3x3xf32>, tensor<2xf32>) -> tensor<1x2x4x9xf32>
  return %v0 : tensor<1x2x4x9xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x4x9xf32>, %arg1: tensor<2xf32>) -> tensor<1x2x4x9xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<2x3x1x3xf32>
  %1 = "tw.conv"(%arg0, %0, %arg1) {dilations = array<i64: 1, 6>, operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 0, 6, 0, 6>, strides = array<i64: 1, 1>} : (tensor<1x3x4x9xf32>, tensor<2x3x1x3xf32>, tensor<2xf32>) -> tensor<1x2x4x9xf32>
  return %1 : tensor<1x2x4x9xf32>
}

// CASE nothing_but_padding: clip-windows
func.func @main(%x: tensor<1x3x2xf32>, %w: tensor<4x3x2xf32>, %b: tensor<4xf32>) -> tensor<1x4x2xf32> {
  %v0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 7>, pads = array<i64: 4, 5>, dilations = array<i64: 3>, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x3x2xf32>, tensor<4x3x2xf32>, tensor<4xf32>) -> tensor<1x4x2xf32>
  return %v0 : tensor<1x4x2xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x3x2xf32>, %arg1: tensor<4x3x2xf32>, %arg2: tensor<4xf32>) -> tensor<1x4x2xf32> {
  %0 = "tw.reshape"(%arg2) {shape = array<i64: 4, 1>} : (tensor<4xf32>) -> tensor<4x1xf32>
  %1 = "tw.expand"(%0) {shape = array<i64: 1, 4, 2>} : (tensor<4x1xf32>) -> tensor<1x4x2xf32>
  return %1 : tensor<1x4x2xf32>
}

// CASE only_part_of_the_image_is_read: clip-windows
func.func @main(%x: tensor<1x12x9x2xf32>, %w: tensor<4x2x2x1xf32>) -> tensor<1x2x3x4xf32> {
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 2, 3>, pads = array<i64: 5, 0, 0, 0>, dilations = array<i64: 13, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x12x9x2xf32>, tensor<4x2x2x1xf32>) -> tensor<1x2x3x4xf32>
  return %v0 : tensor<1x2x3x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x12x9x2xf32>, %arg1: tensor<4x2x2x1xf32>) -> tensor<1x2x3x4xf32> {
  %0 = "tw.slice"(%arg0) {sizes = array<i64: 1, 3, 9, 2>, starts = array<i64: 0, 8, 0, 0>, steps = array<i64: 1, 1, 1, 1>} : (tensor<1x12x9x2xf32>) -> tensor<1x3x9x2xf32>
  %1 = "tw.slice"(%arg1) {sizes = array<i64: 4, 2, 1, 1>, starts = array<i64: 0, 0, 1, 0>, steps = array<i64: 1, 1, 1, 1>} : (tensor<4x2x2x1xf32>) -> tensor<4x2x1x1xf32>
  %2 = "tw.conv"(%0, %1) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 3>} : (tensor<1x3x9x2xf32>, tensor<4x2x1x1xf32>) -> tensor<1x2x3x4xf32>
  return %2 : tensor<1x2x3x4xf32>
}

// CASE regions_of_the_result: split-windows{costs=lanes:16;tap:6;padded:16;joined:12;kernel:100000}
func.func @main(%x: tensor<1x140x64xf32>, %w: tensor<64x64x3xf32>) -> tensor<1x140x64xf32> {
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1>, pads = array<i64: 120, 120>, dilations = array<i64: 120>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x140x64xf32>, tensor<64x64x3xf32>) -> tensor<1x140x64xf32>
  return %v0 : tensor<1x140x64xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x140x64xf32>, %arg1: tensor<64x64x3xf32>) -> tensor<1x140x64xf32> {
  %0 = "tw.slice"(%arg1) {sizes = array<i64: 64, 64, 2>, starts = array<i64: 0, 0, 1>, steps = array<i64: 1, 1, 1>} : (tensor<64x64x3xf32>) -> tensor<64x64x2xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 120>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0>, strides = array<i64: 1>} : (tensor<1x140x64xf32>, tensor<64x64x2xf32>) -> tensor<1x20x64xf32>
  %2 = "tw.slice"(%arg0) {sizes = array<i64: 1, 100, 64>, starts = array<i64: 0, 20, 0>, steps = array<i64: 1, 1, 1>} : (tensor<1x140x64xf32>) -> tensor<1x100x64xf32>
  %3 = "tw.slice"(%arg1) {sizes = array<i64: 64, 64, 1>, starts = array<i64: 0, 0, 1>, steps = array<i64: 1, 1, 1>} : (tensor<64x64x3xf32>) -> tensor<64x64x1xf32>
  %4 = "tw.conv"(%2, %3) {dilations = array<i64: 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0>, strides = array<i64: 1>} : (tensor<1x100x64xf32>, tensor<64x64x1xf32>) -> tensor<1x100x64xf32>
  %5 = "tw.slice"(%arg1) {sizes = array<i64: 64, 64, 2>, starts = array<i64: 0, 0, 0>, steps = array<i64: 1, 1, 1>} : (tensor<64x64x3xf32>) -> tensor<64x64x2xf32>
  %6 = "tw.conv"(%arg0, %5) {dilations = array<i64: 120>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0>, strides = array<i64: 1>} : (tensor<1x140x64xf32>, tensor<64x64x2xf32>) -> tensor<1x20x64xf32>
  %7 = "tw.concat"(%1, %4, %6) {axis = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x20x64xf32>, tensor<1x100x64xf32>, tensor<1x20x64xf32>) -> tensor<1x140x64xf32>
  return %7 : tensor<1x140x64xf32>
}
