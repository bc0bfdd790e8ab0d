// CASE same_expression: cse
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.add"(%0, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.add"(%0, %0) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE different_attributes: cse
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.softmax"(%x) {axis = 0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.softmax"(%x) {axis = 1} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.add"(%0, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.softmax"(%arg0) {axis = 0 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.softmax"(%arg0) {axis = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.add"(%0, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
