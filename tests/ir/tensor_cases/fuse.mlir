// CASE epilogue: lower,fuse
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>, %b: tensor<3xf32>) -> tensor<4x3xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32> loc("fc")
  %1 = "tw.add"(%0, %b) : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xf32> loc("bias")
  %2 = "tw.relu"(%1) : (tensor<4x3xf32>) -> tensor<4x3xf32> loc("act")
  return %2 : tensor<4x3xf32>
}
// AFTER
func.func private @matmul_add_relu_fa4ccae900(%arg0: tensor<4x8xf32>, %arg1: tensor<8x3xf32>, %arg2: tensor<3xf32>) -> tensor<4x3xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<4x3xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x3xf32>) -> tensor<4x3xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<4x8xf32>, tensor<8x3xf32>) outs(%1 : tensor<4x3xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %7 = arith.mulf %in, %in_0 : f32
    %8 = arith.addf %out, %7 : f32
    linalg.yield %8 : f32
  } -> tensor<4x3xf32>
  %3 = tensor.empty() : tensor<4x3xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2, %arg2 : tensor<4x3xf32>, tensor<3xf32>) outs(%3 : tensor<4x3xf32>) attrs =  {tw.op = "add"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %7 = arith.addf %in, %in_0 : f32
    linalg.yield %7 : f32
  } -> tensor<4x3xf32>
  %5 = tensor.empty() : tensor<4x3xf32>
  %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<4x3xf32>) outs(%5 : tensor<4x3xf32>) attrs =  {tw.op = "relu"} {
  ^bb0(%in: f32, %out: f32):
    %cst_0 = arith.constant 0.000000e+00 : f32
    %7 = arith.maximumf %in, %cst_0 : f32
    linalg.yield %7 : f32
  } -> tensor<4x3xf32>
  return %6 : tensor<4x3xf32>
}
func.func @main(%arg0: tensor<4x8xf32> {tw.dtype = "f32", tw.name = "arg0"}, %arg1: tensor<8x3xf32> {tw.dtype = "f32", tw.name = "arg1"}, %arg2: tensor<3xf32> {tw.dtype = "f32", tw.name = "arg2"}) -> (tensor<4x3xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = call @matmul_add_relu_fa4ccae900(%arg0, %arg1, %arg2) : (tensor<4x8xf32>, tensor<8x3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// CASE rows_in_one_kernel: lower,fuse
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "tw.softmax"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc("softmax")
  return %0 : tensor<4x8xf32>
}
// AFTER
func.func private @softmax_8a38303e2d(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %cst = arith.constant 0xFF800000 : f32
  %0 = tensor.empty() : tensor<4x1xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x1xf32>) -> tensor<4x1xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<4x8xf32>) outs(%1 : tensor<4x1xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %out: f32):
    %12 = arith.maxnumf %in, %out : f32
    linalg.yield %12 : f32
  } -> tensor<4x1xf32>
  %3 = tensor.empty() : tensor<4x8xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%arg0, %2 : tensor<4x8xf32>, tensor<4x1xf32>) outs(%3 : tensor<4x8xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %12 = arith.subf %in, %in_1 : f32
    %13 = math.exp %12 : f32
    linalg.yield %13 : f32
  } -> tensor<4x8xf32>
  %cst_0 = arith.constant 0.000000e+00 : f32
  %5 = tensor.empty() : tensor<4x1xf32>
  %6 = linalg.fill ins(%cst_0 : f32) outs(%5 : tensor<4x1xf32>) -> tensor<4x1xf32>
  %7 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>], iterator_types = ["parallel", "reduction"]} ins(%4 : tensor<4x8xf32>) outs(%6 : tensor<4x1xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %out: f32):
    %12 = arith.addf %in, %out : f32
    linalg.yield %12 : f32
  } -> tensor<4x1xf32>
  %8 = tensor.empty() : tensor<4x1xf32>
  %9 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%7 : tensor<4x1xf32>) outs(%8 : tensor<4x1xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %out: f32):
    %cst_1 = arith.constant 1.000000e+00 : f32
    %12 = arith.divf %cst_1, %in : f32
    linalg.yield %12 : f32
  } -> tensor<4x1xf32>
  %10 = tensor.empty() : tensor<4x8xf32>
  %11 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%4, %9 : tensor<4x8xf32>, tensor<4x1xf32>) outs(%10 : tensor<4x8xf32>) attrs =  {tw.op = "softmax"} {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %12 = arith.mulf %in, %in_1 : f32
    linalg.yield %12 : f32
  } -> tensor<4x8xf32>
  return %11 : tensor<4x8xf32>
}
func.func @main(%arg0: tensor<4x8xf32> {tw.dtype = "f32", tw.name = "arg0"}) -> (tensor<4x8xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = call @softmax_8a38303e2d(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// CASE result_needed_twice_ends_the_kernel: lower,fuse
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = "tw.relu"(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "tw.matmul"(%1, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %3 = "tw.add"(%2, %1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %3 : tensor<4x8xf32>
}
// AFTER
func.func private @matmul_relu_4b5b3aa38f(%arg0: tensor<4x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<4x8xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<4x8xf32>, tensor<8x8xf32>) outs(%1 : tensor<4x8xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %5 = arith.mulf %in, %in_0 : f32
    %6 = arith.addf %out, %5 : f32
    linalg.yield %6 : f32
  } -> tensor<4x8xf32>
  %3 = tensor.empty() : tensor<4x8xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2 : tensor<4x8xf32>) outs(%3 : tensor<4x8xf32>) attrs =  {tw.op = "relu"} {
  ^bb0(%in: f32, %out: f32):
    %cst_0 = arith.constant 0.000000e+00 : f32
    %5 = arith.maximumf %in, %cst_0 : f32
    linalg.yield %5 : f32
  } -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
func.func private @matmul_add_a950c5cda9(%arg0: tensor<4x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<4x8xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<4x8xf32>, tensor<8x8xf32>) outs(%1 : tensor<4x8xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %5 = arith.mulf %in, %in_0 : f32
    %6 = arith.addf %out, %5 : f32
    linalg.yield %6 : f32
  } -> tensor<4x8xf32>
  %3 = tensor.empty() : tensor<4x8xf32>
  %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2, %arg0 : tensor<4x8xf32>, tensor<4x8xf32>) outs(%3 : tensor<4x8xf32>) attrs =  {tw.op = "add"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %5 = arith.addf %in, %in_0 : f32
    linalg.yield %5 : f32
  } -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
func.func @main(%arg0: tensor<4x8xf32> {tw.dtype = "f32", tw.name = "arg0"}, %arg1: tensor<8x8xf32> {tw.dtype = "f32", tw.name = "arg1"}) -> (tensor<4x8xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = call @matmul_relu_4b5b3aa38f(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = call @matmul_add_a950c5cda9(%0, %arg1) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// CASE equal_kernels_are_one_function: lower,fuse
func.func @main(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("a")
  %1 = "tw.matmul"(%0, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("b")
  return %1 : tensor<4x4xf32>
}
// AFTER
func.func private @matmul_248f071ab5(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<4x4xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%1 : tensor<4x4xf32>) attrs =  {tw.op = "matmul"} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
func.func @main(%arg0: tensor<4x4xf32> {tw.dtype = "f32", tw.name = "arg0"}, %arg1: tensor<4x4xf32> {tw.dtype = "f32", tw.name = "arg1"}) -> (tensor<4x4xf32> {tw.dtype = "f32", tw.name = "out0"}) {
  %0 = call @matmul_248f071ab5(%arg0, %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = call @matmul_248f071ab5(%0, %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
