// CASE plus_zero: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.add"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.sub"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.mul"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c3 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.div"(%2, %c3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %4 = "tw.exp"(%3) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.exp"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}

// CASE plus_zero_fast: simplify{fast_math=true}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.add"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.sub"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.mul"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c3 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.div"(%2, %c3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %4 = "tw.exp"(%3) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE zero_bias_vector: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %b = "tw.constant"() {value = dense<0.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %0 = "tw.add"(%x, %b) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<0.000000e+00> : tensor<8xf32>} : () -> tensor<8xf32>
  %1 = "tw.add"(%arg0, %0) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE zero_bias_vector_fast: simplify{fast_math=true}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %b = "tw.constant"() {value = dense<0.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %0 = "tw.add"(%x, %b) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  return %arg0 : tensor<2x8xf32>
}

// CASE broadcasting_add: simplify
func.func @main(%x: tensor<8xf32>) -> tensor<2x8xf32> {
  %b = "tw.constant"() {value = dense<0.0> : tensor<2x8xf32>} : () -> tensor<2x8xf32>
  %0 = "tw.add"(%x, %b) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<0.000000e+00> : tensor<2x8xf32>} : () -> tensor<2x8xf32>
  %1 = "tw.add"(%arg0, %0) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE broadcasting_add_fast: simplify{fast_math=true}
func.func @main(%x: tensor<8xf32>) -> tensor<2x8xf32> {
  %b = "tw.constant"() {value = dense<0.0> : tensor<2x8xf32>} : () -> tensor<2x8xf32>
  %0 = "tw.add"(%x, %b) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.expand"(%arg0) {shape = array<i64: 2, 8>} : (tensor<8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE divide_by_power_of_two: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<8.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.div"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<1.250000e-01> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE divide_by_three_stays: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.div"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<3.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.div"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE integer_division_stays: simplify
func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {
  %c = "tw.constant"() {value = dense<8> : tensor<i32>} : () -> tensor<i32>
  %0 = "tw.div"(%x, %c) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
// AFTER
func.func @main(%arg0: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "tw.constant"() {value = dense<8> : tensor<i32>} : () -> tensor<i32>
  %1 = "tw.div"(%arg0, %0) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  return %1 : tensor<4xi32>
}

// CASE powers: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %e = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c0 = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.pow"(%e, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.pow"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<-0.5> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.pow"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c3 = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.pow"(%2, %c3) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c4 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %4 = "tw.pow"(%3, %c4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c5 = "tw.constant"() {value = dense<-1.0> : tensor<f32>} : () -> tensor<f32>
  %5 = "tw.pow"(%4, %c5) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c6 = "tw.constant"() {value = dense<1.7> : tensor<f32>} : () -> tensor<f32>
  %6 = "tw.pow"(%5, %c6) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %6 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %0) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.sqrt"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.rsqrt"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.mul"(%3, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %5 = "tw.mul"(%4, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %6 = "tw.reciprocal"(%5) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %7 = "tw.constant"() {value = dense<1.700000e+00> : tensor<f32>} : () -> tensor<f32>
  %8 = "tw.pow"(%6, %7) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %8 : tensor<2x8xf32>
}

// CASE reciprocal_square_root: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %e = "tw.exp"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %0 = "tw.sqrt"(%e) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %one = "tw.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.div"(%one, %0) : (tensor<f32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.rsqrt"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE negations: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.neg"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.neg"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.exp"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.neg"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %4 = "tw.add"(%3, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %5 = "tw.sub"(%4, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %5 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.exp"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.sub"(%arg0, %0) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.add"(%1, %0) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}

// CASE subtract_constant: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.sub"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<5.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<-3.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.constant"() {value = dense<5.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.add"(%1, %2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}

