// CASE transposed_weight: lower,fold-constants
// CONSTANT w f32 8x4x3x3
func.func @main(%x: tensor<1x5x5x4xf32>) -> tensor<1x3x3x8xf32> {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<8x4x3x3xf32>
  %0 = "tw.conv"(%x, %w) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x5x5x4xf32>, tensor<8x4x3x3xf32>) -> tensor<1x3x3x8xf32>
  return %0 : tensor<1x3x3x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x5x5x4xf32> {tw.dtype = "f32", tw.name = "arg0"}) -> (tensor<1x3x3x8xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = "tw.constant"() {symbol = "w.t"} : () -> tensor<3x3x4x8xf32>
  %1 = tensor.empty() : tensor<1x3x3x8xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %2 = linalg.fill ins(%cst : f32) outs(%1 : tensor<1x3x3x8xf32>) -> tensor<1x3x3x8xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>, affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)>, affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%arg0, %0 : tensor<1x5x5x4xf32>, tensor<3x3x4x8xf32>) outs(%2 : tensor<1x3x3x8xf32>) attrs =  {tw.op = "conv"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %4 = arith.mulf %in, %in_0 : f32
    %5 = arith.addf %out, %4 : f32
    linalg.yield %5 : f32
  } -> tensor<1x3x3x8xf32>
  return %3 : tensor<1x3x3x8xf32>
}
