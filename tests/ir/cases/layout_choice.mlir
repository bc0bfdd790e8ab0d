// CASE pixels_alone: layout{lanes=16 costs=transposed:0.3;padded_last:0.4;padded_first:6.0;per_cycle:2.0;result:2.0;read_across:1.05;along_sums:1.2;long_sum:96;sliding:1.05;striding:1.15;merged:1.1;last_product:0.6;last_beside:3.0;last_far_product:0.9;last_far_beside:8.0;first_product:0.55;first_beside:2.0;first_far_product:0.8;first_far_beside:8.5 winograd=transform:16;weight:16}
// CONSTANT w f32 24x8x1x1
func.func @main(%x: tensor<1x8x30x31xf32>) -> tensor<1x24x30x31xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<24x8x1x1xf32>
  %v0 = "tw.relu"(%x) : (tensor<1x8x30x31xf32>) -> tensor<1x8x30x31xf32>
  %v1 = "tw.conv"(%v0, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x8x30x31xf32>, tensor<24x8x1x1xf32>) -> tensor<1x24x30x31xf32>
  %v2 = "tw.sigmoid"(%v1) : (tensor<1x24x30x31xf32>) -> tensor<1x24x30x31xf32>
  return %v2 : tensor<1x24x30x31xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x8x30x31xf32>) -> tensor<1x24x30x31xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<24x8x1x1xf32>
  %1 = "tw.relu"(%arg0) : (tensor<1x8x30x31xf32>) -> tensor<1x8x30x31xf32>
  %2 = "tw.conv"(%1, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x30x31xf32>, tensor<24x8x1x1xf32>) -> tensor<1x24x30x31xf32>
  %3 = "tw.sigmoid"(%2) : (tensor<1x24x30x31xf32>) -> tensor<1x24x30x31xf32>
  return %3 : tensor<1x24x30x31xf32>
}

// CASE two_chains: layout{lanes=16 costs=transposed:0.3;padded_last:0.4;padded_first:6.0;per_cycle:2.0;result:2.0;read_across:1.05;along_sums:1.2;long_sum:96;sliding:1.05;striding:1.15;merged:1.1;last_product:0.6;last_beside:3.0;last_far_product:0.9;last_far_beside:8.0;first_product:0.55;first_beside:2.0;first_far_product:0.8;first_far_beside:8.5 winograd=transform:16;weight:16}
// CONSTANT w f32 8x8x3x3
// CONSTANT w2 f32 64x64x1x1
func.func @main(%x: tensor<1x8x40x60xf32>, %y: tensor<1x64x4x4xf32>) -> (tensor<1x8x40x60xf32>, tensor<1x64x4x4xf32>) {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x8x3x3xf32>
  %w2 = "tw.constant"() {symbol = "w2"} : () -> tensor<64x64x1x1xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x8x40x60xf32>, tensor<8x8x3x3xf32>) -> tensor<1x8x40x60xf32>
  %v1 = "tw.conv"(%y, %w2) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x64x4x4xf32>, tensor<64x64x1x1xf32>) -> tensor<1x64x4x4xf32>
  %v2 = "tw.max_pool"(%v1) {kernel = array<i64: 1, 1>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x64x4x4xf32>) -> tensor<1x64x4x4xf32>
  return %v0, %v2 : tensor<1x8x40x60xf32>, tensor<1x64x4x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x8x40x60xf32>, %arg1: tensor<1x64x4x4xf32>) -> (tensor<1x8x40x60xf32>, tensor<1x64x4x4xf32>) {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8x8x3x3xf32>
  %1 = "tw.constant"() {symbol = "w2"} : () -> tensor<64x64x1x1xf32>
  %2 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x8x40x60xf32>, tensor<8x8x3x3xf32>) -> tensor<1x8x40x60xf32>
  %3 = "tw.transpose"(%arg1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x64x4x4xf32>) -> tensor<1x4x4x64xf32>
  %4 = "tw.conv"(%3, %1) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x4x64xf32>, tensor<64x64x1x1xf32>) -> tensor<1x4x4x64xf32>
  %5 = "tw.max_pool"(%4) {dilations = array<i64: 1, 1>, kernel = array<i64: 1, 1>, layout = "nhwc", pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x4x64xf32>) -> tensor<1x4x4x64xf32>
  %6 = "tw.transpose"(%5) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<1x4x4x64xf32>) -> tensor<1x64x4x4xf32>
  return %2, %6 : tensor<1x8x40x60xf32>, tensor<1x64x4x4xf32>
}

// CASE reads_what_is_given_last: layout{lanes=16 costs=transposed:0.3;padded_last:0.4;padded_first:6.0;per_cycle:2.0;result:2.0;read_across:1.05;along_sums:1.2;long_sum:96;sliding:1.05;striding:1.15;merged:1.1;last_product:0.6;last_beside:3.0;last_far_product:0.9;last_far_beside:8.0;first_product:0.55;first_beside:2.0;first_far_product:0.8;first_far_beside:8.5 winograd=transform:16;weight:16}
// CONSTANT w f32 24x8x1x1
func.func @main(%x: tensor<1x30x31x8xf32>) -> tensor<1x30x31x24xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<24x8x1x1xf32>
  %v0 = "tw.transpose"(%x) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<1x30x31x8xf32>) -> tensor<1x8x30x31xf32>
  %v1 = "tw.conv"(%v0, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x8x30x31xf32>, tensor<24x8x1x1xf32>) -> tensor<1x24x30x31xf32>
  %v2 = "tw.transpose"(%v1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x24x30x31xf32>) -> tensor<1x30x31x24xf32>
  return %v2 : tensor<1x30x31x24xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x30x31x8xf32>) -> tensor<1x30x31x24xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<24x8x1x1xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x30x31x8xf32>, tensor<24x8x1x1xf32>) -> tensor<1x30x31x24xf32>
  return %1 : tensor<1x30x31x24xf32>
}

// CASE a_residual_of_the_input: layout{lanes=16 costs=transposed:0.3;padded_last:0.4;padded_first:6.0;per_cycle:2.0;result:2.0;read_across:1.05;along_sums:1.2;long_sum:96;sliding:1.05;striding:1.15;merged:1.1;last_product:0.6;last_beside:3.0;last_far_product:0.9;last_far_beside:8.0;first_product:0.55;first_beside:2.0;first_far_product:0.8;first_far_beside:8.5 winograd=transform:16;weight:16}
// CONSTANT w f32 8x8x1x1
func.func @main(%x: tensor<1x8x40x60xf32>) -> tensor<1x8x40x60xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x8x1x1xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x8x40x60xf32>, tensor<8x8x1x1xf32>) -> tensor<1x8x40x60xf32>
  %v1 = "tw.add"(%v0, %x) : (tensor<1x8x40x60xf32>, tensor<1x8x40x60xf32>) -> tensor<1x8x40x60xf32>
  return %v1 : tensor<1x8x40x60xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x8x40x60xf32>) -> tensor<1x8x40x60xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8x8x1x1xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x8x40x60xf32>, tensor<8x8x1x1xf32>) -> tensor<1x8x40x60xf32>
  %2 = "tw.add"(%1, %arg0) : (tensor<1x8x40x60xf32>, tensor<1x8x40x60xf32>) -> tensor<1x8x40x60xf32>
  return %2 : tensor<1x8x40x60xf32>
}
