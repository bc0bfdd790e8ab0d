// CASE conv_relu: integers
// CONSTANT w i8 4x3x3x3
func.func @main(%x: tensor<1x3x6x6xi8>) -> tensor<1x4x6x6xi8> {
  %sx = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %zx = "tw.constant"() {value = dense<3> : tensor<i8>} : () -> tensor<i8>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4x3x3x3xi8>
  %sw = "tw.constant"() {value = dense<[0.11, 0.012, 0.013, 0.014]> : tensor<4xf32>} : () -> tensor<4xf32>
  %b = "tw.constant"() {value = dense<[10, -20, 30, -40]> : tensor<4xi32>} : () -> tensor<4xi32>
  %sb = "tw.constant"() {value = dense<[0.0055, 0.0006, 0.00065, 0.0007]> : tensor<4xf32>} : () -> tensor<4xf32>
  %sy = "tw.constant"() {value = dense<0.07> : tensor<f32>} : () -> tensor<f32>
  %zy = "tw.constant"() {value = dense<-5> : tensor<i8>} : () -> tensor<i8>
  %0 = "tw.dequantize_linear"(%x, %sx, %zx) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x3x6x6xi8>, tensor<f32>, tensor<i8>) -> tensor<1x3x6x6xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {axis = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x3x3x3xi8>, tensor<4xf32>) -> tensor<4x3x3x3xf32>
  %2 = "tw.dequantize_linear"(%b, %sb) {axis = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4xi32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "tw.conv"(%0, %1, %2) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x3x6x6xf32>, tensor<4x3x3x3xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  %4 = "tw.relu"(%3) : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %5 = "tw.quantize_linear"(%4, %sy, %zy) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<f32>, tensor<i8>) -> tensor<1x4x6x6xi8>
  return %5 : tensor<1x4x6x6xi8>
}
// AFTER
func.func @main(%arg0: tensor<1x3x6x6xi8>) -> tensor<1x4x6x6xi8> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<4x3x3x3xi8>
  %1 = "tw.integer_conv"(%arg0, %0) {dilations = array<i64: 1, 1>, pad_value = 3 : i64, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} : (tensor<1x3x6x6xi8>, tensor<4x3x3x3xi8>) -> tensor<1x4x6x6xi32>
  %2 = "tw.constant"() {value = dense<[-116, -170, -84, -133]> : tensor<4xi32>} : () -> tensor<4xi32>
  %3 = "tw.constant"() {value = dense<[1349846872, 1178048195, 1276218894, 1374389592]> : tensor<4xi32>} : () -> tensor<4xi32>
  %4 = "tw.constant"() {value = dense<[1, 4, 4, 4]> : tensor<4xi32>} : () -> tensor<4xi32>
  %5 = "tw.requantize"(%1, %2, %3, %4) {high = 127 : i64, low = -5 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, to = "i8", zero = -5 : i64} : (tensor<1x4x6x6xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<1x4x6x6xi8>
  return %5 : tensor<1x4x6x6xi8>
}

