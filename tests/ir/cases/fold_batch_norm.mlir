// CASE after_conv: fold-batch-norm
// CONSTANT w f32 5x4x3x3
// CONSTANT scale f32 5
// CONSTANT bias f32 5
// CONSTANT mean f32 5
// CONSTANT var f32+ 5
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x5x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<5x4x3x3xf32>) -> tensor<1x5x6x6xf32>
  %scale = "tw.constant"() {symbol = "scale"} : () -> tensor<5xf32>
  %bias = "tw.constant"() {symbol = "bias"} : () -> tensor<5xf32>
  %mean = "tw.constant"() {symbol = "mean"} : () -> tensor<5xf32>
  %var = "tw.constant"() {symbol = "var"} : () -> tensor<5xf32>
  %v1 = "tw.batch_norm"(%v0, %scale, %bias, %mean, %var) : (tensor<1x5x6x6xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>) -> tensor<1x5x6x6xf32>
  %v2 = "tw.relu"(%v1) : (tensor<1x5x6x6xf32>) -> tensor<1x5x6x6xf32>
  return %v2 : tensor<1x5x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x5x6x6xf32> {
  %0 = "tw.constant"() {value = dense<[0.615650653, -1.40901804, 0.514541268, 0.0557801761, 0.317862272]> : tensor<5xf32>} : () -> tensor<5xf32>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<5x4x3x3xf32>
  %2 = "tw.conv"(%arg0, %1, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<5x4x3x3xf32>, tensor<5xf32>) -> tensor<1x5x6x6xf32>
  %3 = "tw.relu"(%2) : (tensor<1x5x6x6xf32>) -> tensor<1x5x6x6xf32>
  return %3 : tensor<1x5x6x6xf32>
}