// CASE subtract_constant_fast: simplify{fast_math=true}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.sub"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<5.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<2.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.add"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE merge_constants: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %v = "tw.constant"() {value = dense<[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0]> : tensor<8xf32>} : () -> tensor<8xf32>
  %c0 = "tw.constant"() {value = dense<0.3> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %v) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<0.3> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.add"(%v, %2) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<[1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00, 5.000000e+00, 6.000000e+00, 7.000000e+00, 8.000000e+00]> : tensor<8xf32>} : () -> tensor<8xf32>
  %1 = "tw.constant"() {value = dense<3.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.mul"(%arg0, %1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.mul"(%2, %0) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %4 = "tw.constant"() {value = dense<3.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %5 = "tw.add"(%3, %4) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %6 = "tw.add"(%5, %0) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %6 : tensor<2x8xf32>
}

// CASE merge_constants_fast: simplify{fast_math=true}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %v = "tw.constant"() {value = dense<[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0]> : tensor<8xf32>} : () -> tensor<8xf32>
  %c0 = "tw.constant"() {value = dense<0.3> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.mul"(%0, %v) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<0.3> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.add"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %3 = "tw.add"(%v, %2) : (tensor<8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<[3.000000e-01, 6.000000e-01, 0.900000035, 1.200000e+00, 1.500000e+00, 1.80000007, 2.10000014, 2.400000e+00]> : tensor<8xf32>} : () -> tensor<8xf32>
  %1 = "tw.mul"(%arg0, %0) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %2 = "tw.constant"() {value = dense<[1.300000e+00, 2.300000e+00, 3.300000e+00, 4.300000e+00, 5.300000e+00, 6.300000e+00, 7.300000e+00, 8.300000e+00]> : tensor<8xf32>} : () -> tensor<8xf32>
  %3 = "tw.add"(%1, %2) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}

// CASE merge_that_overflows_stays: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<1.0e-30> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<1.0e-20> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<1.000000e-30> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.constant"() {value = dense<9.99999968E-21> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.mul"(%1, %2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}

// CASE merge_with_other_use_stays: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.3> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %c1 = "tw.constant"() {value = dense<0.7> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%0, %c1) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.add"(%0, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.constant"() {value = dense<3.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.mul"(%arg0, %0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %2 = "tw.constant"() {value = dense<0.699999988> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.mul"(%1, %2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %4 = "tw.add"(%1, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}

// CASE limits: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c0 = "tw.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.max"(%x, %c0) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %1 = "tw.relu"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c2 = "tw.constant"() {value = dense<6.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.min"(%1, %c2) : (tensor<2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.clip"(%arg0) {high = 6.000000e+00 : f64, low = 0.000000e+00 : f64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE clips: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.clip"(%x) {low = -1.0, high = 3.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.clip"(%0) {low = 0.0, high = 5.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.clip"(%arg0) {high = 3.000000e+00 : f64, low = 0.000000e+00 : f64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE clips_apart_stay: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.clip"(%x) {low = 3.0, high = 4.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.clip"(%0) {low = 0.0, high = 1.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.clip"(%arg0) {high = 4.000000e+00 : f64, low = 3.000000e+00 : f64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.clip"(%0) {high = 1.000000e+00 : f64, low = 0.000000e+00 : f64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE clip_to_relu: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.clip"(%x) {low = 0.0} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.relu"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE twice: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.abs"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.abs"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %2 = "tw.floor"(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = "tw.floor"(%2) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.abs"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = "tw.floor"(%0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// CASE where_known: simplify
func.func @main(%x: tensor<2x8xf32>, %y: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %t = "tw.constant"() {value = dense<true> : tensor<1x1xi1>} : () -> tensor<1x1xi1>
  %0 = "tw.where"(%t, %x, %y) : (tensor<1x1xi1>, tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>, %arg1: tensor<2x8xf32>) -> tensor<2x8xf32> {
  return %arg0 : tensor<2x8xf32>
}

// CASE where_not: simplify
func.func @main(%p: tensor<2x8xi1>, %x: tensor<2x8xf32>, %y: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %n = "tw.not"(%p) : (tensor<2x8xi1>) -> tensor<2x8xi1>
  %0 = "tw.where"(%n, %x, %y) : (tensor<2x8xi1>, tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xi1>, %arg1: tensor<2x8xf32>, %arg2: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.where"(%arg0, %arg2, %arg1) : (tensor<2x8xi1>, tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CASE casts: simplify
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %0 = "tw.cast"(%x) {to = "f64"} : (tensor<2x8xf32>) -> tensor<2x8xf64>
  %1 = "tw.cast"(%0) {to = "f32"} : (tensor<2x8xf64>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
// AFTER
func.func @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
  return %arg0 : tensor<2x8xf32>
}

// CASE cast_that_loses_stays: simplify
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "tw.cast"(%x) {to = "i32"} : (tensor<4xf32>) -> tensor<4xi32>
  %1 = "tw.cast"(%0) {to = "f32"} : (tensor<4xi32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "tw.cast"(%arg0) {to = "i32"} : (tensor<4xf32>) -> tensor<4xi32>
  %1 = "tw.cast"(%0) {to = "f32"} : (tensor<4xi32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CASE logic: simplify
func.func @main(%x: tensor<4xi1>) -> tensor<4xi1> {
  %t = "tw.constant"() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  %0 = "tw.and"(%t, %x) : (tensor<i1>, tensor<4xi1>) -> tensor<4xi1>
  return %0 : tensor<4xi1>
}
// AFTER
func.func @main(%arg0: tensor<4xi1>) -> tensor<4xi1> {
  return %arg0 : tensor<4xi1>
}

// CASE roots_of_any_number: simplify
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %h = "tw.constant"() {value = dense<-0.5> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.pow"(%x, %h) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %s = "tw.mul"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %e = "tw.constant"() {value = dense<1.0e-05> : tensor<f32>} : () -> tensor<f32>
  %t = "tw.add"(%s, %e) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = "tw.pow"(%t, %h) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "tw.constant"() {value = dense<0xFF800000> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.equal"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xi1>
  %2 = "tw.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %3 = "tw.equal"(%arg0, %2) : (tensor<4xf32>, tensor<f32>) -> tensor<4xi1>
  %4 = "tw.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %5 = "tw.where"(%3, %4, %arg0) : (tensor<4xi1>, tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %6 = "tw.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %7 = "tw.rsqrt"(%5) : (tensor<4xf32>) -> tensor<4xf32>
  %8 = "tw.where"(%1, %6, %7) : (tensor<4xi1>, tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %9 = "tw.mul"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %10 = "tw.constant"() {value = dense<9.99999974E-6> : tensor<f32>} : () -> tensor<f32>
  %11 = "tw.add"(%9, %10) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %12 = "tw.rsqrt"(%11) : (tensor<4xf32>) -> tensor<4xf32>
  return %8, %12 : tensor<4xf32>, tensor<4xf32>
}

// CASE exact_factors: simplify
func.func @main(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>, tensor<4xi32>) {
  %two = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %four = "tw.constant"() {value = dense<-4.0> : tensor<f32>} : () -> tensor<f32>
  %half = "tw.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %two) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = "tw.mul"(%0, %four) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %2 = "tw.mul"(%1, %half) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %c = "tw.constant"() {value = dense<2147483647> : tensor<i32>} : () -> tensor<i32>
  %3 = "tw.add"(%i, %c) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  %4 = "tw.add"(%3, %c) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  %five = "tw.constant"() {value = dense<5> : tensor<i32>} : () -> tensor<i32>
  %5 = "tw.pow"(%i, %five) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  return %2, %4, %5 : tensor<4xf32>, tensor<4xi32>, tensor<4xi32>
}
// AFTER
func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>, tensor<4xi32>) {
  %0 = "tw.constant"() {value = dense<5.000000e-01> : tensor<f32>} : () -> tensor<f32>
  %1 = "tw.constant"() {value = dense<-8.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %2 = "tw.mul"(%arg0, %1) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %3 = "tw.mul"(%2, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = "tw.constant"() {value = dense<-2> : tensor<i32>} : () -> tensor<i32>
  %5 = "tw.add"(%arg1, %4) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  %6 = "tw.mul"(%arg1, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %7 = "tw.mul"(%6, %6) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %8 = "tw.mul"(%7, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %3, %5, %8 : tensor<4xf32>, tensor<4xi32>, tensor<4xi32>
}

// CASE integers_through_floats: simplify
func.func @main(%x: tensor<4xi8>) -> (tensor<4xui8>, tensor<4xi16>, tensor<4xf16>) {
  %0 = "tw.cast"(%x) {to = "f32"} : (tensor<4xi8>) -> tensor<4xf32>
  %1 = "tw.cast"(%0) {to = "ui8"} : (tensor<4xf32>) -> tensor<4xui8>
  %2 = "tw.cast"(%0) {to = "i16"} : (tensor<4xf32>) -> tensor<4xi16>
  %3 = "tw.cast"(%0) {to = "f16"} : (tensor<4xf32>) -> tensor<4xf16>
  return %1, %2, %3 : tensor<4xui8>, tensor<4xi16>, tensor<4xf16>
}
// AFTER
func.func @main(%arg0: tensor<4xi8>) -> (tensor<4xui8>, tensor<4xi16>, tensor<4xf16>) {
  %0 = "tw.cast"(%arg0) {to = "f32"} : (tensor<4xi8>) -> tensor<4xf32>
  %1 = "tw.cast"(%0) {to = "ui8"} : (tensor<4xf32>) -> tensor<4xui8>
  %2 = "tw.cast"(%arg0) {to = "i16"} : (tensor<4xi8>) -> tensor<4xi16>
  %3 = "tw.cast"(%arg0) {to = "f16"} : (tensor<4xi8>) -> tensor<4xf16>
  return %1, %2, %3 : tensor<4xui8>, tensor<4xi16>, tensor<4xf16>
}
