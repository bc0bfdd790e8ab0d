// CASE with_maximum: match-softmax
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.reduce_max"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %1 = "tw.sub"(%x, %0) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %2 = "tw.exp"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_sum"(%2) {axes = array<i64: -1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %4 = "tw.div"(%2, %3) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.softmax"(%arg0) {axis = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE without_maximum: match-softmax
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %2 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_sum"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %4 = "tw.reciprocal"(%3) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %5 = "tw.mul"(%2, %4) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %5 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.reduce_sum"(%0) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %2 = "tw.reciprocal"(%1) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %3 = "tw.mul"(%0, %2) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}

// CASE without_maximum_fast: match-softmax{fast_math=true}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %2 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_sum"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %4 = "tw.reciprocal"(%3) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %5 = "tw.mul"(%2, %4) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %5 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.softmax"(%arg0) {axis = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE other_sum_stays: match-softmax
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %2 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.reduce_sum"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %4 = "tw.div"(%2, %3) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.reduce_sum"(%arg0) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %2 = "tw.div"(%0, %1) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