// CASE matmul_with_bias_and_transposed_weights: integers
// CONSTANT w i8 5x8
func.func @main(%x: tensor<2x8xi8>) -> tensor<2x5xi8> {
  %sx = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<5x8xi8>
  %sw = "tw.constant"() {value = dense<0.013> : tensor<f32>} : () -> tensor<f32>
  %b = "tw.constant"() {value = dense<[0.1, -0.2, 0.3, -0.4, 0.0]> : tensor<5xf32>} : () -> tensor<5xf32>
  %sy = "tw.constant"() {value = dense<0.07> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %sx) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x8xi8>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<5x8xi8>, tensor<f32>) -> tensor<5x8xf32>
  %2 = "tw.transpose"(%1) {permutation = array<i64: 1, 0>} : (tensor<5x8xf32>) -> tensor<8x5xf32>
  %3 = "tw.matmul"(%0, %2) : (tensor<2x8xf32>, tensor<8x5xf32>) -> tensor<2x5xf32>
  %4 = "tw.add"(%3, %b) : (tensor<2x5xf32>, tensor<5xf32>) -> tensor<2x5xf32>
  %5 = "tw.quantize_linear"(%4, %sy) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xi8>
  return %5 : tensor<2x5xi8>
}
// AFTER
func.func @main(%arg0: tensor<2x8xi8>) -> tensor<2x5xi8> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x5xi8>
  %1 = "tw.integer_matmul"(%arg0, %0) : (tensor<2x8xi8>, tensor<8x5xi8>) -> tensor<2x5xi32>
  %2 = "tw.constant"() {value = dense<[154, -308, 462, -615, 0]> : tensor<5xi32>} : () -> tensor<5xi32>
  %3 = "tw.constant"() {value = dense<1276218894> : tensor<i32>} : () -> tensor<i32>
  %4 = "tw.constant"() {value = dense<4> : tensor<i32>} : () -> tensor<i32>
  %5 = "tw.requantize"(%1, %2, %3, %4) {high = 127 : i64, low = -128 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, to = "i8"} : (tensor<2x5xi32>, tensor<5xi32>, tensor<i32>, tensor<i32>) -> tensor<2x5xi8>
  return %5 : tensor<2x5xi8>
}

// CASE without_quantization_behind: integers
// CONSTANT w i8 8x5
func.func @main(%x: tensor<2x8xi8>) -> tensor<2x5xf32> {
  %sx = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %zx = "tw.constant"() {value = dense<7> : tensor<i8>} : () -> tensor<i8>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x5xi8>
  %sw = "tw.constant"() {value = dense<0.013> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %sx, %zx) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x8xi8>, tensor<f32>, tensor<i8>) -> tensor<2x8xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x5xi8>, tensor<f32>) -> tensor<8x5xf32>
  %2 = "tw.matmul"(%0, %1) : (tensor<2x8xf32>, tensor<8x5xf32>) -> tensor<2x5xf32>
  return %2 : tensor<2x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xi8>) -> tensor<2x5xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x5xi8>
  %1 = "tw.integer_matmul"(%arg0, %0) : (tensor<2x8xi8>, tensor<8x5xi8>) -> tensor<2x5xi32>
  %2 = "tw.constant"() {value = dense<[-105, -77, -77, -84, -119]> : tensor<5xi32>} : () -> tensor<5xi32>
  %3 = "tw.add"(%1, %2) : (tensor<2x5xi32>, tensor<5xi32>) -> tensor<2x5xi32>
  %4 = "tw.constant"() {value = dense<6.500000e-04> : tensor<f32>} : () -> tensor<f32>
  %5 = "tw.dequantize_linear"(%3, %4) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x5xi32>, tensor<f32>) -> tensor<2x5xf32>
  return %5 : tensor<2x5xf32>
}

// CASE unsigned_activations: integers{activations=ui8}
// CONSTANT w i8 8x5
func.func @main(%x: tensor<2x8xi8>) -> tensor<2x5xi8> {
  %sx = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %zx = "tw.constant"() {value = dense<7> : tensor<i8>} : () -> tensor<i8>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x5xi8>
  %sw = "tw.constant"() {value = dense<0.013> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %sx, %zx) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x8xi8>, tensor<f32>, tensor<i8>) -> tensor<2x8xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x5xi8>, tensor<f32>) -> tensor<8x5xf32>
  %2 = "tw.matmul"(%0, %1) : (tensor<2x8xf32>, tensor<8x5xf32>) -> tensor<2x5xf32>
  %3 = "tw.quantize_linear"(%2, %sx, %zx) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x5xf32>, tensor<f32>, tensor<i8>) -> tensor<2x5xi8>
  return %3 : tensor<2x5xi8>
}
// AFTER
func.func @main(%arg0: tensor<2x8xi8>) -> tensor<2x5xi8> {
  %0 = "tw.flip_sign"(%arg0) : (tensor<2x8xi8>) -> tensor<2x8xui8>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x5xi8>
  %2 = "tw.integer_matmul"(%0, %1) : (tensor<2x8xui8>, tensor<8x5xi8>) -> tensor<2x5xi32>
  %3 = "tw.constant"() {value = dense<[-2025, -1485, -1485, -1620, -2295]> : tensor<5xi32>} : () -> tensor<5xi32>
  %4 = "tw.constant"() {value = dense<1786706432> : tensor<i32>} : () -> tensor<i32>
  %5 = "tw.constant"() {value = dense<4> : tensor<i32>} : () -> tensor<i32>
  %6 = "tw.requantize"(%2, %3, %4, %5) {high = 255 : i64, low = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, to = "ui8", zero = 135 : i64} : (tensor<2x5xi32>, tensor<5xi32>, tensor<i32>, tensor<i32>) -> tensor<2x5xui8>
  %7 = "tw.flip_sign"(%6) : (tensor<2x5xui8>) -> tensor<2x5xi8>
  return %7 : tensor<2x5xi8>
}

