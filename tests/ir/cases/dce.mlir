// CASE unused: dce
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.exp"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.tanh"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.tanh"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
