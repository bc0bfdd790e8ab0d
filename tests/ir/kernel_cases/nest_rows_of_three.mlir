// The sums of four rows of three: masked loads, and the tree of rows of four.
// MACHINES neon
def k(x: f32[4, 3], y: out(f32[4])):
    for r in unroll(4):
        y[r] = f32(0.0)
        for l in vector(3, lanes=4):
            s0: y[r] = addf(y[r], x[r, l])

// LEVEL 5: neon
module {
  func.func @k(%p0: memref<12xf32>, %p1: memref<4xf32> {llvm.noalias}, %scratch: memref<1xi8> {llvm.noalias}, %tid: index, %nt: index) {
    %v1 = arith.constant 0 : index
    %v3 = vector.constant_mask [3] : vector<4xi1>
    %v4 = arith.constant dense<0.0> : vector<4xf32>
    %v6 = arith.constant 3 : index
    %v8 = arith.constant 6 : index
    %v10 = arith.constant 9 : index
    %v2 = arith.cmpi eq, %tid, %v1 : index
    scf.if %v2 {
      %v5 = vector.maskedload %p0[%v1], %v3, %v4 : memref<12xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v7 = vector.maskedload %p0[%v6], %v3, %v4 : memref<12xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v9 = vector.maskedload %p0[%v8], %v3, %v4 : memref<12xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v11 = vector.maskedload %p0[%v10], %v3, %v4 : memref<12xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
      %v12 = vector.shuffle %v5, %v9 [0, 1, 6, 7] : vector<4xf32>, vector<4xf32>
      %v13 = vector.shuffle %v5, %v9 [2, 3, 4, 5] : vector<4xf32>, vector<4xf32>
      %v14 = arith.addf %v13, %v12 : vector<4xf32>
      %v15 = vector.shuffle %v7, %v11 [0, 1, 6, 7] : vector<4xf32>, vector<4xf32>
      %v16 = vector.shuffle %v7, %v11 [2, 3, 4, 5] : vector<4xf32>, vector<4xf32>
      %v17 = arith.addf %v16, %v15 : vector<4xf32>
      %v18 = vector.shuffle %v14, %v17 [0, 5, 2, 7] : vector<4xf32>, vector<4xf32>
      %v19 = vector.shuffle %v14, %v17 [1, 4, 3, 6] : vector<4xf32>, vector<4xf32>
      %v20 = arith.addf %v19, %v18 : vector<4xf32>
      vector.store %v20, %p1[%v1] : memref<4xf32>, vector<4xf32>
    }
    return
  }
}
