// CASE silu: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.sigmoid"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.silu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE quick_gelu: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<1.702> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.sigmoid"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.mul"(%x, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.silu"(%arg0) {alpha = 1.7020000219345093 : f64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE decomposed_silu: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.neg"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.exp"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.reciprocal"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.mul"(%x, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.silu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE silu_quotient: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.neg"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.exp"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.div"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.silu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE mish: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.log"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.tanh"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.mul"(%x, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.constant"() {value = dense<1.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%0, %1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.log"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.tanh"(%3) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %5 = "tw.mul"(%arg0, %4) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %5 : tensor<2x8xf32>
}

// CASE mish_fast: match-activation{fast_math=true}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.log"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.tanh"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.mul"(%x, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.mish"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE hard_swish: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.add"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.clip"(%0) {low = 0.0, high = 6.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<6.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.div"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.mul"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.hard_swish"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE hard_swish_quotient_last: match-activation
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.add"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.clip"(%0) {low = 0.0, high = 6.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.mul"(%x, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c3 = "tw.constant"() {value = dense<6.0> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.div"(%2, %c3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.hard_swish"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE gate_stays: match-activation
func.func @main(%x: tensor<2x8xf32>, %y: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.sigmoid"(%y) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>, %arg1: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.sigmoid"(%arg1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %arg0) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
