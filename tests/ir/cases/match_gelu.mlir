// CASE erf_of_quotient: match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.div"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.erf"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %h = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.mul"(%h, %2) : (tensor<f32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.mul"(%x, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.gelu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE erf_half_first: match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.707106769> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.erf"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c3 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.mul"(%x, %c3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %4 = "tw.mul"(%3, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.gelu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE erf_half_last: match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.div"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.erf"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.mul"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.mul"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.gelu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE tanh_pow: match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.pow"(%x, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<0.044715> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.mul"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.add"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<0.797884583> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.mul"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %5 = "tw.tanh"(%4) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c6 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %6 = "tw.add"(%5, %c6) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %7 = "tw.mul"(%0, %6) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %7 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.gelu"(%arg0) {approximate = "tanh"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE tanh_after_simplify: simplify,match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.pow"(%x, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<0.044715> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.mul"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.add"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<0.797884583> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.mul"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %5 = "tw.tanh"(%4) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c6 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %6 = "tw.add"(%5, %c6) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %7 = "tw.mul"(%0, %6) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %7 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.gelu"(%arg0) {approximate = "tanh"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE tanh_factored: match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.mul"(%x, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<0.044715> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.mul"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<0.797884583> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.mul"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %5 = "tw.tanh"(%4) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c6 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %6 = "tw.add"(%5, %c6) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %7 = "tw.mul"(%x, %6) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c8 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %8 = "tw.mul"(%7, %c8) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %8 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.gelu"(%arg0) {approximate = "tanh"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE wrong_constant_stays: match-gelu
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<1.5> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.div"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.erf"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.mul"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.mul"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<1.500000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.div"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.erf"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.constant"() {value = dense<1.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.add"(%2, %3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %5 = "tw.mul"(%arg0, %4) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %6 = "tw.constant"() {value = dense<5.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %7 = "tw.mul"(%5, %6) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %7 : tensor<2x8xf32>
}

// CASE other_argument_stays: match-gelu
func.func @main(%x: tensor<2x8xf32>, %y: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.div"(%y, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.erf"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.mul"(%x, %2) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.mul"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>, %arg1: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.div"(%arg1, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.erf"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.constant"() {value = dense<1.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.add"(%2, %3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %5 = "tw.mul"(%arg0, %4) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %6 = "tw.constant"() {value = dense<5.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %7 = "tw.mul"(%5, %6) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %7 : tensor<2x8xf32>
}
