// CASE one_long_line: split-scans{parts=4}
func.func @main(%x: tensor<16384xf32>) -> tensor<16384xf32> {
  %0 = "tw.cumsum"(%x) {axis = 0 : i64, exclusive = true} : (tensor<16384xf32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
// AFTER
func.func @main(%arg0: tensor<16384xf32>) -> tensor<16384xf32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 4, 4096>} : (tensor<16384xf32>) -> tensor<4x4096xf32>
  %1 = "tw.reduce_sum"(%0) {axes = array<i64: 1>, keepdims = true} : (tensor<4x4096xf32>) -> tensor<4x1xf32>
  %2 = "tw.cumsum"(%1) {axis = 0 : i64, exclusive = true} : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %3 = "tw.cumsum"(%0) {axis = 1 : i64, exclusive = true} : (tensor<4x4096xf32>) -> tensor<4x4096xf32>
  %4 = "tw.add"(%3, %2) : (tensor<4x4096xf32>, tensor<4x1xf32>) -> tensor<4x4096xf32>
  %5 = "tw.reshape"(%4) {shape = array<i64: 16384>} : (tensor<4x4096xf32>) -> tensor<16384xf32>
  return %5 : tensor<16384xf32>
}

// CASE filled_up_in_front_of_what_comes_last: split-scans{parts=4}
func.func @main(%x: tensor<2x8209xi32>) -> tensor<2x8209xi32> {
  %0 = "tw.cumsum"(%x) {axis = 1 : i64, reverse = true} : (tensor<2x8209xi32>) -> tensor<2x8209xi32>
  return %0 : tensor<2x8209xi32>
}
// AFTER
func.func @main(%arg0: tensor<2x8209xi32>) -> tensor<2x8209xi32> {
  %0 = "tw.pad"(%arg0) {high = array<i64: 0, 0>, low = array<i64: 0, 1>} : (tensor<2x8209xi32>) -> tensor<2x8210xi32>
  %1 = "tw.reshape"(%0) {shape = array<i64: 2, 2, 4105>} : (tensor<2x8210xi32>) -> tensor<2x2x4105xi32>
  %2 = "tw.reduce_sum"(%1) {axes = array<i64: 2>, keepdims = true} : (tensor<2x2x4105xi32>) -> tensor<2x2x1xi32>
  %3 = "tw.cumsum"(%2) {axis = 1 : i64, exclusive = true, reverse = true} : (tensor<2x2x1xi32>) -> tensor<2x2x1xi32>
  %4 = "tw.cumsum"(%1) {axis = 2 : i64, reverse = true} : (tensor<2x2x4105xi32>) -> tensor<2x2x4105xi32>
  %5 = "tw.add"(%4, %3) : (tensor<2x2x4105xi32>, tensor<2x2x1xi32>) -> tensor<2x2x4105xi32>
  %6 = "tw.reshape"(%5) {shape = array<i64: 2, 8210>} : (tensor<2x2x4105xi32>) -> tensor<2x8210xi32>
  %7 = "tw.slice"(%6) {sizes = array<i64: 2, 8209>, starts = array<i64: 0, 1>, steps = array<i64: 1, 1>} : (tensor<2x8210xi32>) -> tensor<2x8209xi32>
  return %7 : tensor<2x8209xi32>
}

// CASE products_along_columns: split-scans{parts=8}
func.func @main(%x: tensor<8192x2xi32>) -> tensor<8192x2xi32> {
  %0 = "tw.cumprod"(%x) {axis = 0 : i64} : (tensor<8192x2xi32>) -> tensor<8192x2xi32>
  return %0 : tensor<8192x2xi32>
}
// AFTER
func.func @main(%arg0: tensor<8192x2xi32>) -> tensor<8192x2xi32> {
  %0 = "tw.reshape"(%arg0) {shape = array<i64: 2, 4096, 2>} : (tensor<8192x2xi32>) -> tensor<2x4096x2xi32>
  %1 = "tw.reduce_prod"(%0) {axes = array<i64: 1>, keepdims = true} : (tensor<2x4096x2xi32>) -> tensor<2x1x2xi32>
  %2 = "tw.cumprod"(%1) {axis = 0 : i64, exclusive = true} : (tensor<2x1x2xi32>) -> tensor<2x1x2xi32>
  %3 = "tw.cumprod"(%0) {axis = 1 : i64} : (tensor<2x4096x2xi32>) -> tensor<2x4096x2xi32>
  %4 = "tw.mul"(%3, %2) : (tensor<2x4096x2xi32>, tensor<2x1x2xi32>) -> tensor<2x4096x2xi32>
  %5 = "tw.reshape"(%4) {shape = array<i64: 8192, 2>} : (tensor<2x4096x2xi32>) -> tensor<8192x2xi32>
  return %5 : tensor<8192x2xi32>
}

// CASE short_many_and_rounded_lines_stay: split-scans{parts=4}
func.func @main(%x: tensor<4000xf32>, %y: tensor<4x9000xf32>, %z: tensor<9000xf16>) -> (tensor<4000xf32>, tensor<4x9000xf32>, tensor<9000xf16>) {
  %0 = "tw.cumsum"(%x) {axis = 0 : i64} : (tensor<4000xf32>) -> tensor<4000xf32>
  %1 = "tw.cumsum"(%y) {axis = 1 : i64} : (tensor<4x9000xf32>) -> tensor<4x9000xf32>
  %2 = "tw.cumsum"(%z) {axis = 0 : i64} : (tensor<9000xf16>) -> tensor<9000xf16>
  return %0, %1, %2 : tensor<4000xf32>, tensor<4x9000xf32>, tensor<9000xf16>
}
// AFTER
func.func @main(%arg0: tensor<4000xf32>, %arg1: tensor<4x9000xf32>, %arg2: tensor<9000xf16>) -> (tensor<4000xf32>, tensor<4x9000xf32>, tensor<9000xf16>) {
  %0 = "tw.cumsum"(%arg0) {axis = 0 : i64} : (tensor<4000xf32>) -> tensor<4000xf32>
  %1 = "tw.cumsum"(%arg1) {axis = 1 : i64} : (tensor<4x9000xf32>) -> tensor<4x9000xf32>
  %2 = "tw.cumsum"(%arg2) {axis = 0 : i64} : (tensor<9000xf16>) -> tensor<9000xf16>
  return %0, %1, %2 : tensor<4000xf32>, tensor<4x9000xf32>, tensor<9000xf16>
}