// CASE before_padded_conv: fold-batch-norm
// CONSTANT scale f32 4
// CONSTANT bias f32 4
// CONSTANT mean f32 4
// CONSTANT var f32+ 4
// CONSTANT w f32 5x4x3x3
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x5x6x6xf32> {
  %scale = "tw.constant"() {symbol = "scale"} : () -> tensor<4xf32>
  %bias = "tw.constant"() {symbol = "bias"} : () -> tensor<4xf32>
  %mean = "tw.constant"() {symbol = "mean"} : () -> tensor<4xf32>
  %var = "tw.constant"() {symbol = "var"} : () -> tensor<4xf32>
  %v0 = "tw.batch_norm"(%x, %scale, %bias, %mean, %var) {epsilon = 1.0e-3} : (tensor<1x4x6x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3x3xf32>
  %v1 = "tw.conv"(%v0, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<5x4x3x3xf32>) -> tensor<1x5x6x6xf32>
  return %v1 : tensor<1x5x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x5x6x6xf32> {
  %0 = "tw.constant"() {value = dense<[[[0.317837089]], [[-0.663399458]], [[-0.137969956]], [[-0.362612128]]]> : tensor<4x1x1xf32>} : () -> tensor<4x1x1xf32>
  %1 = "tw.constant"() {value = dense<[[[0.615600883]], [[-1.40894663]], [[0.514470339]], [[0.0555000305]]]> : tensor<4x1x1xf32>} : () -> tensor<4x1x1xf32>
  %2 = "tw.mul"(%arg0, %0) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %3 = "tw.add"(%2, %1) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %4 = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3x3xf32>
  %5 = "tw.conv"(%3, %4) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<5x4x3x3xf32>) -> tensor<1x5x6x6xf32>
  return %5 : tensor<1x5x6x6xf32>
}

// CASE before_grouped_conv_without_padding: fold-batch-norm
// CONSTANT scale f32 4
// CONSTANT bias f32 4
// CONSTANT mean f32 4
// CONSTANT var f32+ 4
// CONSTANT w f32 6x2x3x3
// CONSTANT b f32 6
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x6x4x4xf32> {
  %scale = "tw.constant"() {symbol = "scale"} : () -> tensor<4xf32>
  %bias = "tw.constant"() {symbol = "bias"} : () -> tensor<4xf32>
  %mean = "tw.constant"() {symbol = "mean"} : () -> tensor<4xf32>
  %var = "tw.constant"() {symbol = "var"} : () -> tensor<4xf32>
  %v0 = "tw.batch_norm"(%x, %scale, %bias, %mean, %var) : (tensor<1x4x6x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<6x2x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<6xf32>
  %v1 = "tw.conv"(%v0, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 2, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x4x4xf32>
  return %v1 : tensor<1x6x4x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x6x4x4xf32> {
  %0 = "tw.constant"() {value = dense<[[[0.317965597]], [[-0.66361618]], [[-0.138062581]], [[-0.362772375]]]> : tensor<4x1x1xf32>} : () -> tensor<4x1x1xf32>
  %1 = "tw.constant"() {value = dense<[[[0.615650653]], [[-1.40901804]], [[0.514541268]], [[0.0557801761]]]> : tensor<4x1x1xf32>} : () -> tensor<4x1x1xf32>
  %2 = "tw.mul"(%arg0, %0) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %3 = "tw.add"(%2, %1) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %4 = "tw.constant"() {symbol = "w"} : () -> tensor<6x2x3x3xf32>
  %5 = "tw.constant"() {symbol = "b"} : () -> tensor<6xf32>
  %6 = "tw.conv"(%3, %4, %5) {dilations = array<i64: 1, 1>, groups = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x4x4xf32>
  return %6 : tensor<1x6x4x4xf32>
}

// CASE before_grouped_conv_without_padding_fast: fold-batch-norm{fast_math=true}
// CONSTANT scale f32 4
// CONSTANT bias f32 4
// CONSTANT mean f32 4
// CONSTANT var f32+ 4
// CONSTANT w f32 6x2x3x3
// CONSTANT b f32 6
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x6x4x4xf32> {
  %scale = "tw.constant"() {symbol = "scale"} : () -> tensor<4xf32>
  %bias = "tw.constant"() {symbol = "bias"} : () -> tensor<4xf32>
  %mean = "tw.constant"() {symbol = "mean"} : () -> tensor<4xf32>
  %var = "tw.constant"() {symbol = "var"} : () -> tensor<4xf32>
  %v0 = "tw.batch_norm"(%x, %scale, %bias, %mean, %var) : (tensor<1x4x6x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<6x2x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<6xf32>
  %v1 = "tw.conv"(%v0, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 2, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x4x4xf32>
  return %v1 : tensor<1x6x4x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x6x4x4xf32> {
  %0 = "tw.constant"() {value = dense<[-0.150051817, 1.58777273, -7.94227648, 2.91321659, -1.48616409, 1.48674548]> : tensor<6xf32>} : () -> tensor<6xf32>
  %1 = "tw.constant"() {symbol = "w.1.1"} : () -> tensor<6x2x3x3xf32>
  %2 = "tw.conv"(%arg0, %1, %0) {dilations = array<i64: 1, 1>, groups = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x4x4xf32>
  return %2 : tensor<1x6x4x4xf32>
}

// CASE affine_after_depthwise: fold-batch-norm
// CONSTANT w f32 4x1x3x3
// CONSTANT b f32 4
// CONSTANT k f32 1x4x1x1
// CONSTANT c f32 4x1x1
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x1x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<4xf32>
  %v0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 4, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x1x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<1x4x1x1xf32>
  %c = "tw.constant"() {symbol = "c"} : () -> tensor<4x1x1xf32>
  %v1 = "tw.mul"(%k, %v0) : (tensor<1x4x1x1xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %v2 = "tw.add"(%v1, %c) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %v2 : tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "tw.constant"() {symbol = "c"} : () -> tensor<4x1x1xf32>
  %1 = "tw.constant"() {value = dense<[2.57305837, -0.120946825, 1.40649438, -0.96912831]> : tensor<4xf32>} : () -> tensor<4xf32>
  %2 = "tw.constant"() {symbol = "w.1"} : () -> tensor<4x1x3x3xf32>
  %3 = "tw.conv"(%arg0, %2, %1) {dilations = array<i64: 1, 1>, groups = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x1x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %4 = "tw.add"(%3, %0) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %4 : tensor<1x4x6x6xf32>
}

// CASE affine_after_depthwise_fast: fold-batch-norm{fast_math=true}
// CONSTANT w f32 4x1x3x3
// CONSTANT b f32 4
// CONSTANT k f32 1x4x1x1
// CONSTANT c f32 4x1x1
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x1x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<4xf32>
  %v0 = "tw.conv"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 4, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x1x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<1x4x1x1xf32>
  %c = "tw.constant"() {symbol = "c"} : () -> tensor<4x1x1xf32>
  %v1 = "tw.mul"(%k, %v0) : (tensor<1x4x1x1xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %v2 = "tw.add"(%v1, %c) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %v2 : tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<4x1x3x3xf32>
  %1 = "tw.constant"() {value = dense<[3.53543663, 2.56928325, 1.85656381, -1.244555]> : tensor<4xf32>} : () -> tensor<4xf32>
  %2 = "tw.conv"(%arg0, %0, %1) {dilations = array<i64: 1, 1>, groups = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x1x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  return %2 : tensor<1x4x6x6xf32>
}

// CASE scale_after_transposed_conv: fold-batch-norm
// CONSTANT w f32 4x3x3x3
// CONSTANT b f32 6
// CONSTANT k f32 6x1x1
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x6x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x3x3x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<6xf32>
  %v0 = "tw.conv_transpose"(%x, %w, %b) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, output_padding = array<i64: 0, 0>, groups = 2, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x3x3x3xf32>, tensor<6xf32>) -> tensor<1x6x6x6xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<6x1x1xf32>
  %v1 = "tw.mul"(%v0, %k) : (tensor<1x6x6x6xf32>, tensor<6x1x1xf32>) -> tensor<1x6x6x6xf32>
  return %v1 : tensor<1x6x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x6x6x6xf32> {
  %0 = "tw.constant"() {value = dense<[2.57305837, -0.120946825, 1.40649438, -0.96912831, -0.0358226784, 0.0653328672]> : tensor<6xf32>} : () -> tensor<6xf32>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<4x3x3x3xf32>
  %2 = "tw.conv_transpose"(%arg0, %1, %0) {dilations = array<i64: 1, 1>, groups = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, output_padding = array<i64: 0, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x3x3x3xf32>, tensor<6xf32>) -> tensor<1x6x6x6xf32>
  return %2 : tensor<1x6x6x6xf32>
}

// CASE channels_last: fold-batch-norm
// CONSTANT w f32 5x4x3x3
// CONSTANT k f32 5
func.func @main(%x: tensor<1x6x6x4xf32>) -> tensor<1x6x6x5xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x6x6x4xf32>, tensor<5x4x3x3xf32>) -> tensor<1x6x6x5xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<5xf32>
  %v1 = "tw.mul"(%v0, %k) : (tensor<1x6x6x5xf32>, tensor<5xf32>) -> tensor<1x6x6x5xf32>
  return %v1 : tensor<1x6x6x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x6x6x4xf32>) -> tensor<1x6x6x5xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<5x4x3x3xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x6x6x4xf32>, tensor<5x4x3x3xf32>) -> tensor<1x6x6x5xf32>
  return %1 : tensor<1x6x6x5xf32>
}

// CASE factor_along_width_stays: fold-batch-norm
// CONSTANT w f32 4x4x3x3
// CONSTANT k f32 6
func.func @main(%x: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<6xf32>
  %v1 = "tw.mul"(%v0, %k) : (tensor<1x4x6x6xf32>, tensor<6xf32>) -> tensor<1x4x6x6xf32>
  return %v1 : tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %2 = "tw.constant"() {symbol = "k"} : () -> tensor<6xf32>
  %3 = "tw.mul"(%1, %2) : (tensor<1x4x6x6xf32>, tensor<6xf32>) -> tensor<1x4x6x6xf32>
  return %3 : tensor<1x4x6x6xf32>
}

// CASE conv_used_elsewhere_stays: fold-batch-norm
// CONSTANT w f32 4x4x3x3
// CONSTANT k f32 4x1x1
func.func @main(%x: tensor<1x4x6x6xf32>) -> (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<4x1x1xf32>
  %v1 = "tw.mul"(%v0, %k) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %v1, %v0 : tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>) -> (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<4x4x3x3xf32>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %2 = "tw.constant"() {symbol = "k"} : () -> tensor<4x1x1xf32>
  %3 = "tw.mul"(%1, %2) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %3, %1 : tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>
}

// CASE computed_weights_stay: fold-batch-norm
// CONSTANT k f32 4x1x1
func.func @main(%x: tensor<1x4x6x6xf32>, %w: tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32> {
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<4x1x1xf32>
  %v1 = "tw.mul"(%v0, %k) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %v1 : tensor<1x4x6x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf32>, %arg1: tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "tw.conv"(%arg0, %arg1) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x6x6xf32>
  %1 = "tw.constant"() {symbol = "k"} : () -> tensor<4x1x1xf32>
  %2 = "tw.mul"(%0, %1) : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  return %2 : tensor<1x4x6x6xf32>
}

// CASE linear: fold-batch-norm
// CONSTANT w f32 8x3
// CONSTANT b f32 3
// CONSTANT k f32 3
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x3xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x3xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<3xf32>
  %v0 = "tw.matmul"(%x, %w) : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
  %v1 = "tw.add"(%v0, %b) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<3xf32>
  %v2 = "tw.mul"(%v1, %k) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  return %v2 : tensor<2x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x3xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x3xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
  %2 = "tw.constant"() {value = dense<[2.57305837, -0.120946825, 1.40649438]> : tensor<3xf32>} : () -> tensor<3xf32>
  %3 = "tw.add"(%1, %2) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  return %3 : tensor<2x3xf32>
}

// CASE matmul_both_sides: fold-batch-norm
// CONSTANT k f32 8
// CONSTANT w f32 8x3
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x3xf32> {
  %k = "tw.constant"() {symbol = "k"} : () -> tensor<8xf32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x3xf32>
  %v0 = "tw.mul"(%x, %k) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %v1 = "tw.matmul"(%v0, %w) : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
  %v2 = "tw.constant"() {value = dense<0.3> : tensor<f32>} : () -> tensor<f32>
  %v3 = "tw.mul"(%v1, %v2) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  return %v3 : tensor<2x3xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x3xf32> {
  %0 = "tw.constant"() {symbol = "w.1.1"} : () -> tensor<8x3xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}

// CASE alone: fold-batch-norm
// CONSTANT scale f32 4
// CONSTANT bias f32 4
// CONSTANT mean f32 4
// CONSTANT var f32+ 4
func.func @main(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %scale = "tw.constant"() {symbol = "scale"} : () -> tensor<4xf32>
  %bias = "tw.constant"() {symbol = "bias"} : () -> tensor<4xf32>
  %mean = "tw.constant"() {symbol = "mean"} : () -> tensor<4xf32>
  %var = "tw.constant"() {symbol = "var"} : () -> tensor<4xf32>
  %v0 = "tw.batch_norm"(%x, %scale, %bias, %mean, %var) {axis = -1} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
  return %v0 : tensor<2x3x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %0 = "tw.constant"() {value = dense<[0.317965597, -0.66361618, -0.138062581, -0.362772375]> : tensor<4xf32>} : () -> tensor<4xf32>
  %1 = "tw.constant"() {value = dense<[0.615650653, -1.40901804, 0.514541268, 0.0557801761]> : tensor<4xf32>} : () -> tensor<4xf32>
  %2 = "tw.mul"(%arg0, %0) : (tensor<2x3x4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
  %3 = "tw.add"(%2, %1) : (tensor<2x3x4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
  return %3 : tensor<2x3x4xf32>
}

// CASE halves_in_f32: fold-batch-norm
// TOLERANCE 2e-3
// CONSTANT w f16 5x4x3x3
// CONSTANT scale f16 5
// CONSTANT bias f16 5
// CONSTANT mean f16 5
// CONSTANT var f16+ 5
func.func @main(%x: tensor<1x4x6x6xf16>) -> tensor<1x5x6x6xf16> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3x3xf16>
  %v0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xf16>, tensor<5x4x3x3xf16>) -> tensor<1x5x6x6xf16>
  %scale = "tw.constant"() {symbol = "scale"} : () -> tensor<5xf16>
  %bias = "tw.constant"() {symbol = "bias"} : () -> tensor<5xf16>
  %mean = "tw.constant"() {symbol = "mean"} : () -> tensor<5xf16>
  %var = "tw.constant"() {symbol = "var"} : () -> tensor<5xf16>
  %v1 = "tw.batch_norm"(%v0, %scale, %bias, %mean, %var) : (tensor<1x5x6x6xf16>, tensor<5xf16>, tensor<5xf16>, tensor<5xf16>, tensor<5xf16>) -> tensor<1x5x6x6xf16>
  return %v1 : tensor<1x5x6x6xf16>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xf16>) -> tensor<1x5x6x6xf16> {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<5x4x3x3xf16>
  %1 = "tw.conv"(%arg0, %0) {dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x4x6x6xf16>, tensor<5x4x3x3xf16>) -> tensor<1x5x6x6xf16>
  %2 = "tw.constant"() {value = dense<[[[0.317909479]], [[-0.663756251]], [[-0.138085067]], [[-0.362856656]], [[-0.00717073586]]]> : tensor<5x1x1xf32>} : () -> tensor<5x1x1xf32>
  %3 = "tw.constant"() {value = dense<[[[6.156060e-01]], [[-1.40919697]], [[0.514412761]], [[0.0556771792]], [[0.317941487]]]> : tensor<5x1x1xf32>} : () -> tensor<5x1x1xf32>
  %4 = "tw.cast"(%1) {to = "f32"} : (tensor<1x5x6x6xf16>) -> tensor<1x5x6x6xf32>
  %5 = "tw.mul"(%4, %2) : (tensor<1x5x6x6xf32>, tensor<5x1x1xf32>) -> tensor<1x5x6x6xf32>
  %6 = "tw.add"(%5, %3) : (tensor<1x5x6x6xf32>, tensor<5x1x1xf32>) -> tensor<1x5x6x6xf32>
  %7 = "tw.cast"(%6) {to = "f16"} : (tensor<1x5x6x6xf32>) -> tensor<1x5x6x6xf16>
  return %7 : tensor<1x5x6x6xf16>
}

// CASE large_mean_first: fold-batch-norm
func.func @main(%x: tensor<2x2x4xf32>) -> tensor<2x2x4xf32> {
  %scale = "tw.constant"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %bias = "tw.constant"() {value = dense<[0.5, 0.25]> : tensor<2xf32>} : () -> tensor<2xf32>
  %mean = "tw.constant"() {value = dense<[1000.0, 0.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %var = "tw.constant"() {value = dense<[1.0, 4.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %0 = "tw.batch_norm"(%x, %scale, %bias, %mean, %var) {epsilon = 0.0} : (tensor<2x2x4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2x2x4xf32>
  return %0 : tensor<2x2x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x2x4xf32>) -> tensor<2x2x4xf32> {
  %0 = "tw.constant"() {value = dense<1.000000e+00> : tensor<2x1xf32>} : () -> tensor<2x1xf32>
  %1 = "tw.constant"() {value = dense<[[5.000000e-01], [2.500000e-01]]> : tensor<2x1xf32>} : () -> tensor<2x1xf32>
  %2 = "tw.constant"() {value = dense<[[1.000000e+03], [0.000000e+00]]> : tensor<2x1xf32>} : () -> tensor<2x1xf32>
  %3 = "tw.sub"(%arg0, %2) : (tensor<2x2x4xf32>, tensor<2x1xf32>) -> tensor<2x2x4xf32>
  %4 = "tw.mul"(%3, %0) : (tensor<2x2x4xf32>, tensor<2x1xf32>) -> tensor<2x2x4xf32>
  %5 = "tw.add"(%4, %1) : (tensor<2x2x4xf32>, tensor<2x1xf32>) -> tensor<2x2x4xf32>
  return %5 : tensor<2x2x4xf32>
}

// CASE factor_out_of_range_stays: fold-batch-norm
// CONSTANT w f32 8x6
func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x6xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %k = "tw.constant"() {value = dense<1.0e-20> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%0, %k) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
  %2 = "tw.neg"(%1) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %1, %2 : tensor<4x6xf32>, tensor<4x6xf32>
}
// AFTER
func.func @main(%arg0: tensor<4x8xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %0 = "tw.constant"() {symbol = "w"} : () -> tensor<8x6xf32>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %2 = "tw.constant"() {value = dense<9.99999968E-21> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.mul"(%1, %2) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
  %4 = "tw.neg"(%3) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %3, %4 : tensor<4x6xf32>, tensor<4x6xf32>
}

// CASE half_weights_take_powers_of_two: fold-batch-norm
// TOLERANCE 2e-3
// CONSTANT w f16+ 8x6
// CONSTANT v f16+ 8x6
func.func @main(%x: tensor<4x8xf16>) -> (tensor<4x6xf16>, tensor<4x6xf16>) {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x6xf16>
  %v = "tw.constant"() {symbol = "v"} : () -> tensor<8x6xf16>
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf16>, tensor<8x6xf16>) -> tensor<4x6xf16>
  %1 = "tw.matmul"(%x, %v) : (tensor<4x8xf16>, tensor<8x6xf16>) -> tensor<4x6xf16>
  %eighth = "tw.constant"() {value = dense<0.125> : tensor<f16>} : () -> tensor<f16>
  %tenth = "tw.constant"() {value = dense<0.1> : tensor<f16>} : () -> tensor<f16>
  %2 = "tw.mul"(%0, %eighth) : (tensor<4x6xf16>, tensor<f16>) -> tensor<4x6xf16>
  %3 = "tw.mul"(%1, %tenth) : (tensor<4x6xf16>, tensor<f16>) -> tensor<4x6xf16>
  return %2, %3 : tensor<4x6xf16>, tensor<4x6xf16>
}
// AFTER
func.func @main(%arg0: tensor<4x8xf16>) -> (tensor<4x6xf16>, tensor<4x6xf16>) {
  %0 = "tw.constant"() {symbol = "v"} : () -> tensor<8x6xf16>
  %1 = "tw.matmul"(%arg0, %0) : (tensor<4x8xf16>, tensor<8x6xf16>) -> tensor<4x6xf16>
  %2 = "tw.constant"() {value = dense<9.997550e-02> : tensor<f16>} : () -> tensor<f16>
  %3 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x6xf16>
  %4 = "tw.matmul"(%arg0, %3) : (tensor<4x8xf16>, tensor<8x6xf16>) -> tensor<4x6xf16>
  %5 = "tw.mul"(%1, %2) : (tensor<4x6xf16>, tensor<f16>) -> tensor<4x6xf16>
  return %4, %5 : tensor<4x6xf16>, tensor<4x6xf16>
}