// CASE halves_in_product: integers{halves=product}
// CONSTANT w i8 8x5
func.func @main(%x: tensor<2x8xi8>) -> tensor<2x5xi8> {
  %sx = "tw.constant"() {value = dense<0.03125> : tensor<f32>} : () -> tensor<f32>
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x5xi8>
  %sw = "tw.constant"() {value = dense<[0.0625, 0.0625, 0.01, 0.125, 0.03125]> : tensor<5xf32>} : () -> tensor<5xf32>
  %sy = "tw.constant"() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %sx) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x8xi8>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {axis = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x5xi8>, tensor<5xf32>) -> tensor<8x5xf32>
  %2 = "tw.matmul"(%0, %1) : (tensor<2x8xf32>, tensor<8x5xf32>) -> tensor<2x5xf32>
  %3 = "tw.quantize_linear"(%2, %sy) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xi8>
  return %3 : tensor<2x5xi8>
}
// AFTER
func.func @main(%arg0: tensor<2x8xi8>) -> tensor<2x5xi8> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x5xi8>
  %1 = "tw.integer_matmul"(%arg0, %0) : (tensor<2x8xi8>, tensor<8x5xi8>) -> tensor<2x5xi32>
  %2 = "tw.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %3 = "tw.constant"() {value = dense<[1073741824, 1073741824, 1374389504, 1073741824, 1073741824]> : tensor<5xi32>} : () -> tensor<5xi32>
  %4 = "tw.constant"() {value = dense<[4, 4, 7, 3, 5]> : tensor<5xi32>} : () -> tensor<5xi32>
  %5 = "tw.requantize"(%1, %2, %3, %4) {even = true, high = 127 : i64, low = -128 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, to = "i8"} : (tensor<2x5xi32>, tensor<i32>, tensor<5xi32>, tensor<5xi32>) -> tensor<2x5xi8>
  return %5 : tensor<2x5xi8>
}

// CASE moves_and_pools: integers
func.func @main(%x: tensor<1x4x6x6xi8>) -> tensor<1x36xi8> {
  %s = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %z = "tw.constant"() {value = dense<3> : tensor<i8>} : () -> tensor<i8>
  %0 = "tw.dequantize_linear"(%x, %s, %z) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xi8>, tensor<f32>, tensor<i8>) -> tensor<1x4x6x6xf32>
  %1 = "tw.max_pool"(%0) {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 1, 36>} : (tensor<1x4x3x3xf32>) -> tensor<1x36xf32>
  %3 = "tw.quantize_linear"(%2, %s, %z) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x36xf32>, tensor<f32>, tensor<i8>) -> tensor<1x36xi8>
  return %3 : tensor<1x36xi8>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xi8>) -> tensor<1x36xi8> {
  %0 = "tw.max_pool"(%arg0) {dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x4x6x6xi8>) -> tensor<1x4x3x3xi8>
  %1 = "tw.reshape"(%0) {shape = array<i64: 1, 36>} : (tensor<1x4x3x3xi8>) -> tensor<1x36xi8>
  return %1 : tensor<1x36xi8>
}

