// CASE relu: lower
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "tw.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("act")
  return %0 : tensor<4xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32> {tw.dtype = "f32", tw.name = "arg0"}) -> (tensor<4xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = tensor.empty() : tensor<4xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%arg0 : tensor<4xf32>) outs(%0 : tensor<4xf32>) attrs =  {tw.op = "relu"} {
  ^bb0(%in: f32, %out: f32):
    %cst = arith.constant 0.000000e+00 : f32
    %2 = arith.maximumf %in, %cst : f32
    linalg.yield %2 : f32
  } -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CASE matmul_broadcasts_the_batch: lower
func.func @main(%x: tensor<2x3x4xf32>, %y: tensor<4x5xf32>) -> tensor<2x3x5xf32> {
  %0 = "tw.matmul"(%x, %y) : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
  return %0 : tensor<2x3x5xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x3x4xf32> {tw.dtype = "f32", tw.name = "arg0"}, %arg1: tensor<4x5xf32> {tw.dtype = "f32", tw.name = "arg1"}) -> (tensor<2x3x5xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = tensor.empty() : tensor<2x3x5xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d3, d2)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x3x4xf32>, tensor<4x5xf32>) outs(%1 : tensor<2x3x5xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<2x3x5xf32>
  return %2 : tensor<2x3x5xf32>
}

// CASE unsigned_becomes_signless: lower
func.func @main(%x: tensor<4xui8>, %y: tensor<4xui8>) -> tensor<4xui8> {
  %0 = "tw.div"(%x, %y) : (tensor<4xui8>, tensor<4xui8>) -> tensor<4xui8>
  return %0 : tensor<4xui8>
}
// AFTER
func.func @main(%arg0: tensor<4xi8> {tw.dtype = "ui8", tw.name = "arg0"}, %arg1: tensor<4xi8> {tw.dtype = "ui8", tw.name = "arg1"}) -> (tensor<4xi8> {tw.dtype = "ui8", tw.name = "out0"}) {
  %0 = tensor.empty() : tensor<4xi8>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%arg0, %arg1 : tensor<4xi8>, tensor<4xi8>) outs(%0 : tensor<4xi8>) attrs =  {tw.op = "div"} {
  ^bb0(%in: i8, %in_0: i8, %out: i8):
    %c0_i8 = arith.constant 0 : i8
    %2 = arith.cmpi eq, %in_0, %c0_i8 : i8
    %c1_i8 = arith.constant 1 : i8
    %3 = arith.select %2, %c1_i8, %in_0 : i8
    %4 = arith.divui %in, %3 : i8
    %c0_i8_1 = arith.constant 0 : i8
    %5 = arith.select %2, %c0_i8_1, %4 : i8
    linalg.yield %5 : i8
  } -> tensor<4xi8>
  return %1 : tensor<4xi8>
}
