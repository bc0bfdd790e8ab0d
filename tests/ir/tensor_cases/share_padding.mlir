// CASE residual_reads_the_inside: lower,share-padding
func.func @main(%x: tensor<1x4x4x8xf32>, %w: tensor<8x8x3x3xf32>) -> tensor<1x4x4x8xf32> {
  %0 = "tw.relu"(%x) : (tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  %1 = "tw.conv"(%0, %w) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<1x4x4x8xf32>, tensor<8x8x3x3xf32>) -> tensor<1x4x4x8xf32>
  %2 = "tw.add"(%1, %0) : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  return %2 : tensor<1x4x4x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<1x4x4x8xf32> {tw.dtype = "f32", tw.name = "arg0"}, %arg1: tensor<8x8x3x3xf32> {tw.dtype = "f32", tw.name = "arg1"}) -> (tensor<1x4x4x8xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = tensor.empty() : tensor<1x4x4x8xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg0 : tensor<1x4x4x8xf32>) outs(%0 : tensor<1x4x4x8xf32>) attrs =  {tw.op = "relu"} {
  ^bb0(%in: f32, %out: f32):
    %cst_1 = arith.constant 0.000000e+00 : f32
    %11 = arith.maximumf %in, %cst_1 : f32
    linalg.yield %11 : f32
  } -> tensor<1x4x4x8xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %padded = tensor.pad %1 low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%arg2: index, %arg3: index, %arg4: index, %arg5: index):
    tensor.yield %cst : f32
  } {tw.op = "conv"} : tensor<1x4x4x8xf32> to tensor<1x6x6x8xf32>
  %2 = tensor.empty() : tensor<3x3x8x8xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d3, d2, d0, d1)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg1 : tensor<8x8x3x3xf32>) outs(%2 : tensor<3x3x8x8xf32>) attrs =  {tw.op = "conv"} {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<3x3x8x8xf32>
  %4 = tensor.empty() : tensor<1x4x4x8xf32>
  %cst_0 = arith.constant 0.000000e+00 : f32
  %5 = linalg.fill ins(%cst_0 : f32) outs(%4 : tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>, affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)>, affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%padded, %3 : tensor<1x6x6x8xf32>, tensor<3x3x8x8xf32>) outs(%5 : tensor<1x4x4x8xf32>) attrs =  {tw.op = "conv"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %11 = arith.mulf %in, %in_1 : f32
    %12 = arith.addf %out, %11 : f32
    linalg.yield %12 : f32
  } -> tensor<1x4x4x8xf32>
  %7 = tensor.empty() : tensor<1x4x4x8xf32>
  %8 = tensor.empty() : tensor<1x4x4x8xf32>
  %9 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%8 : tensor<1x4x4x8xf32>) attrs =  {tw.op = "slice"} {
  ^bb0(%out: f32):
    %11 = linalg.index 0 : index
    %12 = linalg.index 1 : index
    %13 = linalg.index 2 : index
    %14 = linalg.index 3 : index
    %c1 = arith.constant 1 : index
    %15 = arith.muli %11, %c1 : index
    %c0 = arith.constant 0 : index
    %16 = arith.addi %15, %c0 : index
    %c1_1 = arith.constant 1 : index
    %17 = arith.muli %12, %c1_1 : index
    %c1_2 = arith.constant 1 : index
    %18 = arith.addi %17, %c1_2 : index
    %c1_3 = arith.constant 1 : index
    %19 = arith.muli %13, %c1_3 : index
    %c1_4 = arith.constant 1 : index
    %20 = arith.addi %19, %c1_4 : index
    %c1_5 = arith.constant 1 : index
    %21 = arith.muli %14, %c1_5 : index
    %c0_6 = arith.constant 0 : index
    %22 = arith.addi %21, %c0_6 : index
    %extracted = tensor.extract %padded[%16, %18, %20, %22] : tensor<1x6x6x8xf32>
    linalg.yield %extracted : f32
  } -> tensor<1x4x4x8xf32>
  %10 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%6, %9 : tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) outs(%7 : tensor<1x4x4x8xf32>) attrs =  {tw.op = "add"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %11 = arith.addf %in, %in_1 : f32
    linalg.yield %11 : f32
  } -> tensor<1x4x4x8xf32>
  return %10 : tensor<1x4x4x8xf32>
}