// CASE add_and_mean: integers
func.func @main(%x: tensor<1x4x6x6xi8>, %y: tensor<1x4x6x6xi8>) -> tensor<1x4xi8> {
  %s = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %t = "tw.constant"() {value = dense<0.03> : tensor<f32>} : () -> tensor<f32>
  %u = "tw.constant"() {value = dense<0.07> : tensor<f32>} : () -> tensor<f32>
  %z = "tw.constant"() {value = dense<3> : tensor<i8>} : () -> tensor<i8>
  %0 = "tw.dequantize_linear"(%x, %s, %z) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xi8>, tensor<f32>, tensor<i8>) -> tensor<1x4x6x6xf32>
  %1 = "tw.dequantize_linear"(%y, %t) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x6x6xi8>, tensor<f32>) -> tensor<1x4x6x6xf32>
  %2 = "tw.add"(%0, %1) : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %3 = "tw.quantize_linear"(%2, %u, %z) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xf32>, tensor<f32>, tensor<i8>) -> tensor<1x4x6x6xi8>
  %4 = "tw.dequantize_linear"(%3, %u, %z) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4x6x6xi8>, tensor<f32>, tensor<i8>) -> tensor<1x4x6x6xf32>
  %5 = "tw.reduce_mean"(%4) {axes = array<i64: 2, 3>} : (tensor<1x4x6x6xf32>) -> tensor<1x4xf32>
  %6 = "tw.quantize_linear"(%5, %u, %z) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x4xf32>, tensor<f32>, tensor<i8>) -> tensor<1x4xi8>
  return %6 : tensor<1x4xi8>
}
// AFTER
func.func @main(%arg0: tensor<1x4x6x6xi8>, %arg1: tensor<1x4x6x6xi8>) -> tensor<1x4xi8> {
  %0 = "tw.integer_add"(%arg0, %arg1) {high = 127 : i64, low = -128 : i64, mx = 1497966 : i64, my = 898779 : i64, offset = -4493898 : i64, shift = 21 : i64, to = "i8", zero = 3 : i64} : (tensor<1x4x6x6xi8>, tensor<1x4x6x6xi8>) -> tensor<1x4x6x6xi8>
  %1 = "tw.reduce_bytes"(%0) {axes = array<i64: 2, 3>} : (tensor<1x4x6x6xi8>) -> tensor<1x4xi32>
  %2 = "tw.constant"() {value = dense<-108> : tensor<i32>} : () -> tensor<i32>
  %3 = "tw.constant"() {value = dense<1908874354> : tensor<i32>} : () -> tensor<i32>
  %4 = "tw.constant"() {value = dense<3> : tensor<i32>} : () -> tensor<i32>
  %5 = "tw.requantize"(%1, %2, %3, %4) {high = 127 : i64, low = -128 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, to = "i8", zero = 3 : i64} : (tensor<1x4xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4xi8>
  return %5 : tensor<1x4xi8>
}

// CASE function_of_one_number: integers
func.func @main(%x: tensor<4xi8>) -> tensor<4xi8> {
  %s = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %t = "tw.constant"() {value = dense<0.01> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %s) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4xi8>, tensor<f32>) -> tensor<4xf32>
  %1 = "tw.sigmoid"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "tw.mul"(%1, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "tw.quantize_linear"(%2, %t) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<4xi8>
  return %3 : tensor<4xi8>
}
// AFTER
func.func @main(%arg0: tensor<4xi8>) -> tensor<4xi8> {
  %0 = "tw.constant"() {symbol = "table"} : () -> tensor<256xi8>
  %1 = "tw.lookup"(%arg0, %0) : (tensor<4xi8>, tensor<256xi8>) -> tensor<4xi8>
  return %1 : tensor<4xi8>
}

// CASE dynamic_zero_point: integers
// CONSTANT w i8 8x5
func.func @main(%x: tensor<2x8xui8>, %zero: tensor<ui8>) -> tensor<2x5xi32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x5xi8>
  %0 = "tw.cast"(%x) {to = "i32"} : (tensor<2x8xui8>) -> tensor<2x8xi32>
  %1 = "tw.cast"(%zero) {to = "i32"} : (tensor<ui8>) -> tensor<i32>
  %2 = "tw.sub"(%0, %1) : (tensor<2x8xi32>, tensor<i32>) -> tensor<2x8xi32>
  %3 = "tw.cast"(%w) {to = "i32"} : (tensor<8x5xi8>) -> tensor<8x5xi32>
  %4 = "tw.matmul"(%2, %3) : (tensor<2x8xi32>, tensor<8x5xi32>) -> tensor<2x5xi32>
  return %4 : tensor<2x5xi32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xui8>, %arg1: tensor<ui8>) -> tensor<2x5xi32> {
  %0 = "tw.cast"(%arg1) {to = "i32"} : (tensor<ui8>) -> tensor<i32>
  %1 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x5xi8>
  %2 = "tw.flip_sign"(%arg0) : (tensor<2x8xui8>) -> tensor<2x8xi8>
  %3 = "tw.integer_matmul"(%2, %1) : (tensor<2x8xi8>, tensor<8x5xi8>) -> tensor<2x5xi32>
  %4 = "tw.constant"() {value = dense<[1920, 1408, 1408, 1536, 2176]> : tensor<5xi32>} : () -> tensor<5xi32>
  %5 = "tw.add"(%3, %4) : (tensor<2x5xi32>, tensor<5xi32>) -> tensor<2x5xi32>
  %6 = "tw.constant"() {value = dense<[15, 11, 11, 12, 17]> : tensor<5xi32>} : () -> tensor<5xi32>
  %7 = "tw.mul"(%0, %6) : (tensor<i32>, tensor<5xi32>) -> tensor<5xi32>
  %8 = "tw.sub"(%5, %7) : (tensor<2x5xi32>, tensor<5xi32>) -> tensor<2x5xi32>
  return %8 : tensor<2x5xi32>
}

// CASE scale_of_an_input: integers
// CONSTANT w i8 8x5
func.func @main(%x: tensor<2x8xi8>, %sx: tensor<f32>) -> tensor<2x5xi8> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x5xi8>
  %sw = "tw.constant"() {value = dense<0.013> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.dequantize_linear"(%x, %sx) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x8xi8>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x5xi8>, tensor<f32>) -> tensor<8x5xf32>
  %2 = "tw.matmul"(%0, %1) : (tensor<2x8xf32>, tensor<8x5xf32>) -> tensor<2x5xf32>
  %3 = "tw.quantize_linear"(%2, %sx) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xi8>
  return %3 : tensor<2x5xi8>
}
// AFTER
func.func @main(%arg0: tensor<2x8xi8>, %arg1: tensor<f32>) -> tensor<2x5xi8> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x5xi8>
  %1 = "tw.integer_matmul"(%arg0, %0) : (tensor<2x8xi8>, tensor<8x5xi8>) -> tensor<2x5xi32>
  %2 = "tw.constant"() {value = dense<1.300000e-02> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.mul"(%arg1, %2) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %4 = "tw.cast"(%1) {to = "f32"} : (tensor<2x5xi32>) -> tensor<2x5xf32>
  %5 = "tw.mul"(%4, %3) : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xf32>
  %6 = "tw.quantize_linear"(%5, %arg1) {operandSegmentSizes = array<i32: 1, 1, 0>, to = "i8"} : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xi8>
  return %6 : tensor<2x5xi8>
}

// CASE product_of_a_computed_scale: integers
// CONSTANT w i8 8x4
// CONSTANT sw f32+ 4
func.func @main(%x: tensor<2x8xui8>, %s: tensor<f32>, %z: tensor<ui8>) -> tensor<2x4xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x4xi8>
  %sw = "tw.constant"() {symbol = "sw"} : () -> tensor<4xf32>
  %0 = "tw.dequantize_linear"(%x, %s, %z) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x8xui8>, tensor<f32>, tensor<ui8>) -> tensor<2x8xf32>
  %1 = "tw.dequantize_linear"(%w, %sw) {axis = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x4xi8>, tensor<4xf32>) -> tensor<8x4xf32>
  %2 = "tw.matmul"(%0, %1) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xui8>, %arg1: tensor<f32>, %arg2: tensor<ui8>) -> tensor<2x4xf32> {
  %0 = "tw.constant"() {symbol = "w.1"} : () -> tensor<8x4xi8>
  %1 = "tw.flip_sign"(%arg0) : (tensor<2x8xui8>) -> tensor<2x8xi8>
  %2 = "tw.integer_matmul"(%1, %0) : (tensor<2x8xi8>, tensor<8x4xi8>) -> tensor<2x4xi32>
  %3 = "tw.constant"() {value = dense<[2176, 1152, 1536, 1664]> : tensor<4xi32>} : () -> tensor<4xi32>
  %4 = "tw.add"(%2, %3) : (tensor<2x4xi32>, tensor<4xi32>) -> tensor<2x4xi32>
  %5 = "tw.constant"() {value = dense<[17, 9, 12, 13]> : tensor<4xi32>} : () -> tensor<4xi32>
  %6 = "tw.cast"(%arg2) {to = "i32"} : (tensor<ui8>) -> tensor<i32>
  %7 = "tw.mul"(%6, %5) : (tensor<i32>, tensor<4xi32>) -> tensor<4xi32>
  %8 = "tw.sub"(%4, %7) : (tensor<2x4xi32>, tensor<4xi32>) -> tensor<2x4xi32>
  %9 = "tw.constant"() {value = dense<[1.30413377, 1.63900936, 2.73448348, 1.18946016]> : tensor<4xf32>} : () -> tensor<4xf32>
  %10 = "tw.mul"(%arg1, %9) : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %11 = "tw.cast"(%8) {to = "f32"} : (tensor<2x4xi32>) -> tensor<2x4xf32>
  %12 = "tw.mul"(%11, %10) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %12 : tensor<2x4xf32>
}

// CASE quantized_behind_a_reshape: integers
func.func @main(%x: tensor<1x3x2x2xi8>) -> tensor<1x12xi8> {
  %sx = "tw.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %sy = "tw.constant"() {value = dense<0.07> : tensor<f32>} : () -> tensor<f32>
  %zy = "tw.constant"() {value = dense<-5> : tensor<i8>} : () -> tensor<i8>
  %0 = "tw.dequantize_linear"(%x, %sx) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x3x2x2xi8>, tensor<f32>) -> tensor<1x3x2x2xf32>
  %1 = "tw.add"(%0, %0) : (tensor<1x3x2x2xf32>, tensor<1x3x2x2xf32>) -> tensor<1x3x2x2xf32>
  %2 = "tw.reshape"(%1) {shape = array<i64: 1, 12>} : (tensor<1x3x2x2xf32>) -> tensor<1x12xf32>
  %3 = "tw.quantize_linear"(%2, %sy, %zy) {to = "i8", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<1x12xf32>, tensor<f32>, tensor<i8>) -> tensor<1x12xi8>
  return %3 : tensor<1x12xi8>
}
// AFTER
func.func @main(%arg0: tensor<1x3x2x2xi8>) -> tensor<1x12xi8> {
  %0 = "tw.integer_add"(%arg0, %arg0) {high = 127 : i64, low = -128 : i64, mx = 1497966 : i64, my = 1497966 : i64, offset = 0 : i64, shift = 21 : i64, to = "i8", zero = -5 : i64} : (tensor<1x3x2x2xi8>, tensor<1x3x2x2xi8>) -> tensor<1x3x2x2xi8>
  %1 = "tw.reshape"(%0) {shape = array<i64: 1, 12>} : (tensor<1x3x2x2xi8>) -> tensor<1x12xi8>
  return %1 : tensor<1x12xi8>
}
